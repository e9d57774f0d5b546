//! Decides what a node can afford: whether an instance may start, and which instances make room for
//! it.
//!
//! The memory limits of all instances together stay within a budget, so that the kernel's
//! out-of-memory killer never acts on the node. When the budget is used up, the least valuable idle
//! instances are stopped to make room; busy instances are never stopped. The functions are pure and
//! are called once per start.

use std::cmp::Ordering;

/// The resources that a node gives to instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// The maximum sum of all memory limits, in bytes.
    pub memory_bytes: u64,
    /// The maximum number of instances that start at the same time. A start is processor work, so
    /// with more starts than cores, each start only takes longer.
    pub starts_max: u32,
}

/// How much of the budget is taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Sum of memory limits of all instances that have not ended, in bytes.
    pub memory_bytes: u64,
    pub starting: u32,
    /// In how many nanoseconds memory is likely to become free, because of draining instances or
    /// the mean run time of running work. 0 if unknown.
    pub free_in_ns: u64,
}

/// An idle instance that could be stopped to make room. Leave out the instances that `scale.min`
/// keeps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IdleInstance {
    /// The caller's number for the instance.
    pub id: u64,
    /// The instance's memory limit in bytes.
    pub memory_bytes: u64,
    pub paused: bool,
    /// How long the instance has been idle, in nanoseconds.
    pub idle_ns: u64,
    /// The recent demand for the instance's function, in offered invocations per second.
    pub demand_per_s: f64,
    /// How long a start of the instance's function takes, in nanoseconds.
    pub start_ns: u64,
}

impl IdleInstance {
    /// What the node loses per byte if the instance is stopped: how long callers will have to wait
    /// for starts, per second. The longer the instance has been idle, the less the demand counts.
    /// So a function that is no longer called loses worth even before its estimated rate falls.
    fn worth(&self) -> f64 {
        let idle_s = self.idle_ns as f64 / 1e9;
        let demand_per_s = self.demand_per_s.min(1.0 / idle_s.max(1e-3));
        demand_per_s * self.start_ns as f64 / self.memory_bytes.max(1) as f64
    }
}

/// Why a start is refused for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// Working instances hold all memory.
    Memory,
    /// The maximum number of instances is already starting.
    Starts,
    /// The instance would not fit even into an empty node.
    TooLarge,
}

/// The answer to a request to start one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Start,
    /// Stop these instances first, then start the new one.
    Evict(Vec<u64>),
    /// Do not start the instance now.
    Refuse {
        lack: Lack,
        /// When to ask again, in nanoseconds from now.
        retry_after_ns: u64,
    },
}

/// The pause before the next request if there is no better estimate.
const RETRY_NS: u64 = 100_000_000;

/// Whether an instance of `wanted_bytes` may start. Paused instances are evicted before unpaused
/// ones, whatever their worth: a paused instance has been idle for longer, and resuming it takes a
/// little time, too.
pub fn admit_start(
    budget: &Budget,
    taken: &Taken,
    wanted_bytes: u64,
    idle: &[IdleInstance],
) -> Verdict {
    let retry_after_ns = if taken.free_in_ns > 0 { taken.free_in_ns } else { RETRY_NS };
    if wanted_bytes > budget.memory_bytes {
        return Verdict::Refuse { lack: Lack::TooLarge, retry_after_ns };
    }
    if taken.starting >= budget.starts_max.max(1) {
        return Verdict::Refuse { lack: Lack::Starts, retry_after_ns };
    }
    let after = taken.memory_bytes.saturating_add(wanted_bytes);
    let Some(missing) = after.checked_sub(budget.memory_bytes).filter(|missing| *missing > 0)
    else {
        return Verdict::Start;
    };
    let mut order: Vec<&IdleInstance> = idle.iter().collect();
    order.sort_unstable_by(cheapest_first);
    let mut freed = 0;
    let mut victims: Vec<&IdleInstance> = Vec::new();
    for instance in order {
        if freed >= missing {
            break;
        }
        freed += instance.memory_bytes;
        victims.push(instance);
    }
    if freed < missing {
        return Verdict::Refuse { lack: Lack::Memory, retry_after_ns };
    }
    // A large victim at the end of the list may have made smaller earlier victims unnecessary. The
    // most valuable of them is spared first.
    let mut at = victims.len();
    while at > 0 {
        at -= 1;
        if freed - victims[at].memory_bytes >= missing {
            freed -= victims[at].memory_bytes;
            victims.remove(at);
        }
    }
    Verdict::Evict(victims.iter().map(|instance| instance.id).collect())
}

/// The order in which idle instances are stopped. The function is never inlined, because the sort
/// would then contain some hundred copies of it.
#[inline(never)]
fn cheapest_first(a: &&IdleInstance, b: &&IdleInstance) -> Ordering {
    b.paused.cmp(&a.paused).then(a.worth().total_cmp(&b.worth())).then(a.id.cmp(&b.id))
}

/// Memory that is in use and may become free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occupied {
    pub memory_bytes: u64,
    /// When the holder of the memory is expected to become idle, in nanoseconds from now.
    pub free_in_ns: u64,
}

/// When `missing_bytes` are expected to be free, in nanoseconds from now, or `None` if that is not
/// expected to happen. Sorts `occupied`.
pub fn room_in(missing_bytes: u64, occupied: &mut [Occupied]) -> Option<u64> {
    occupied.sort_unstable_by(soonest_first);
    let mut freed = 0;
    if missing_bytes == 0 {
        return Some(0);
    }
    for held in occupied {
        freed += held.memory_bytes;
        if freed >= missing_bytes {
            return Some(held.free_in_ns);
        }
    }
    None
}

#[inline(never)]
fn soonest_first(a: &Occupied, b: &Occupied) -> Ordering {
    a.free_in_ns.cmp(&b.free_in_ns)
}

/// How much longer an invocation will run that has already run for `elapsed_ns`, if the mean run
/// time is `mean_ns`. If it has already run for longer than the mean, or if there is no mean, the
/// best estimate is that it will run for as long again.
pub fn remaining_ns(elapsed_ns: u64, mean_ns: Option<u64>) -> u64 {
    mean_ns.and_then(|mean_ns| mean_ns.checked_sub(elapsed_ns)).unwrap_or(elapsed_ns)
}

/// What to do with one idle instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    Keep,
    /// The instance is paused: a paused instance uses no processor time, and resuming is far
    /// cheaper than a start.
    Pause,
    Stop,
}

/// Decides about one idle instance. A wanted instance that has been idle for `pause_after_ns` is
/// paused, and an instance that is no longer wanted is stopped.
pub fn rest(wanted: bool, idle_ns: u64, pause_after_ns: Option<u64>) -> Rest {
    match pause_after_ns {
        _ if !wanted => Rest::Stop,
        Some(after_ns) if idle_ns >= after_ns => Rest::Pause,
        _ => Rest::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn idle(id: u64, mib: u64, demand_per_s: f64) -> IdleInstance {
        IdleInstance {
            id,
            memory_bytes: mib * MIB,
            paused: false,
            idle_ns: 1_000_000,
            demand_per_s,
            start_ns: 50_000_000,
        }
    }

    fn ask(taken_mib: u64, wanted_mib: u64, idle: &[IdleInstance]) -> Verdict {
        let budget = Budget { memory_bytes: 256 * MIB, starts_max: 4 };
        let taken = Taken { memory_bytes: taken_mib * MIB, ..Taken::default() };
        admit_start(&budget, &taken, wanted_mib * MIB, idle)
    }

    #[test]
    fn room_or_no_room() {
        assert_eq!(ask(192, 64, &[]), Verdict::Start);
        let refuse = |lack| Verdict::Refuse { lack, retry_after_ns: RETRY_NS };
        assert_eq!(ask(256, 64, &[]), refuse(Lack::Memory));
        assert_eq!(ask(0, 512, &[idle(1, 512, 0.0)]), refuse(Lack::TooLarge));
        let budget = Budget { memory_bytes: 256 * MIB, starts_max: 2 };
        let taken = Taken { memory_bytes: 0, starting: 2, free_in_ns: 7 };
        let verdict = admit_start(&budget, &taken, MIB, &[]);
        assert_eq!(verdict, Verdict::Refuse { lack: Lack::Starts, retry_after_ns: 7 });
    }

    #[test]
    fn the_least_valuable_makes_room() {
        let rare = idle(1, 64, 0.001);
        let busy = idle(2, 64, 5.0);
        assert_eq!(ask(256, 64, &[busy, rare]), Verdict::Evict(vec![1]));
        assert_eq!(ask(256, 128, &[busy, rare]), Verdict::Evict(vec![1, 2]));
        let dear = IdleInstance { start_ns: 5_000_000_000, ..rare };
        let cheap = IdleInstance { id: 3, ..rare };
        assert_eq!(ask(256, 64, &[dear, cheap]), Verdict::Evict(vec![3]), "slow starters stay");
        let large = idle(4, 256, 0.001);
        assert_eq!(ask(256, 64, &[rare, large]), Verdict::Evict(vec![4]), "less per byte");
        let silent = IdleInstance { idle_ns: 600_000_000_000, ..idle(5, 64, 5.0) };
        assert_eq!(ask(256, 64, &[silent, idle(6, 64, 1.0)]), Verdict::Evict(vec![5]));
    }

    #[test]
    fn paused_before_running() {
        let paused = IdleInstance { paused: true, ..idle(2, 64, 5.0) };
        assert_eq!(ask(256, 64, &[idle(1, 64, 0.001), paused]), Verdict::Evict(vec![2]));
    }

    #[test]
    fn nobody_goes_in_vain() {
        let small = idle(1, 16, 0.0);
        let large = idle(2, 128, 0.1);
        assert_eq!(ask(256, 128, &[small, large]), Verdict::Evict(vec![2]));
        assert_eq!(
            ask(256, 200, &[small, large]),
            Verdict::Refuse { lack: Lack::Memory, retry_after_ns: RETRY_NS },
            "and nobody when it would not be enough"
        );
    }

    #[test]
    fn when_there_will_be_room() {
        let held = |mib: u64, free_in_ns| Occupied { memory_bytes: mib * MIB, free_in_ns };
        let mut all = [held(64, 30), held(64, 10)];
        assert_eq!(room_in(0, &mut []), Some(0));
        assert_eq!(room_in(64 * MIB, &mut all), Some(10));
        assert_eq!(room_in(65 * MIB, &mut all), Some(30));
        assert_eq!(room_in(129 * MIB, &mut all), None);
        for (elapsed, mean, expected) in
            [(0, None, 0), (7, None, 7), (3, Some(10), 7), (12, Some(10), 12)]
        {
            assert_eq!(remaining_ns(elapsed, mean), expected, "{elapsed} {mean:?}");
        }
    }

    #[test]
    fn pause_then_stop() {
        assert_eq!(rest(true, 5, Some(10)), Rest::Keep);
        assert_eq!(rest(true, 10, Some(10)), Rest::Pause);
        assert_eq!(rest(true, 1_000, None), Rest::Keep);
        assert_eq!(rest(false, 0, Some(10)), Rest::Stop);
    }

    /// For any set of idle instances: the budget holds, no victim is unnecessary, and each victim
    /// is named only once.
    #[test]
    fn every_verdict_keeps_the_budget() {
        let mut state = 1u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..2_000 {
            let count = next(8);
            let idle: Vec<_> = (0..count)
                .map(|id| IdleInstance {
                    paused: next(2) == 0,
                    ..idle(id, 1 + next(100), next(50) as f64 / 10.0)
                })
                .collect();
            let idle_bytes: u64 = idle.iter().map(|instance| instance.memory_bytes).sum();
            let taken_mib = idle_bytes / MIB + next(256);
            let wanted_mib = 1 + next(256);
            match ask(taken_mib, wanted_mib, &idle) {
                Verdict::Start => assert!(taken_mib + wanted_mib <= 256),
                Verdict::Evict(victims) => {
                    let bytes = |id: &u64| idle[*id as usize].memory_bytes / MIB;
                    let freed: u64 = victims.iter().map(bytes).sum();
                    assert!(taken_mib + wanted_mib - freed <= 256);
                    for victim in &victims {
                        assert!(taken_mib + wanted_mib - freed + bytes(victim) > 256);
                    }
                }
                Verdict::Refuse { .. } => {
                    assert!(taken_mib + wanted_mib - idle_bytes / MIB > 256);
                }
            }
        }
    }
}
