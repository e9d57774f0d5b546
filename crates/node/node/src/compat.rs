//! The APIs of other platforms, and the parts of the node that they may use.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::fronts::Calls;
use anyhow::{Context as _, Result};
use futures_util::future::{BoxFuture, FutureExt as _};
use mote_access::Guarded;
use mote_api::Problem;
use mote_core::invocation::{Head, Reply, Routed as _};
use mote_core::{Fault, Invocation, InvocationId, Invoker, Trigger};
use mote_engine::{Engine, Revision};
use mote_http::access_log::AccessLog;
use mote_http::gathering::Gathering;
use mote_http::http;
use mote_http::http::Stopper;
use mote_journal::{Reader, problem_of};
use mote_platforms::compat::node::{
    Access, Act, Admission, Call, Change, Collection, Credential, Deploy, Deploys, Documents,
    Function, Functions, Invocations, KeptCalls, Log, Logs, Namespaces, Role, Scope, Secrets,
};
use mote_platforms::compat::{Bound, Context, Queue, Stop};
use mote_platforms::tinyfaas::{GrpcFront, Ports, TinyFaasFront};
use mote_process::clock;
use mote_spec::name::split;
use mote_spec::{
    Egress, INSTANCES_MAX, OPENFAAS_GATEWAY_PORT, OPENFAAS_GATEWAYS, OWN_FRONT, ScaleOverride,
};
use mote_store::{DocumentChange, Store, StoreError};
use mote_tls::Acceptor;
use tokio::net::{TcpListener, UdpSocket};
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::store_work::with_store;
use super::unusable::busy;
use super::{Node, code, functions, operators, secrets};
use crate::config::PlatformApis;
use crate::fronts::limits::{TINYFAAS_FILES_SHARE, http_config};

/// How long running calls may take to end after the node begins to stop.
const STOP_GRACE: Duration = Duration::from_secs(12);
/// How long a connection to tinyFaaS' gRPC front may stay open without calls.
const GRPC_KEEP_ALIVE: Duration = Duration::from_secs(300);

/// The sockets of every platform API that is switched on.
#[derive(Default)]
pub(super) struct Listeners {
    openfaas: Option<Bound>,
    tinyfaas: Option<TinyFaas>,
    nuclio: Option<Bound>,
    openwhisk: Option<OpenWhisk>,
}

/// The socket of OpenWhisk's API, and both ends of the channel for manifests.
struct OpenWhisk {
    bound: Bound,
    manifests: mote_platforms::openwhisk::Manifests,
    incoming: mote_platforms::openwhisk::Incoming,
}

struct TinyFaas {
    management: Bound,
    http: Option<TcpListener>,
    coap: Option<UdpSocket>,
    grpc: Option<TcpListener>,
}

impl Listeners {
    pub(super) async fn bind(config: &PlatformApis, tls: Option<&Acceptor>) -> Result<Self> {
        let mut listeners = Self::default();
        let bind = async |key, address| -> Result<Bound> {
            Ok(bind(key, address).await?.with_tls(tls.cloned()))
        };
        if let Some(address) = config.openfaas {
            listeners.openfaas = Some(bind("openfaas", address).await?);
        }
        if let Some(config) = &config.tinyfaas {
            let management = bind("tinyfaas", config.management).await?;
            listeners.tinyfaas = Some(TinyFaas::bind(config, management).await?);
        }
        if let Some(address) = config.nuclio {
            listeners.nuclio = Some(bind("nuclio", address).await?);
        }
        if let Some(address) = config.openwhisk {
            let bound = bind("openwhisk", address).await?;
            let (manifests, incoming) = mote_platforms::openwhisk::Manifests::new();
            listeners.openwhisk = Some(OpenWhisk { bound, manifests, incoming });
        }
        Ok(listeners)
    }

    /// The destinations under which functions call the node or their own platform, each with the
    /// address of the listener that answers.
    pub(super) fn own_apis(&self, http: Option<SocketAddr>) -> HashMap<Egress, SocketAddr> {
        let reached = |mut address: SocketAddr| {
            if address.ip().is_unspecified() {
                address.set_ip(Ipv4Addr::LOCALHOST.into());
            }
            address
        };
        let mut apis = HashMap::new();
        if let Some(address) = http {
            let (host, port) = OWN_FRONT;
            apis.insert(Egress::tcp(host, port), reached(address));
        }
        if let Some(bound) = &self.openfaas {
            for host in OPENFAAS_GATEWAYS {
                let gateway = Egress::tcp(host, OPENFAAS_GATEWAY_PORT);
                apis.insert(gateway, reached(bound.address()));
            }
        }
        apis
    }

    /// The platform and the address of each API, for the announcement.
    pub(super) fn addresses(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        if let Some(bound) = &self.openfaas {
            lines.push(("openfaas", format!("http://{}", bound.address())));
        }
        if let Some(tinyfaas) = &self.tinyfaas {
            lines.push(("tinyfaas", format!("http://{}", tinyfaas.management.address())));
            let ports = tinyfaas.addresses();
            for (front, scheme, address) in ports {
                let Some(address) = address else { continue };
                lines.push((front, format!("{scheme}://{address}")));
            }
        }
        if let Some(bound) = &self.nuclio {
            lines.push(("nuclio", format!("http://{}", bound.address())));
        }
        if let Some(OpenWhisk { bound, .. }) = &self.openwhisk {
            lines.push(("openwhisk", format!("http://{}", bound.address())));
        }
        lines
    }

    /// The TCP ports of all platform APIs.
    pub(super) fn ports(&self) -> impl Iterator<Item = u16> {
        let apis = [&self.openfaas, &self.nuclio].into_iter().flatten().map(Bound::address);
        let openwhisk = self.openwhisk.as_ref().map(|openwhisk| openwhisk.bound.address());
        let tinyfaas = self.tinyfaas.as_ref().map(|tinyfaas| {
            let fronts = tinyfaas.addresses().into_iter().filter_map(|(.., address)| address);
            fronts.chain([tinyfaas.management.address()])
        });
        apis.chain(openwhisk).chain(tinyfaas.into_iter().flatten()).map(|address| address.port())
    }

    /// The channel that accepts OpenWhisk manifests, if OpenWhisk's API is on.
    pub(super) fn openwhisk_manifests(&self) -> Option<mote_platforms::openwhisk::Manifests> {
        self.openwhisk.as_ref().map(|openwhisk| openwhisk.manifests.clone())
    }

    /// Serves the APIs until `stop` turns true. The APIs run on their own thread. Fronts that use
    /// the node's own code with another platform's conventions run on the data path; they are
    /// started in `fronts`.
    pub(super) async fn serve(
        mut self,
        node: Arc<Node>,
        management: Handle,
        fronts: Fronts<'_>,
        stop: watch::Receiver<bool>,
    ) -> Result<std::thread::JoinHandle<()>> {
        let engine = node.data_path.engine.clone();
        let guard = node.callers.guard.clone();
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start a runtime for other platforms")?;
        let journal = Arc::new(node.accepted.journals.clone());
        let outgoing = node.outgoing.clone();
        let front = Arc::new(PlatformNode { node, management, gathering: Default::default() });
        let queue = Queue::new(front.clone(), journal, outgoing);
        let resumed = queue.resumed().await;
        let stop = Stop::new(stop);
        let ports = self.tinyfaas.as_ref().map(TinyFaas::ports).unwrap_or_default();
        if let Some(tinyfaas) = &mut self.tinyfaas {
            let plain = TinyFaasFront::new(Guarded::new(engine, guard), queue.clone());
            let grpc = GrpcFront::new(front.clone(), queue.clone());
            tinyfaas.serve_fronts(plain, grpc, fronts);
        }
        std::thread::Builder::new()
            .name("mote-compat".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    let mut serving = JoinSet::new();
                    // Each API receives only the traits of the node that it uses.
                    let parts = || (queue.clone(), stop.clone());
                    if let Some(bound) = self.openfaas {
                        let context = context_of::<dyn mote_platforms::openfaas::Node>(
                            front.clone(),
                            parts(),
                        );
                        serving.spawn(mote_platforms::openfaas::serve(bound, context));
                    }
                    if let Some(TinyFaas { management, .. }) = self.tinyfaas {
                        let context = context_of::<dyn mote_platforms::compat::node::Managed>(
                            front.clone(),
                            parts(),
                        );
                        serving.spawn(mote_platforms::tinyfaas::serve(management, context, ports));
                    }
                    if let Some(bound) = self.nuclio {
                        let context =
                            context_of::<dyn mote_platforms::nuclio::Node>(front.clone(), parts());
                        serving.spawn(mote_platforms::nuclio::serve(bound, context));
                    }
                    if let Some(OpenWhisk { bound, incoming, .. }) = self.openwhisk {
                        let context =
                            context_of::<dyn mote_platforms::openwhisk::Node>(front, parts());
                        serving.spawn(mote_platforms::openwhisk::serve(
                            bound, context, resumed, incoming,
                        ));
                    }
                    let all = async { while serving.join_next().await.is_some() {} };
                    stop.stopped().await;
                    // Accepted calls that have not ended by then stay on disk.
                    let _ = tokio::time::timeout(STOP_GRACE, all).await;
                });
                runtime.shutdown_background();
            })
            .context("cannot start a thread for other platforms")
    }
}

/// The parts that the fronts of other platforms need in order to run as tasks on the data path, and
/// the channel that stops them.
pub(super) struct Fronts<'a> {
    pub(super) tasks: &'a mut JoinSet<std::io::Result<()>>,
    pub(super) stopper: Stopper,
    pub(super) coap_stopped: tokio::sync::watch::Receiver<bool>,
    /// The log of the HTTP front.
    pub(super) access_log: Option<AccessLog>,
}

impl TinyFaas {
    async fn bind(config: &crate::config::TinyFaas, management: Bound) -> Result<Self> {
        let http = match config.http {
            Some(at) => Some(http::listen(at).map_err(|e| busy("tinyfaas_http", at, e))?),
            None => None,
        };
        let coap = match config.coap {
            Some(at) => Some(UdpSocket::bind(at).await.map_err(|e| busy("tinyfaas_coap", at, e))?),
            None => None,
        };
        let grpc = match config.grpc {
            Some(at) => Some(http::listen(at).map_err(|e| busy("tinyfaas_grpc", at, e))?),
            None => None,
        };
        Ok(Self { management, http, coap, grpc })
    }

    fn addresses(&self) -> [(&'static str, &'static str, Option<SocketAddr>); 3] {
        let http = self.http.as_ref().and_then(|socket| socket.local_addr().ok());
        let coap = self.coap.as_ref().and_then(|socket| socket.local_addr().ok());
        let grpc = self.grpc.as_ref().and_then(|socket| socket.local_addr().ok());
        [
            ("tinyfaas http", "http", http),
            ("tinyfaas coap", "coap", coap),
            ("tinyfaas grpc", "grpc", grpc),
        ]
    }

    fn ports(&self) -> Ports {
        let [http, coap, grpc] = self.addresses().map(|(.., address)| address.map(|a| a.port()));
        Ports { http, coap, grpc }
    }

    /// Serves HTTP, CoAP and gRPC with the node's own fronts, which are strict and have limits.
    fn serve_fronts(
        &mut self,
        front: TinyFaasFront<Guarded<Engine>>,
        grpc: GrpcFront,
        fronts: Fronts<'_>,
    ) {
        let Fronts { tasks, stopper, coap_stopped, access_log } = fronts;
        let front = Calls::TinyFaas(front);
        if let Some(socket) = self.http.take() {
            let config = http::Config { access_log, ..http_config(TINYFAAS_FILES_SHARE) };
            tasks.spawn(crate::fronts::http(socket, front.clone(), config, stopper.clone()));
        }
        if let Some(socket) = self.grpc.take() {
            // gRPC clients keep a connection open between calls, even if the calls are far apart.
            let keep_alive_timeout = GRPC_KEEP_ALIVE;
            let config = http::Config { keep_alive_timeout, ..http_config(TINYFAAS_FILES_SHARE) };
            tasks.spawn(crate::fronts::http(socket, Calls::TinyFaasGrpc(grpc), config, stopper));
        }
        if let Some(socket) = self.coap.take() {
            let config = mote_coap::Config { always_content: true, ..mote_coap::Config::default() };
            tasks.spawn(crate::fronts::coap(socket, front, config, coap_stopped));
        }
    }
}

async fn bind(key: &'static str, address: SocketAddr) -> Result<Bound> {
    Bound::new(address).await.map_err(|error| busy(key, address, error))
}

/// Logs a warning if OpenWhisk's API is off while accepted activations still wait for it.
pub(super) async fn warn_of_activations(node: &Node) {
    match node.accepted.journals.own().activations().await {
        Ok(activations) if activations.is_empty() => {}
        Ok(activations) => tracing::warn!(
            activations = activations.len(),
            "accepted activations wait until OpenWhisk's API is turned on again"
        ),
        Err(error) => tracing::error!(%error, "cannot read accepted activations"),
    }
}

/// Builds the context of a platform's API. The context holds the part of the node that the API
/// uses.
fn context_of<N: ?Sized>(node: Arc<N>, (queue, stop): (Queue, Stop)) -> Context<N> {
    Context { node, queue, stop }
}

/// The node as the platform APIs receive it.
struct PlatformNode {
    node: Arc<Node>,
    /// The runtime on which deploys run, so that they do not delay calls.
    management: Handle,
    /// Bodies of calls that are being received, by function.
    gathering: Arc<Gathering<String>>,
}

impl PlatformNode {
    /// Runs a change to its end, even if its caller no longer waits.
    fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Problem>> {
        let task = self.management.spawn(work);
        let failed = |_| Problem::new(500, "M0599", "the node could not do this; see its log");
        async move { task.await.map_err(failed)? }.boxed()
    }
}

impl PlatformNode {
    /// Runs `work` on the store, on a thread that belongs to no runtime.
    fn stored<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Problem>> {
        let node = self.node.clone();
        self.to_the_end(async move { with_store(&node.opened.store, work).await })
    }
}

impl Access for PlatformNode {
    fn admits(&self, from: IpAddr, token: Option<&str>, needed: Role) -> (Admission, Scope) {
        self.node.tenants.operators.admits(from, token, needed)
    }

    fn is_valid(&self, key: Credential) -> bool {
        self.node.tenants.operators.is_valid(key)
    }

    fn scope_of(&self, token: &str) -> Option<Scope> {
        self.node.tenants.operators.scope_of(token)
    }

    fn namespaces(&self) -> Arc<Namespaces> {
        self.node.tenants.namespaces.clone()
    }

    fn record(&self, act: Act) -> BoxFuture<'static, ()> {
        operators::record(&self.node.tenants.audit, act).boxed()
    }
}

impl Functions for PlatformNode {
    fn functions(&self) -> Vec<Function> {
        self.node
            .data_path
            .engine
            .list()
            .iter()
            .map(|revision| function(&self.node, revision))
            .collect()
    }

    fn function(&self, name: &str) -> Option<Function> {
        Some(function(&self.node, &self.node.data_path.engine.get(name)?))
    }
}

impl Deploys for PlatformNode {
    fn deploy(&self, deploy: Deploy) -> BoxFuture<'static, Result<(), Problem>> {
        let node = self.node.clone();
        self.to_the_end(async move { code::deploy(&node, deploy).await })
    }

    fn remove(&self, name: &str) -> BoxFuture<'static, Result<(), Problem>> {
        let node = self.node.clone();
        let name = name.to_owned();
        self.to_the_end(async move { functions::remove(&node, &name).await })
    }

    fn scale(&self, name: &str, instances: u32) -> BoxFuture<'static, Result<(), Problem>> {
        let node = self.node.clone();
        let name = name.to_owned();
        self.to_the_end(async move {
            let namespace = split(&name).1;
            let _change = namespace.map(|name| node.tenants.namespaces.change(name)).transpose()?;
            let revision = functions::find(&node.data_path.engine, &name)?;
            if instances > INSTANCES_MAX {
                let text = format!(
                    "{name}: {instances} instances; the number must be 0 to {INSTANCES_MAX}"
                );
                return Err(Problem::new(422, "M0303", text));
            }
            let before = revision.bounds().max.or(revision.spec.scale.max);
            // A request for more instances than the maximum also raises the maximum.
            let raised = instances > before.unwrap_or(node.data_path.cores);
            let max = if raised { Some(instances) } else { revision.bounds().max };
            let bounds = ScaleOverride { min: Some(instances), max };
            functions::set_bounds(&node.opened.store, &revision, bounds).await?;
            revision.scale_to(instances);
            Ok(())
        })
    }
}

impl Invocations for PlatformNode {
    fn body_bytes_max(&self, name: &str) -> Option<u64> {
        Some(self.node.data_path.engine.get(name)?.spec.limits.body_bytes)
    }

    fn check_target(&self, target: &str) -> Result<(), Problem> {
        let whole = format!("/function{target}");
        let checked = mote_http::http::target::split(whole.as_bytes());
        let refused = |refusal: mote_http::refusal::Refusal| {
            Problem::new(refusal.status, refusal.code, refusal.detail)
        };
        checked.map(|_| ()).map_err(refused)
    }

    fn admit(&self, function: &str, head: &mut Head, from: IpAddr) -> Result<(), Fault> {
        let route =
            self.node.data_path.engine.route(function, || None).ok_or(Fault::NoSuchFunction)?;
        let info = route.info();
        let guard = &self.node.callers.guard;
        let name = info.name.as_str();
        guard.admit(info.access, info.tokens, name, head, Some(from))?;
        if info.is_confined {
            return guard.count_within(info.access, info.rates, name, head, Some(from));
        }
        guard.count(info.access, info.rates, name, head, Some(from))
    }

    fn invoke(&self, call: Call) -> BoxFuture<'static, Result<Reply, Fault>> {
        let id = InvocationId::new(clock::unix_ms(), self.node.ids.random());
        self.invoke_as(id.0, call)
    }

    fn invoke_as(&self, id: u128, call: Call) -> BoxFuture<'static, Result<Reply, Fault>> {
        let node = self.node.clone();
        let gathering = self.gathering.clone();
        async move {
            let Some(route) = node.data_path.engine.route(&call.function, || None) else {
                return Err(Fault::NoSuchFunction);
            };
            let mut head = call.head;
            // The access mode for callers on this machine needs no check here, because the front
            // checked the origin of the request when the request arrived.
            if route.info().access != mote_spec::Access::Local {
                let name = route.info().name.as_str();
                node.callers.guard.admit(
                    route.info().access,
                    route.info().tokens,
                    name,
                    &mut head,
                    None,
                )?;
            }
            let place = head.take_place();
            let limit_ms = route.revision().timeout_ms();
            let timeout_ms = call.timeout_ms.map_or(limit_ms, |asked| asked.min(limit_ms));
            let mut body = call.body;
            if route.revision().takes_whole_bodies() {
                let head_bytes = head.bytes();
                body = gathering.whole(call.function, head_bytes, body).await?;
            }
            let received_ns = clock::now_ns();
            let invocation = Invocation {
                id: InvocationId(id),
                trigger: Trigger::Http,
                head,
                body,
                received_ns,
                deadline_ns: received_ns + timeout_ms * 1_000_000,
                chain: None,
            };
            let answered = node.data_path.engine.invoke(&route, invocation).await;
            answered.map(|reply| match place {
                Some(place) => Reply { body: place.until_end_of(reply.body), ..reply },
                None => reply,
            })
        }
        .boxed()
    }

    fn random(&self) -> u128 {
        self.node.ids.random()
    }
}

impl Logs for PlatformNode {
    fn logs(&self, name: &str, follow: bool) -> Option<Log> {
        let revision = self.node.data_path.engine.get(name)?;
        let (held, following) =
            functions::log_lines(revision.spec.name.as_str(), &revision.log, follow);
        Some(Log { held, following })
    }
}

impl KeptCalls for PlatformNode {
    fn keep_call(&self, record: Vec<u8>) -> BoxFuture<'static, Result<u64, Problem>> {
        let journal = self.node.accepted.journals.own();
        async move { journal.keep_activation(record).await.map_err(|e| problem_of(&e, Reader::Caller)) }.boxed()
    }

    fn kept_call(&self, number: u64) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>> {
        let journal = self.node.accepted.journals.own();
        async move { journal.activation(number).await.map_err(|e| problem_of(&e, Reader::Caller)) }
            .boxed()
    }

    fn note_progress(
        &self,
        number: u64,
        progress: Vec<u8>,
    ) -> BoxFuture<'static, Result<(), Problem>> {
        let journal = self.node.accepted.journals.own();
        async move {
            journal
                .note_progress(number, progress)
                .await
                .map_err(|e| problem_of(&e, Reader::Caller))
        }
        .boxed()
    }

    fn progress(&self, number: u64) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>> {
        let journal = self.node.accepted.journals.own();
        async move { journal.progress(number).await.map_err(|e| problem_of(&e, Reader::Caller)) }
            .boxed()
    }

    fn forget_call(&self, number: u64) -> BoxFuture<'static, Result<(), Problem>> {
        let journal = self.node.accepted.journals.own();
        async move {
            journal.forget_activation(number).await.map_err(|e| problem_of(&e, Reader::Caller))
        }
        .boxed()
    }

    fn kept_calls(&self) -> BoxFuture<'static, Result<Vec<(u64, u64)>, Problem>> {
        let journal = self.node.accepted.journals.own();
        async move { journal.activations().await.map_err(|e| problem_of(&e, Reader::Caller)) }
            .boxed()
    }
}

impl Secrets for PlatformNode {
    fn secrets(&self) -> BoxFuture<'static, Result<Vec<String>, Problem>> {
        self.stored(Store::secret_names)
    }

    fn put_secret(
        &self,
        name: &str,
        value: String,
        replace: bool,
    ) -> BoxFuture<'static, Result<(), Problem>> {
        let node = self.node.clone();
        let name = name.to_owned();
        self.to_the_end(async move {
            secrets::put(
                &node.opened.store,
                &node.data_path.engine,
                &node.tenants.namespaces,
                name,
                value,
                Some(replace),
            )
            .await
            .map(|_| ())
        })
    }

    fn remove_secret(&self, name: &str) -> BoxFuture<'static, Result<(), Problem>> {
        let node = self.node.clone();
        let name = name.to_owned();
        self.to_the_end(async move {
            secrets::remove(&node.opened.store, &node.data_path.engine, name).await
        })
    }
}

impl Documents for PlatformNode {
    fn put_documents(&self, changes: Vec<Change>) -> BoxFuture<'static, Result<(), Problem>> {
        let changes: Vec<_> = changes
            .into_iter()
            .map(|Change { collection, key, value }| DocumentChange {
                collection: collection.to_owned(),
                key,
                value,
            })
            .collect();
        self.stored(move |store| store.put_documents(&changes))
    }

    fn documents(
        &self,
        collection: &'static str,
    ) -> BoxFuture<'static, Result<Collection, Problem>> {
        self.stored(move |store| store.documents(collection))
    }

    fn document(
        &self,
        collection: &'static str,
        key: &str,
    ) -> BoxFuture<'static, Result<Option<Vec<u8>>, Problem>> {
        let key = key.to_owned();
        self.stored(move |store| store.document(collection, &key))
    }
}

fn function(node: &Node, revision: &Arc<Revision>) -> Function {
    let status = revision.status();
    let ready = status.instances.iter().filter(|one| one.state == "ready").count() as u32;
    let failed = status.instances.is_empty() && status.starting == 0;
    let failure = status.last_failure.filter(|_| failed);
    // A draining instance is about to stop, so it does not count.
    let there = status.instances.iter().filter(|one| one.state != "draining").count() as u32;
    // The autoscaler starts the instances that are missing from the minimum.
    let meant = revision.bounds().min.unwrap_or(revision.spec.scale.min);
    Function {
        spec: revision.spec.clone(),
        revision: revision.number,
        created_unix_ms: node.deployed.created_at_ms(revision),
        instances: (there + status.starting).max(meant),
        ready,
        instance_ids: status.instances.iter().map(|one| one.instance.to_string()).collect(),
        http_url: node.urls(&revision.spec).http,
        calls: revision.totals().iter().map(|(_, count)| count).sum(),
        memory_bytes: status.instances.iter().filter_map(|one| one.memory_bytes).sum(),
        failure: failure.map(|failure| failure.to_string()),
    }
}
