//! No invocation is lost, even if stops and arrivals coincide in any way (R66, R80).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use mote_lab::families::{family, policies};
use mote_lab::{Arrivals, Distribution, FunctionModel, NodeModel, Report, Scenario, simulate};
use mote_spec::policy::Policy;

fn all_known(report: &Report) {
    assert_eq!(report.lost, 0, "{} {}", report.scenario, report.policy);
    assert_eq!(report.offered, report.answered + report.refused + report.expired);
}

fn scenario(name: &str, duration_s: f64, functions: Vec<FunctionModel>) -> Scenario {
    Scenario {
        name: name.into(),
        seed: 1,
        duration_s,
        sample_s: 0.0,
        node: NodeModel::default(),
        policy: Policy::Auto,
        balance: Default::default(),
        functions,
    }
}

/// A million arrivals, most of them within a millisecond of the time at which the function's idle
/// instance stops. They cover the time before, at and after the stop in steps of a microsecond.
#[test]
fn a_million_arrivals_around_the_stop() {
    const FUNCTIONS: u64 = 500;
    const CALLS: u64 = 2_000;
    /// Instances stop this long after the last answer, whatever the policy computes.
    const IDLE_NS: u64 = 1_000_000_000;
    const WORK_NS: u64 = 3_000_000;
    let functions = (0..FUNCTIONS)
        .map(|function| {
            let mut at_ns = function * 1_000;
            let calls: Vec<(u64, u64)> = (0..CALLS)
                .map(|call| {
                    let call_ns = at_ns;
                    // From -1 ms to +1 ms; some arrive later still, while the instance stops.
                    let jitter_ns = (function * 7_919 + call * 104_729) % 2_000_001;
                    let late_ns = if call % 5 == 0 { 2_500_000 } else { 0 };
                    at_ns += WORK_NS + IDLE_NS - 1_000_000 + jitter_ns + late_ns;
                    (call_ns, WORK_NS)
                })
                .collect();
            let mut model = FunctionModel::new(
                &format!("f{function}"),
                Arrivals::Recorded { calls: Arc::new(calls) },
                Distribution::Constant { ms: 3.0 },
                Distribution::Constant { ms: 0.9 },
            );
            model.idle_timeout_ms = IDLE_NS / 1_000_000;
            model
        })
        .collect();
    let report = simulate(&scenario("around-the-stop", 2_100.0, functions));
    all_known(&report);
    assert_eq!((report.offered, report.answered), (FUNCTIONS * CALLS, FUNCTIONS * CALLS));
    assert!(report.starts > FUNCTIONS * CALLS / 10, "many stops were met: {}", report.starts);
    assert!(report.starts < FUNCTIONS * CALLS, "and many not: {}", report.starts);
    assert!(report.wait.max_ms < 20.0, "{:?}", report.wait);
}

#[test]
fn whatever_the_policy() {
    for policy in policies() {
        for name in ["steady", "bursty", "ramp"] {
            all_known(&simulate(&family(name, policy.clone(), 3, 50.0).unwrap()));
        }
    }
}

/// A node with 300 functions and memory for 20 instances evicts idle instances, and no call waits
/// forever.
#[test]
fn a_full_node_evicts_and_answers() {
    let mut tight = family("heavy-tail", Policy::Auto, 2, 20.0).unwrap();
    tight.functions.truncate(300);
    tight
        .functions
        .retain(|function| !matches!(function.arrivals, Arrivals::Poisson { rate } if rate > 1.0));
    tight.duration_s = 1_800.0;
    let budget = 40 * (64 << 20);
    tight.node = NodeModel { memory_bytes: budget, starts_max: 8, ..NodeModel::default() };
    let report = simulate(&tight);
    all_known(&report);
    assert!(report.peak_memory_bytes <= budget);
    assert!(report.evictions > 0);
    assert!(report.answered * 100 >= report.offered * 99, "{report:?}");
}

#[test]
fn bounds_refuse_and_expire_and_say_so() {
    let mut model = FunctionModel::new(
        "f",
        Arrivals::Poisson { rate: 50.0 },
        Distribution::Constant { ms: 200.0 },
        Distribution::Constant { ms: 50.0 },
    );
    (model.max, model.queue, model.timeout_ms) = (1, 20, 1_000);
    let report = simulate(&scenario("overload", 60.0, vec![model]));
    all_known(&report);
    assert!(report.refused > 0 && report.expired > 0 && report.answered > 250, "{report:?}");
    assert!(report.wait.max_ms <= 1_000.0);
}

#[test]
fn pauses_and_prewarmed_sandboxes() {
    let mut model = FunctionModel::new(
        "f",
        Arrivals::Regular { period_s: 20.0, first_s: 1.0 },
        Distribution::Constant { ms: 5.0 },
        Distribution::Constant { ms: 500.0 },
    );
    model.start.prewarmed = Distribution::Constant { ms: 1.0 };
    model.start.resume = Distribution::Constant { ms: 0.2 };
    model.start.pause_after_s = Some(1.0);
    let mut plan = scenario("paused", 600.0, vec![model]);
    plan.node.prewarmed = 1;
    let report = simulate(&plan);
    all_known(&report);
    assert!(report.wait.max_ms < 2.0, "never the 500 ms of a cold start: {:?}", report.wait);
}

#[test]
fn equal_seeds_give_equal_reports() {
    let run = |seed| simulate(&family("bursty", Policy::Auto, seed, 50.0).unwrap());
    assert_eq!(run(5), run(5));
    assert_ne!(run(5).offered, run(6).offered);
}

#[test]
fn reports_are_data() {
    let report = simulate(&family("ramp", Policy::Auto, 1, 50.0).unwrap());
    let text = serde_json::to_string(&report).unwrap();
    let back: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(back.offered, report.offered);
    assert_eq!(mote_lab::csv(&report).lines().count(), report.series.len() + 1);
    assert!(mote_lab::table(&[report]).lines().count() == 2);
}
