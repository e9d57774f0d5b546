//! One function in the simulation: its pool, its demand and its counts.

use mote_pool::autoscale::Bounds;
use mote_pool::{self as pool, Pool, Rules};
use mote_spec::policy::{Balance, Policy};

use crate::arrivals::Source;
use crate::distribution::{Random, stream};
use crate::scenario::{FunctionModel, NodeModel};

/// Stands for the caller of an invocation if no caller of a closed load waits for it.
pub(crate) const NO_CLIENT: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    pub(crate) arrived_ns: u64,
    deadline_ns: u64,
    /// The run time, which is drawn at arrival so that every policy has the same work.
    pub(crate) service_ns: u64,
    pub(crate) client: u32,
}

impl Waiting {
    pub(crate) fn new(now_ns: u64, timeout_ms: u64, service_ns: u64, client: u32) -> Self {
        let deadline_ns = now_ns + timeout_ms * 1_000_000;
        Self { arrived_ns: now_ns, deadline_ns, service_ns, client }
    }
}

impl pool::Waiting for Waiting {
    fn received_ns(&self) -> u64 {
        self.arrived_ns
    }

    fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }
}

/// An invocation inside an instance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    pub(crate) arrived_ns: u64,
    pub(crate) began_ns: u64,
    pub(crate) client: u32,
    pub(crate) cores: f64,
}

impl pool::Running for Running {
    fn due_ns(&self) -> Option<u64> {
        // Simulated invocations always end, so the pool does not need deadlines to end them.
        None
    }
}

/// The simulator's data about a ready instance.
#[derive(Debug)]
pub(crate) struct Instance {
    /// The time from which the instance can run its invocations. While the instance resumes, this
    /// is in the future.
    pub(crate) ready_ns: u64,
    /// Whether the instance was paused and must resume for the next invocation.
    pub(crate) resumes: bool,
    /// The number of invocations that the instance holds.
    pub(crate) running: u32,
    cores: f64,
    cpu_ns: f64,
    touched_ns: u64,
}

impl Instance {
    pub(crate) fn new(now_ns: u64) -> Self {
        Self {
            ready_ns: now_ns,
            resumes: false,
            running: 0,
            cores: 0.0,
            cpu_ns: 0.0,
            touched_ns: now_ns,
        }
    }

    /// Updates the integral of processor time to `now_ns`, then changes the number of cores in use.
    pub(crate) fn burns(&mut self, now_ns: u64, more_cores: f64) {
        self.cpu_ns += self.cores * now_ns.saturating_sub(self.touched_ns) as f64;
        self.touched_ns = now_ns;
        self.cores = if self.running == 0 { 0.0 } else { self.cores + more_cores };
    }
}

impl pool::Instance for Instance {
    fn set_paused(&mut self, paused: bool) -> bool {
        self.resumes = !paused;
        true
    }

    // Nothing to do: the orders of a look tell the simulation which instances exit.
    fn ask_to_exit(&mut self) {}

    fn kill(&mut self) {}
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Client {
    pub(crate) last_send_ns: u64,
    /// Whether the caller takes part in the load, so it waits for an answer or for its next call.
    pub(crate) engaged: bool,
}

pub(crate) struct Function {
    pub(crate) model: FunctionModel,
    pub(crate) pool: Pool<Waiting, Running, Instance>,
    pub(crate) source: Source,
    pub(crate) arrival_random: Random,
    pub(crate) work_random: Random,
    pub(crate) start_random: Random,
    /// The run time of the next scheduled arrival; 0 if none was recorded.
    pub(crate) next_service_ns: u64,
    /// The time of the next scheduled look, if there is one.
    pub(crate) look_ns: Option<u64>,
    /// Whether an event is scheduled for the deadline of the invocation that has waited longest.
    pub(crate) expires: bool,
    pub(crate) clients: Vec<Client>,
    /// The number of the newest instance.
    pub(crate) instances: u32,
    /// How many invocations each stopped instance has ended.
    pub(crate) served_before: Vec<u64>,
}

impl Function {
    pub(crate) fn new(
        model: &FunctionModel,
        (policy, balance, node): (&Policy, Balance, &NodeModel),
        seed: u64,
        index: u64,
    ) -> Self {
        let bounds = Bounds {
            min: model.min,
            max: model.max,
            idle_timeout_ns: model.idle_timeout_ms.saturating_mul(1_000_000),
        };
        let starts_max = (node.cores * f64::from(Rules::STARTS_PER_CORE)) as u32;
        let rules = Rules {
            balance,
            policy: policy.clone(),
            queue_max: model.queue,
            spares: 0,
            pause_after_ns: model.start.pause_after_s.map(|after_s| (after_s * 1e9) as u64),
            concurrency: model.concurrency,
            cpu_millis_per_instance: model.cpu_millis,
            memory_limit_bytes: model.memory_bytes,
            memory_per_core_bytes: node.memory_per_core_bytes,
            starts_max: starts_max.clamp(1, node.starts_max.max(1)),
        };
        let mut pool = Pool::new(rules, bounds);
        // Without an autoscaler, a function that is never called would not be evaluated.
        pool.ensure_scaling();
        pool.seed(seed ^ index.rotate_left(32));
        Self {
            pool,
            source: Source::new(model.arrivals.clone()),
            arrival_random: stream(seed, index * 3),
            work_random: stream(seed, index * 3 + 1),
            start_random: stream(seed, index * 3 + 2),
            next_service_ns: 0,
            look_ns: None,
            expires: false,
            clients: Vec::new(),
            instances: 0,
            served_before: Vec::new(),
            model: model.clone(),
        }
    }

    /// Gives the pool the resource use of its instances, if the pool's rule depends on that.
    pub(crate) fn measure(&mut self, now_ns: u64) {
        if !self.pool.wants_measures(now_ns) {
            return;
        }
        // An instance uses half of its limit when idle and all of it when full, which is enough to
        // test the memory rule.
        let half = self.model.memory_bytes / 2;
        let full = u64::from(self.model.concurrency.max(1));
        for (_, worker) in self.pool.workers_mut() {
            let instance = worker.instance_mut();
            instance.burns(now_ns, 0.0);
            let cpu_ns = instance.cpu_ns as u64;
            let memory_bytes = half + u64::from(instance.running) * half / full;
            worker.record_usage(cpu_ns, memory_bytes);
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.pool.in_flight() == 0 && self.pool.queued() == 0
    }

    /// The number of instances that serve and are not paused.
    pub(crate) fn awake(&self) -> u32 {
        let awake =
            |worker: &pool::Worker<Running, Instance>| !worker.is_draining() && !worker.is_paused();
        self.pool.workers().filter(|(_, worker)| awake(worker)).count() as u32
    }

    /// How many invocations each instance has ended, beginning with stopped instances.
    pub(crate) fn served(&self) -> Vec<u64> {
        let live = self.pool.workers().map(|(_, worker)| worker.served());
        self.served_before.iter().copied().chain(live).collect()
    }
}
