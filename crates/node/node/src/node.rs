//! A running node, as the parts that the steps of its start return.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::accepted::Accepted;
use crate::addresses::Addresses;
use crate::config::Config;
use crate::deployed::Deployed;
use crate::keys::Callers;
use crate::mqtt::Mqtt;
use crate::operators::Tenants;
use crate::ports::reachable;
use crate::run::data_path::DataPath;
use crate::run::open::Opened;
use crate::turns::Deploys;
use mote_api::types::{NodeBudget, NodeStatus, Urls};
use mote_outgoing::Outgoing;
use mote_spec::{Access, Runtime};

/// A running node: the parts that the steps of its start return (`run.rs`). A function receives the
/// part that it needs, and the whole only if it needs several.
pub(crate) struct Node {
    pub(crate) config: Config,
    /// Files, interpreters, and the sandbox.
    pub(crate) opened: Opened,
    /// The engine and what it needs.
    pub(crate) data_path: DataPath,
    /// Where the node is reached.
    pub(crate) addresses: Addresses,
    /// The other cells of the cluster, if the node is one.
    pub(crate) cells: Option<mote_cells::Cells>,
    /// Namespaces and operators.
    pub(crate) tenants: Tenants,
    /// Invocations that run without their callers.
    pub(crate) accepted: Accepted,
    /// Triggers and publishing over MQTT.
    pub(crate) mqtt: Mqtt,
    /// Who may call functions.
    pub(crate) callers: Callers,
    /// What the node keeps for each function.
    pub(crate) deployed: Deployed,
    /// Turns of deploys, and what failed ones left.
    pub(crate) deploys: Deploys,
    /// The rule for requests that the node itself sends.
    pub(crate) outgoing: Outgoing,
    /// Accepts manifests of OpenWhisk, if its API is on.
    pub(crate) openwhisk: Option<mote_platforms::openwhisk::Manifests>,
    pub(crate) ids: Ids,
    pub(crate) started: Instant,
    pub(crate) ready: AtomicBool,
}

/// Random bits for ids.
#[derive(Default)]
pub(crate) struct Ids {
    random: RandomState,
    counter: AtomicU64,
}

impl Ids {
    /// Unique, not secret.
    pub(crate) fn random(&self) -> u128 {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let high = self.random.hash_one((count, 0));
        let low = self.random.hash_one((count, 1));
        u128::from(high) << 64 | u128::from(low)
    }
}

impl Node {
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// The addresses at which clients on this machine reach a function.
    pub(crate) fn urls(&self, spec: &mote_spec::FunctionSpec) -> Urls {
        let name = &spec.name;
        let access = self.config.access_of(spec.access);
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
            port: self.deployed.ports.shown(spec),
            // Only TLS shows the certificate of a client.
            http: (self.addresses.http.filter(|_| access != Access::Mtls))
                .map(|address| format!("http://{}/{name}", reachable(address)))
                .or_else(|| Some(format!("https://{}/{name}", reachable(self.addresses.https?)))),
            coap: self
                .addresses
                .coap
                .filter(|_| is_open && access != Access::Mtls)
                .map(at("coap", 5683)),
            coaps: (self.addresses.coap_dtls)
                .filter(|_| access != Access::Mtls || self.addresses.shows_certificate_over_dtls())
                .map(at("coaps", 5684))
                .or_else(|| Some(at("coaps+tcp", 5684)(self.addresses.coap_tls?)))
                .filter(|_| is_open && (access != Access::Mtls || self.checks_certificates())),
        }
    }

    /// Whether callers of functions can show certificates.
    pub(crate) fn checks_certificates(&self) -> bool {
        self.config.checks_certificates()
            && (self.addresses.https.or(self.addresses.coap_tls).is_some()
                || self.addresses.shows_certificate_over_dtls())
    }

    pub(crate) fn status(&self) -> NodeStatus {
        let functions = self.data_path.engine.list();
        let revisions = self.data_path.engine.revisions();
        let instances =
            revisions.iter().map(|revision| revision.status().instances.len() as u64).sum();
        let mut notes = std::collections::BTreeMap::new();
        for check in self.opened.backend.report().items {
            if check.state != mote_sandbox::State::Enforced {
                notes.insert(check.name.to_string(), check.detail.clone());
            }
        }
        NodeStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            http: self.addresses.http.map(|address| address.to_string()),
            coap: self.addresses.coap.map(|address| address.to_string()),
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
    pub(crate) fn budget(&self) -> NodeBudget {
        let status = self.data_path.engine.ledger_status();
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

    /// The names of the functions that are chains.
    pub(crate) fn chains(&self) -> Vec<String> {
        let all = self.data_path.engine.list();
        let chains = all.iter().filter(|revision| revision.spec.runtime == Runtime::Chain);
        chains.map(|revision| revision.spec.name.to_string()).collect()
    }
}
