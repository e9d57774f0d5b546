//! The type of a running node.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::accepted::Accepted;
use crate::addresses::Addresses;
use crate::admin::OnDemand;
use crate::config::Config;
use crate::deployed::Deployed;
use crate::ids::Ids;
use crate::keys::Callers;
use crate::mqtt::Mqtt;
use crate::operators::Tenants;
use crate::ports::reachable;
use crate::recorder::Recordings;
use crate::run::data_path::DataPath;
use crate::run::open::Opened;
use crate::turns::Deploys;
use mote_api::types::{NodeBudget, NodeStatus, Urls};
use mote_outgoing::Outgoing;
use mote_spec::{Access, Runtime};

/// A running node: the parts that the steps of its start return (`run.rs`). A function should
/// receive only the part that it needs, and the whole node only if it needs several parts.
pub(crate) struct Node {
    pub(crate) config: Config,
    /// The node's files, the interpreters and the sandbox.
    pub(crate) opened: Opened,
    /// The engine and what the engine needs.
    pub(crate) data_path: DataPath,
    /// The addresses at which clients reach the node.
    pub(crate) addresses: Addresses,
    /// The other cells of the cluster, if the node is a cell.
    pub(crate) cells: Option<mote_cells::Cells>,
    /// Namespaces and operators.
    pub(crate) tenants: Tenants,
    /// Invocations that run while no caller waits for them.
    pub(crate) accepted: Accepted,
    /// Triggers and publishing over MQTT.
    pub(crate) mqtt: Mqtt,
    /// The engine as callers reach it, and the checks in front of it.
    pub(crate) callers: Callers,
    /// What the node keeps for each function in addition to its revisions.
    pub(crate) deployed: Deployed,
    /// The turns of deploys, and the logs of failed deploys.
    pub(crate) deploys: Deploys,
    /// The rule for requests that the node itself sends.
    pub(crate) outgoing: Outgoing,
    /// Accepts OpenWhisk manifests, if OpenWhisk's API is on.
    pub(crate) openwhisk: Option<mote_platforms::openwhisk::Manifests>,
    /// The listener of the management API that is opened for browsers.
    pub(crate) on_demand: OnDemand,
    pub(crate) recordings: Recordings,
    pub(crate) ids: Ids,
    pub(crate) started: Instant,
    pub(crate) ready: AtomicBool,
}

impl Node {
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// The addresses at which clients on this machine reach a function.
    pub(crate) fn urls(&self, spec: &mote_spec::FunctionSpec) -> Urls {
        let name = &spec.name;
        let access = self.config.access_of(spec.access);
        // A CoAP request cannot carry a token or a signature, because CoAP has no option for them.
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
            // Only over TLS can a client show a certificate.
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

    /// Whether callers of functions can show client certificates to this node.
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
