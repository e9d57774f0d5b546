//! The spec of a function: the checked form of its manifest, which is stored with each revision.
//!
//! Every default is a named constant with its reason. Names of quantities end with the unit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::access::{Access, CertificateRules, TokenRules, WebhookRules};
use crate::background::AsyncRules;
use crate::egress::{ANY_HOST, Egress};
use crate::files::Files;
use crate::http::HttpRules;
use crate::image::FunctionImage;
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
    CONCURRENCY_DEFAULT_NODE, CONCURRENCY_DEFAULT_PYTHON, CONCURRENCY_DEFAULT_RUST,
    CONCURRENCY_DEFAULT_SERVER, CONCURRENCY_DEFAULT_WASM, Runtime,
};
use crate::scale::{IDLE_TIMEOUT_MS_DEFAULT, QUEUE_DEFAULT, Scale, StartPolicy};
use crate::schedule::Schedule;
use crate::state::StateRules;

/// How CoAP clients see a function (attributes of RFC 6690).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CoapResource {
    /// Human-readable `title`.
    pub title: Option<String>,
    /// Resource type `rt`.
    pub resource_type: Option<String>,
    /// The content format number `ct` of its answers.
    pub content_format: Option<u16>,
}

/// A function in its checked and complete form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionSpec {
    /// The name, which is also the default route.
    pub name: FunctionName,
    /// The runtime that runs the function.
    pub runtime: Runtime,
    /// Python `module:object`, or the path of a Node file relative to the code. Empty for exec and
    /// server.
    pub entry: String,
    /// The program and its arguments, for exec and server. Relative paths start at the folder of
    /// the code. Empty for the command of the image.
    pub command: Vec<String>,
    /// The container image whose files and programs the function uses. Only exec and server have
    /// one.
    pub image: Option<Box<FunctionImage>>,
    /// The limits of each instance and each invocation.
    pub limits: Limits,
    /// How many instances the function has, and when they start.
    pub scale: Scale,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Destinations to which the function may connect.
    pub egress: Vec<Egress>,
    /// Functions that this function may call inside the node. `*` stands for all.
    pub calls: Vec<String>,
    /// The state that the function keeps in the node.
    pub state: StateRules,
    /// The folders that the function has besides its code and `/tmp`.
    pub files: Files,
    /// Whether each instance has its own copy of the code, to which it may write.
    pub writable: bool,
    /// Whether a program or server reaches the node's services even if nothing else in its manifest
    /// needs them.
    pub services: bool,
    /// Who may call the function.
    pub access: Access,
    /// The rules for callers' tokens. Present if and only if the access mode is [`Access::Jwt`].
    pub tokens: Option<Arc<TokenRules>>,
    /// The rules for client certificates. Present if and only if the access mode is
    /// [`Access::Mtls`].
    pub certificates: Option<Arc<CertificateRules>>,
    /// The rules for signed requests. Present if and only if the access mode is
    /// [`Access::Webhook`].
    pub webhook: Option<Arc<WebhookRules>>,
    /// How many calls from outside the function accepts.
    pub rates: Rates,
    /// What the HTTP fronts require of requests. `None` if there are no such rules.
    pub http: Option<Box<HttpRules>>,
    /// The methods that the function answers, in upper case. Empty means all. Other methods get
    /// 405.
    pub methods: Vec<String>,
    /// How CoAP clients see the function.
    pub coap: CoapResource,
    /// The function's subscriptions at MQTT brokers.
    pub mqtt: Vec<MqttTrigger>,
    /// What the function publishes at MQTT brokers.
    pub publishing: Publishing,
    /// The platform for which the function was written; `None` for `mote` itself.
    pub compat: Option<Platform>,
    /// The name of the platform's contract, if the platform has several: `python3-flask`.
    pub template: Option<String>,
    /// The port on which a server listens. With `None`, the engine chooses it.
    pub port: Option<u16>,
    /// The protocol that a server speaks.
    pub protocol: Protocol,
    /// Names of the node's secrets that instances read as files.
    pub secrets: Vec<String>,
    /// Environment variables whose values are secrets. Maps each variable to the name of its
    /// secret.
    pub secret_env: BTreeMap<String, String>,
    /// Annotations that clients of other platforms have attached, by key. The node keeps them and
    /// returns them to these clients, but they have no effect.
    pub annotations: BTreeMap<String, String>,
    /// How accepted invocations of the function are run.
    pub background: AsyncRules,
    /// The schedules by which the function runs without a caller.
    pub schedules: Vec<Arc<Schedule>>,
    /// Where the deploy came from, in words for people: `stack.yml in work/shop`. Two deploys of
    /// one project have the same origin. `None` if the deploy did not name an origin.
    pub origin: Option<String>,
}

impl FunctionSpec {
    /// Whether this function may call `function` inside the node.
    pub fn may_call(&self, function: &str) -> bool {
        self.calls.iter().any(|name| name == ANY_HOST || name == function)
    }

    /// Names of the secrets with which the node connects to MQTT brokers on behalf of the function.
    /// The function does not see them.
    pub fn mqtt_secret_names(&self) -> impl Iterator<Item = &str> {
        let triggers = self.mqtt.iter().flat_map(MqttTrigger::secret_names);
        triggers.chain(self.publishing.connection.secret_names())
    }

    /// Names of all secrets that the function reads as files or variables, each once.
    pub fn secret_names(&self) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        names.extend(self.secrets.iter().chain(self.secret_env.values()).map(String::as_str));
        names
    }

    /// The function's routes, which are part of the rules for HTTP.
    pub fn routes(&self) -> &[RouteRule] {
        self.http.as_deref().map_or(&[], |http| &http.routes)
    }

    /// Whether the function may reach hosts that its manifest does not name.
    pub fn reaches_any_host(&self) -> bool {
        self.egress.iter().any(|to| to.host == ANY_HOST)
    }

    /// The runtime whose worker answers. It differs from `runtime` only for Go functions of
    /// OpenFaaS' template `go`: once built, such a function is a program that runs once per call.
    pub fn answered_by(&self) -> Runtime {
        let per_call = self.compat == Some(Platform::OpenFaas)
            && self.template.as_deref() == Some(TEMPLATE_GO_CLASSIC);
        match self.runtime {
            Runtime::Go if per_call => Runtime::Exec,
            runtime => runtime,
        }
    }

    /// How many invocations one instance may run at once: the number in the manifest, or otherwise
    /// the highest number that a shim of this runtime chooses by itself. The node does not accept a
    /// higher number from a worker.
    pub fn concurrency_max(&self) -> u32 {
        self.limits.concurrency.unwrap_or(match self.answered_by() {
            Runtime::Python => CONCURRENCY_DEFAULT_PYTHON,
            Runtime::Node | Runtime::Bun | Runtime::Deno => CONCURRENCY_DEFAULT_NODE,
            Runtime::Go => CONCURRENCY_DEFAULT_GO,
            Runtime::Server => CONCURRENCY_DEFAULT_SERVER,
            Runtime::Exec => CONCURRENCY_DEFAULT_EXEC,
            Runtime::Chain => CONCURRENCY_DEFAULT_CHAIN,
            Runtime::Wasm => CONCURRENCY_DEFAULT_WASM,
            Runtime::Rust => CONCURRENCY_DEFAULT_RUST,
        })
    }

    /// A spec that has all defaults for `runtime`.
    pub fn with_defaults(name: FunctionName, runtime: Runtime, entry: &str) -> Self {
        let memory_bytes = match runtime {
            // A chain needs more memory, because it holds the data of all its runs.
            Runtime::Node | Runtime::Bun | Runtime::Deno | Runtime::Server | Runtime::Chain => {
                MEMORY_BYTES_DEFAULT_NODE
            }
            Runtime::Python | Runtime::Go | Runtime::Exec | Runtime::Wasm | Runtime::Rust => {
                MEMORY_BYTES_DEFAULT
            }
        };
        let timeout_ms = match runtime {
            // A chain waits for functions, which have their own limits.
            Runtime::Chain => TIMEOUT_MS_MAX,
            _ => TIMEOUT_MS_DEFAULT,
        };
        let body_bytes = match runtime {
            // One step can carry this much data, and the data of many runs is in memory at the same
            // time.
            Runtime::Chain => 1 << 20,
            _ => BODY_BYTES_DEFAULT,
        };
        Self {
            name,
            runtime,
            entry: entry.to_owned(),
            command: Vec::new(),
            image: None,
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
            files: Files::default(),
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
