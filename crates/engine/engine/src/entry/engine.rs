//! The functions of a node: which revision serves each name, and the data that all revisions share.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use crate::egress_doors::{Carrier, EgressShares};
use crate::metrics::Metrics;
use arc_swap::ArcSwap;
use mote_core::backend::Backend;
use mote_core::elsewhere::Elsewhere;
use mote_core::services::Services;
use mote_core::trace::TraceParent;
use mote_core::{Fault, Invocation, InvocationId, Invoker, Reply};
use mote_pool::admission::Callee;
use mote_pool::{Rules, StopReason, Why};
use mote_spec::routes::{Asked, Found, RouteRule};
use mote_spec::{Egress, FunctionName, FunctionSpec, ScaleOverride, StartPolicy};
use mote_store::seal::Secrets;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::entry::offer::{Failure, Offer, Origin, Unanswered};
use crate::entry::placed::{self, Placed};
use crate::entry::routes::{Route, Routes, Serving};
use crate::entry::settings::Config;
use crate::entry::traces::{MethodAndPath, Outcome, Traced};
use crate::entry::watch::{Watch, Watching};
use crate::instance::launch;
use crate::instance::prewarm::{Prewarm, PrewarmedPrograms};
use crate::instance::program::{self, Program};
use crate::ledger::{Ledger, LedgerStatus};
use crate::revision::family::Family;
use crate::revision::logs::FunctionLog;
use crate::revision::pool::Pool;
use crate::revision::seen::SeenCounters;
use crate::revision::shared::Shared;
use crate::revision::starts::{Draining, Revisions, Room};
use crate::revision::tasks::Spawner;
use crate::revision::{Revision, RunnableImage, bounds_of};
use crate::thread::busy_poll::BusyPoll;
use crate::thread::threads::Threads;
use mote_process::clock::now_ns;

/// The engine. Cloning is cheap.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    tasks: Arc<Spawner>,
    routes: Arc<ArcSwap<Routes>>,
    placed: Arc<Placed>,
    logs: Arc<Mutex<HashMap<FunctionName, Arc<FunctionLog>>>>,
    metrics: Arc<Metrics>,
}

impl Engine {
    /// Creates an engine without functions, whose tasks run on `runtime`. `runtime` and the
    /// `further` runtimes take turns in serving new instances. At most
    /// [`THREADS_MAX`](crate::THREADS_MAX) runtimes are used together, and each of them has one
    /// thread.
    pub fn new(
        config: Config,
        backend: Arc<dyn Backend>,
        runtime: Handle,
        further: &[Handle],
    ) -> Self {
        let threads = Threads::new(runtime.clone(), further);
        let busy_poll = BusyPoll::new(config.busy_poll, threads.runtimes().len());
        for (thread, runtime) in threads.runtimes().iter().enumerate() {
            runtime.spawn(busy_poll.clone().run(thread));
        }
        let instances = AtomicU64::new(0);
        let ledger = Ledger::new(config.budget);
        let routes = Arc::default();
        let draining = Draining::default();
        let revisions = Revisions { routes: Arc::downgrade(&routes), draining: draining.clone() };
        ledger.add_source(Arc::new(revisions));
        let Config { prewarm_bytes, budget, .. } = config;
        let prewarm = Prewarm::new(
            backend.clone(),
            runtime.clone(),
            ledger.clone(),
            budget.starts_max,
            prewarm_bytes,
        );
        ledger.add_source(Arc::new(PrewarmedPrograms(Arc::downgrade(&prewarm))));
        let tasks = Arc::new(Spawner { runtime: runtime.clone(), draining });
        let shared = Shared {
            backend,
            config,
            runtime,
            threads,
            busy_poll,
            prewarm,
            ledger,
            carrier: Carrier::default(),
            egress: EgressShares::default(),
            own_apis: OnceLock::new(),
            services: OnceLock::new(),
            elsewhere: OnceLock::new(),
            watches: Arc::default(),
            free_bytes: AtomicU64::new(budget.memory_bytes),
            instances,
            meters: Mutex::default(),
        };
        let shared = Arc::new(shared);
        let (placed, logs, metrics) = Default::default();
        Self { shared, tasks, routes, placed, logs, metrics }
    }

    /// The secrets of functions. If a value is added, instances that start from then on receive it.
    pub fn secrets(&self) -> &Secrets {
        &self.shared.config.secrets
    }

    /// The place of a running invocation in its trace, if it is recorded.
    pub fn trace_of(&self, invocation: InvocationId) -> Option<TraceParent> {
        self.shared.config.tracer.as_ref()?.place(invocation)
    }

    /// Creates a revision that takes no traffic yet; see [`Revision::warm`] and
    /// [`Engine::publish`].
    pub fn revision(
        &self,
        spec: FunctionSpec,
        number: u64,
        code_dir: PathBuf,
        packages_dir: Option<PathBuf>,
        image: Option<RunnableImage>,
    ) -> Arc<Revision> {
        let log = self.log(&spec.name);
        let metrics = self.metrics.function(&spec.name);
        let cores = self.shared.config.instances_max_default;
        let bounds = bounds_of(&spec, ScaleOverride::default(), cores, 1);
        let memory_bytes = self.shared.config.budget.memory_bytes;
        let mut pool = Pool::new(Rules::of(&spec, cores, memory_bytes), bounds);
        if let Some(live) = self.get(spec.name.as_str()) {
            pool.inherit(&live.pool.lock());
        }
        let who = Callee {
            function: number_of(&spec.name),
            namespace: number_of(&spec.name.namespace()),
        };
        Arc::new(Revision {
            is_confined: spec.name.namespace().is_some(),
            access: spec.access.or(self.shared.config.access_default),
            spec,
            number,
            code_dir,
            packages_dir,
            image,
            log,
            who,
            metrics,
            shared: self.shared.clone(),
            tasks: self.tasks.clone(),
            pool: Mutex::new(pool),
            key: OnceLock::new(),
            debugger: Mutex::default(),
            bounds: Mutex::default(),
            changed: Arc::new(Notify::new()),
            last_error: Mutex::default(),
            failure_lines: Mutex::default(),
            seen: SeenCounters::new(),
            family: Family::default(),
            whole_bodies: AtomicBool::new(false),
            concurrency: AtomicU32::new(1),
        })
    }

    /// Directs the traffic of a function to these revisions from now on. Previous revisions that
    /// are not among these drain, and pass on the invocations that wait in their queues. Each new
    /// revision has already had a ready instance, or its first invocation starts one.
    pub fn publish(&self, serving: impl Into<Serving>) {
        self.publish_all([serving.into()]);
    }

    /// Publishes many functions at once, in one new snapshot.
    pub fn publish_all(&self, all: impl IntoIterator<Item = Serving>) {
        let all: Vec<_> = all.into_iter().collect();
        let mut replaced = Vec::new();
        self.routes.rcu(|routes| {
            let mut routes = Routes::clone(routes);
            replaced.clear();
            for serving in &all {
                let name = serving.live().spec.name.clone();
                replaced.extend(routes.insert(name, serving.clone()));
            }
            routes
        });
        self.placed.update(|| self.routes.load_full());
        let gone = replaced.iter().flat_map(Serving::revisions).map(|old| (old, false));
        let come = all.iter().flat_map(Serving::revisions).map(|new| (new, true));
        self.shared.prewarm.functions(come.chain(gone).filter_map(launch::kind));
        let stays = |old: &Arc<Revision>| {
            all.iter().any(|serving| serving.revisions().iter().any(|new| Arc::ptr_eq(old, new)))
        };
        for old in replaced.iter().flat_map(Serving::revisions).filter(|old| !stays(old)) {
            old.close(StopReason::Redeploy);
        }
        let mut warm = VecDeque::new();
        for revision in all.iter().flat_map(Serving::revisions) {
            if revision.keeps_some() {
                revision.ensure_reconciler();
            }
            if revision.instances_min() > 0 {
                continue;
            }
            if revision.spec.scale.start == StartPolicy::Warm && revision.pool.lock().is_quiet() {
                // An instance is missing here only when the node restarts; a deploy has already
                // started one. A failure is logged, and the first invocation tries again.
                warm.push_back(revision.clone());
            }
        }
        if !warm.is_empty() {
            self.shared.runtime.spawn(warm_up(warm, self.shared.config.budget.starts_max));
        }
    }

    /// The memory that the node gives to instances, and how much of it is taken.
    pub fn ledger_status(&self) -> LedgerStatus {
        self.shared.ledger.status()
    }

    /// The ledger, for other parts of the node that hold memory on behalf of instances.
    pub fn ledger(&self) -> Arc<Ledger> {
        self.shared.ledger.clone()
    }

    /// Maps destinations to addresses of the node's own API. Functions that name such a destination
    /// reach that address, and no other address of the node. Call this once, before any function
    /// runs; later calls change nothing.
    pub fn set_own_apis(&self, apis: HashMap<Egress, SocketAddr>) {
        let _ = self.shared.own_apis.set(apis);
    }

    /// Sets the services that functions may request from their node. Call this once, before any
    /// function runs; later calls change nothing.
    pub fn set_services(&self, services: Arc<dyn Services>) {
        let _ = self.shared.services.set(services);
    }

    /// Sets the other cells, which may take invocations that this node cannot run. Call this once,
    /// before any function runs; later calls change nothing.
    pub fn set_elsewhere(&self, elsewhere: Arc<dyn Elsewhere>) {
        let _ = self.shared.elsewhere.set(elsewhere);
    }

    /// Shows each invocation that begins from now on to `watch`, until the result is dropped.
    pub fn watch(&self, watch: Arc<dyn Watch>) -> Watching {
        self.shared.watches.add(watch)
    }

    /// Starts a program in the sandbox of the function's live revision.
    pub async fn start_program(&self, name: &str, argv: Vec<String>) -> Result<Program, String> {
        let revision = self.get(name).ok_or_else(|| format!("no function {name}"))?;
        program::start(&revision, argv).await
    }

    /// Connects to the debug port of the function's newest instance ([`Config::inspect`]).
    pub async fn debug(
        &self,
        name: &str,
    ) -> std::io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>> {
        let link = self.get(name).and_then(|revision| revision.debugger.lock().clone());
        let link = link.ok_or(std::io::ErrorKind::NotConnected)?;
        Ok(link.open().await?.0.into_inner())
    }

    /// Discards a revision that was never published, for instance because it did not start.
    pub fn discard(&self, revision: &Arc<Revision>) {
        revision.close(StopReason::Discarded);
        if self.get(revision.spec.name.as_str()).is_none() {
            self.metrics.forget(&revision.spec.name);
        }
    }

    /// Removes a function. Later invocations do not find it, and running ones finish.
    pub fn remove(&self, name: &str) -> bool {
        let mut removed = None;
        self.routes.rcu(|routes| {
            let mut routes = Routes::clone(routes);
            removed = routes.remove(name);
            routes
        });
        self.placed.update(|| self.routes.load_full());
        self.logs.lock().remove(name);
        let Some(serving) = removed else { return false };
        let gone = serving.revisions().iter().map(|revision| (revision, false));
        self.shared.prewarm.functions(gone.filter_map(launch::kind));
        for revision in serving.revisions() {
            revision.close(StopReason::Removed);
        }
        self.metrics.forget(&serving.live().spec.name);
        true
    }

    /// Forgets the logs and counts of names for which `is_meant` returns true and which have no
    /// function, for example after a failed deploy.
    pub fn forget(&self, is_meant: impl Fn(&FunctionName) -> bool) {
        let routes = self.routes.load();
        let is_gone = |name: &FunctionName| is_meant(name) && !routes.contains_key(name.as_str());
        self.logs.lock().retain(|name, _| {
            let stays = !is_gone(name);
            if !stays {
                self.metrics.forget(name);
            }
            stays
        });
    }

    /// The first route in `spec` that another function already has, and the name of that function.
    pub fn route_conflict(&self, spec: &FunctionSpec) -> Option<(RouteRule, FunctionName)> {
        placed::conflict(&self.routes.load(), spec)
    }

    /// The live revision of `name`.
    pub fn get(&self, name: &str) -> Option<Arc<Revision>> {
        self.routes.load().get(name).map(|serving| serving.live().clone())
    }

    pub fn serving(&self, name: &str) -> Option<Serving> {
        self.routes.load().get(name).cloned()
    }

    /// All live revisions, one per function, sorted by name.
    pub fn list(&self) -> Vec<Arc<Revision>> {
        let mut all: Vec<_> =
            self.routes.load().values().map(|serving| serving.live().clone()).collect();
        all.sort_unstable_by(|a, b| a.spec.name.cmp(&b.spec.name));
        all
    }

    /// All revisions that a traffic share or a tag leads to, in no order.
    pub fn revisions(&self) -> Vec<Arc<Revision>> {
        self.routes.load().values().flat_map(Serving::revisions).cloned().collect()
    }

    /// The log of a function, which is created on first use.
    pub fn log(&self, name: &FunctionName) -> Arc<FunctionLog> {
        let new = || {
            let sink = self.shared.config.log_sink.clone();
            Arc::new(FunctionLog::new(name.clone(), sink))
        };
        self.logs.lock().entry(name.clone()).or_insert_with(new).clone()
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// How long no invocation has run or waited on the whole node. `None` while one runs or waits.
    pub fn idle(&self) -> Option<std::time::Duration> {
        self.shared.busy_poll.idle_ns(now_ns()).map(std::time::Duration::from_nanos)
    }

    /// Stops the engine: it takes no new invocations, and instances drain. Resolves when all
    /// instances have ended, or after `grace`.
    pub async fn stop(&self, grace: std::time::Duration) {
        let revisions = self.revisions();
        for revision in &revisions {
            revision.close(StopReason::Shutdown);
        }
        let quiet = async {
            for revision in &revisions {
                while !revision.pool.lock().is_quiet() {
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
            }
        };
        let _ = tokio::time::timeout(grace, quiet).await;
    }

    /// Runs an invocation whose revision was replaced before an instance took it. Each iteration
    /// follows one more replacement. The loop ends if even the revision to which the routes lead is
    /// closed, because the function was removed or the node is stopping.
    pub(crate) async fn invoke_again(
        &self,
        route: &Route,
        mut offer: Offer,
    ) -> Result<Reply, Failure> {
        let trigger = offer.invocation.trigger;
        let id = offer.invocation.id;
        let mut last = route.revision.clone();
        let fault = loop {
            let next = route.again(&self.routes.load());
            let Some(next) = next else { break Fault::NoSuchFunction };
            if Arc::ptr_eq(&next, &last) {
                break Fault::Stopping;
            }
            last = next;
            match last.invoke(offer).await {
                Ok(reply) => return Ok(reply),
                Err(Unanswered::Failed(failure)) => return Err(failure),
                Err(Unanswered::Replaced(back) | Unanswered::Overflows(back)) => offer = *back,
                // This cannot happen, because only invocations that may leave do so.
                Err(Unanswered::Leaves(left)) => offer = left.0,
            }
        };
        let failure = fault.into();
        last.failed(trigger, id, &failure);
        Err(failure)
    }
}

/// Starts one instance of each revision. At most as many start at once as the node allows. No other
/// instance is evicted to make room, because the functions have not been called yet.
async fn warm_up(mut waiting: VecDeque<Arc<Revision>>, at_once: u32) {
    let mut starting = JoinSet::new();
    loop {
        while starting.len() < at_once.max(1) as usize
            && let Some(revision) = waiting.pop_front()
        {
            starting.spawn(async move { revision.start_one(Why::WARM, Room::Free).await });
        }
        if starting.join_next().await.is_none() {
            return;
        }
    }
}

/// A number that identifies `what` and does not change while the node runs.
fn number_of(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

impl Invoker for Engine {
    type Route = Route;

    #[inline]
    fn route(&self, name: &str, key: impl FnOnce() -> Option<u64>) -> Option<Route> {
        Route::find(&self.routes.load(), name, key)
    }

    #[inline]
    fn has_routed_hosts(&self) -> bool {
        self.placed.has_hosts()
    }

    fn routed(&self, asked: &Asked<'_>) -> Found {
        self.placed.find(asked)
    }

    fn routes(&self) -> Vec<Route> {
        self.list().into_iter().map(Route::to).collect()
    }

    async fn invoke(&self, route: &Route, invocation: Invocation) -> Result<Reply, Fault> {
        // Boxed, so that the futures stay small on nodes that do not use this.
        if self.shared.watches.has_some() {
            return Box::pin(self.watched(route, invocation)).await;
        }
        match &self.shared.config.tracer {
            Some(_) => Box::pin(self.run(route, invocation)).await,
            None => self.answer(route, invocation).await.map_err(|failure| failure.fault),
        }
    }
}

impl Engine {
    async fn watched(&self, route: &Route, mut invocation: Invocation) -> Result<Reply, Fault> {
        let revision = &route.revision;
        let ended = self.shared.watches.begin(&revision.spec, revision.number, &mut invocation);
        let mut result = self.run(route, invocation).await;
        for ended in ended {
            ended(result.as_mut().map_err(|fault| &*fault));
        }
        result
    }

    /// Runs an invocation without showing it to watchers ([`Engine::watch`]).
    pub async fn run(&self, route: &Route, mut invocation: Invocation) -> Result<Reply, Fault> {
        let Some(tracer) = self.shared.config.tracer.as_deref() else {
            return self.answer(route, invocation).await.map_err(|failure| failure.fault);
        };
        let traced = Traced {
            asked: MethodAndPath::of(&invocation.head),
            recorded: tracer.begin(&mut invocation),
            tracer,
            id: invocation.id,
            trigger: invocation.trigger,
            function: &route.revision.spec.name,
            revision: route.revision.number,
            received_ns: invocation.received_ns,
            is_ended: false,
        };
        let result = self.answer(route, invocation).await;
        traced.end(match &result {
            Ok(reply) => Outcome::Answered { status: reply.status, phases: reply.phases },
            Err(Failure { fault, phases }) => Outcome::Failed { fault, phases: *phases },
        });
        result.map_err(|failure| failure.fault)
    }

    #[inline]
    async fn answer(&self, route: &Route, invocation: Invocation) -> Result<Reply, Failure> {
        let elsewhere = self.shared.elsewhere.get();
        let elsewhere = elsewhere.filter(|_| route.revision.may_move(&invocation));
        let origin = if elsewhere.is_some() { Origin::Movable } else { Origin::Own };
        match route.revision.invoke(Offer::new(invocation, origin)).await {
            Ok(reply) => Ok(reply),
            Err(Unanswered::Failed(failure)) => Err(failure),
            Err(unanswered) => Box::pin(self.go_on(elsewhere, route, unanswered)).await,
        }
    }
}
