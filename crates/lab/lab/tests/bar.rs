//! Tests what `auto` promises in comparison with the rules of other platforms, in every family
//! (R105, R118, decision 0013): no rule that answers the calls lets them wait noticeably less, and
//! none of the rules that let them wait about as long costs less. `--example compare` prints the
//! figures.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mote_lab::families::{FAMILIES, family, policies};
use mote_lab::{Report, simulate};
use mote_spec::policy::Policy;

/// These seeds were not used to choose any constant.
const SEEDS: [u64; 3] = [11, 21, 31];
const START_MS: f64 = 50.0;
/// The most that the mean wait and the p99 may be, as a share of the least of the other rules.
const WAIT_SHARE_MAX: f64 = 1.1;
/// A rule that leaves more callers than this without an answer does not compete. It saves the cost
/// of their calls.
const ANSWERED_SHARE: f64 = 0.99;
/// A rule whose calls wait longer than this, as a multiple of the waits under `auto`, buys its lower
/// cost with its callers' time. See [`CHEAPER`].
const COMPARABLE: f64 = 2.0;
/// The rules that cost less than `auto` although they answer enough, and the most that `auto` costs
/// compared with them. The rule of Kubernetes in `diurnal`: its calls wait about three times as long
/// as under `auto`.
const CHEAPER: [(&str, &str, f64); 2] = [("diurnal", "hpa", 1.3), ("steady", "hpa", 1.6)];

fn run(name: &str, policy: Policy, seed: u64) -> Report {
    let mut scenario = family(name, policy, seed, START_MS).unwrap();
    // Only some of the functions, and at most one hour, so that the test ends within seconds.
    scenario.functions.truncate(200);
    scenario.duration_s = scenario.duration_s.min(3_600.0);
    simulate(&scenario)
}

#[test]
fn auto_is_the_cheapest_rule_that_does_not_let_callers_wait() {
    for seed in SEEDS {
        for name in FAMILIES {
            let [auto, presets @ ..] = policies().map(|policy| run(name, policy, seed));
            let answers = |report: &Report| report.answered as f64 / report.offered as f64;
            assert!(answers(&auto) > 0.999, "{name}, seed {seed}: {}", answers(&auto));
            for preset in presets.iter().filter(|preset| answers(preset) >= ANSWERED_SHARE) {
                let against = format!("{name}, seed {seed}: auto against {}", preset.policy);
                let mean = auto.wait.mean_ms / preset.wait.mean_ms;
                let p99 = auto.wait.p99_ms / preset.wait.p99_ms;
                let cost = auto.cost_s / preset.cost_s;
                println!("{against}: mean {mean:.2}, p99 {p99:.2}, cost {cost:.2}");
                assert!(mean <= WAIT_SHARE_MAX, "{against}: mean wait {mean}");
                assert!(p99 <= WAIT_SHARE_MAX, "{against}: p99 {p99}");
                let known = CHEAPER.iter().find(|(family, rule, _)| {
                    (*family, *rule) == (name, preset.policy.as_str())
                });
                match known {
                    Some((.., most)) => {
                        assert!(cost <= *most, "{against}: cost {cost}");
                        assert!(mean * COMPARABLE < 1.0, "{against}: it waits as short: {mean}");
                    }
                    None => assert!(cost < 1.0, "{against}: cost {cost}"),
                }
            }
        }
    }
}
