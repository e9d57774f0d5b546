//! What a function is: the checked form of a manifest, stored with each revision.
//!
//! Every default is a named constant with its reason. Units are at the end of each name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::access::{Access, CertificateRules, TokenRules, WebhookRules};
use crate::background::AsyncRules;
use crate::egress::{ANY_HOST, Egress};
use crate::http::HttpRules;
use crate::limits::{
    BODY_BYTES_DEFAULT, DISK_BYTES_DEFAULT, INIT_TIMEOUT_MS_DEFAULT, Limits, MEMORY_BYTES_DEFAULT,
    MEMORY_BYTES_DEFAULT_NODE, PIDS_DEFAULT, STREAM_IDLE_MS_DEFAULT, TIMEOUT_MS_DEFAULT,
    TIMEOUT_MS_MAX,
};
use crate::mqtt::{MqttTrigger, Publishing};
use crate::name::FunctionName;
use crate::platform::{Platform, TEMPLATE_GO_CLASSIC};
use crate::policy::{Balance, Policy};
use crate::protocol::Protocol;
use crate::rate::Rates;
use crate::routes::RouteRule;
use crate::runtime::{
    CONCURRENCY_DEFAULT_CHAIN, CONCURRENCY_DEFAULT_EXEC, CONCURRENCY_DEFAULT_GO,
    CONCURRENCY_DEFAULT_NODE, CONCURRENCY_DEFAULT_PYTHON, CONCURRENCY_DEFAULT_SERVER, Runtime,
};
use crate::scale::{IDLE_TIMEOUT_MS_DEFAULT, QUEUE_DEFAULT, Scale, StartPolicy};
use crate::schedule::Schedule;
use crate::state::StateRules;

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
    pub mqtt: Vec<MqttTrigger>,
    /// What it publishes at MQTT brokers.
    pub publishing: Publishing,
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
        let triggers = self.mqtt.iter().flat_map(MqttTrigger::secret_names);
        triggers.chain(self.publishing.connection.secret_names())
    }

    /// Names of all secrets that it reads, as files or variables, each once.
    pub fn secret_names(&self) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        names.extend(self.secrets.iter().chain(self.secret_env.values()).map(String::as_str));
        names
    }

    /// Its routes; they are part of its rules for HTTP.
    pub fn routes(&self) -> &[RouteRule] {
        self.http.as_deref().map_or(&[], |http| &http.routes)
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
            publishing: Publishing::default(),
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
