//! The functions of a node: which revision serves each name, and what all of them share.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use mote_core::backend::Backend;
use mote_core::name::FunctionName;
use mote_core::spec::{FunctionSpec, StartPolicy};
use mote_core::{Fault, Invocation, Invoker, Reply};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::busy_poll::BusyPoll;
use crate::logs::FunctionLog;
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::revision::{Revision, Route};
use crate::scaling::Why;

/// Interpreters found on the host, as they are started inside a sandbox.
#[derive(Debug, Clone, Default)]
pub struct Interpreters {
    /// Python with the shim as its last argument.
    pub python: Option<Vec<String>>,
    /// Node with the shim as its last argument.
    pub node: Option<Vec<String>>,
    /// `PATH` inside sandboxes.
    pub path: String,
}

/// Settings of the engine.
#[derive(Debug, Clone)]
pub struct Config {
    /// Instances of a function whose manifest says nothing: the number of cores.
    pub instances_max_default: u32,
    /// What runs Python and Node.
    pub interpreters: Interpreters,
    /// Whether the data path may look for the next event for up to 0.1 ms before it sleeps; for
    /// machines with more than one core.
    pub busy_poll: bool,
}

/// What all revisions share.
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) config: Config,
    /// The runtime of the data path; every task of the engine runs there.
    pub(crate) runtime: Handle,
    pub(crate) busy_poll: Arc<BusyPoll>,
    instances: AtomicU64,
}

impl Shared {
    pub(crate) fn next_instance(&self) -> u64 {
        self.instances.fetch_add(1, Ordering::Relaxed) + 1
    }
}

type Routes = HashMap<FunctionName, Arc<Revision>>;

/// The engine. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    routes: Arc<ArcSwap<Routes>>,
    logs: Arc<Mutex<HashMap<FunctionName, Arc<FunctionLog>>>>,
    metrics: Arc<Metrics>,
}

impl Engine {
    /// An engine without functions whose tasks run on `runtime`.
    pub fn new(config: Config, backend: Arc<dyn Backend>, runtime: Handle) -> Self {
        let busy_poll = BusyPoll::new(config.busy_poll);
        runtime.spawn(busy_poll.clone().run());
        let instances = AtomicU64::new(0);
        Self {
            shared: Arc::new(Shared { backend, config, runtime, busy_poll, instances }),
            routes: Arc::default(),
            logs: Arc::default(),
            metrics: Arc::default(),
        }
    }

    /// Makes a revision that takes no traffic yet; see [`Revision::warm`] and [`Engine::publish`].
    pub fn revision(
        &self,
        spec: FunctionSpec,
        number: u64,
        code_dir: PathBuf,
        packages_dir: Option<PathBuf>,
    ) -> Arc<Revision> {
        let log = self.log(&spec.name);
        let metrics = self.metrics.function(&spec.name);
        let live = self.get(spec.name.as_str());
        let revision = Arc::new(Revision {
            spec,
            number,
            code_dir,
            packages_dir,
            log,
            metrics,
            shared: self.shared.clone(),
            pool: Mutex::new(Pool::default()),
            changed: Notify::new(),
            last_error: Mutex::default(),
        });
        if let Some(live) = live {
            revision.inherit(&live);
        }
        revision
    }

    /// Lets a revision take the traffic of its name; the one before drains.
    pub fn publish(&self, revision: Arc<Revision>) {
        self.publish_all([revision]);
    }

    /// Publishes many at once, with one new snapshot.
    pub fn publish_all(&self, revisions: impl IntoIterator<Item = Arc<Revision>>) {
        let revisions: Vec<_> = revisions.into_iter().collect();
        let mut replaced = Vec::new();
        self.routes.rcu(|routes| {
            let mut routes = Routes::clone(routes);
            replaced.clear();
            for revision in &revisions {
                replaced.extend(routes.insert(revision.spec.name.clone(), revision.clone()));
            }
            routes
        });
        for old in replaced {
            old.close("redeploy");
        }
        for revision in revisions {
            if revision.instances_min() > 0 {
                revision.ensure_keeper();
            } else if revision.spec.scale.start == StartPolicy::Warm
                && revision.pool.lock().is_quiet()
            {
                // After a restart of the node; a deploy has one already. A failure is logged, and
                // the first invocation tries again.
                self.shared.runtime.spawn(async move { revision.start_one(Why::WARM).await });
            }
        }
    }

    /// Ends a revision that was never published, for instance because it did not start.
    pub fn discard(&self, revision: &Arc<Revision>) {
        revision.close("discarded");
    }

    /// Removes a function: later invocations find nothing, running ones finish.
    pub fn remove(&self, name: &str) -> bool {
        let mut removed = None;
        self.routes.rcu(|routes| {
            let mut routes = Routes::clone(routes);
            removed = routes.remove(name);
            routes
        });
        self.logs.lock().remove(name);
        let Some(revision) = removed else { return false };
        revision.close("removed");
        self.metrics.forget(&revision.spec.name);
        true
    }

    /// The revision that serves `name`.
    pub fn get(&self, name: &str) -> Option<Arc<Revision>> {
        self.routes.load().get(name).cloned()
    }

    /// All live revisions, sorted by name.
    pub fn list(&self) -> Vec<Arc<Revision>> {
        let mut all: Vec<_> = self.routes.load().values().cloned().collect();
        all.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        all
    }

    /// The log of a function, made on first use.
    pub fn log(&self, name: &FunctionName) -> Arc<FunctionLog> {
        self.logs.lock().entry(name.clone()).or_default().clone()
    }

    /// The node's metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Stops: no new invocations, instances drain. Resolves when all are gone or after `grace`.
    pub async fn stop(&self, grace: std::time::Duration) {
        let revisions = self.list();
        for revision in &revisions {
            revision.close("shutdown");
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
}

impl Invoker for Engine {
    type Route = Route;

    fn route(&self, name: &str) -> Option<Route> {
        self.routes.load().get(name).cloned().map(Route)
    }

    fn routes(&self) -> Vec<Route> {
        self.list().into_iter().map(Route).collect()
    }

    async fn invoke(&self, route: &Route, invocation: Invocation) -> Result<Reply, Fault> {
        route.0.invoke(invocation).await
    }
}
