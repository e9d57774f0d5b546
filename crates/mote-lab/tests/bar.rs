//! What `auto` promises against the rules of other platforms: its callers wait less under every one
//! of them. What it costs is bounded, in instance-seconds and in the sum of memory and starts (R105,
//! R118, decision 0013). `--example compare` prints the figures.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mote_core::policy::Policy;
use mote_lab::families::{FAMILIES, family, policies};
use mote_lab::{Report, simulate};

/// This seed is not one of those with which constants were chosen.
const SEED: u64 = 11;
const START_MS: f64 = 50.0;

fn run(name: &str, policy: Policy) -> Report {
    let mut scenario = family(name, policy, SEED, START_MS).unwrap();
    // A part of the functions, for one hour, so that the test ends within seconds.
    scenario.functions.truncate(200);
    scenario.duration_s = scenario.duration_s.min(3_600.0);
    simulate(&scenario)
}

/// The most that `auto` may cost over Knative's rule: instance-seconds, and memory with starts.
/// Knative's rule is cheaper where demand is steady, and callers wait four times as long there.
const OVER_KNATIVE: [(&str, f64, f64); 5] = [
    ("steady", 1.35, 2.4),
    ("bursty", 0.65, 0.65),
    ("diurnal", 1.35, 2.4),
    ("ramp", 1.2, 1.9),
    ("heavy-tail", 0.9, 0.95),
];

#[test]
fn auto_waits_less_than_every_preset() {
    for name in FAMILIES {
        let [auto, presets @ ..] = policies().map(|policy| run(name, policy));
        for preset in &presets {
            let against = format!("{name}: auto against {}", preset.policy);
            assert!(auto.wait.mean_ms < preset.wait.mean_ms, "{against}: mean");
            assert!(auto.wait.p99_ms < preset.wait.p99_ms, "{against}: p99");
        }
    }
}

#[test]
fn auto_costs_no_more_than_stated() {
    for (name, most_seconds, most_cost) in OVER_KNATIVE {
        let [auto, presets @ ..] = policies().map(|policy| run(name, policy));
        let knative = presets.iter().find(|preset| preset.policy == "knative").unwrap();
        let seconds = auto.instance_seconds / knative.instance_seconds;
        let cost = auto.cost_s / knative.cost_s;
        println!("{name}: instance-seconds {seconds:.2}, cost {cost:.2}");
        assert!(seconds <= most_seconds, "{name}: {seconds} of the instance-seconds");
        assert!(cost <= most_cost, "{name}: {cost} of the cost");
    }
}
