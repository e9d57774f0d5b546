//! What a function is: the checked form of a manifest, stored with each revision.
//!
//! Every default is a named constant with its reason. Units are at the end of each name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::FunctionName;
use crate::destination::is_link_local;
use crate::policy::{Balance, Policy};
use crate::state::{QUOTA_BYTES_DEFAULT, QUOTA_BYTES_MAX, SHARED_MAX};

mod access;
mod background;
mod doors;
mod http;
pub mod mqtt;
mod protocol;
mod rate;
pub mod routes;
mod runtime;
mod schedule;
mod secret;

pub use access::{
    Access, CertificateRules, HmacRules, SignatureEncoding, SignatureHash, TokenKeys, TokenRules,
    WEBHOOK_BODY_BYTES_MAX, WebhookRules, WebhookScheme,
};
pub use background::{
    AGE_MS_MAX_DEFAULT, ATTEMPTS_DEFAULT, ATTEMPTS_MAX, AsyncRules, BACKOFF_MS_DEFAULT,
    BACKOFF_MS_MAX_DEFAULT, FUNCTION_PART, Recipient, RetryOn, Topic,
};
pub use doors::{OPENFAAS_GATEWAY_PORT, OPENFAAS_GATEWAYS, OWN_FRONT, SERVER_PORT};
pub use http::{CORS_AGE_S_MAX, Cors, HttpRules, StaticFiles, is_below, is_origin};
pub use protocol::Protocol;
pub use rate::{CALLS_AT_ONCE_MAX, RATE_CALLS_MAX, RATE_PERIOD_MS_MAX, Rate, Rates};
pub use runtime::{
    CONCURRENCY_DEFAULT_CHAIN, CONCURRENCY_DEFAULT_EXEC, CONCURRENCY_DEFAULT_GO,
    CONCURRENCY_DEFAULT_NODE, CONCURRENCY_DEFAULT_PYTHON, CONCURRENCY_DEFAULT_SERVER, Runtime,
};
pub use schedule::{
    EVERY_MS_MAX, EVERY_MS_MIN, EXPRESSION_BYTES_MAX, JITTER_MS_MAX, Missed, Overlap,
    SCHEDULE_BODY_BYTES_MAX, SCHEDULES_MAX, Schedule, ScheduledCall, TIMEZONE_DEFAULT, When,
};
pub use secret::is_secret_name;

/// Default memory limit: a board with 1 GiB has room for many times this amount.
pub const MEMORY_BYTES_DEFAULT: u64 = 64 << 20;
/// Node's own heap and code need about 45 MiB before the function's first line.
pub const MEMORY_BYTES_DEFAULT_NODE: u64 = 128 << 20;
/// Smallest memory limit in which any runtime starts.
pub const MEMORY_BYTES_MIN: u64 = 4 << 20;
/// Deadline of one invocation, queueing included.
pub const TIMEOUT_MS_DEFAULT: u64 = 10_000;
/// Longest silence of a WebSocket or a streamed answer: proxies and clients usually give up earlier,
/// and a connection whose peer has vanished must not be kept for ever.
pub const STREAM_IDLE_MS_DEFAULT: u64 = 300_000;
/// The longest silence that a manifest can permit.
pub const STREAM_IDLE_MS_MAX: u64 = 24 * 3_600_000;
/// Longest deadline; longer work belongs in an async invocation.
pub const TIMEOUT_MS_MAX: u64 = 3_600_000;
/// Processes and threads of one instance: Node needs 11, Python a few; a fork bomb stops here.
pub const PIDS_DEFAULT: u32 = 64;
/// Private writable space (`/tmp`) of one instance; held in memory and counted there.
pub const DISK_BYTES_DEFAULT: u64 = 16 << 20;
/// Largest request body unless the manifest raises it.
pub const BODY_BYTES_DEFAULT: u64 = 6 << 20;
/// Invocations that may wait for a free worker before callers are refused with 429.
pub const QUEUE_DEFAULT: u32 = 1024;
/// An instance stops this long after its last invocation ended, or earlier: the default rule keeps
/// it only as long as another call is likely enough.
pub const IDLE_TIMEOUT_MS_DEFAULT: u64 = 300_000;
/// A worker that has not reported that it is ready by then has failed to start.
pub const INIT_TIMEOUT_MS_DEFAULT: u64 = 10_000;
/// OpenFaaS' template whose Go functions take the bytes of the body and return a text.
pub const TEMPLATE_GO_CLASSIC: &str = "go";
/// The platform whose contract a function was written for; adapters next to the shims implement it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Platform {
    /// `fn(input, headers)`, `(req, res)`, `fn.sh`.
    TinyFaas,
    /// The templates of faas-cli, and programs under a watchdog.
    OpenFaas,
    /// `handler(context, event)`.
    Nuclio,
    /// `f(event, context)`.
    Kubeless,
    /// `main(args)`, as a web action.
    OpenWhisk,
    /// `new()` and `handle`.
    Knative,
    /// `main()` with Flask's request, `async (context)`.
    Fission,
}

impl Platform {
    /// All platforms.
    pub const ALL: [Platform; 7] = [
        Platform::TinyFaas,
        Platform::OpenFaas,
        Platform::Nuclio,
        Platform::Kubeless,
        Platform::OpenWhisk,
        Platform::Knative,
        Platform::Fission,
    ];

    /// The word used in manifests, LOAD and outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Platform::TinyFaas => "tinyfaas",
            Platform::OpenFaas => "openfaas",
            Platform::Nuclio => "nuclio",
            Platform::Kubeless => "kubeless",
            Platform::OpenWhisk => "openwhisk",
            Platform::Knative => "knative",
            Platform::Fission => "fission",
        }
    }

    /// Deadline of an invocation in milliseconds if the function sets none: the platform's own, so
    /// that a function that needs it does not fail here. Nuclio has no deadline, so it gets the
    /// longest that exists. The deadlines of OpenFaaS' templates and of tinyFaaS' uploads are set
    /// elsewhere.
    pub fn timeout_ms_default(self) -> u64 {
        match self {
            Platform::TinyFaas | Platform::OpenFaas => TIMEOUT_MS_DEFAULT,
            Platform::OpenWhisk | Platform::Fission => 60_000,
            Platform::Kubeless => 180_000,
            Platform::Knative => 300_000,
            Platform::Nuclio => TIMEOUT_MS_MAX,
        }
    }

    /// Where the platform's own files set the memory of a function.
    pub fn memory_key(self) -> Option<&'static str> {
        match self {
            // Its uploads have no limits.
            Platform::TinyFaas => None,
            Platform::OpenFaas => Some("limits.memory of the function in stack.yml"),
            Platform::Nuclio => Some("spec.resources.limits.memory in function.yaml"),
            Platform::Kubeless => Some("resources.limits.memory of the function's container"),
            Platform::OpenWhisk => Some("limits.memorySize in manifest.yaml, or wsk's --memory"),
            Platform::Knative => {
                Some("resources.limits.memory of the service, below deploy.options in func.yaml")
            }
            Platform::Fission => Some("spec.resources.limits.memory of the Function"),
        }
    }

    /// Whether an adapter for this runtime exists. A server does not need one, because it speaks
    /// HTTP.
    pub fn is_offered(self, runtime: Runtime) -> bool {
        match (self, runtime) {
            (_, Runtime::Server) => true,
            (_, Runtime::Python | Runtime::Node) => true,
            (_, Runtime::Go) => true,
            (Platform::TinyFaas | Platform::OpenFaas | Platform::Nuclio, Runtime::Exec) => true,
            (Platform::OpenWhisk | Platform::Fission, Runtime::Exec) => true,
            (_, Runtime::Exec | Runtime::Chain) => false,
        }
    }
}

/// Limits of one function. `mote doctor` reports those that a machine cannot enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Memory of one instance in bytes, its `/tmp` included.
    pub memory_bytes: u64,
    /// CPU time per second of one instance, in thousandths of a core; `None` means no limit.
    pub cpu_millis: Option<u32>,
    /// Processes and threads of one instance.
    pub pids: u32,
    /// Deadline of one invocation in milliseconds, queueing included.
    pub timeout_ms: u64,
    /// How long an instance may take until it is ready, in milliseconds.
    pub init_timeout_ms: u64,
    /// Invocations running at once in one instance; with `None` the runtime decides (Python: 1 for
    /// `def`, 100 for `async def`; Node, exec and server: the constants above).
    pub concurrency: Option<u32>,
    /// Largest request body in bytes.
    pub body_bytes: u64,
    /// Private writable space of one instance in bytes.
    pub disk_bytes: u64,
    /// How long a WebSocket or a streamed answer may be silent, in milliseconds.
    pub stream_idle_ms: u64,
}

/// How many instances a function has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scale {
    /// Instances kept at least; with 0 the function can scale to zero.
    pub min: u32,
    /// Instances at most; `None` is the number of cores.
    pub max: Option<u32>,
    /// Milliseconds for which an instance stays after its last invocation at most.
    pub idle_timeout_ms: u64,
    /// Invocations that may wait before callers are refused.
    pub queue: u32,
    /// How the number of instances follows demand.
    pub policy: Policy,
    /// When an instance exists before the first call.
    pub start: StartPolicy,
    /// The rule that chooses the instance for an invocation.
    pub balance: Balance,
    /// Milliseconds after which an idle instance is paused; `None` for never.
    pub pause_ms: Option<u64>,
    /// Instances kept loaded and paused in addition to those that serve.
    pub spare: u32,
}

impl Scale {
    /// Instances that are kept whatever the demand: `min`, or one if the start policy or the rule
    /// keeps one.
    pub fn floor(&self) -> u32 {
        let one = self.start == StartPolicy::Always || !self.policy.scales_to_zero();
        self.min.max(u32::from(one))
    }
}

/// Bounds that replace the manifest's until the next deploy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleOverride {
    /// Replaces `min` and the instances that `start` keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// Replaces `max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
}

/// When an instance exists before the first call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartPolicy {
    /// After a restart of the node, the first invocation starts an instance.
    #[default]
    Cold,
    /// An instance starts with the node, as it does with a deploy; it may be stopped when it is
    /// idle.
    Warm,
    /// One instance is always kept.
    Always,
}

impl StartPolicy {
    /// The word used in manifests and outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            StartPolicy::Cold => "cold",
            StartPolicy::Warm => "warm",
            StartPolicy::Always => "always",
        }
    }
}

/// The protocol in which a destination is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Connections.
    #[default]
    Tcp,
    /// Datagrams.
    Udp,
}

impl Transport {
    /// Whether it is TCP, which manifests and stored specs leave out.
    pub fn is_tcp(&self) -> bool {
        *self == Transport::Tcp
    }
}

/// One destination that a function may reach: `host:port` or `udp://host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Egress {
    /// The protocol.
    pub transport: Transport,
    /// Host name or address as written in the manifest, or [`ANY_HOST`], which is for TCP alone.
    pub host: String,
    /// The port. With [`ANY_HOST`], 0 stands for all of [`USUAL_PORTS`].
    pub port: u16,
}

impl Egress {
    /// A destination over TCP.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self { transport: Transport::Tcp, host: host.into(), port }
    }

    /// The address at which code inside a sandbox finds this destination, if the manifest names it
    /// by an address: the address itself. An address that stands for no single host has none.
    pub fn literal(&self) -> Option<IpAddr> {
        let address = match self.host.as_str() {
            "localhost" => Ipv4Addr::LOCALHOST.into(),
            host => host.parse::<IpAddr>().ok()?.to_canonical(),
        };
        let names_no_host = address.is_unspecified()
            || address.is_multicast()
            // It means another host on each link. One of IPv4 leads to the node, which refuses it.
            || (address.is_ipv6() && is_link_local(address))
            || address == IpAddr::V4(Ipv4Addr::BROADCAST);
        (!names_no_host).then_some(address)
    }
}

/// As manifests write it.
impl fmt::Display for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.transport == Transport::Udp {
            f.write_str("udp://")?;
        }
        match (self.host.as_str(), self.port) {
            (ANY_HOST, 0) => f.write_str(ANY_HOST),
            (host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            (host, port) => write!(f, "{host}:{port}"),
        }
    }
}

/// The host that stands for every host.
pub const ANY_HOST: &str = "*";

/// The ports that `net = ["*"]` opens: those of the services that functions usually call. A sandbox
/// has a listener for each, so opening all ports is not possible.
pub const USUAL_PORTS: [u16; 28] = [
    22, 25, 80, 389, 443, 465, 587, 636, 993, 1433, 1521, 1883, 3000, 3306, 4222, 5000, 5432, 5672,
    6379, 8000, 8080, 8086, 8443, 8883, 9000, 9092, 9200, 27017,
];

/// The state that a function keeps in its node, beside its own namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateRules {
    /// Names of shared namespaces that it may use.
    pub shared: Vec<String>,
    /// Bytes that a namespace may hold when this function writes to it.
    pub quota_bytes: u64,
}

impl Default for StateRules {
    fn default() -> Self {
        Self { shared: Vec::new(), quota_bytes: QUOTA_BYTES_DEFAULT }
    }
}

/// How a function appears to CoAP clients (RFC 6690 attributes).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CoapResource {
    /// Human-readable `title`.
    pub title: Option<String>,
    /// Resource type `rt`.
    pub resource_type: Option<String>,
    /// Content format number `ct` of its answers.
    pub content_format: Option<u16>,
}

/// A function, checked and complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionSpec {
    /// Name and default route.
    pub name: FunctionName,
    /// The runtime that runs it.
    pub runtime: Runtime,
    /// Python `module:object`, Node file path, relative to the code; empty for exec and server.
    pub entry: String,
    /// Program and arguments for exec and server, relative paths from the code folder.
    pub command: Vec<String>,
    /// Its limits.
    pub limits: Limits,
    /// Its instances.
    pub scale: Scale,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Destinations it may connect to.
    pub egress: Vec<Egress>,
    /// Functions that it may call inside the node; `*` stands for all.
    pub calls: Vec<String>,
    /// The state that it keeps in the node.
    pub state: StateRules,
    /// Whether each instance has a copy of the code that it may write to.
    pub writable: bool,
    /// Whether a program or server reaches the services of the node although nothing else in its
    /// manifest needs them.
    pub services: bool,
    /// Who may call it.
    pub access: Access,
    /// The tokens of its callers; exactly if its access mode is [`Access::Jwt`].
    pub tokens: Option<Arc<TokenRules>>,
    /// The client certificates that it accepts; exactly if its access mode is [`Access::Mtls`].
    pub certificates: Option<Arc<CertificateRules>>,
    /// The signed requests that it accepts; exactly if its access mode is [`Access::Webhook`].
    pub webhook: Option<Arc<WebhookRules>>,
    /// How many calls from outside it accepts.
    pub rates: Rates,
    /// What the HTTP fronts require of requests; `None` if there are no such rules.
    pub http: Option<Box<HttpRules>>,
    /// Methods it answers (upper case); empty means all. Requests with other methods get 405.
    pub methods: Vec<String>,
    /// Its CoAP description.
    pub coap: CoapResource,
    /// Its subscriptions at MQTT brokers.
    pub mqtt: Vec<mqtt::MqttTrigger>,
    /// What it publishes at MQTT brokers.
    pub publishing: mqtt::Publishing,
    /// The platform it was written for; `None` for `mote` itself.
    pub compat: Option<Platform>,
    /// The contract of the platform, if it has several: `python3-flask`.
    pub template: Option<String>,
    /// The port that a server listens on; with `None` the engine chooses it.
    pub port: Option<u16>,
    /// What a server speaks.
    pub protocol: Protocol,
    /// Names of the node's secrets that its instances read as files.
    pub secrets: Vec<String>,
    /// Environment variables whose values are secrets: variable, and name of the secret.
    pub secret_env: BTreeMap<String, String>,
    /// Annotations that clients of other platforms attached to it, by key. They are kept and shown
    /// to these clients again, but have no effect.
    pub annotations: BTreeMap<String, String>,
    /// How its accepted invocations are run.
    pub background: AsyncRules,
    /// The schedules by which it runs without a caller.
    pub schedules: Vec<Arc<Schedule>>,
    /// The source of the deploy, in words for people: `stack.yml in work/shop`. Two deploys of one
    /// project have the same origin. `None` if the deploy named none.
    pub origin: Option<String>,
}

impl FunctionSpec {
    /// Whether it may call this function inside the node.
    pub fn may_call(&self, function: &str) -> bool {
        self.calls.iter().any(|name| name == ANY_HOST || name == function)
    }

    /// Names of the secrets with which the node connects to MQTT brokers for it. The function does
    /// not see them.
    pub fn mqtt_secret_names(&self) -> impl Iterator<Item = &str> {
        let triggers = self.mqtt.iter().flat_map(mqtt::MqttTrigger::secret_names);
        triggers.chain(self.publishing.connection.secret_names())
    }

    /// Whether it may reach hosts that its manifest does not name.
    pub fn reaches_any_host(&self) -> bool {
        self.egress.iter().any(|to| to.host == ANY_HOST)
    }

    /// The runtime whose worker answers. A Go function of OpenFaaS' template `go` is, once it is
    /// built, a program that runs once per call.
    pub fn answered_by(&self) -> Runtime {
        let per_call = self.compat == Some(Platform::OpenFaas)
            && self.template.as_deref() == Some(TEMPLATE_GO_CLASSIC);
        match self.runtime {
            Runtime::Go if per_call => Runtime::Exec,
            runtime => runtime,
        }
    }

    /// Invocations that one instance may run at once: the manifest's number, or the highest that a
    /// shim of this runtime chooses by itself. A higher number from a worker is not accepted.
    pub fn concurrency_max(&self) -> u32 {
        self.limits.concurrency.unwrap_or(match self.answered_by() {
            Runtime::Python => CONCURRENCY_DEFAULT_PYTHON,
            Runtime::Node => CONCURRENCY_DEFAULT_NODE,
            Runtime::Go => CONCURRENCY_DEFAULT_GO,
            Runtime::Server => CONCURRENCY_DEFAULT_SERVER,
            Runtime::Exec => CONCURRENCY_DEFAULT_EXEC,
            Runtime::Chain => CONCURRENCY_DEFAULT_CHAIN,
        })
    }

    /// A spec with every default for `runtime`.
    pub fn with_defaults(name: FunctionName, runtime: Runtime, entry: &str) -> Self {
        let memory_bytes = match runtime {
            // A chain holds the data of all its runs.
            Runtime::Node | Runtime::Server | Runtime::Chain => MEMORY_BYTES_DEFAULT_NODE,
            Runtime::Python | Runtime::Go | Runtime::Exec => MEMORY_BYTES_DEFAULT,
        };
        let timeout_ms = match runtime {
            // A chain waits for functions that have limits of their own.
            Runtime::Chain => TIMEOUT_MS_MAX,
            _ => TIMEOUT_MS_DEFAULT,
        };
        let body_bytes = match runtime {
            // One step carries as much, and the data of many runs are in memory together.
            Runtime::Chain => 1 << 20,
            _ => BODY_BYTES_DEFAULT,
        };
        Self {
            name,
            runtime,
            entry: entry.to_owned(),
            command: Vec::new(),
            limits: Limits {
                memory_bytes,
                cpu_millis: None,
                pids: PIDS_DEFAULT,
                timeout_ms,
                init_timeout_ms: INIT_TIMEOUT_MS_DEFAULT,
                concurrency: None,
                body_bytes,
                disk_bytes: DISK_BYTES_DEFAULT,
                stream_idle_ms: STREAM_IDLE_MS_DEFAULT,
            },
            scale: Scale {
                min: 0,
                max: None,
                idle_timeout_ms: IDLE_TIMEOUT_MS_DEFAULT,
                queue: QUEUE_DEFAULT,
                policy: Policy::Auto,
                start: StartPolicy::Cold,
                balance: Balance::default(),
                pause_ms: None,
                spare: 0,
            },
            env: BTreeMap::new(),
            egress: Vec::new(),
            calls: Vec::new(),
            state: StateRules::default(),
            writable: false,
            services: false,
            access: Access::Unset,
            tokens: None,
            certificates: None,
            webhook: None,
            rates: Rates::default(),
            http: None,
            methods: Vec::new(),
            coap: CoapResource::default(),
            mqtt: Vec::new(),
            publishing: mqtt::Publishing::default(),
            compat: None,
            template: None,
            port: None,
            protocol: Protocol::Http1,
            secrets: Vec::new(),
            secret_env: BTreeMap::new(),
            annotations: BTreeMap::new(),
            background: AsyncRules::default(),
            schedules: Vec::new(),
            origin: None,
        }
    }
}

/// One mistake in a spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct SpecError {
    /// The setting, as in the manifest: `limits.memory`.
    pub field: &'static str,
    /// What is wrong, and which values are allowed.
    pub problem: String,
}

/// Most secrets of one function.
const SECRETS_MAX: usize = 64;
/// Most functions that one function may name.
const CALLS_MAX: usize = 64;
/// Most instances of one function.
pub const INSTANCES_MAX: u32 = 1_000;
/// Most instances kept paused in addition to those that serve.
pub const SPARE_MAX: u32 = 100;
/// Most invocations that may wait for one function.
pub const QUEUE_MAX: u32 = 100_000;
/// Largest target of a scaling rule.
pub const TARGET_MAX: u32 = 1_000_000;
/// Longest body a function may accept.
pub const BODY_BYTES_MAX: u64 = 64 << 30;

impl FunctionSpec {
    /// Names of all secrets that it reads, as files or variables, each once.
    pub fn secret_names(&self) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        names.extend(self.secrets.iter().chain(self.secret_env.values()).map(String::as_str));
        names
    }

    /// All mistakes in it, whatever its source. A spec arrives from outside: everything that the
    /// engine and the sandbox rely on is checked here once.
    pub fn check(&self) -> Vec<SpecError> {
        let mut errors = Vec::new();
        let mut check = |ok: bool, field: &'static str, problem: &str| {
            if !ok {
                errors.push(SpecError { field, problem: problem.to_owned() });
            }
        };
        access::check(self, &mut check);
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
            Runtime::Python | Runtime::Node | Runtime::Chain => {
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
            Runtime::Exec | Runtime::Server => {
                let good = self.command.first().is_some_and(|program| !program.is_empty())
                    && self.command.iter().all(|word| plain(word));
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
                && self.calls.iter().all(|name| name == ANY_HOST || crate::name::is_label(name)),
            "allow.functions",
            "at most 64 names of functions, or *",
        );
        check(
            self.state.shared.len() <= SHARED_MAX
                && self.state.shared.iter().all(|name| crate::name::is_label(name)),
            "kv.shared",
            "at most 16 names of a-z, 0-9 and -",
        );
        check(self.state.quota_bytes <= QUOTA_BYTES_MAX, "kv.quota", "at most 1GiB");
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
        check(
            self.port.is_none_or(|port| port >= 1024 && self.runtime == Runtime::Server),
            "port",
            "1024 to 65535, for runtime server",
        );
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
