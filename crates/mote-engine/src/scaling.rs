//! What the autoscaler is told of a revision, kept under the lock of its pool.
//!
//! The request path only adds to integers; an [`Observation`] is put together when a decision is
//! due, by the keeper. What a decision means for instances is the keeper's business, too.

use mote_core::admission::service_mean_ns;
use mote_core::autoscale::{
    Autoscaler, Bounds, Decision, Estimate, Known, LOOK_MIN_NS, Observation, Policy, Reason,
};
use mote_core::spec::{
    CONCURRENCY_DEFAULT_EXEC, CONCURRENCY_DEFAULT_GO, CONCURRENCY_DEFAULT_NODE,
    CONCURRENCY_DEFAULT_SERVER, FunctionSpec, Runtime,
};

use crate::pool::{Pool, WorkerState};

const MS_NS: u64 = 1_000_000;
/// How long a call counts as demand: what an eviction loses is judged by the last minute.
const DEMAND_MEMORY_S: f64 = 60.0;
/// CPU and memory of instances are read this often at most: a file or two per instance.
const MEASURE_NS: u64 = 250 * MS_NS;
/// What a revision takes over from the one before counts as so many measurements.
const INHERITED_MAX: u32 = 8;

/// Why an instance starts or stops: a stable word for programs, a sentence for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Why {
    /// The word, for instance `first-invocation`.
    pub word: &'static str,
    /// The sentence.
    pub text: &'static str,
}

impl Why {
    /// A deploy waits for its first instance.
    pub(crate) const DEPLOY: Why =
        Why { word: "deploy", text: "a revision takes traffic once an instance of it is ready" };
    /// The node started.
    pub(crate) const WARM: Why =
        Why { word: "warm", text: "scale.start asks for one as soon as the node runs" };
    /// Loaded and paused beside those that serve.
    pub(crate) const SPARE: Why =
        Why { word: "spare", text: "scale.spare keeps this many loaded and paused" };
    /// Nobody asks, but the owner wants some anyway.
    pub(crate) const MIN: Why = Why { word: "min", text: "scale.min keeps this many" };
    /// The owner asked by hand.
    pub(crate) const SCALE: Why = Why { word: "scale", text: "mote scale asked for it" };
}

impl From<Reason> for Why {
    fn from(reason: Reason) -> Self {
        Why { word: reason.as_str(), text: reason.text() }
    }
}

/// Run times of a worker's invocations: the moving mean that hand-over uses, and sums that wait for
/// the next look of the autoscaler. Integers only: one is recorded per invocation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RunTimes {
    /// Moving mean; 0 while unknown.
    pub(crate) mean_ns: u64,
    count: u32,
    sum_ns: u64,
    squares_ns2: u128,
}

impl RunTimes {
    /// Takes an invocation into account.
    pub(crate) fn record(&mut self, run_ns: u64) {
        self.mean_ns = service_mean_ns(self.mean_ns, run_ns);
        self.add(run_ns);
    }

    /// The same for the autoscaler alone: servers get no frames ahead, and the time of an exchange
    /// does not say that a server is considerate.
    pub(crate) fn add(&mut self, run_ns: u64) {
        self.count = self.count.saturating_add(1);
        self.sum_ns = self.sum_ns.saturating_add(run_ns);
        self.squares_ns2 += u128::from(run_ns) * u128::from(run_ns);
    }

    /// Moves the sums into `estimate`.
    fn drain_into(&mut self, estimate: &mut Estimate) {
        if self.count > 0 {
            estimate.record_many(self.count, self.sum_ns, self.squares_ns2);
        }
        *self = Self { mean_ns: self.mean_ns, ..Self::default() };
    }
}

/// Memory as a decision needs it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// Limit of one instance in bytes.
    pub(crate) limit_bytes: u64,
    /// Share of the node's budget that is taken, 0 to 1.
    pub(crate) pressure: f64,
}

/// The autoscaler of one revision and the counters it reads. Made with the first work, so a function
/// that was never called has none.
pub(crate) struct Scaling {
    scaler: Autoscaler,
    /// Invocations an instance runs at once; the runtime's default until one has told.
    concurrency: u32,
    cpu_millis_per_instance: u32,
    /// Whether the rule looks at CPU or memory.
    measures: bool,
    measured_ns: u64,
    refused: u64,
    /// Of workers that are gone.
    answered_before: u64,
    cpu_ns_before: u64,
    service: Estimate,
    start: Estimate,
    /// Recent invocations per second, offered, and what it was made of.
    demand_per_s: f64,
    demand_seen: (u64, u64),
    /// Something happened that the autoscaler should know soon.
    due: bool,
    /// Somebody could not be handed over since the last decision.
    asked: bool,
    decided_ns: u64,
    /// When it wants to look again.
    pub(crate) look_ns: Option<u64>,
    /// What it decided last, for people.
    pub(crate) decision: Option<Decision>,
}

impl Scaling {
    /// One that knows nothing yet.
    pub(crate) fn new(spec: &FunctionSpec, bounds: Bounds, cores: u32) -> Self {
        let policy = &spec.scale.policy;
        let concurrency = spec.limits.concurrency.unwrap_or(match spec.answered_by() {
            Runtime::Python => 1,
            Runtime::Node => CONCURRENCY_DEFAULT_NODE,
            Runtime::Go => CONCURRENCY_DEFAULT_GO,
            Runtime::Exec => CONCURRENCY_DEFAULT_EXEC,
            Runtime::Server => CONCURRENCY_DEFAULT_SERVER,
        });
        // Without a cap an interpreter of one thread burns a core at most, others all there are.
        let cores = match spec.runtime {
            Runtime::Python | Runtime::Node => 1,
            Runtime::Go | Runtime::Exec | Runtime::Server => cores.max(1),
        };
        Self {
            scaler: Autoscaler::new(policy, bounds),
            concurrency,
            cpu_millis_per_instance: spec.limits.cpu_millis.unwrap_or(cores * 1_000),
            measures: matches!(
                policy,
                Policy::Auto | Policy::Cpu { .. } | Policy::Memory { .. } | Policy::Hpa(_)
            ),
            measured_ns: 0,
            refused: 0,
            answered_before: 0,
            cpu_ns_before: 0,
            service: Estimate::default(),
            start: Estimate::default(),
            demand_per_s: 0.0,
            demand_seen: (0, 0),
            due: true,
            asked: false,
            decided_ns: 0,
            look_ns: None,
            decision: None,
        }
    }

    /// Other bounds from now on; what was learnt stays.
    pub(crate) fn set_bounds(&mut self, policy: &Policy, bounds: Bounds) {
        self.scaler.set_bounds(policy, bounds);
        self.due = true;
    }

    /// Takes note that `inside` invocations run or wait from now on; after every change.
    pub(crate) fn settle(&mut self, inside: u32, now_ns: u64) {
        self.due |= self.scaler.settle(inside, now_ns);
    }

    /// Begins with what the revision before has learnt: the same callers, probably like work. What
    /// is measured soon outweighs it.
    pub(crate) fn inherit(&mut self, before: &Scaling) {
        self.scaler.inherit(&before.scaler);
        self.service = before.service.believed(INHERITED_MAX);
        self.start = before.start.believed(INHERITED_MAX);
    }

    /// What it has learnt.
    pub(crate) fn known(&self) -> Known {
        Known {
            concurrency: Some(self.concurrency),
            service: self.service,
            start: self.start,
            ..Known::default()
        }
    }

    /// Recent invocations per second, offered.
    pub(crate) fn demand_per_s(&self) -> f64 {
        self.demand_per_s
    }

    /// Brings the demand up to now: what came since the last look, over a memory that fades.
    fn see_demand(&mut self, offered: u64, now_ns: u64) {
        let (offered_before, before_ns) =
            std::mem::replace(&mut self.demand_seen, (offered, now_ns));
        let elapsed_s = now_ns.saturating_sub(before_ns) as f64 / 1e9;
        let kept = (-elapsed_s / DEMAND_MEMORY_S).exp();
        let came = offered.saturating_sub(offered_before) as f64;
        // Of a constant rate r, `came` is r * elapsed, and this stays r for any pace of looks.
        let weight = if elapsed_s > 0.0 { (1.0 - kept) / elapsed_s } else { 1.0 / DEMAND_MEMORY_S };
        self.demand_per_s = self.demand_per_s * kept + came * weight;
    }

    /// Asks for another look at `at_ns`, or earlier if one is due before.
    pub(crate) fn look_by(&mut self, at_ns: u64) {
        self.look_ns = Some(self.look_ns.map_or(at_ns, |at| at.min(at_ns)));
    }

    /// Takes note of an invocation that found the queue full.
    pub(crate) fn refused(&mut self) {
        self.refused += 1;
    }

    /// An instance became ready `start_ns` after it was wished for.
    pub(crate) fn ready(&mut self, start_ns: u64, concurrency: u32) {
        self.start.record(start_ns);
        self.concurrency = concurrency.max(1);
        self.due = true;
    }

    /// An instance is gone, having answered and burnt so much.
    pub(crate) fn gone(&mut self, answered: u64, cpu_ns: u64) {
        self.answered_before += answered;
        self.cpu_ns_before += cpu_ns;
        self.due = true;
    }

    /// An arrival could not be handed over. Whether the keeper must be told: the first since the
    /// last decision tells for all.
    pub(crate) fn asks(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// From when on another decision may be made for those who wait: deciding more often than every
    /// few milliseconds gains nothing, unless nothing lives.
    pub(crate) fn next_ns(&self, live: u32) -> u64 {
        if live == 0 { 0 } else { self.decided_ns + LOOK_MIN_NS }
    }

    /// Whether CPU and memory of instances should be read now. Where an instance runs one
    /// invocation at a time, the default rule does not look at them.
    pub(crate) fn wants_measures(&mut self, policy: &Policy, now_ns: u64) -> bool {
        let wanted = self.measures
            && (self.concurrency > 1 || *policy != Policy::Auto)
            && now_ns.saturating_sub(self.measured_ns) >= MEASURE_NS;
        if wanted {
            self.measured_ns = now_ns;
        }
        wanted
    }

    /// The autoscaler's decision, if one is due. Microseconds.
    fn decide(&mut self, pool: &mut Pool, memory: Memory, now: u64) -> Option<Decision> {
        let (ready, starting) = (pool.ready(), pool.starting);
        let waits = (self.asked || !pool.queue.is_empty()) && now >= self.next_ns(ready + starting);
        let looks = self.look_ns.is_some_and(|at| at <= now);
        if !(self.due || waits || looks) {
            return None;
        }
        let (mut in_flight, mut run_age_ns, mut answered) = (0, 0, self.answered_before);
        let (mut cpu_ns, mut memory_bytes) = (self.cpu_ns_before, 0);
        for (_, worker) in &mut pool.workers {
            in_flight += worker.streams.len() as u32;
            let ages = worker.streams.iter().map(|(_, s)| now.saturating_sub(s.phases.sent_ns));
            run_age_ns += ages.sum::<u64>();
            answered += worker.served;
            cpu_ns += worker.cpu_ns;
            memory_bytes += worker.memory_bytes;
            worker.run_times.drain_into(&mut self.service);
        }
        self.see_demand(pool.next_serial, now);
        let oldest_ns = pool.queue.front().map_or(now, |pending| pending.invocation.received_ns);
        let decision = self.scaler.decide(&Observation {
            now_ns: now,
            offered_total: pool.next_serial,
            refused_total: self.refused,
            answered_total: answered,
            cpu_ns_total: cpu_ns,
            in_flight,
            run_age_ns_total: run_age_ns,
            queued: pool.queue.len() as u32,
            oldest_wait_ns: now.saturating_sub(oldest_ns),
            ready,
            starting,
            draining: pool.workers.iter().filter(|(_, worker)| worker.draining).count() as u32,
            // Paused ones go on by themselves when there is work, so they count as ready.
            paused: 0,
            concurrency: self.concurrency,
            service: self.service,
            start: self.start,
            cpu_millis_per_instance: self.cpu_millis_per_instance,
            memory_bytes,
            memory_limit_bytes: memory.limit_bytes,
            memory_pressure: memory.pressure,
            ..Observation::default()
        });
        self.due = false;
        self.asked = false;
        self.decided_ns = now;
        self.look_ns = decision.look_ns;
        self.decision = Some(decision);
        Some(decision)
    }
}

impl Pool {
    /// Instances that take invocations, paused ones among them but not spare ones.
    pub(crate) fn ready(&self) -> u32 {
        let ready = |worker: &WorkerState| !worker.draining && !worker.spare;
        self.workers.iter().filter(|(_, worker)| ready(worker)).count() as u32
    }

    /// Instances kept loaded and paused beside those that serve.
    pub(crate) fn spares(&self) -> u32 {
        self.workers.iter().filter(|(_, worker)| worker.spare && !worker.draining).count() as u32
    }

    /// Brings the autoscaler's integrals up to now; after every change of what runs or waits.
    pub(crate) fn settle(&mut self, now_ns: u64) {
        if let Some(scaling) = &mut self.scaling {
            let running: usize = self.workers.iter().map(|(_, worker)| worker.streams.len()).sum();
            scaling.settle((running + self.queue.len()) as u32, now_ns);
        }
    }

    /// Makes the keeper look at `at_ns` at the latest.
    pub(crate) fn look_at(&mut self, at_ns: u64) {
        if let Some(scaling) = &mut self.scaling {
            scaling.look_by(at_ns);
        }
    }

    /// The autoscaler's decision, if one is due.
    pub(crate) fn decide(&mut self, memory: Memory, now_ns: u64) -> Option<Decision> {
        let mut scaling = self.scaling.take()?;
        let decision = scaling.decide(self, memory, now_ns);
        self.scaling = Some(scaling);
        decision
    }
}
