//! Compares `auto` with rules from publications on a part of the published statistics, and checks the
//! form of the results. `--example study` makes the whole comparison.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mote_lab::published::PUBLISHED;
use mote_lab::study::{ORACLE, markdown, scenario, study, svg};

#[test]
fn auto_has_the_least_total_and_the_oracle_the_least_cost() {
    let mut studies = Vec::new();
    for name in PUBLISHED {
        let made = study(&[101], |policy, seed| {
            let mut scenario = scenario(name, policy, seed, 50.0).unwrap();
            scenario.functions.truncate(100);
            scenario.duration_s = 3_600.0;
            scenario
        });
        println!("{}", markdown(std::slice::from_ref(&made)));
        let of = |rule: &str| made.outcomes.iter().find(|outcome| outcome.rule == rule).unwrap();
        let (auto, oracle) = (of("auto"), of(ORACLE));
        assert!(auto.answered_share > 0.999, "{name}: {auto:?}");
        for other in &made.outcomes {
            assert_eq!(other.offered, auto.offered, "{name}: the same calls under {}", other.rule);
            if other.rule != ORACLE && other.rule != "auto" {
                assert!(auto.total_s < other.total_s, "{name}: {auto:?} {other:?}");
                assert!(oracle.cost_s < other.cost_s, "{name}: {oracle:?} {other:?}");
            }
        }
        assert!(oracle.cost_s < auto.cost_s, "{name}: {oracle:?} {auto:?}");
        studies.push(made);
    }
    let picture = svg(&studies).unwrap();
    assert!(picture.contains("hybrid-histogram") && picture.ends_with("</svg>\n"));
    let text = serde_json::to_string(&studies).unwrap();
    assert_eq!(serde_json::from_str::<Vec<mote_lab::study::Study>>(&text).unwrap(), studies);
}
