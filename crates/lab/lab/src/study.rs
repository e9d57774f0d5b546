//! Compares the node's rules with rules from publications and with the oracle, in one unit.
//!
//! The total adds the cost of a rule (the processor time of starts and the memory of instances
//! without work) and the waiting of callers. A call that gets no answer counts as a wait until its
//! deadline, so a rule cannot save costs by leaving calls without an answer.

use std::fmt::Write as _;

use mote_spec::policy::Policy;
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

use crate::families::{family, policies};
use crate::oracle::foresee;
use crate::published::published;
use crate::studied::{STUDIED, studied};
use crate::{Report, Scenario, simulate, simulate_with};

/// The price of a second for which a caller waits, in seconds of one processor. The rule `auto` counts
/// with less for short waits and with more for long ones.
pub const WAIT_PRICE: f64 = 0.1;
/// The name of the oracle in results.
pub const ORACLE: &str = "oracle";

/// What one rule achieved in one family, over one or more seeds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub rule: String,
    /// Calls that were sent, and the share of them that was answered.
    pub offered: u64,
    pub answered_share: f64,
    /// The share of answered calls that arrived before their instance was ready.
    pub cold_share: f64,
    /// Waits in milliseconds. In the mean, a call without an answer counts as a wait until its
    /// deadline.
    pub wait_mean_ms: f64,
    pub wait_p99_ms: f64,
    pub starts: u64,
    /// The processor time of starts, and the memory of instances without work, in seconds of one
    /// processor.
    pub cost_s: f64,
    /// `cost_s` and the waits at [`WAIT_PRICE`].
    pub total_s: f64,
}

/// All rules in one family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Study {
    pub family: String,
    pub functions: usize,
    pub duration_s: f64,
    pub seeds: Vec<u64>,
    pub outcomes: Vec<Outcome>,
}

/// The scenario of a family of `families.rs` or `published.rs`; `None` for an unknown name.
pub fn scenario(name: &str, policy: Policy, seed: u64, start_ms: f64) -> Option<Scenario> {
    family(name, policy.clone(), seed, start_ms).or_else(|| published(name, policy, seed, start_ms))
}

/// Runs every rule on the scenarios that `make` returns for a policy and a seed. Sums are over the
/// seeds, and the p99 is the mean of the seeds.
pub fn study(seeds: &[u64], make: impl Fn(Policy, u64) -> Scenario) -> Study {
    let example = make(Policy::Auto, seeds.first().copied().unwrap_or(1));
    let timeout_ms = example.functions.first().map_or(0, |function| function.timeout_ms) as f64;
    let mut outcomes = Vec::new();
    for policy in policies() {
        let run = |seed: &u64| simulate(&make(policy.clone(), *seed));
        let reports: Vec<Report> = seeds.iter().map(run).collect();
        outcomes.push(outcome(policy.as_str(), &reports, timeout_ms));
    }
    for name in STUDIED {
        let run = |seed: &u64| {
            let rule = |index: usize| {
                studied(name, seed ^ index as u64).expect("the name is in the list of rules")
            };
            simulate_with(&make(Policy::Auto, *seed), rule)
        };
        let reports: Vec<Report> = seeds.iter().map(run).collect();
        outcomes.push(outcome(name, &reports, timeout_ms));
    }
    let mut oracle = Outcome {
        rule: ORACLE.to_owned(),
        offered: 0,
        answered_share: 1.0,
        cold_share: 0.0,
        wait_mean_ms: 0.0,
        wait_p99_ms: 0.0,
        starts: 0,
        cost_s: 0.0,
        total_s: 0.0,
    };
    for seed in seeds {
        let least = foresee(&make(Policy::Auto, *seed));
        oracle.offered += least.calls;
        oracle.starts += least.starts;
        oracle.cost_s += least.cost_s;
    }
    oracle.total_s = oracle.cost_s;
    outcomes.push(oracle);
    Study {
        family: example.name,
        functions: example.functions.len(),
        duration_s: example.duration_s,
        seeds: seeds.to_vec(),
        outcomes,
    }
}

fn outcome(rule: &str, reports: &[Report], timeout_ms: f64) -> Outcome {
    let sum = |value: fn(&Report) -> f64| reports.iter().map(value).sum::<f64>();
    let offered = sum(|report| report.offered as f64);
    let answered = sum(|report| report.answered as f64);
    let waited_ms = sum(|report| report.wait.mean_ms * report.answered as f64)
        + (offered - answered) * timeout_ms;
    let cost_s = sum(|report| report.cost_s);
    Outcome {
        rule: rule.to_owned(),
        offered: offered as u64,
        answered_share: answered / offered.max(1.0),
        cold_share: sum(|report| report.cold as f64) / answered.max(1.0),
        wait_mean_ms: waited_ms / offered.max(1.0),
        wait_p99_ms: sum(|report| report.wait.p99_ms) / reports.len().max(1) as f64,
        starts: sum(|report| report.starts as f64) as u64,
        cost_s,
        total_s: cost_s + waited_ms / 1e3 * WAIT_PRICE,
    }
}

impl Study {
    /// The total of a rule, divided by the oracle's.
    pub fn over_oracle(&self, rule: &str) -> Option<f64> {
        let total = |name: &str| {
            self.outcomes.iter().find(|outcome| outcome.rule == name).map(|it| it.total_s)
        };
        Some(total(rule)? / total(ORACLE)?)
    }
}

/// A Markdown table for each study.
pub fn markdown(studies: &[Study]) -> String {
    let mut text = String::new();
    for study in studies {
        let hours = study.duration_s / 3_600.0;
        let _ = writeln!(
            text,
            "## {}\n\n{} function{}, {hours:.1} h, seeds {:?}, {} calls.\n",
            study.family,
            study.functions,
            if study.functions == 1 { "" } else { "s" },
            study.seeds,
            study.outcomes.first().map_or(0, |outcome| outcome.offered),
        );
        text.push_str(
            "| Rule | answered % | cold % | mean wait ms | p99 ms | starts | cost s | total s | total / oracle |\n\
             |---|---|---|---|---|---|---|---|---|\n",
        );
        for it in &study.outcomes {
            let over = study.over_oracle(&it.rule).unwrap_or(f64::NAN);
            let _ = writeln!(
                text,
                "| {} | {:.2} | {:.2} | {:.1} | {:.0} | {} | {:.0} | {:.0} | {over:.2} |",
                it.rule,
                it.answered_share * 100.0,
                it.cold_share * 100.0,
                it.wait_mean_ms,
                it.wait_p99_ms,
                it.starts,
                it.cost_s,
                it.total_s,
            );
        }
        text.push('\n');
    }
    text
}

const WIDTH: u32 = 980;
const ROW: u32 = 20;
const HEAD: u32 = 40;
const LABEL: i32 = 150;
/// Totals above this multiple of the oracle's are cut off in the picture.
const OVER_MAX: f64 = 100.0;

/// A picture with a bar for each rule: its total as a multiple of the oracle's, on a logarithmic
/// scale, split into the cost and the waits.
pub fn svg(studies: &[Study]) -> Result<String, String> {
    let rows = |study: &Study| study.outcomes.len() as u32;
    let height: u32 = studies.iter().map(|study| HEAD + rows(study) * ROW).sum::<u32>() + 60;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        draw(&area, studies).map_err(|error| error.to_string())?;
        area.present().map_err(|error| error.to_string())?;
    }
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type PlotError<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

fn draw<'a>(area: &Area<'a>, studies: &[Study]) -> Result<(), PlotError<'a>> {
    const COST: RGBColor = RGBColor(78, 121, 167);
    const WAITS: RGBColor = RGBColor(242, 142, 43);
    area.fill(&WHITE)?;
    let font = |size: i32| ("sans-serif", size).into_font().color(&BLACK);
    let span = f64::from(WIDTH as i32 - LABEL - 150);
    let x = |over: f64| LABEL + (over.clamp(1.0, OVER_MAX).ln() / OVER_MAX.ln() * span) as i32;
    let mut y = 10;
    for study in studies {
        area.draw(&Text::new(study.family.clone(), (10, y), font(16)))?;
        y += HEAD as i32 - 14;
        for outcome in &study.outcomes {
            let over = study.over_oracle(&outcome.rule).unwrap_or(1.0);
            let of_cost = over * outcome.cost_s / outcome.total_s.max(1e-9);
            let bar = |from: i32, to: i32, color: RGBColor| {
                Rectangle::new([(from, y + 2), (to, y + 15)], color.filled())
            };
            area.draw(&Text::new(outcome.rule.clone(), (10, y + 2), font(12)))?;
            area.draw(&bar(x(1.0), x(of_cost) + 2, COST))?;
            area.draw(&bar(x(of_cost) + 2, x(over) + 2, WAITS))?;
            let label =
                if over > OVER_MAX { format!("{over:.0} (cut off)") } else { format!("{over:.2}") };
            area.draw(&Text::new(label, (x(over) + 8, y + 2), font(12)))?;
            y += ROW as i32;
        }
        y += 14;
    }
    let legend = [("starts and idle memory", COST), ("waits of callers", WAITS)];
    for (at, (name, color)) in legend.into_iter().enumerate() {
        let left = LABEL + at as i32 * 220;
        area.draw(&Rectangle::new([(left, y + 8), (left + 14, y + 20)], color.filled()))?;
        area.draw(&Text::new(name, (left + 20, y + 8), font(12)))?;
    }
    area.draw(&Text::new(
        "total divided by the oracle's, logarithmic scale from 1",
        (LABEL + 460, y + 8),
        font(12),
    ))
}
