//! The form in which specs are stored and travel with code: a JSON object of version 1.
//!
//! [`FunctionSpec`] may change with the code, but this form must not change, because databases and
//! archives of earlier builds contain it. A field that is added must have a default. Any other
//! change needs a new version, which is converted to [`FunctionSpec`] when it is read. Fields that
//! this version does not have are refused, so that a node never runs a function without a setting
//! that its spec requires. This module must not know how a spec is made or applied.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::mqtt::{MqttTrigger, Publishing};
use crate::policy::{Balance, Policy};
use crate::{
    Access, AsyncRules, CertificateRules, CoapResource, Egress, Files, FunctionImage, FunctionName,
    FunctionSpec, HttpRules, Limits, Missed, Overlap, Platform, Protocol, QUOTA_BYTES_DEFAULT,
    Rates, Runtime, STREAM_IDLE_MS_DEFAULT, Scale, Schedule, ScheduledCall, StartPolicy,
    StateRules, TokenRules, Transport, WebhookRules, When,
};
use serde::{Deserialize, Serialize};

/// The version that this crate writes. It is also the newest version that this crate reads.
pub const SPEC_VERSION: u32 = 1;

/// Why a stored or shipped spec could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SpecReadError {
    /// A newer build has written the spec.
    #[error("its version is {0}, and this build reads versions up to {max}", max = SPEC_VERSION)]
    TooNew(u32),
    /// The text is not a spec of its version.
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
}

/// Reads a spec from JSON. The values are not checked; call [`FunctionSpec::check`] for that.
pub fn from_json(json: &[u8]) -> Result<FunctionSpec, SpecReadError> {
    #[derive(Deserialize)]
    struct Versioned {
        #[serde(default = "version_1")]
        version: u32,
    }
    let Versioned { version } = serde_json::from_slice(json)?;
    if version != SPEC_VERSION {
        return Err(SpecReadError::TooNew(version));
    }
    Ok(serde_json::from_slice::<SpecV1>(json)?.into())
}

/// Writes a spec as JSON of the newest version.
pub fn to_json(spec: &FunctionSpec) -> String {
    let text = serde_json::to_string(&SpecV1::from(spec.clone()));
    text.expect("a spec has only string keys")
}

fn is_default(rules: &AsyncRules) -> bool {
    *rules == AsyncRules::default()
}

/// At first, specs were stored without a version. Their form is that of version 1.
fn version_1() -> u32 {
    1
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpecV1 {
    #[serde(default = "version_1")]
    version: u32,
    name: FunctionName,
    runtime: Runtime,
    entry: String,
    command: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<Box<FunctionImage>>,
    limits: LimitsV1,
    scale: ScaleV1,
    env: BTreeMap<String, String>,
    egress: Vec<EgressV1>,
    methods: Vec<String>,
    coap: CoapV1,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    mqtt: Vec<MqttTrigger>,
    #[serde(default, skip_serializing_if = "Publishing::is_default")]
    publishing: Publishing,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    compat: Option<Platform>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    #[serde(default, skip_serializing_if = "is_http1")]
    protocol: Protocol,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    secrets: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    secret_env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
    #[serde(default, rename = "async", skip_serializing_if = "is_default")]
    background: AsyncRules,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    schedules: Vec<ScheduleV1>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    calls: Vec<String>,
    #[serde(default, skip_serializing_if = "StateV1::is_default")]
    state: StateV1,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    writable: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    services: bool,
    #[serde(default, skip_serializing_if = "Access::is_unset")]
    access: Access,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens: Option<TokenRules>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificates: Option<CertificateRules>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    webhook: Option<WebhookRules>,
    #[serde(default, skip_serializing_if = "Rates::is_none")]
    rates: Rates,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    http: Option<Box<HttpRules>>,
    #[serde(default, skip_serializing_if = "Files::is_none")]
    files: Files,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StateV1 {
    shared: Vec<String>,
    quota_bytes: u64,
}

impl Default for StateV1 {
    fn default() -> Self {
        StateRules::default().into()
    }
}

impl StateV1 {
    fn is_default(&self) -> bool {
        self.shared.is_empty() && self.quota_bytes == QUOTA_BYTES_DEFAULT
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsV1 {
    memory_bytes: u64,
    cpu_millis: Option<u32>,
    pids: u32,
    timeout_ms: u64,
    init_timeout_ms: u64,
    concurrency: Option<u32>,
    body_bytes: u64,
    disk_bytes: u64,
    #[serde(default = "stream_idle_ms", skip_serializing_if = "is_usual_stream_idle")]
    stream_idle_ms: u64,
}

fn is_http1(protocol: &Protocol) -> bool {
    *protocol == Protocol::Http1
}

fn stream_idle_ms() -> u64 {
    STREAM_IDLE_MS_DEFAULT
}

fn is_usual_stream_idle(ms: &u64) -> bool {
    *ms == STREAM_IDLE_MS_DEFAULT
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScaleV1 {
    min: u32,
    max: Option<u32>,
    idle_timeout_ms: u64,
    queue: u32,
    #[serde(default)]
    policy: Policy,
    #[serde(default)]
    start: StartPolicy,
    #[serde(default)]
    balance: Balance,
    #[serde(default)]
    pause_ms: Option<u64>,
    #[serde(default)]
    spare: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EgressV1 {
    #[serde(default, skip_serializing_if = "Transport::is_tcp")]
    transport: Transport,
    host: String,
    port: u16,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CoapV1 {
    title: Option<String>,
    resource_type: Option<String>,
    content_format: Option<u16>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScheduleV1 {
    when: When,
    #[serde(default)]
    missed: Missed,
    #[serde(default)]
    jitter_ms: u64,
    #[serde(default)]
    overlap: Overlap,
    call: ScheduledCall,
}

/// Converts between two structs with the same field names, in both directions. If only one of them
/// has a field, this does not compile.
macro_rules! convert {
    ($($here:ident <=> $there:ident { $($field:ident),* })*) => {$(
        impl From<$here> for $there {
            fn from($here { $($field),* }: $here) -> Self {
                $there { $($field: $field.into()),* }
            }
        }
        impl From<$there> for $here {
            fn from($there { $($field),* }: $there) -> Self {
                $here { $($field: $field.into()),* }
            }
        }
    )*};
}

convert! {
    LimitsV1 <=> Limits {
        memory_bytes, cpu_millis, pids, timeout_ms, init_timeout_ms, concurrency, body_bytes,
        disk_bytes, stream_idle_ms
    }
    ScaleV1 <=> Scale {
        min, max, idle_timeout_ms, queue, policy, start, balance, pause_ms, spare
    }
    EgressV1 <=> Egress { transport, host, port }
    StateV1 <=> StateRules { shared, quota_bytes }
    CoapV1 <=> CoapResource { title, resource_type, content_format }
    ScheduleV1 <=> Schedule { when, missed, jitter_ms, overlap, call }
}

impl From<FunctionSpec> for SpecV1 {
    fn from(spec: FunctionSpec) -> Self {
        Self {
            version: SPEC_VERSION,
            name: spec.name,
            runtime: spec.runtime,
            entry: spec.entry,
            command: spec.command,
            image: spec.image,
            limits: spec.limits.into(),
            scale: spec.scale.into(),
            env: spec.env,
            egress: spec.egress.into_iter().map(Into::into).collect(),
            methods: spec.methods,
            coap: spec.coap.into(),
            mqtt: spec.mqtt,
            publishing: spec.publishing,
            compat: spec.compat,
            template: spec.template,
            port: spec.port,
            protocol: spec.protocol,
            secrets: spec.secrets,
            secret_env: spec.secret_env,
            annotations: spec.annotations,
            background: spec.background,
            schedules: spec.schedules.iter().map(|one| Schedule::clone(one).into()).collect(),
            origin: spec.origin,
            calls: spec.calls,
            state: spec.state.into(),
            writable: spec.writable,
            services: spec.services,
            access: spec.access,
            tokens: spec.tokens.map(Arc::unwrap_or_clone),
            certificates: spec.certificates.map(Arc::unwrap_or_clone),
            webhook: spec.webhook.map(Arc::unwrap_or_clone),
            rates: spec.rates,
            http: spec.http,
            files: spec.files,
        }
    }
}

impl From<SpecV1> for FunctionSpec {
    fn from(spec: SpecV1) -> Self {
        Self {
            name: spec.name,
            runtime: spec.runtime,
            entry: spec.entry,
            command: spec.command,
            image: spec.image,
            limits: spec.limits.into(),
            scale: spec.scale.into(),
            env: spec.env,
            egress: spec.egress.into_iter().map(Into::into).collect(),
            methods: spec.methods,
            coap: spec.coap.into(),
            mqtt: spec.mqtt,
            publishing: spec.publishing,
            compat: spec.compat,
            template: spec.template,
            port: spec.port,
            protocol: spec.protocol,
            secrets: spec.secrets,
            secret_env: spec.secret_env,
            annotations: spec.annotations,
            background: spec.background,
            schedules: spec.schedules.into_iter().map(|one| Arc::new(one.into())).collect(),
            origin: spec.origin,
            calls: spec.calls,
            state: spec.state.into(),
            writable: spec.writable,
            services: spec.services,
            access: spec.access,
            tokens: spec.tokens.map(Arc::new),
            certificates: spec.certificates.map(Arc::new),
            webhook: spec.webhook.map(Arc::new),
            rates: spec.rates,
            http: spec.http,
            files: spec.files,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Cors, TokenKeys};
    use serde_json::{Value, json};

    use super::*;

    /// A spec with every field of version 1. This text must never change, because databases contain
    /// such specs.
    const FULL: &str = include_str!("v1_full.json");
    /// The smallest spec of version 1, in the form that was stored before specs had a version.
    const LEAST: &str = include_str!("v1_least.json");

    fn read(json: &Value) -> Result<FunctionSpec, SpecReadError> {
        from_json(json.to_string().as_bytes())
    }

    #[test]
    fn what_is_stored_is_read_and_written_as_it_was() {
        let spec = from_json(FULL.as_bytes()).unwrap();
        let full: Value = serde_json::from_str(FULL).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&to_json(&spec)).unwrap(), full);
        assert_eq!(spec.check(), []);
    }

    #[test]
    fn specs_from_before_versions_are_read() {
        let spec = from_json(LEAST.as_bytes()).unwrap();
        assert_eq!(spec.check(), []);
        assert_eq!((spec.limits.memory_bytes, spec.scale.queue), (128 << 20, 100));
        let Scale { policy, start, balance, pause_ms, spare, .. } = spec.scale;
        let added = (policy, start, balance, pause_ms, spare);
        assert_eq!(added, (Policy::Auto, StartPolicy::Cold, Balance::LateBinding, None, 0));
        assert_eq!((spec.compat, spec.port, spec.origin), (None, None, None));
        assert_eq!(spec.mqtt, []);
        assert_eq!((spec.calls, spec.state), (Vec::new(), StateRules::default()));
    }

    #[test]
    fn calls_and_state_are_kept() {
        let mut spec = from_json(LEAST.as_bytes()).unwrap();
        spec.calls = vec!["other".into()];
        spec.state = StateRules { shared: vec!["site".into()], quota_bytes: 5 };
        spec.services = true;
        assert!(!to_json(&spec).contains("access"), "older builds read a public function");
        for access in [Access::Key, Access::Basic, Access::Local, Access::Public] {
            spec.access = access;
            assert_eq!(from_json(to_json(&spec).as_bytes()).unwrap(), spec);
        }
        for added in ["http", "at_once"] {
            assert!(!to_json(&spec).contains(added), "older builds read a function without it");
        }
        let cors = Cors { origins: vec!["*".into()], ..Cors::default() };
        spec.http = Some(Box::new(HttpRules {
            headers: vec!["x-a".into()],
            cors: Some(cors),
            ..Default::default()
        }));
        spec.rates = Rates { at_once: Some(2), caller_at_once: Some(1), ..Rates::NONE };
        assert_eq!(from_json(to_json(&spec).as_bytes()).unwrap(), spec);
        spec.access = Access::Jwt;
        let is_right =
            |spec: &FunctionSpec| spec.check().iter().all(|error| error.field != "access.mode");
        assert!(!is_right(&spec), "without rules");
        for keys in [TokenKeys::Discovered, TokenKeys::Url("u".into()), TokenKeys::Set("{}".into())]
        {
            let issuer = "i".into();
            let audience = "a".into();
            let claims = [("role".to_owned(), json!("x"))].into();
            spec.tokens = Some(Arc::new(TokenRules { issuer, audience, keys, claims }));
            assert!(is_right(&spec));
            assert_eq!(from_json(to_json(&spec).as_bytes()).unwrap(), spec);
        }
        spec.access = Access::Public;
        assert!(!is_right(&spec), "rules that nobody obeys");
    }

    #[test]
    fn schedules_are_read_as_they_were_written() {
        let mut spec = from_json(LEAST.as_bytes()).unwrap();
        assert_eq!(spec.schedules, []);
        assert!(!to_json(&spec).contains("schedules"), "older builds read a spec without them");
        let expression = "0 6 * * 1-5".to_owned();
        let timezone = "Europe/Berlin".to_owned();
        let mut cron = Schedule::new(When::Cron { expression, timezone });
        (cron.missed, cron.overlap, cron.jitter_ms) = (Missed::RunOnce, Overlap::Queue, 30_000);
        let every = Schedule::new(When::Every { ms: 10_000 });
        spec.schedules = vec![Arc::new(cron), Arc::new(every)];
        let json: Value = serde_json::from_str(&to_json(&spec)).unwrap();
        let call = json!({ "method": "POST", "path": "/", "headers": {}, "body": "" });
        let when = json!({ "expression": "0 6 * * 1-5", "timezone": "Europe/Berlin" });
        let expected = json!([
            { "when": { "cron": when }, "missed": "run-once", "jitter_ms": 30_000,
              "overlap": "queue", "call": call },
            { "when": { "every": { "ms": 10_000 } }, "missed": "skip", "jitter_ms": 0,
              "overlap": "skip", "call": call },
        ]);
        assert_eq!(json["schedules"], expected);
        assert_eq!(read(&json).unwrap(), spec);
    }

    #[test]
    fn what_another_build_wrote_is_refused_in_words() {
        let with = |key: &str, value: Value| {
            let mut json: Value = serde_json::from_str(LEAST).unwrap();
            json[key] = value;
            read(&json).unwrap_err().to_string()
        };
        let newer = with("version", json!(2));
        assert_eq!(newer, "its version is 2, and this build reads versions up to 1");
        let unknown = with("gpu", json!(1));
        assert!(unknown.starts_with("unknown field `gpu`"), "{unknown}");
        let unknown = with("scale", json!({ "min": 0, "max": null, "burst": 3 }));
        assert!(unknown.starts_with("unknown field `burst`"), "{unknown}");
        assert!(matches!(from_json(b"[]"), Err(SpecReadError::Malformed(_))));
    }
}
