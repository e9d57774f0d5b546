//! Checks which values of a spec are allowed.
//!
//! A rule that concerns only one part is a method of that part, named `mistake` or `check`.

use std::net::IpAddr;

use crate::access::{Access, WEBHOOK_BODY_BYTES_MAX};
use crate::doors::SERVICES_PORT;
use crate::egress::{ANY_HOST, Egress};
use crate::error::SpecError;
use crate::function::FunctionSpec;
use crate::limits::{BODY_BYTES_MAX, MEMORY_BYTES_MIN, STREAM_IDLE_MS_MAX, TIMEOUT_MS_MAX};
use crate::mqtt;
use crate::name::is_label;
use crate::policy::Policy;
use crate::protocol::Protocol;
use crate::runtime::Runtime;
use crate::scale::{INSTANCES_MAX, QUEUE_MAX, SPARE_MAX, TARGET_MAX};
use crate::schedule::SCHEDULES_MAX;
use crate::secret::is_secret_name;
use crate::state::{QUOTA_BYTES_MAX, SHARED_MAX};

/// The maximum number of secrets of one function.
const SECRETS_MAX: usize = 64;
/// The maximum number of functions that one function may name.
const CALLS_MAX: usize = 64;

impl FunctionSpec {
    /// Returns all mistakes in the spec. A spec may come from outside the node, so this function
    /// checks, once, everything on which the engine and the sandbox rely.
    pub fn check(&self) -> Vec<SpecError> {
        let mut errors = Vec::new();
        let mut check = |ok: bool, field: &'static str, problem: &str| {
            if !ok {
                errors.push(SpecError { field, problem: problem.to_owned() });
            }
        };
        check_access(self, &mut check);
        let limits = &self.limits;
        check(
            (MEMORY_BYTES_MIN..=512 << 30).contains(&limits.memory_bytes),
            "limits.memory",
            "4MiB to 512GiB, for example 64MiB",
        );
        check(
            limits.cpu_millis.is_none_or(|millis| (10..=1_024_000).contains(&millis)),
            "limits.cpu",
            "0.01 to 1024 cores",
        );
        check((1..=32_768).contains(&limits.pids), "limits.pids", "1 to 32768");
        check(
            (1..=TIMEOUT_MS_MAX).contains(&limits.timeout_ms),
            "limits.timeout",
            "1ms to 1h, for example 10s",
        );
        check(
            (1..=600_000).contains(&limits.init_timeout_ms),
            "limits.init_timeout",
            "1ms to 10m, for example 10s",
        );
        check(
            limits.concurrency.is_none_or(|n| (1..=10_000).contains(&n)),
            "limits.concurrency",
            "1 to 10000",
        );
        check(limits.body_bytes <= BODY_BYTES_MAX, "limits.body", "at most 64GiB");
        check(
            (64 << 10..=64 << 30).contains(&limits.disk_bytes),
            "limits.disk",
            "64KiB to 64GiB, for instance 16MiB",
        );
        check(
            (1..=STREAM_IDLE_MS_MAX).contains(&limits.stream_idle_ms),
            "limits.stream_idle",
            "1ms to 24h, for example 5m",
        );
        let of_http = self.http.as_ref().and_then(|http| http.mistake());
        for (key, text) in self.rates.mistake().into_iter().chain(of_http) {
            check(false, key, text);
        }
        check(
            self.secrets.len() <= SECRETS_MAX
                && self.secret_env.len() <= SECRETS_MAX
                && self.secret_names().into_iter().all(is_secret_name),
            "secrets",
            "at most 64 names of 1 to 253 of a-z, A-Z, 0-9, -, _ and ., not beginning with .",
        );
        let scale = &self.scale;
        check(scale.min <= INSTANCES_MAX, "scale.min", "0 to 1000");
        check(
            scale.max.is_none_or(|max| (1..=INSTANCES_MAX).contains(&max)),
            "scale.max",
            "1 to 1000",
        );
        check(scale.max.is_none_or(|max| scale.min <= max), "scale.min", "at most scale.max");
        check(scale.queue <= QUEUE_MAX, "scale.queue", "0 to 100000");
        check(scale.spare <= SPARE_MAX, "scale.spare", "0 to 100");
        let (target, most) = match &scale.policy {
            Policy::Auto => (1, 1),
            Policy::Concurrency { target } => (*target, TARGET_MAX),
            Policy::Rps { target } => (*target, TARGET_MAX),
            Policy::Cpu { target_percent } | Policy::Memory { target_percent } => {
                (*target_percent, 100)
            }
            Policy::Knative(settings) => (settings.target, TARGET_MAX),
            Policy::Hpa(settings) => (settings.target_percent, 100),
            Policy::OpenFaas(settings) => (settings.threshold_rps, TARGET_MAX),
        };
        check((1..=most).contains(&target), "scale.target", "1 to 1000000, in percent 1 to 100");
        let plain = |text: &str| !text.contains(['\0', '\n', '\r']);
        match self.runtime {
            Runtime::Python
            | Runtime::Node
            | Runtime::Bun
            | Runtime::Deno
            | Runtime::Chain
            | Runtime::Wasm => {
                let relative =
                    !self.entry.starts_with('/') && !self.entry.split('/').any(|part| part == "..");
                check(
                    !self.entry.is_empty() && relative && plain(&self.entry),
                    "entry",
                    "a file or module of the function",
                );
            }
            Runtime::Go => {
                let name = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
                let good = !self.entry.is_empty() && self.entry.bytes().all(name);
                check(good, "entry", "a function of the package, for example Handle");
            }
            Runtime::Exec | Runtime::Server | Runtime::Rust => {
                let names_program = match self.command.first() {
                    Some(program) => !program.is_empty(),
                    None => self.image.is_some(),
                };
                let good = names_program && self.command.iter().all(|word| plain(word));
                check(good, "command", "a program and its arguments");
            }
        }
        check(
            self.env.keys().chain(self.secret_env.keys()).all(|key| {
                let mut bytes = key.bytes();
                bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
                    && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
            }),
            "env",
            "names: letters, digits and _, not beginning with a digit",
        );
        check(self.env.values().all(|value| !value.contains('\0')), "env", "values: no NUL");
        check(
            self.egress.len() <= 32
                && self.egress.iter().all(|to| {
                    if to.host == ANY_HOST {
                        return to.transport.is_tcp();
                    }
                    to.port > 0
                        && !to.host.is_empty()
                        && to.host.bytes().all(|b| {
                            b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':')
                        })
                }),
            "allow.net",
            "at most 32 of host:port, udp://host:port, *:port or *",
        );
        for (ok, field, problem) in self.door_rules() {
            check(ok, field, problem);
        }
        check(self.mqtt.len() <= mqtt::MQTT_TRIGGERS_MAX, "trigger.mqtt", "at most 16");
        if let Some((key, text)) = self.mqtt.iter().find_map(mqtt::MqttTrigger::mistake) {
            check(false, "trigger.mqtt", &format!("{key}: {text}"));
        }
        let same = |at: usize| self.mqtt[at].is_among(&self.mqtt[..at]);
        check(!(0..self.mqtt.len()).any(same), "trigger.mqtt", mqtt::SAME_FILTER);
        if let Some((section, key, text)) = self.publishing.mistake() {
            check(false, section, &format!("{key}: {text}"));
        }
        if let Some((key, text)) = self.background.mistake() {
            check(false, key, &text);
        }
        check(
            self.calls.len() <= CALLS_MAX
                && self.calls.iter().all(|name| name == ANY_HOST || is_label(name)),
            "allow.functions",
            "at most 64 names of functions, or *",
        );
        check(
            self.state.shared.len() <= SHARED_MAX
                && self.state.shared.iter().all(|name| is_label(name)),
            "kv.shared",
            "at most 16 names of a-z, 0-9 and -",
        );
        check(self.state.quota_bytes <= QUOTA_BYTES_MAX, "kv.quota", "at most 1GiB");
        if let Some((key, text)) = self.files.mistake() {
            check(false, key, text);
        }
        check(
            self.compat.is_none_or(|compat| compat.is_offered(self.runtime)),
            "compat",
            "not supported for this runtime",
        );
        check(
            self.template.as_deref().is_none_or(|name| {
                self.compat.is_some() && name.len() <= 64 && !name.is_empty() && plain(name)
            }),
            "template",
            "a template of the platform in compat",
        );
        check(
            self.protocol == Protocol::Http1 || self.runtime == Runtime::Server,
            "protocol",
            "only for the runtime server",
        );
        let first_port = if self.image.is_some() { 1 } else { 1024 };
        check(
            self.port.is_none_or(|port| port >= first_port && self.runtime == Runtime::Server),
            "port",
            "1024 to 65535 (1 to 65535 for an image), for runtime server",
        );
        if let Some(image) = &self.image {
            let runs = matches!(self.runtime, Runtime::Exec | Runtime::Server);
            check(runs, "image", "only for the runtimes server and exec");
            check(!self.writable, "image", "its files can be written to without `writable`");
            if let Some(mistake) = image.mistake() {
                check(false, "image", mistake);
            }
        }
        check(
            self.methods.iter().all(|method| {
                !method.is_empty()
                    && method.len() <= 24
                    && method.bytes().all(|b| b.is_ascii_uppercase())
            }),
            "methods",
            "upper-case words such as GET",
        );
        check(self.schedules.len() <= SCHEDULES_MAX, "trigger", "at most 100 schedules");
        errors.extend(self.schedules.iter().flat_map(|schedule| schedule.check()));
        errors
    }

    /// The rules for reaching hosts and the node's services. Each entry says whether the rule is
    /// met, which setting it concerns, and the problem if it is not met.
    fn door_rules(&self) -> [(bool, &'static str, &'static str); 5] {
        let speaks_http = matches!(self.runtime, Runtime::Exec | Runtime::Server)
            || self.answered_by() == Runtime::Exec;
        let own_port = self.runtime == Runtime::Server && self.port == Some(SERVICES_PORT);
        let is_group = |to: &Egress| {
            to.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_multicast() || ip.is_unspecified())
        };
        let is_itself = |to: &Egress| {
            to.transport.is_tcp()
                && self.server_port() == Some(to.port)
                && to.literal().is_some_and(|ip| ip.is_loopback())
        };
        [
            (
                !self.services || speaks_http,
                "services",
                "only for exec and server; functions of other runtimes have the services as ctx.kv, \
                 ctx.call and so on",
            ),
            (
                !own_port || !self.has_services_door(),
                "port",
                "not 6685, at which the function reaches the services of the node",
            ),
            (
                !self.egress.iter().any(is_group),
                "allow.net",
                "0.0.0.0, :: and multicast addresses are no hosts: name the host itself",
            ),
            (
                !self.egress.iter().any(|to| is_broken_address(&to.host)),
                "allow.net",
                "a host that ends in a number is an IPv4 address: four numbers of 0 to 255",
            ),
            (
                !self.egress.iter().any(is_itself),
                "allow.net",
                "inside the sandbox this loopback address is the server itself: set another `port`",
            ),
        ]
    }
}

/// Reports mistakes in the access settings. The rules for tokens and webhooks are checked
/// elsewhere.
fn check_access(spec: &FunctionSpec, check: &mut impl FnMut(bool, &'static str, &str)) {
    let is_jwt = spec.access == Access::Jwt;
    check(spec.tokens.is_some() == is_jwt, "access.mode", "tokens belong to jwt alone");
    let is_mtls = spec.access == Access::Mtls;
    check(spec.certificates.is_some() == is_mtls, "access.mode", "callers belong to mtls alone");
    if let Some(mistake) = spec.certificates.as_ref().and_then(|rules| rules.mistake()) {
        check(false, "access.callers", &mistake);
    }
    let is_webhook = spec.access == Access::Webhook;
    check(spec.webhook.is_some() == is_webhook, "access.mode", "a scheme belongs to webhook alone");
    check(
        !is_webhook || spec.limits.body_bytes <= WEBHOOK_BODY_BYTES_MAX,
        "limits.body",
        "at most 16MiB with the access mode webhook",
    );
}

/// Whether a host looks like an IPv4 address but is not a valid one. No name ends in a number, and
/// some programs read `1.2.3` as 1.2.0.3 (WHATWG's URL standard, "ends in a number").
fn is_broken_address(host: &str) -> bool {
    let last = host.strip_suffix('.').unwrap_or(host).rsplit('.').next().unwrap_or_default();
    let is_hex = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    let is_number = !last.is_empty() && last.bytes().all(|digit| digit.is_ascii_digit());
    (is_number || hex.is_some_and(is_hex)) && host.parse::<IpAddr>().is_err()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        FunctionName, JITTER_MS_MAX, Platform, Recipient, SCHEDULE_BODY_BYTES_MAX, Scale, Schedule,
        StartPolicy, Topic, When,
    };

    fn spec() -> FunctionSpec {
        let name = FunctionName::new("f").unwrap();
        FunctionSpec::with_defaults(name, Runtime::Python, "app:handle")
    }

    #[test]
    fn defaults_are_valid() {
        assert_eq!(spec().check(), []);
    }

    #[test]
    fn the_floor_is_what_is_kept_for_nobody() {
        let floor = |edit: &dyn Fn(&mut Scale)| {
            let mut spec = spec();
            edit(&mut spec.scale);
            spec.scale.floor()
        };
        assert_eq!(floor(&|_| ()), 0);
        assert_eq!(floor(&|scale| scale.start = StartPolicy::Warm), 0);
        assert_eq!(floor(&|scale| scale.start = StartPolicy::Always), 1);
        assert_eq!(floor(&|scale| scale.policy = Policy::Hpa(Default::default())), 1);
        assert_eq!(floor(&|scale| (scale.start, scale.min) = (StartPolicy::Always, 3)), 3);
    }

    #[test]
    fn each_mistake_names_its_field() {
        let check = |field: &str, edit: &dyn Fn(&mut FunctionSpec)| {
            let mut spec = spec();
            edit(&mut spec);
            let fields: Vec<_> = spec.check().iter().map(|error| error.field).collect();
            assert_eq!(fields, [field]);
        };
        check("limits.memory", &|spec| spec.limits.memory_bytes = 1);
        check("limits.timeout", &|spec| spec.limits.timeout_ms = 0);
        check("limits.pids", &|spec| spec.limits.pids = 0);
        check("limits.cpu", &|spec| spec.limits.cpu_millis = Some(1));
        check("limits.concurrency", &|spec| spec.limits.concurrency = Some(0));
        check("limits.disk", &|spec| spec.limits.disk_bytes = 1);
        check("limits.stream_idle", &|spec| spec.limits.stream_idle_ms = 0);
        check("scale.max", &|spec| spec.scale.max = Some(0));
        check("allow.functions", &|spec| spec.calls = vec!["Not a name".into()]);
        check("kv.shared", &|spec| spec.state.shared = vec!["a/b".into()]);
        check("kv.quota", &|spec| spec.state.quota_bytes = u64::MAX);
        check("files.data", &|spec| spec.files.data_bytes = Some(1 << 20));
        check("files", &|spec| {
            spec.files.host_folders.insert("../x".into(), "/srv".into());
        });
        check("files", &|spec| {
            spec.files.host_folders.insert("x".into(), "/srv/../etc".into());
        });
        check("scale.min", &|spec| (spec.scale.min, spec.scale.max) = (3, Some(2)));
        check("scale.target", &|spec| spec.scale.policy = Policy::Rps { target: 0 });
        check("scale.target", &|spec| spec.scale.policy = Policy::Cpu { target_percent: 101 });
        check("entry", &|spec| spec.entry = "../x".into());
        check("entry", &|spec| spec.entry = "/etc/passwd".into());
        check("env", &|spec| drop(spec.env.insert("A=B".into(), String::new())));
        check("env", &|spec| drop(spec.env.insert("A".into(), "\0".into())));
        check("methods", &|spec| spec.methods = vec!["get".into()]);
        check("allow.net", &|spec| {
            spec.egress = vec![Egress::tcp("a b", 80)];
        });
        check("trigger.mqtt", &|spec| spec.mqtt = vec![mqtt::MqttTrigger::new("a+")]);
        check("trigger.mqtt", &|spec| spec.mqtt = vec![mqtt::MqttTrigger::new("a"); 2]);
        check("allow.mqtt", &|spec| spec.publishing.topics = vec!["a+".into()]);
        check("mqtt", &|spec| spec.publishing.connection.broker = Some("x".into()));
        check("async.on_failure", &|spec| {
            let topic = Topic { topic: "a/#".into(), qos: 1, retain: false };
            spec.background.on_failure = Some(Recipient::Topic(topic));
        });
        check("async.on_success", &|spec| {
            spec.background.on_success = Some(Recipient::Function("Not a name".into()));
        });
        check("command", &|spec| spec.runtime = Runtime::Exec);
        check("compat", &|spec| {
            (spec.runtime, spec.command) = (Runtime::Exec, vec!["./run".into()]);
            spec.compat = Some(Platform::Knative);
        });
        check("entry", &|spec| (spec.runtime, spec.entry) = (Runtime::Go, "a.b".into()));
        check("template", &|spec| spec.template = Some("python3-http".into()));
        check("port", &|spec| spec.port = Some(5000));
        let every = |ms| Arc::new(Schedule::new(When::Every { ms }));
        check("trigger", &|spec| spec.schedules = vec![every(1_000); 101]);
        check("trigger.every", &|spec| spec.schedules = vec![every(999)]);
        let with = |field: &str, edit: &dyn Fn(&mut Schedule)| {
            check(field, &|spec| {
                spec.schedules = vec![every(1_000)];
                edit(Arc::make_mut(&mut spec.schedules[0]));
            });
        };
        with("trigger.jitter", &|one| one.jitter_ms = JITTER_MS_MAX + 1);
        with("trigger.method", &|one| one.call.method = "post".into());
        with("trigger.path", &|one| one.call.path = "x".into());
        with("trigger.headers", &|one| drop(one.call.headers.insert("A".into(), "1".into())));
        with("trigger.headers", &|one| drop(one.call.headers.insert("a".into(), "1\n2".into())));
        with("trigger.headers", &|one| drop(one.call.headers.insert("mote-x".into(), "".into())));
        with("trigger.body", &|one| one.call.body = "x".repeat(SCHEDULE_BODY_BYTES_MAX + 1));
    }
}
