//! Admission decides whether an arriving invocation runs, waits or is refused, and how many frames
//! a worker may hold. The functions are pure; the engine calls them under the queue's lock.

/// The decision about an arriving invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// A worker is free: give it the invocation at once.
    Dispatch,
    /// The invocation waits in the revision's single queue.
    Enqueue,
    /// The queue is full.
    Refuse,
}

/// Decides about one arrival. `worker_free` says whether some worker may take another frame. An
/// arriving invocation never overtakes waiting ones.
pub fn admit(worker_free: bool, waiting: usize, queue_max: u32) -> Admission {
    if worker_free && waiting == 0 {
        Admission::Dispatch
    } else if waiting < queue_max as usize {
        Admission::Enqueue
    } else {
        Admission::Refuse
    }
}

/// How much work a worker may hold in addition to the work that it runs, in nanoseconds: the number of
/// invocations times the worker's mean service time. Up to this amount, work is sent ahead: a worker that has just ended
/// an invocation finds the next one in its socket, which saves one wake-up per invocation. Beyond
/// this amount, choosing the worker late is worth more than the saved wake-up.
pub const AHEAD_NS: u64 = 1_000_000;
/// The maximum number of frames that are sent ahead, even if the service time is very short.
pub const AHEAD_MAX: u32 = 256;

/// The number of frames that a worker may hold at once: its concurrency, plus a few frames ahead if
/// its invocations are so short that handing one over costs as much as running it. `service_ns` is
/// the moving mean of the handler's run time, or 0 while that is unknown.
pub fn frames_max(concurrency: u32, service_ns: u64) -> u32 {
    if service_ns == 0 {
        return concurrency;
    }
    let ahead = (AHEAD_NS / service_ns.max(1)).min(u64::from(AHEAD_MAX)) as u32;
    concurrency.max(ahead)
}

/// Exponential moving mean in which the newest value has weight 1/8. The first value becomes the
/// mean. A value of at least 8 times the mean replaces the mean at once, so that a single slow call
/// is enough to stop sending frames ahead.
pub fn service_mean_ns(mean_ns: u64, newest_ns: u64) -> u64 {
    let newest_ns = newest_ns.max(1);
    if mean_ns == 0 || newest_ns > mean_ns.saturating_mul(8) {
        return newest_ns;
    }
    mean_ns - mean_ns / 8 + newest_ns / 8
}

/// An invocation that runs for at least this long is long work, which need not be preferred to
/// short work.
pub const LONG_WORK_NS: u64 = 50_000_000;

/// Whether an instance monopolises a core: it has used most of a core since the last measurement,
/// and one of its invocations is long work.
pub fn is_greedy(burnt_ns: u64, since_ns: u64, oldest_running_ns: u64) -> bool {
    oldest_running_ns >= LONG_WORK_NS && burnt_ns >= since_ns / 10 * 7
}

/// Whether a function that was put into the background may leave the background, because its work
/// is short again.
pub fn is_considerate(service_ns: u64) -> bool {
    service_ns > 0 && service_ns < LONG_WORK_NS
}

/// Why the instances of a function run in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// The function was greedy, hung or died repeatedly.
    Function,
    /// The function's namespace used most of a core while functions of other namespaces were
    /// called.
    Namespace,
}

/// Whether a function stays in the background, enters the background because of its namespace, or
/// leaves it. A function that is in the background because of its own work stays there until it has
/// no neighbours or its work is short again.
pub fn background(
    now: Option<Background>,
    has_neighbours: bool,
    is_considerate: bool,
    namespace_takes_most: bool,
) -> Option<Background> {
    match now {
        Some(Background::Function) if has_neighbours && !is_considerate => now,
        _ => namespace_takes_most.then_some(Background::Namespace),
    }
}

/// Pause between two measurements of a background instance whose work is long.
pub const BACKGROUND_LOOK_NS: u64 = 400_000_000;
/// How long a starved instance competes for the processor like any other instance before it is
/// measured again.
pub const LIFT_NS: u64 = 100_000_000;

/// Whether an instance in the background gets less than its floor, which is a twentieth of a
/// processor. That happens when other programs on the machine use all processor time, and it may
/// last for any length of time. If the measurement continues while the instance competes like any
/// other, the result also shows when the instance has received its floor.
pub fn is_starved(burnt_ns: u64, since_ns: u64) -> bool {
    burnt_ns < since_ns / 20
}

/// After this long without a call, a function no longer counts as a neighbour.
pub const NEIGHBOUR_NS: u64 = 10_000_000_000;

/// A function and its namespace, as numbers that the caller chooses to identify them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Callee {
    pub function: u64,
    /// The function's namespace. All functions outside of namespaces share one number.
    pub namespace: u64,
}

/// The function that was called last on a node, the time of the latest call of any other function,
/// and the time of the latest call in any other namespace. These facts are enough to tell which
/// functions have neighbours.
#[derive(Debug, Clone, Copy, Default)]
pub struct Callees {
    newest: Callee,
    newest_ns: u64,
    /// When any other function was last called.
    other_ns: u64,
    /// When a function of any other namespace was last called.
    stranger_ns: u64,
}

impl Callees {
    pub fn called(&mut self, who: Callee, now_ns: u64) {
        if who != self.newest {
            self.other_ns = self.newest_ns;
            if who.namespace != self.newest.namespace {
                self.stranger_ns = self.newest_ns;
            }
            self.newest = who;
        }
        self.newest_ns = now_ns;
    }

    /// Whether any function other than `who` was called recently. Without neighbours, no function
    /// gains anything if `who` goes into the background. On a machine that other programs keep
    /// busy, `who` might then stay in the background forever.
    pub fn has_neighbours(&self, who: Callee, now_ns: u64) -> bool {
        is_recent(if who == self.newest { self.other_ns } else { self.newest_ns }, now_ns)
    }

    /// Whether a function of another namespace was called recently.
    pub fn has_strangers(&self, who: Callee, now_ns: u64) -> bool {
        let is_newest = who.namespace == self.newest.namespace;
        is_recent(if is_newest { self.stranger_ns } else { self.newest_ns }, now_ns)
    }
}

fn is_recent(called_ns: u64, now_ns: u64) -> bool {
    called_ns > 0 && now_ns.saturating_sub(called_ns) < NEIGHBOUR_NS
}

/// The shortest period for which the processor time of a namespace is compared with the limit.
pub const METER_NS: u64 = 200_000_000;

/// The processor time that the instances of a namespace use, and whether they use most of a core.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessorMeter {
    began_ns: u64,
    burnt_ns: u64,
    takes_most: bool,
}

impl ProcessorMeter {
    /// Adds the processor time that an instance has used since its last measurement. Call this soon
    /// after the measurement.
    pub fn add(&mut self, burnt_ns: u64, now_ns: u64) {
        let since_ns = now_ns.saturating_sub(self.began_ns);
        if !self.is_fresh(now_ns) {
            *self = Self { began_ns: now_ns, ..Self::default() };
            return;
        }
        self.burnt_ns += burnt_ns;
        if since_ns >= METER_NS {
            // To leave this state, the namespace must fall far below the limit at which it entered.
            // Otherwise, the state would change all the time.
            let tenths = if self.takes_most { 4 } else { 7 };
            let takes_most = self.burnt_ns >= since_ns / 10 * tenths;
            *self = Self { began_ns: now_ns, burnt_ns: 0, takes_most };
        }
    }

    /// Whether the instances used most of a core at the last measurement, if that was a moment ago.
    pub fn takes_most(&self, now_ns: u64) -> bool {
        self.takes_most && self.is_fresh(now_ns)
    }

    /// Whether something was measured recently. If not, the sum says nothing about the time since.
    pub fn is_fresh(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.began_ns) < 4 * METER_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals() {
        assert_eq!(admit(true, 0, 4), Admission::Dispatch);
        assert_eq!(admit(true, 1, 4), Admission::Enqueue, "nobody overtakes");
        assert_eq!(admit(false, 3, 4), Admission::Enqueue);
        assert_eq!(admit(false, 4, 4), Admission::Refuse);
        assert_eq!(admit(false, 0, 0), Admission::Refuse);
        assert_eq!(admit(true, 0, 0), Admission::Dispatch, "no queue is needed when one is free");
    }

    #[test]
    fn frames_ahead_only_for_short_work() {
        assert_eq!(frames_max(1, 0), 1, "unknown service time: strict late binding");
        assert_eq!(frames_max(1, 2_000), 256);
        assert_eq!(frames_max(1, 100_000), 10);
        assert_eq!(frames_max(1, 5_000_000), 1);
        assert_eq!(frames_max(64, 5_000_000), 64);
    }

    #[test]
    fn one_slow_call_raises_the_mean_at_once() {
        let mut mean = 0;
        for _ in 0..100 {
            mean = service_mean_ns(mean, 2_000);
        }
        assert!((1_900..=2_100).contains(&mean), "{mean}");
        mean = service_mean_ns(mean, 50_000_000);
        assert_eq!(mean, 50_000_000);
        assert_eq!(frames_max(1, mean), 1);
    }

    #[test]
    fn what_gets_next_to_nothing_is_starved() {
        assert!(is_starved(0, BACKGROUND_LOOK_NS));
        assert!(is_starved(19_000_000, BACKGROUND_LOOK_NS));
        assert!(!is_starved(20_000_000, BACKGROUND_LOOK_NS));
    }

    const SECOND: u64 = 1_000_000_000;

    fn callee(function: u64, namespace: u64) -> Callee {
        Callee { function, namespace }
    }

    #[test]
    fn neighbours_are_those_who_were_called_of_late() {
        let one = callee(1, 0);
        let two = callee(2, 0);
        let mut callees = Callees::default();
        callees.called(one, SECOND);
        callees.called(one, 2 * SECOND);
        assert!(!callees.has_neighbours(one, 2 * SECOND), "alone");
        assert!(callees.has_neighbours(two, 2 * SECOND));
        callees.called(two, 3 * SECOND);
        assert!(callees.has_neighbours(one, 3 * SECOND) && callees.has_neighbours(two, 3 * SECOND));
        for at in 4..20 {
            callees.called(one, at * SECOND);
        }
        assert!(callees.has_neighbours(one, 12 * SECOND));
        assert!(!callees.has_neighbours(one, 13 * SECOND), "10 s after the other's last call");
        assert!(callees.has_neighbours(two, 20 * SECOND));
    }

    #[test]
    fn strangers_are_of_another_namespace() {
        let one = callee(1, 7);
        let two = callee(2, 7);
        let foreign = callee(3, 8);
        let mut callees = Callees::default();
        callees.called(one, SECOND);
        callees.called(two, 2 * SECOND);
        assert!(!callees.has_strangers(one, 2 * SECOND), "neighbours of one namespace");
        assert!(callees.has_strangers(foreign, 2 * SECOND));
        callees.called(foreign, 3 * SECOND);
        callees.called(one, 4 * SECOND);
        callees.called(two, 5 * SECOND);
        assert!(callees.has_strangers(one, 12 * SECOND), "called at 3 s, others since");
        assert!(!callees.has_strangers(one, 13 * SECOND));
    }

    #[test]
    fn a_namespace_takes_most_of_a_core_with_all_its_instances() {
        let mut meter = ProcessorMeter::default();
        meter.add(SECOND, 10 * SECOND);
        assert!(!meter.takes_most(10 * SECOND), "what was used before the first measurement");
        let add = |meter: &mut ProcessorMeter, at: u64, burnt: u64| {
            let at = 10 * SECOND + at * 1_000_000;
            meter.add(burnt, at);
            meter.takes_most(at)
        };
        // Two instances, each of which uses two fifths of a core.
        assert!(!add(&mut meter, 100, 40_000_000) && !add(&mut meter, 100, 40_000_000));
        assert!(!add(&mut meter, 199, 40_000_000));
        assert!(add(&mut meter, 200, 40_000_000), "four fifths of a core");
        assert!(add(&mut meter, 300, 0), "until the next measurement is whole");
        assert!(!meter.takes_most(11 * SECOND), "nothing was measured for 0.8 s");
        assert!(add(&mut meter, 400, 100_000_000), "half of a core is not far below");
        assert!(!add(&mut meter, 600, 60_000_000), "three tenths of a core");
        assert!(!add(&mut meter, 1_500, SECOND), "after a pause it begins anew");
    }

    #[test]
    fn a_function_leaves_the_background_for_the_reason_for_which_it_entered() {
        use Background::{Function, Namespace};
        // The work is still long, in a namespace that uses less than most of a core.
        assert_eq!(background(Some(Function), true, false, false), Some(Function));
        assert_eq!(background(Some(Namespace), true, false, false), None);
        assert_eq!(background(Some(Function), false, false, false), None, "without neighbours");
        assert_eq!(background(Some(Function), true, true, false), None, "short again");
        for now in [None, Some(Namespace)] {
            assert_eq!(background(now, true, true, true), Some(Namespace));
        }
        assert_eq!(background(Some(Function), true, true, true), Some(Namespace));
    }

    #[test]
    fn long_burning_work_goes_to_the_background_and_short_work_leaves_it() {
        assert!(is_greedy(95_000_000, 100_000_000, 200_000_000));
        assert!(!is_greedy(10_000_000, 100_000_000, 200_000_000), "waits, does not burn");
        assert!(!is_greedy(95_000_000, 100_000_000, 5_000_000), "many short invocations");
        assert!(is_considerate(2_000_000));
        assert!(!is_considerate(0) && !is_considerate(80_000_000));
    }
}
