//! The rule that needs no threshold from the tenant.
//!
//! Idle memory, the processor time of starts and the waiting of callers have one unit here: seconds
//! of an instance that waits. The rule answers three questions and takes the largest answer:
//! - *Load*: how many instances are worth keeping for the offered load (arrivals times run time,
//!   including refused invocations), because each of them spares callers more waiting than it costs
//!   (`staffing.rs`)? This answer keeps instances. It starts some only if many invocations wait or
//!   some are refused: the measured rate varies by chance, and each variation would otherwise cost a
//!   start.
//! - *Backlog*: how many more instances spare the waiting invocations more than a start costs? The
//!   rule answers this question at each arrival, so that a burst causes several starts at once,
//!   without waiting for a poll.
//! - *CPU*: how many instances keep the processor use of each below a target, if one instance runs
//!   many invocations at once? In that case, each invocation slows down the others in the instance,
//!   so neither queue nor load shows the lack of processor time.
//!
//! The instances that an answer has started are kept until their memory has cost as much as the
//! start that would replace them and the wait for it (`cost.rs`).
//!
//! When no invocation arrives, the last instance is kept for as long as a warm start of the next
//! call is worth the memory (`keep_alive.rs`).

use super::cost::{break_even_s, memory_cost_s};
use super::decision::Reason;
use super::demand::Edge;
use super::history::{History, WindowMax};
use super::keep_alive::{IdleCosts, IdleTimes, WarmPlan};
use super::observation::{Observation, SECOND_NS};
use super::proposal::{Bounds, MS_NS, Proposal};
use super::staffing::{Load, Patience, servers_for};

/// The allowed mean wait as a share of the mean run time, and its lower and upper bound. A wait
/// below a few milliseconds is only the hand-over, and people notice a wait above a tenth of a
/// second.
const WAIT_SHARE: f64 = 0.35;
const WAIT_MIN_S: f64 = 0.002;
const WAIT_MAX_S: f64 = 0.1;
/// The price of a caller's second of waiting: this many seconds of an instance that waits. The rule
/// keeps and starts the instances that are worth it, even if the mean wait is below the target.
const INSTANCE_SECONDS_PER_SECOND: f64 = 1.5;
/// The part of a wait that a person notices, and the additional price of each second of it, in
/// seconds of a core. Without this price, a start that takes a tenth of a second of processor time
/// would not be worth three seconds of a caller's time. Short waits have the lower price above, which
/// keeps a steady load from starting instances for queues of one or two invocations.
const LATE_S: f64 = 0.3;
const CORE_SECONDS_PER_LATE_SECOND: f64 = 0.5;
/// The load is planned for a rate that is this much higher than the measured one. Over the longest
/// period, the measured rate has a standard deviation of a nineteenth, a rising rate is measured too
/// low, and waits grow faster above the true rate than they shrink below it.
const RATE_MARGIN: f64 = 1.14;
/// The shortest and the longest period over which the rate is measured.
const RATE_MIN_NS: u64 = 1_000 * MS_NS;
const RATE_MAX_NS: u64 = 60_000 * MS_NS;
/// While an invocation waits, the rule also measures the rate of the newest arrivals, of which
/// there must be this many over at least this long. That rate is used if it is higher than chance
/// explains, so that a burst need not wait for the shortest period above. The longer a burst lasts,
/// the more of it the period above already covers, and the more arrivals are needed to detect it.
const SURGE_ARRIVALS: [u64; 4] = [48, 36, 24, 12];
const SURGE_MIN_NS: u64 = 50 * MS_NS;
const RECENT_STEP_NS: u64 = 20 * MS_NS;
/// Running work is assumed to take longer than ended work if the mean age of the running work
/// exceeds the expected age by this many standard deviations of an exponential distribution.
const AGE_DOUBT: f64 = 3.0;
/// The time between two samples of the kept history.
const STEP_NS: u64 = 500 * MS_NS;
/// The least processor time that a start is assumed to take if the machine does not measure it. It
/// is otherwise assumed to take the processor for all of its time.
const START_CPU_MIN_S: f64 = 0.016;
/// The least and the longest time for which an instance is held after it was in use.
const HOLD_MIN_S: f64 = 0.3;
const HOLD_MAX_S: f64 = 30.0;
/// The number of idle instance-seconds that the rule may spend to spare a caller one second of a
/// cold start, in addition to the cost of the start, and the lower and upper bound of the sum. The
/// lower bound is a third of what Knative spends (stable window plus grace period): connections,
/// caches and compiled code are lost with the last instance, and the cost of a start does not
/// include them.
const WORTH_PER_COLD_S: f64 = 80.0;
const WORTH_MIN_S: f64 = 30.0;
const WORTH_MAX_S: f64 = 900.0;
/// When more than this share of the memory budget is taken, idle instances lose worth. They are
/// worth nothing when the budget is used up.
const PRESSURE_FREE: f64 = 0.5;
/// The start time that is assumed until a start has been measured.
const START_UNKNOWN_S: f64 = 0.1;
/// The target for processor use if one instance runs many invocations at once. Knative leaves the
/// same share free.
const CPU_SHARE: f64 = 0.7;
/// The period over which processor use is measured.
const CPU_NS: u64 = 2_000 * MS_NS;
/// The pause between two looks. The first value applies while an invocation waits, the second while
/// invocations only run.
const LOOK_WAITING_NS: u64 = 20 * MS_NS;
const LOOK_BUSY_NS: u64 = 250 * MS_NS;

#[derive(Debug)]
pub(super) struct Auto {
    history: History,
    /// The last second, in smaller steps.
    recent: History,
    needed: WindowMax,
    idle_times: IdleTimes,
    idle_since_ns: Option<u64>,
    plan: Option<WarmPlan>,
    /// The answer for the load, and the time until which it is valid. Until then, a burst of
    /// arrivals recomputes only the backlog.
    load: u32,
    load_until_ns: u64,
    /// The offered invocations per second when `load` was computed, without a burst that is too
    /// short to be measured.
    rate: f64,
}

/// What a start costs.
#[derive(Debug, Clone, Copy)]
struct StartCost {
    /// The time until the instance is ready.
    takes_s: f64,
    /// The processor time, and the memory until the instance is ready, in seconds of an instance
    /// that waits.
    idle_s: f64,
    /// What one second of a core costs in that unit.
    core_s: f64,
}

impl StartCost {
    fn of(o: &Observation) -> Self {
        let seconds = |mean_ns: u64| mean_ns as f64 / SECOND_NS;
        let takes_s = o.start.mean_ns().map_or(START_UNKNOWN_S, seconds);
        let cpu_s = o.start_cpu.mean_ns().map_or(takes_s.max(START_CPU_MIN_S), seconds);
        let held_cost_s = memory_cost_s(o.memory_limit_bytes as f64, o.memory_per_core_bytes);
        let idle_s = takes_s + break_even_s(cpu_s, held_cost_s);
        // On a node with much memory per core, memory costs almost nothing. Without this limit, no
        // second instance would be worth its start there.
        let core_s = break_even_s(1.0, held_cost_s);
        Self { takes_s, idle_s: idle_s.min(HOLD_MAX_S), core_s }
    }

    /// What it costs if one caller waits for this long.
    fn of_wait_s(&self, wait_s: f64) -> f64 {
        let late_s = (wait_s - LATE_S).max(0.0);
        INSTANCE_SECONDS_PER_SECOND * wait_s + CORE_SECONDS_PER_LATE_SECOND * self.core_s * late_s
    }

    /// What it costs if a queue of `left` invocations shrinks by `drain` of them per second. The
    /// last one waits `left / drain` seconds, and the waits of the others are spread evenly below
    /// that, so they are `left² / (2 · drain)` seconds in all.
    fn of_queue_s(&self, left: f64, drain: f64) -> f64 {
        if drain <= 0.0 {
            return f64::INFINITY;
        }
        let late_s = (left / drain - LATE_S).max(0.0);
        INSTANCE_SECONDS_PER_SECOND * left * left / (2.0 * drain)
            + CORE_SECONDS_PER_LATE_SECOND * self.core_s * late_s * late_s * drain / 2.0
    }
}

impl Auto {
    pub(super) fn new() -> Self {
        Self {
            history: History::new(STEP_NS, RATE_MAX_NS),
            recent: History::new(RECENT_STEP_NS, RATE_MIN_NS),
            needed: WindowMax::default(),
            idle_times: IdleTimes::default(),
            idle_since_ns: None,
            plan: None,
            load: 0,
            load_until_ns: 0,
            rate: 0.0,
        }
    }

    /// Called when work arrives after an idle time, and when the last work has ended.
    pub(super) fn turned(&mut self, edge: Edge, now_ns: u64) {
        self.plan = None;
        match edge {
            Edge::Rested => self.idle_since_ns = Some(now_ns),
            Edge::Woke => {
                if let Some(since) = self.idle_since_ns.take() {
                    self.idle_times.record(now_ns.saturating_sub(since) as f64 / SECOND_NS);
                }
            }
        }
    }

    /// Takes over the idle times of the previous revision, because the callers stay the same when
    /// the code changes.
    pub(super) fn inherit(&mut self, before: &Auto) {
        self.idle_times = before.idle_times.clone();
    }

    pub(super) fn decide(&mut self, o: &Observation, bounds: &Bounds) -> Proposal {
        self.history.push(o);
        self.recent.push(o);
        let start = StartCost::of(o);
        // If the instance is missed later, there is another start, and a caller waits for it.
        let missed_s = start.idle_s + start.of_wait_s(start.takes_s);
        let hold_ns = (missed_s.clamp(HOLD_MIN_S, HOLD_MAX_S) * SECOND_NS) as u64;
        let concurrency = o.concurrency.max(1);

        if o.is_idle() {
            return self.at_rest(o, bounds, start, hold_ns);
        }

        let service_s = service_s(o);
        if o.now_ns >= self.load_until_ns {
            self.load = service_s.map_or(0, |service_s| self.for_load(o, service_s));
            self.load_until_ns = o.now_ns + LOOK_WAITING_NS;
        }
        let rate = self.rate;
        let mut backlog =
            service_s.map_or(0, |service_s| for_backlog(o, bounds, service_s, rate, start));
        if o.service.count() == 0 && o.waiting() > 0 {
            // No invocation has ended yet. The wanted number of instances is one at first and then
            // twice the present number. Once the invocations have run for as long as a start takes,
            // each waiting one gets an instance: if it had been started when they began, the caller
            // would wait no longer.
            let all = (o.in_flight + o.queued).div_ceil(concurrency);
            let doubled = (2 * o.ready).max(1);
            let is_slow = mean_age_s(o).is_some_and(|age_s| age_s >= start.takes_s);
            backlog = backlog.max(if is_slow { all } else { all.min(doubled) });
        }
        let cpu = self.for_cpu(o);
        // More waiting invocations than slots are not chance any more, and refused ones do not wait,
        // so in both cases the load starts instances, too.
        let refuses =
            self.recent.over(RATE_MIN_NS).is_some_and(|growth| growth.admitted < growth.offered);
        let is_short = refuses || o.waiting() > o.ready * concurrency;
        let load = if is_short { self.load } else { self.load.min(o.live()) };
        let now = load.max(backlog).max(cpu).max(1);
        self.needed.push(o.now_ns, now, hold_ns);
        let in_use = o.in_flight.div_ceil(concurrency).min(o.ready);
        let now = now.max(in_use);
        // A past peak keeps the present instances, but starts no new ones.
        let desired = self.needed.max().min(o.live()).max(now);
        let reason = match () {
            () if o.live() == 0 => Reason::FirstInvocation,
            () if desired == backlog && backlog > load => Reason::Backlog,
            () if desired == load => Reason::OfferedLoad,
            () if desired == cpu => Reason::Cpu,
            () => Reason::RecentPeak,
        };
        let pace_ns = if o.waiting() > 0 { LOOK_WAITING_NS } else { LOOK_BUSY_NS };
        Proposal::new(desired, reason).look_at(o.now_ns + pace_ns)
    }

    fn for_load(&mut self, o: &Observation, service_s: f64) -> u32 {
        let Some(mut rate) = self.history.offered_rate(RATE_MIN_NS) else { return 0 };
        self.rate = rate;
        if o.waiting() > 0 {
            // The queue confirms the burst, so a few arrivals are enough to detect it.
            let surge = |arrivals| self.recent.surge(arrivals, SURGE_MIN_NS, rate);
            rate = SURGE_ARRIVALS.into_iter().find_map(surge).unwrap_or(rate);
        }
        let slots = f64::from(o.concurrency.max(1));
        let load = Load {
            rate: rate * RATE_MARGIN,
            service_s,
            variation_squared: o.service.variation_squared(),
        };
        let patience = Patience {
            wait_max_s: wait_max_s(service_s),
            // A server is one slot, and an instance has several: starting an instance adds them all.
            server_seconds_per_second: INSTANCE_SECONDS_PER_SECOND * slots,
        };
        servers_for(&load, &patience).div_ceil(o.concurrency.max(1))
    }

    fn for_cpu(&self, o: &Observation) -> u32 {
        if o.concurrency <= 1 {
            return 0;
        }
        let promised = f64::from(o.cpu_millis_per_instance) / 1_000.0;
        let Some(growth) = self.history.over(CPU_NS).filter(|_| promised > 0.0) else { return 0 };
        (growth.cores / (promised * CPU_SHARE)).ceil() as u32
    }

    fn at_rest(
        &mut self,
        o: &Observation,
        bounds: &Bounds,
        start: StartCost,
        hold_ns: u64,
    ) -> Proposal {
        let since = *self.idle_since_ns.get_or_insert(o.now_ns);
        // After a peak, unused instances are held for at most the owner's idle timeout.
        let hold_ns = hold_ns.min(bounds.idle_timeout_ns);
        self.needed.forget(o.now_ns, hold_ns);
        let held = self.needed.max().min(o.live());
        let elapsed_s = (o.now_ns - since) as f64 / SECOND_NS;
        let keep_max_s = bounds.idle_timeout_ns as f64 / SECOND_NS;
        let idle_times = &self.idle_times;
        let plan = *self.plan.get_or_insert_with(|| {
            let free = ((1.0 - o.memory_pressure) / (1.0 - PRESSURE_FREE)).clamp(0.0, 1.0);
            let worth_s = start.idle_s + WORTH_PER_COLD_S * start.takes_s;
            let costs = IdleCosts {
                cold_s: worth_s.clamp(WORTH_MIN_S, WORTH_MAX_S) * free,
                start_s: start.idle_s,
                start_takes_s: start.takes_s,
            };
            idle_times.plan(&costs, keep_max_s)
        });
        let warm = plan.is_warm(elapsed_s);
        let held_until = self.needed.max_at_ns().map(|at| at + hold_ns);
        let at_ns = |at_s: f64| since + (at_s * SECOND_NS).ceil() as u64;
        let change = plan.next_change_s(elapsed_s).map(at_ns);
        let look_ns = [held_until, change].into_iter().flatten().min();
        let (desired, reason) = match () {
            () if held > 1 => (held, Reason::RecentPeak),
            () if warm && elapsed_s > plan.keep_s => (1, Reason::Predicted),
            () if warm => (1, Reason::KeepAlive),
            () => (0, Reason::Idle),
        };
        Proposal {
            look_ns: look_ns.map(|at| at.max(o.now_ns + MS_NS)),
            predicted_ns: plan.starts_again_s(elapsed_s).map(at_ns),
            ..Proposal::new(desired, reason)
        }
    }
}

/// The mean run time for the calculation. Normally this is the mean of the ended work. The age of
/// the running work is used instead if no invocation has ended, or if the running work has already
/// taken longer than chance explains.
fn service_s(o: &Observation) -> Option<f64> {
    let ended_s = o.service.mean_ns().map(|mean| (mean as f64 / SECOND_NS).max(1e-9));
    let Some(age_s) = mean_age_s(o) else { return ended_s };
    let running = f64::from(o.in_flight);
    let Some(ended_s) = ended_s else { return (age_s > 0.0).then_some(age_s) };
    // The expected age of work that is running at a random moment (length bias).
    let expected_s = ended_s * (1.0 + o.service.variation_squared()) / 2.0;
    let surprise = age_s > expected_s * (1.0 + AGE_DOUBT / running.sqrt());
    Some(if surprise { age_s.max(ended_s) } else { ended_s })
}

/// How long the running invocations have run on average.
fn mean_age_s(o: &Observation) -> Option<f64> {
    let running = f64::from(o.in_flight);
    (o.in_flight > 0).then(|| o.run_age_ns_total as f64 / SECOND_NS / running)
}

fn wait_max_s(service_s: f64) -> f64 {
    (service_s * WAIT_SHARE).clamp(WAIT_MIN_S, WAIT_MAX_S)
}

/// The number of instances in use, plus as many as are worth their start: each of them must spare
/// the waiting invocations, and those that arrive behind them, more waiting than a start costs. The
/// queue is treated as a fluid.
fn for_backlog(
    o: &Observation,
    bounds: &Bounds,
    service_s: f64,
    rate: f64,
    start: StartCost,
) -> u32 {
    let waiting = f64::from(o.waiting());
    if waiting == 0.0 {
        return 0;
    }
    let slots = o.concurrency.max(1);
    let busy = o.in_flight.min(o.ready * slots);
    let mut drain = f64::from(busy) / service_s - rate;
    // What still waits when an instance that starts now is ready.
    let left = waiting - drain * start.takes_s;
    if left <= 0.0 && o.ready > 0 {
        return 0;
    }
    let by_instance = f64::from(slots) / service_s;
    // The bound also limits this computation, which is made at each arrival.
    let more_max = ((left / f64::from(slots)).ceil().max(1.0) as u32).min(bounds.max);
    // With no instance, the first one is started for any invocation.
    let mut more = u32::from(o.ready == 0);
    drain += f64::from(more) * by_instance;
    while more < more_max {
        let now_s = start.of_queue_s(left, drain);
        let spared_s = now_s - start.of_queue_s(left, drain + by_instance);
        if now_s.is_finite() && spared_s < start.idle_s {
            break;
        }
        drain += by_instance;
        more += 1;
    }
    if more == 0 { 0 } else { (busy + more * slots).div_ceil(slots) }
}
