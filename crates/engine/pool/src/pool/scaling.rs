//! The autoscaler of a revision, and the counters on which its decisions are based.
//!
//! The request path only adds to integers. An [`Observation`] is made only when a decision is due.

use mote_spec::policy::Policy;

use crate::autoscale::{
    Autoscaler, Bounds, Decision, Estimate, ForeignRule, Known, LOOK_MIN_NS, Observation,
};

use super::Rules;

const MS_NS: u64 = 1_000_000;
/// How long an invocation counts as demand. The demand of the last minute determines how much an
/// eviction would cost.
const DEMAND_MEMORY_S: f64 = 60.0;
/// The pause between two readings of the instances' processor time and memory. A reading opens one
/// or two files per instance.
const MEASURE_NS: u64 = 250 * MS_NS;
/// What a revision takes over from the previous one counts as at most this many measurements.
const INHERITED_MAX: u32 = 8;

/// The instances and the queue of one revision, as the pool counts them for a decision.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Count {
    pub(super) offered: u64,
    pub(super) in_flight: u32,
    pub(super) run_age_ns: u64,
    pub(super) queued: u32,
    pub(super) oldest_wait_ns: u64,
    pub(super) answered: u64,
    pub(super) cpu_ns: u64,
    pub(super) memory_bytes: u64,
    pub(super) ready: u32,
    pub(super) starting: u32,
    pub(super) draining: u32,
}

/// The autoscaler of one revision and the counters that it reads. It is created with the first
/// work, so a function that was never called has none.
#[derive(Debug)]
pub(super) struct Scaling {
    scaler: Autoscaler,
    /// The number of invocations that an instance runs at once: the runtime's default until an
    /// instance has reported its own number.
    concurrency: u32,
    cpu_millis_per_instance: u32,
    memory_limit_bytes: u64,
    memory_per_core_bytes: u64,
    /// Whether the rule always depends on processor time or memory.
    always_measures: bool,
    measures: bool,
    measured_ns: u64,
    refused: u64,
    /// The sums over all instances that have ended.
    answered_before: u64,
    cpu_ns_before: u64,
    pub(super) service: Estimate,
    start: Estimate,
    start_cpu: Estimate,
    /// Recently offered invocations per second, and the values from which the next result is
    /// computed.
    demand_per_s: f64,
    demand_seen: (u64, u64),
    /// Whether something happened that the autoscaler should know soon.
    due: bool,
    /// Whether an invocation could not be dispatched since the last decision.
    asked: bool,
    decided_ns: u64,
    /// The time at which the autoscaler wants the next look.
    look_ns: Option<u64>,
    /// The autoscaler's last decision, for people.
    decision: Option<Decision>,
}

impl Scaling {
    /// A new autoscaler that knows nothing yet.
    pub(super) fn new(rules: &Rules, bounds: Bounds) -> Self {
        let policy = &rules.policy;
        Self {
            scaler: Autoscaler::new(policy, bounds),
            concurrency: rules.concurrency,
            cpu_millis_per_instance: rules.cpu_millis_per_instance,
            memory_limit_bytes: rules.memory_limit_bytes,
            memory_per_core_bytes: rules.memory_per_core_bytes,
            always_measures: *policy != Policy::Auto,
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
            start_cpu: Estimate::default(),
            demand_per_s: 0.0,
            demand_seen: (0, 0),
            due: true,
            asked: false,
            decided_ns: 0,
            look_ns: None,
            decision: None,
        }
    }

    /// A new autoscaler with a rule from outside this crate.
    pub(super) fn foreign(rule: Box<dyn ForeignRule>, rules: &Rules, bounds: Bounds) -> Self {
        Self { scaler: Autoscaler::foreign(rule, bounds), ..Self::new(rules, bounds) }
    }

    /// Sets the bounds from now on, and keeps everything that was learned.
    pub(super) fn set_bounds(&mut self, policy: &Policy, bounds: Bounds) {
        self.scaler.set_bounds(policy, bounds);
        self.due = true;
    }

    /// Notes that `inside` invocations run or wait from now on; call it after every change.
    pub(super) fn settle(&mut self, inside: u32, now_ns: u64) -> bool {
        let news = self.scaler.settle(inside, now_ns);
        self.due |= news;
        news
    }

    /// Takes over what the previous revision has learned, because the callers are the same and the
    /// work is probably similar. New measurements soon outweigh it.
    pub(super) fn inherit(&mut self, before: &Scaling) {
        self.scaler.inherit(&before.scaler);
        self.service = before.service.believed(INHERITED_MAX);
        self.start = before.start.believed(INHERITED_MAX);
        self.start_cpu = before.start_cpu.believed(INHERITED_MAX);
    }

    /// What the autoscaler has learned.
    pub(super) fn known(&self) -> Known {
        Known {
            concurrency: Some(self.concurrency),
            service: self.service,
            start: self.start,
            start_cpu: self.start_cpu,
            ..Known::default()
        }
    }

    /// Recently offered invocations per second.
    pub(super) fn demand_per_s(&self) -> f64 {
        self.demand_per_s
    }

    pub(super) fn decision(&self) -> Option<Decision> {
        self.decision
    }

    /// The time at which the next look is due even if nothing happens.
    pub(super) fn look_ns(&self) -> Option<u64> {
        self.look_ns
    }

    /// Adds the arrivals since the last look to the demand, in which older arrivals count less and
    /// less.
    fn see_demand(&mut self, offered: u64, now_ns: u64) {
        let (offered_before, before_ns) =
            std::mem::replace(&mut self.demand_seen, (offered, now_ns));
        let elapsed_s = now_ns.saturating_sub(before_ns) as f64 / 1e9;
        let kept = (-elapsed_s / DEMAND_MEMORY_S).exp();
        let came = offered.saturating_sub(offered_before) as f64;
        // At a constant rate r, `came` is r * elapsed. The weight keeps the result at r for any
        // interval between looks.
        let weight = if elapsed_s > 0.0 { (1.0 - kept) / elapsed_s } else { 1.0 / DEMAND_MEMORY_S };
        self.demand_per_s = self.demand_per_s * kept + came * weight;
    }

    /// Requests another look not later than `at_ns`.
    pub(super) fn look_by(&mut self, at_ns: u64) {
        self.look_ns = Some(self.look_ns.map_or(at_ns, |at| at.min(at_ns)));
    }

    /// Notes an invocation that found the queue full.
    pub(super) fn refused(&mut self) {
        self.refused += 1;
    }

    /// Notes that an instance became ready `start_ns` after it was requested, and the processor time
    /// of the start if it is known.
    pub(super) fn ready(&mut self, start_ns: u64, start_cpu_ns: Option<u64>, concurrency: u32) {
        self.start.record(start_ns);
        if let Some(start_cpu_ns) = start_cpu_ns {
            self.start_cpu.record(start_cpu_ns);
        }
        self.concurrency = concurrency.max(1);
        self.due = true;
    }

    /// Notes that an instance has ended, and how many invocations it answered and how much
    /// processor time it used.
    pub(super) fn gone(&mut self, answered: u64, cpu_ns: u64) {
        self.answered_before += answered;
        self.cpu_ns_before += cpu_ns;
        self.due = true;
    }

    /// Notes that an invocation could not be dispatched. Returns whether the caller must request a
    /// look: one look after the last decision serves all waiting invocations.
    pub(super) fn asks(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// The earliest time of the next decision for the waiting invocations. Deciding more often than
    /// every few milliseconds gains nothing, unless there is no instance.
    pub(super) fn next_ns(&self, live: u32) -> u64 {
        if live == 0 { 0 } else { self.decided_ns + LOOK_MIN_NS }
    }

    /// Whether the processor time and memory of instances should be read now. The default rule does
    /// not need them if an instance runs one invocation at a time.
    pub(super) fn wants_measures(&mut self, now_ns: u64) -> bool {
        let wanted = self.measures
            && (self.concurrency > 1 || self.always_measures)
            && now_ns.saturating_sub(self.measured_ns) >= MEASURE_NS;
        if wanted {
            self.measured_ns = now_ns;
        }
        wanted
    }

    pub(super) fn is_due(&self, queued: usize, live: u32, now_ns: u64) -> bool {
        let waits = (self.asked || queued > 0) && now_ns >= self.next_ns(live);
        self.due || waits || self.look_ns.is_some_and(|at_ns| at_ns <= now_ns)
    }

    /// Makes a decision, which takes microseconds.
    pub(super) fn decide(&mut self, count: &Count, memory_pressure: f64, now_ns: u64) -> Decision {
        self.see_demand(count.offered, now_ns);
        let decision = self.scaler.decide(&Observation {
            now_ns,
            offered_total: count.offered,
            refused_total: self.refused,
            answered_total: self.answered_before + count.answered,
            cpu_ns_total: self.cpu_ns_before + count.cpu_ns,
            in_flight: count.in_flight,
            run_age_ns_total: count.run_age_ns,
            queued: count.queued,
            oldest_wait_ns: count.oldest_wait_ns,
            ready: count.ready,
            starting: count.starting,
            draining: count.draining,
            // Paused instances count as ready, because they are resumed when there is work.
            paused: 0,
            concurrency: self.concurrency,
            service: self.service,
            start: self.start,
            start_cpu: self.start_cpu,
            cpu_millis_per_instance: self.cpu_millis_per_instance,
            memory_bytes: count.memory_bytes,
            memory_limit_bytes: self.memory_limit_bytes,
            memory_per_core_bytes: self.memory_per_core_bytes,
            memory_pressure,
            ..Observation::default()
        });
        self.due = false;
        self.asked = false;
        self.decided_ns = now_ns;
        self.look_ns = decision.look_ns;
        self.decision = Some(decision);
        decision
    }
}
