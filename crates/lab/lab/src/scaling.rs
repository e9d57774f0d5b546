//! Carries out a pool's orders in the simulation. It starts and stops instances within the node's
//! budget.

use mote_pool::budget::{Budget, IdleInstance, Lack, Taken, Verdict, admit_start};
use mote_pool::{NewInstance, Start, Surroundings};

use crate::event::Event;
use crate::function::Instance;
use crate::simulation::Simulation;

/// The time until the memory of a stopped instance is free again.
const STOP_NS: u64 = 5_000_000;
/// The assumed duration of a start until one has been measured. It is used only for comparisons.
const START_NS_GUESS: u64 = 50_000_000;

impl Simulation<'_> {
    /// Schedules a look at the pool, not later than `at_ns`.
    pub(crate) fn look_at(&mut self, function: usize, at_ns: u64) {
        let at_ns = at_ns.max(self.now_ns);
        let state = &mut self.functions[function];
        if state.look_ns.is_none_or(|planned| at_ns < planned) {
            state.look_ns = Some(at_ns);
            self.agenda.at(at_ns, Event::Look { function: function as u32 });
        }
    }

    pub(crate) fn look(&mut self, function: usize) {
        let around = Surroundings {
            version: self.version,
            memory_pressure: self.tally.memory_bytes as f64 / self.node.memory_bytes.max(1) as f64,
        };
        let now_ns = self.now_ns;
        let state = &mut self.functions[function];
        state.look_ns = None;
        state.measure(now_ns);
        let orders = self.with_pool(function, |pool, begin| pool.look(around, now_ns, begin));
        for key in orders.exiting {
            let event = Event::Gone { function: function as u32, worker: key as u32 };
            self.agenda.at(now_ns + STOP_NS, event);
        }
        if let Some(start) = orders.start {
            self.start(function, start);
        }
        if let Some(next_ns) = orders.next_ns {
            self.look_at(function, next_ns.max(now_ns + 1));
        }
    }

    /// Starts as many of the ordered instances as the node's budget allows.
    fn start(&mut self, function: usize, start: Start) {
        for started in 0..start.count {
            match self.admit(function, start) {
                Ok(()) => self.begin_start(function, start),
                Err((lack, retry_after_ns)) => {
                    self.tally.starts_refused += 1;
                    let count = start.count - started;
                    let version = self.version;
                    let now_ns = self.now_ns;
                    let pool = &mut self.functions[function].pool;
                    let room_in_ns = Some(retry_after_ns);
                    let (in_vain, _) = pool.start_refused(count, lack, version, room_in_ns, now_ns);
                    for waiting in in_vain {
                        self.expired(function, waiting);
                    }
                    self.look_at(function, now_ns + retry_after_ns);
                    return;
                }
            }
        }
        self.functions[function].pool.starts_granted();
    }

    /// Checks whether the budget allows one more instance. Evicts idle instances if `start` permits
    /// that.
    fn admit(&mut self, function: usize, start: Start) -> Result<(), (Lack, u64)> {
        let budget =
            Budget { memory_bytes: self.node.memory_bytes, starts_max: self.node.starts_max };
        let taken = Taken {
            memory_bytes: self.tally.memory_bytes,
            starting: self.tally.starting,
            free_in_ns: 0,
        };
        let wanted_bytes = self.functions[function].model.memory_bytes;
        // Collecting candidates for eviction is expensive, so it happens only when memory is short.
        let is_short = taken.memory_bytes + wanted_bytes > budget.memory_bytes;
        let idle = if is_short && start.evict { self.idle_instances(function) } else { Vec::new() };
        match admit_start(&budget, &taken, wanted_bytes, &idle) {
            Verdict::Start => Ok(()),
            Verdict::Evict(victims) => {
                for victim in victims {
                    self.evict((victim >> 32) as usize, victim & u64::from(u32::MAX));
                }
                Ok(())
            }
            Verdict::Refuse { lack, retry_after_ns } => Err((lack, retry_after_ns)),
        }
    }

    /// Stops an idle instance of another function, and frees its memory before the start that needs
    /// it, as the daemon does.
    fn evict(&mut self, owner: usize, number: u64) {
        let now_ns = self.now_ns;
        let pool = &mut self.functions[owner].pool;
        if !pool.evict(number, |_| String::new(), now_ns) {
            return;
        }
        self.tally.evictions += 1;
        let mut workers = self.functions[owner].pool.workers();
        if let Some((key, _)) = workers.find(|(_, worker)| worker.number() == number) {
            drop(workers);
            self.gone(owner, key);
        }
    }

    fn begin_start(&mut self, function: usize, start: Start) {
        let now_ns = self.now_ns;
        let state = &mut self.functions[function];
        let law =
            if self.prewarmed > 0 { state.model.start.prewarmed } else { state.model.start.cold };
        let lasts_ns = law.sample_ns(&mut state.start_random);
        if self.prewarmed > 0 {
            self.prewarmed -= 1;
            let again_ns = state.model.start.cold.sample_ns(&mut state.start_random);
            self.agenda.at(now_ns + again_ns, Event::Refill);
        }
        self.tally.started(now_ns, self.end_ns, &state.model, start.why.word);
        let event = Event::Ready { function: function as u32, since_ns: now_ns };
        self.agenda.at(now_ns + lasts_ns, event);
    }

    /// The idle instances of other functions, with the recent demand for those functions.
    fn idle_instances(&self, asking: usize) -> Vec<IdleInstance> {
        let mut idle = Vec::new();
        for (owner, state) in self.functions.iter().enumerate() {
            let spare = state.pool.dispensable();
            if owner == asking || spare == 0 {
                continue;
            }
            let start_ns = state.pool.known().start.mean_ns().unwrap_or(START_NS_GUESS);
            let workers = state.pool.workers().map(|(_, worker)| worker);
            let mut workers: Vec<_> = workers.filter(|worker| worker.is_idle()).collect();
            workers.sort_unstable_by_key(|worker| worker.idle_since_ns());
            idle.extend(workers.into_iter().take(spare).map(|worker| IdleInstance {
                id: (owner as u64) << 32 | worker.number(),
                memory_bytes: state.model.memory_bytes,
                paused: worker.is_paused(),
                idle_ns: self.now_ns - worker.idle_since_ns(),
                demand_per_s: state.pool.demand_per_s(),
                start_ns,
            }));
        }
        idle
    }

    /// Handles the end of an instance's process, which frees the instance's memory.
    pub(crate) fn gone(&mut self, function: usize, key: usize) {
        let state = &mut self.functions[function];
        let Some(worker) = state.pool.worker(key) else { return };
        state.served_before.push(worker.served());
        state.pool.ended(key, "", self.now_ns);
        self.tally.ended(self.now_ns, self.end_ns, state.model.memory_bytes);
        self.version += 1;
    }

    pub(crate) fn ready(&mut self, function: usize, since_ns: u64) {
        let now_ns = self.now_ns;
        let state = &mut self.functions[function];
        state.instances += 1;
        let new = NewInstance {
            number: u64::from(state.instances),
            instance: Instance::new(now_ns),
            concurrency: state.model.concurrency,
            spare: false,
            since_ns,
            start_cpu_ns: Some((state.model.start.cpu_ms * 1e6) as u64),
        };
        state.pool.add_ready(new, now_ns);
        self.tally.advance(now_ns, self.end_ns);
        self.tally.starting -= 1;
        self.version += 1;
        self.look(function);
    }
}
