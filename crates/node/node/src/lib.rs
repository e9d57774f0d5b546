//! One running node: its parts, wired together, from start to stop.
//!
//! [`run()`] is the entry point: it takes a checked [`Config`] and returns the exit code of the
//! process. It leads to deploys, the management API (`admin/`) and the node as other platforms'
//! APIs see it (`compat.rs`). This crate must not know verbs or the output of commands; only
//! [`settings`] reads flags, environment and file. Start reading at `run.rs`.
//!
//! The files:
//!
//! - `up.rs`: forks the zygote, then starts the node
//! - `run.rs`, `listeners.rs`: wiring, start and stop; sockets that are bound or given
//! - `settings/`, `config/`: how settings are read, and the checked result
//! - `deploy.rs`, `rollout.rs`: a deploy, and the switch of revisions
//! - `packages.rs`, `golang.rs`, `interpreters.rs`: installations and builds, with `mote-build`
//! - `fronts/`: the fronts over the engine; `dtls.rs` starts `mote-dtls`
//! - `services/`: what functions ask of their node
//! - `compat.rs`, `code.rs`: the node as other platforms see it, and deploys through their APIs
//! - `admin/`: the management API
//! - `accepted.rs`, `schedules.rs`, `mqtt.rs`, `nats.rs`, `cells.rs`, `https.rs`, `keys.rs`,
//!   `secrets.rs`, `namespaces.rs`, `operators.rs`, `ports.rs`: the node's side of each part

mod accepted;
mod admin;
mod cells;
mod code;
mod compat;
pub mod config;
mod deploy;
mod deploying;
pub mod doctor;
mod failed_logs;
pub mod fronts;
mod functions;
mod golang;
mod https;
mod interpreters;
mod keys;
mod listeners;
mod mqtt;
mod namespaces;
mod nats;
mod operators;
mod packages;
pub mod ports;
mod reach;
mod rollout;
mod run;
mod schedules;
mod secrets;
pub mod services;
pub mod settings;
mod spec_check;
mod store_work;
mod turns;
mod unusable;
mod up;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::ports::reachable;
use mote_access::Guard;
use mote_api::types::{NodeBudget, NodeStatus, Urls};
use mote_engine::{Engine, Revision};
use mote_http::gathering::Gathering;
use mote_journal::{Deferring, Journals};
use mote_outgoing::Outgoing;
use mote_sandbox::ProcessBackend;
use mote_spec::{Access, FunctionName, Runtime};
use mote_store::Store;
use parking_lot::Mutex;
use tokio::runtime::Handle;

pub use crate::config::{
    CellSettings, Config, NatsServers, OwnBroker, PlatformApis, Share, TinyFaas,
};
pub use mote_http::access_log::{Destination as AccessLogPlace, Format as AccessLogFormat};
pub use mote_http::http::{Proxies, ProxyWord};
pub use mote_journal::nats::{WrongAddress as WrongNatsAddress, address as nats_address};
pub use mote_journal::nats_log::is_name as is_journal_name;
pub use mote_outgoing::Reach;
pub use mote_sandbox::UID_BASE_DEFAULT;
pub use up::run;

/// A running node, as the management API sees it.
pub(crate) struct Node {
    pub(crate) config: Config,
    pub(crate) engine: Engine,
    /// The engine behind the layer that accepts invocations for later.
    pub(crate) invoker: Deferring<Engine>,
    /// Decides which callers from outside may call a function.
    pub(crate) guard: Guard,
    /// Held while a change of keys is stored and takes effect.
    pub(crate) key_turn: tokio::sync::Mutex<()>,
    pub(crate) store: Arc<Store>,
    /// Invocations that run after their callers were answered.
    pub(crate) journals: Journals,
    pub(crate) runs: crate::services::Runs,
    /// The rule for requests that the node itself sends.
    pub(crate) outgoing: Outgoing,
    /// The resources of functions that clients observe.
    pub(crate) notices: mote_coap::notices::Notices,
    pub(crate) state: Arc<dyn mote_core::state::State>,
    /// The connection to NATS, if the node shares anything with others.
    pub(crate) nats: Option<mote_journal::nats::Nats>,
    /// The other cells of the cluster, if the node is one.
    pub(crate) cells: Option<mote_cells::Cells>,
    pub(crate) backend: Arc<ProcessBackend>,
    pub(crate) interpreters: interpreters::Found,
    pub(crate) deploying: deploying::Deploying,
    pub(crate) failed_logs: failed_logs::FailedLogs,
    /// Held while a Go function is built, because all builds share one compiler cache.
    pub(crate) go_builds: mote_tenants::namespaces::Turns,
    /// Held while a function with routes begins to serve.
    pub(crate) route_turn: tokio::sync::Mutex<()>,
    /// The ports that functions have for themselves.
    pub(crate) ports: crate::ports::Ports,
    /// The runtime of the tasks of the engine and the fronts.
    pub(crate) data_path: Handle,
    /// Addresses as bound.
    pub(crate) http: Option<SocketAddr>,
    pub(crate) https: Option<SocketAddr>,
    pub(crate) certificates: Option<Arc<mote_tls::Certificates>>,
    pub(crate) coap: Option<SocketAddr>,
    pub(crate) coap_tcp: Option<SocketAddr>,
    pub(crate) coap_dtls: Option<SocketAddr>,
    pub(crate) coap_tls: Option<SocketAddr>,
    /// The tokens of those who manage the node over TCP.
    pub(crate) operators: Arc<mote_tenants::operators::Operators>,
    pub(crate) namespaces: Arc<mote_tenants::namespaces::Namespaces>,
    /// Held while namespaces are changed.
    pub(crate) namespace_turn: tokio::sync::Mutex<()>,
    /// Held while tokens are changed.
    pub(crate) token_turn: tokio::sync::Mutex<()>,
    pub(crate) audit: Arc<mote_tenants::operators::Audit>,
    /// The APIs for other platforms' clients: platform and address.
    pub(crate) compat: Vec<(&'static str, String)>,
    /// Accepts manifests of OpenWhisk, if its API is on.
    pub(crate) openwhisk: Option<mote_platforms::openwhisk::Manifests>,
    /// Our effective user id.
    pub(crate) uid: u32,
    /// The memory that all instances together may use.
    pub(crate) memory_bytes: u64,
    pub(crate) cores: u32,
    /// Bodies of calls that arrived through other platforms' APIs, by function.
    pub(crate) gathering: Gathering<String>,
    /// Databases that were missing or damaged when the node started.
    pub(crate) lost_files: Vec<mote_store::LostFile>,
    /// The schedules of the live revisions.
    pub(crate) schedules: mote_schedule::Schedules,
    /// Code and packages in use.
    pub(crate) trees: Arc<mote_engine::trees::Trees>,
    /// The functions' subscriptions at MQTT brokers.
    pub(crate) mqtt: mote_mqtt::Triggers<Engine>,
    /// Publishes messages of functions.
    pub(crate) publisher: mote_mqtt::Publisher,
    /// The node's own MQTT broker, if it is on.
    pub(crate) own_broker: Option<Arc<mote_mqtt::LocalBroker>>,
    /// Turns of the requests about its users.
    pub(crate) mqtt_users: admin::MqttUserTurns,
    started: Instant,
    ready: AtomicBool,
    created_at_ms: Mutex<HashMap<FunctionName, u64>>,
    /// Functions whose schedules and subscriptions run on another cell of the cluster.
    pub(crate) elsewhere: Mutex<HashSet<FunctionName>>,
    random: RandomState,
    counter: AtomicU64,
}

impl Node {
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// The addresses at which clients on this machine reach a function.
    pub(crate) fn urls(&self, spec: &mote_spec::FunctionSpec) -> Urls {
        let (name, access) = (&spec.name, self.config.access_of(spec.access));
        // No option of CoAP can carry a token or a signature.
        let is_open = !matches!(access, Access::Jwt | Access::Webhook);
        // The default port of the scheme is left out.
        let at = |scheme: &'static str, port: u16| {
            move |address| {
                let text = reachable(address).to_string();
                let text = text.strip_suffix(&format!(":{port}")).unwrap_or(&text);
                format!("{scheme}://{text}/{name}")
            }
        };
        Urls {
            routes: spec.routes().iter().map(mote_spec::routes::text).collect(),
            port: self.ports.shown(spec),
            // Only TLS shows the certificate of a client.
            http: (self.http.filter(|_| access != Access::Mtls))
                .map(|address| format!("http://{}/{name}", reachable(address)))
                .or_else(|| Some(format!("https://{}/{name}", reachable(self.https?)))),
            coap: self.coap.filter(|_| is_open && access != Access::Mtls).map(at("coap", 5683)),
            coaps: (self.coap_dtls)
                .filter(|_| access != Access::Mtls || self.shows_certificate_over_dtls())
                .map(at("coaps", 5684))
                .or_else(|| Some(at("coaps+tcp", 5684)(self.coap_tls?)))
                .filter(|_| is_open && (access != Access::Mtls || self.checks_certificates())),
        }
    }

    /// Whether a client without a pre-shared key gets a session over DTLS.
    pub(crate) fn shows_certificate_over_dtls(&self) -> bool {
        let mut certificates = self.certificates.iter();
        self.coap_dtls.is_some()
            && certificates.any(|all| crate::fronts::dtls::has_certificate(all))
    }

    /// Whether callers of functions can show certificates.
    pub(crate) fn checks_certificates(&self) -> bool {
        self.config.checks_certificates()
            && (self.https.or(self.coap_tls).is_some() || self.shows_certificate_over_dtls())
    }

    pub(crate) fn status(&self) -> NodeStatus {
        let functions = self.engine.list();
        let revisions = self.engine.revisions();
        let instances =
            revisions.iter().map(|revision| revision.status().instances.len() as u64).sum();
        let mut notes = std::collections::BTreeMap::new();
        for check in self.backend.report().items {
            if check.state != mote_sandbox::State::Enforced {
                notes.insert(check.name.to_string(), check.detail.clone());
            }
        }
        NodeStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            http: self.http.map(|address| address.to_string()),
            coap: self.coap.map(|address| address.to_string()),
            lan: self.config.lan,
            data_dir: self.config.data.display().to_string(),
            functions: functions.len() as u64,
            instances,
            memory_bytes: mote_process::memory::resident_bytes(),
            budget: self.budget(),
            notes,
        }
    }

    /// The memory that instances may use and the memory that they have reserved.
    fn budget(&self) -> NodeBudget {
        let status = self.engine.ledger_status();
        NodeBudget {
            memory_bytes: status.budget.memory_bytes,
            taken_bytes: status.taken_bytes,
            peak_bytes: status.peak_bytes,
            leaving_bytes: status.leaving_bytes,
            promised_bytes: status.promised_bytes,
            starting: status.starting,
            starts_max: status.budget.starts_max,
        }
    }

    /// When the function's first revision was deployed; 0 for a function that is being removed.
    pub(crate) fn created_at_ms(&self, revision: &Revision) -> u64 {
        self.created_at_ms.lock().get(&revision.spec.name).copied().unwrap_or(0)
    }

    /// Records when a function was first deployed; later deploys change nothing.
    pub(crate) fn created(&self, name: &FunctionName, unix_ms: u64) {
        self.created_at_ms.lock().entry(name.clone()).or_insert(unix_ms);
    }

    /// Forgets a removed function.
    pub(crate) fn forget(&self, name: &FunctionName) {
        self.created_at_ms.lock().remove(name);
        self.elsewhere.lock().remove(name);
    }

    pub(crate) fn chains(&self) -> Vec<String> {
        let all = self.engine.list();
        let chains = all.iter().filter(|revision| revision.spec.runtime == Runtime::Chain);
        chains.map(|revision| revision.spec.name.to_string()).collect()
    }

    /// Random bits for ids; unique, not secret.
    pub(crate) fn random(&self) -> u128 {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let high = self.random.hash_one((count, 0));
        let low = self.random.hash_one((count, 1));
        u128::from(high) << 64 | u128::from(low)
    }
}
