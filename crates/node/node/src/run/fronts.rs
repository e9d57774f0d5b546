//! Starts the fronts, which serve functions at all addresses of the node.

use anyhow::Result;
use mote_access::Guarded;
use mote_http::access_log::AccessLog;
use mote_http::http::Stopper;
use mote_tls::handover::Handover;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::listen::Listening;
use super::thread::runtime_on_thread;
use crate::fronts::limits::{HTTP_FILES_SHARE, http_config};
use crate::fronts::{Calls, dtls, on_thread};
use crate::listeners::Listeners;
use crate::{Node, https};

/// The running fronts, and what stops them.
pub(super) struct Fronts {
    pub(super) tasks: JoinSet<std::io::Result<()>>,
    pub(super) stopper: Stopper,
    /// The CoAP fronts stop when this turns true.
    pub(super) stop_coap: watch::Sender<bool>,
    pub(super) access_log: Option<AccessLog>,
}

impl Fronts {
    /// Lets no front accept further calls.
    pub(super) fn stop(&self) {
        self.stopper.stop();
        let _ = self.stop_coap.send(true);
    }

    /// Waits until the running calls of all fronts have ended.
    pub(super) async fn ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Starts the fronts on the sockets in `listening`, and takes these sockets from there.
pub(super) fn serve(node: &Node, listening: &mut Listening, management: &Handle) -> Result<Fronts> {
    let sockets = &mut listening.sockets;
    let data_path = &node.data_path.runtime;
    let Listeners { http, https, coap, coap_tcp, coap_dtls, coap_tls, .. } = sockets;
    let certificates = &listening.certificates;
    let clients = &listening.clients;
    let access_log = &listening.access_log;
    let invoker =
        Calls::Own(Guarded::new(node.callers.invoker.clone(), node.callers.guard.clone()));
    let stopper = Stopper::default();
    let (stop_coap, coap_stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    if let Some(listener) = http.take() {
        let mut config = http_config(HTTP_FILES_SHARE);
        config.helpers.clone_from(&node.data_path.further);
        config.proxies.clone_from(&node.config.proxies);
        config.access_log.clone_from(access_log);
        config.well_known = certificates.as_ref().and_then(https::well_known);
        node.deployed.ports.follow(&mut config, &invoker, data_path);
        tasks.spawn(crate::fronts::http(listener, invoker.clone(), config, stopper.clone()));
    }
    // TLS handshakes take long. They must not delay the functions and the other fronts.
    let has_tls = https.is_some() || coap_tls.is_some();
    let thread = || runtime_on_thread("mote-tls", std::future::pending());
    let of_fronts = has_tls.then(thread).transpose()?.zip(certificates.as_ref());
    let notices = node.deployed.notices.clone();
    let coap_config = mote_coap::Config { notices: Some(notices), ..Default::default() };
    if let (Some(listener), Some((thread, certificates))) = (coap_tls.take(), &of_fronts) {
        let configs = (coap_config.clone(), https::coap_config(certificates, clients.clone())?);
        let invoker = invoker.clone();
        let stopped = coap_stopped.clone();
        let front = crate::fronts::coap_stream(listener, invoker, configs, stopped);
        tasks.spawn(on_thread(thread, front));
    }
    if let (Some(listener), Some((thread, certificates))) = (https.take(), &of_fronts) {
        let mut config = https::front_config(&node.config, certificates, clients.clone())?;
        config.access_log.clone_from(access_log);
        node.deployed.ports.follow(&mut config, &invoker, thread);
        let front = crate::fronts::http(listener, invoker.clone(), config, stopper.clone());
        tasks.spawn(on_thread(thread, front));
    }
    let handover = certificates.clone().map(|all| Handover::new(all, clients.clone()));
    if let Some(certificates) = certificates {
        management.spawn(certificates.clone().keep_ordered());
        management.spawn(mote_tls::keep_renewed(certificates.clone(), clients.clone()));
    }
    if let Some(listener) = coap_tcp.take() {
        let configs = (coap_config.clone(), mote_coap::StreamConfig::default());
        let invoker = invoker.clone();
        let stopped = coap_stopped.clone();
        tasks.spawn(crate::fronts::coap_stream(listener, invoker, configs, stopped));
    }
    if let (Some(socket), Some(certificates)) = (coap_dtls.take(), handover) {
        let settings = dtls::Settings {
            socket,
            uid: node.config.uid_base - 4,
            guard: node.callers.guard.clone(),
            certificates,
            data_path: data_path.clone(),
        };
        let invoker = invoker.clone();
        let stopped = coap_stopped.clone();
        let front = dtls::coap_dtls(settings, invoker, coap_config.clone(), stopped);
        tasks.spawn_on(front, management);
    }
    if let Some(socket) = coap.take() {
        tasks.spawn(crate::fronts::coap(socket, invoker, coap_config, coap_stopped));
    }
    begin_triggers(node);
    Ok(Fronts { tasks, stopper, stop_coap, access_log: access_log.clone() })
}

/// Starts the MQTT subscriptions of the functions, and opens the functions' own ports.
fn begin_triggers(node: &Node) {
    for revision in node.data_path.engine.list() {
        let spec = &revision.spec;
        spec.tokens.iter().for_each(|rules| node.callers.guard.issuers().expect(rules));
        let is_here = !node.deployed.elsewhere.lock().contains(&spec.name);
        let triggers = if is_here { &spec.mqtt[..] } else { &[] };
        node.mqtt.triggers.apply(&spec.name, triggers, &spec.publishing.topics);
        node.deployed.ports.bring_back(spec);
    }
}
