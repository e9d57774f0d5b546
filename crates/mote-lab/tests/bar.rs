//! The bar for `auto`: callers wait less than under every preset. It uses no more instance-seconds
//! than Knative's rule and, in four of five families, no more than any preset that serves its calls
//! (R105, R118). `--example compare` prints the figures.

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

#[test]
fn auto_waits_less_for_no_more() {
    let mut cheaper = std::collections::BTreeMap::new();
    for name in FAMILIES {
        let [auto, presets @ ..] = policies().map(|policy| run(name, policy));
        for preset in &presets {
            let against = format!("{name}: auto against {}", preset.policy);
            assert!(auto.wait.mean_ms < preset.wait.mean_ms, "{against}: mean");
            assert!(auto.wait.p99_ms < preset.wait.p99_ms, "{against}: p99");
            let allowed = match preset.policy.as_str() {
                "knative" => 1.0,
                // It uses more of its capacity, and its callers wait 5 to 50 times as long.
                "hpa" => 1.1,
                // In bursts it answers a third of the calls, and saves the cost of the others.
                _ => f64::INFINITY,
            };
            let ratio = auto.instance_seconds / preset.instance_seconds;
            assert!(ratio <= allowed, "{against}: {ratio} of the instance-seconds");
            *cheaper.entry(preset.policy.clone()).or_insert(0) += u32::from(ratio <= 1.0);
        }
    }
    assert!(cheaper.values().all(|families| *families >= 4), "{cheaper:?}");
}
