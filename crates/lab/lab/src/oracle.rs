//! The least that a rule could cost that knows every call in advance and lets no caller wait.
//!
//! Whenever a call begins, it either takes an instance that has been idle since an earlier call, or
//! an instance that was started just in time. Keeping an instance for a gap costs memory in
//! proportion to the gap, and never more than a start is worth. For costs of this shape, it is best
//! to give each call to the instance that became idle last: the gaps then are as unequal as
//! possible, and a long gap costs no more than a start. So one pass over the calls gives the least
//! cost. A rule that lets callers wait can cost less.

use mote_pool::autoscale::memory_cost_s;

use crate::arrivals::Source;
use crate::distribution::stream;
use crate::scenario::{FunctionModel, Scenario};

/// What the oracle paid.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Foresight {
    pub calls: u64,
    pub starts: u64,
    /// In seconds of one processor, as in [`crate::Report::cost_s`].
    pub cost_s: f64,
}

/// The least cost of `scenario`. The demand is the same that [`crate::simulate`] draws. Functions
/// with closed loads are left out, because their calls depend on the answers.
pub fn foresee(scenario: &Scenario) -> Foresight {
    let mut sum = Foresight::default();
    for (index, model) in scenario.functions.iter().enumerate() {
        let held_cost_s =
            memory_cost_s(model.memory_bytes as f64, scenario.node.memory_per_core_bytes);
        let part = one(model, calls(scenario, model, index as u64), held_cost_s);
        sum.calls += part.calls;
        sum.starts += part.starts;
        sum.cost_s += part.cost_s;
    }
    sum
}

/// The begin and the end of each call in seconds. The streams of random numbers are those of
/// `function.rs`.
fn calls<'a>(
    scenario: &'a Scenario,
    model: &'a FunctionModel,
    index: u64,
) -> impl Iterator<Item = (f64, f64)> + 'a {
    let mut source = Source::new(model.arrivals.clone());
    let mut arrival_random = stream(scenario.seed, index * 3);
    let mut work_random = stream(scenario.seed, index * 3 + 1);
    let until_ns = (scenario.duration_s * 1e9) as u64;
    std::iter::from_fn(move || source.next(&mut arrival_random))
        .take_while(move |call| call.at_ns < until_ns)
        .map(move |call| {
            let service_ns = match call.service_ns {
                0 => model.work.time.sample_ns(&mut work_random),
                recorded_ns => recorded_ns,
            };
            let begin_s = call.at_ns as f64 / 1e9;
            (begin_s, begin_s + service_ns as f64 / 1e9)
        })
}

fn one(
    model: &FunctionModel,
    calls: impl Iterator<Item = (f64, f64)>,
    held_cost_s: f64,
) -> Foresight {
    let start_cost_s = model.start.cpu_ms / 1e3 + held_cost_s * model.start.cold.mean_ms() / 1e3;
    // The ends of the running calls, and the times since which the idle instances have been idle.
    let mut ends: Vec<f64> = Vec::new();
    let mut idle_since: Vec<f64> = Vec::new();
    let mut sum = Foresight::default();
    for (begin_s, end_s) in calls {
        let mut ended: Vec<f64> = Vec::new();
        ends.retain(|end_s| {
            let runs = *end_s > begin_s;
            if !runs {
                ended.push(*end_s);
            }
            runs
        });
        ended.sort_unstable_by(f64::total_cmp);
        idle_since.extend(ended);
        sum.calls += 1;
        match idle_since.pop().map(|since_s| (begin_s - since_s) * held_cost_s) {
            Some(cost_s) if cost_s <= start_cost_s => sum.cost_s += cost_s,
            _ => {
                // If the instance that became idle last is not worth keeping, no older one is.
                idle_since.clear();
                sum.starts += 1;
                sum.cost_s += start_cost_s;
            }
        }
        ends.push(end_s);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Arrivals;
    use crate::distribution::Distribution;
    use crate::families::{FAMILIES, family};
    use crate::simulate_with;
    use crate::studied::studied;
    use mote_spec::policy::Policy;

    fn cost(calls: &[(f64, f64)]) -> Foresight {
        let time = Distribution::Constant { ms: 1_000.0 };
        let start = Distribution::Constant { ms: 0.0 };
        let arrivals = Arrivals::Poisson { rate: 1.0 };
        let mut model = FunctionModel::new("f", arrivals, time, start);
        model.start.cpu_ms = 100.0;
        // An idle second costs a hundredth, so a start is worth ten idle seconds.
        one(&model, calls.iter().copied(), 0.01)
    }

    #[test]
    fn an_instance_is_kept_through_gaps_that_cost_less_than_a_start() {
        let close = |calls: &[(f64, f64)], starts: u64, cost_s: f64| {
            let result = cost(calls);
            assert_eq!(result.starts, starts, "{calls:?}");
            assert!((result.cost_s - cost_s).abs() < 1e-9, "{calls:?}: {}", result.cost_s);
        };
        close(&[(0.0, 1.0)], 1, 0.1);
        close(&[(0.0, 1.0), (6.0, 7.0)], 1, 0.15);
        close(&[(0.0, 1.0), (20.0, 21.0)], 2, 0.2);
        close(&[(0.0, 1.0), (0.5, 1.5)], 2, 0.2);
        // Two calls at once, then one: the instance that became idle last serves it.
        close(&[(0.0, 1.0), (0.0, 5.0), (7.0, 8.0)], 2, 0.22);
    }

    #[test]
    fn a_rule_that_hardly_lets_anybody_wait_costs_more() {
        for name in FAMILIES {
            let mut scenario = family(name, Policy::Auto, 3, 50.0).expect("a family");
            scenario.functions.truncate(20);
            scenario.duration_s = 600.0;
            let keep = |_| studied("keep-10-min", 1).expect("a rule");
            let report = simulate_with(&scenario, keep);
            let least = foresee(&scenario);
            assert_eq!(least.calls, report.offered, "{name}: the same demand");
            assert!(least.cost_s < report.cost_s, "{name}: {least:?}, {}", report.cost_s);
        }
    }
}
