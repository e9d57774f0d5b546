//! Compares policies in one scenario. The result is a table that marks the best policy for each
//! measure, and the list of measures in which `auto` is not the best.

use std::fmt::Write as _;

use mote_api::harmless;
use mote_spec::quantity::duration_text;
use serde_json::{Value, json};

use crate::{Report, Scenario};

/// A policy that gives fewer answers than this share of the most answers does not compete in waits
/// and costs, because a policy that leaves callers without an answer saves the cost of their calls.
const ANSWERED_SHARE: f64 = 0.99;
const MIB: f64 = 1_048_576.0;

/// The result of one policy in a scenario.
#[derive(Debug)]
pub struct Run {
    /// The policy as the user wrote it.
    pub policy: String,
    pub report: Report,
}

/// One scenario with the result of every policy.
#[derive(Debug)]
pub struct Comparison {
    /// The scenario's name.
    pub scenario: String,
    functions: usize,
    /// The simulated time in seconds.
    pub duration_s: f64,
    start_ms: f64,
    seed: u64,
    pub runs: Vec<Run>,
}

/// Which value of a column counts as the best.
#[derive(Clone, Copy, PartialEq)]
enum Best {
    /// The value is an input of the comparison, so no row is marked as the best.
    None,
    Most,
    Least,
    /// The lowest value among the policies that answered enough.
    LeastOfWilling,
}

/// One measure of a run.
struct Column {
    head: &'static str,
    /// The column's key in JSON.
    key: &'static str,
    /// The column's name in the sentence about `auto`.
    name: &'static str,
    unit: &'static str,
    /// The number of printed decimals. Values that are printed the same count as equal.
    decimals: usize,
    best: Best,
    value: fn(&Report) -> f64,
}

#[rustfmt::skip]
const COLUMNS: [Column; 14] = [
    Column { head: "OFFERED", key: "offered", name: "offered", unit: "", decimals: 0, best: Best::None, value: |r| r.offered as f64 },
    Column { head: "ANSWERED", key: "answered", name: "answered", unit: "", decimals: 0, best: Best::Most, value: |r| r.answered as f64 },
    Column { head: "LOST", key: "lost", name: "lost", unit: "", decimals: 0, best: Best::Least, value: |r| lost(r) as f64 },
    Column { head: "REFUSED", key: "refused", name: "refused", unit: "", decimals: 0, best: Best::Least, value: |r| r.refused as f64 },
    Column { head: "COLD %", key: "cold_share", name: "cold starts", unit: " %", decimals: 2, best: Best::LeastOfWilling, value: |r| r.cold_share * 100.0 },
    Column { head: "MEAN ms", key: "wait.mean_ms", name: "mean wait", unit: " ms", decimals: 1, best: Best::LeastOfWilling, value: |r| r.wait.mean_ms },
    Column { head: "P50 ms", key: "wait.p50_ms", name: "median wait", unit: " ms", decimals: 1, best: Best::LeastOfWilling, value: |r| r.wait.p50_ms },
    Column { head: "P95 ms", key: "wait.p95_ms", name: "p95 wait", unit: " ms", decimals: 1, best: Best::LeastOfWilling, value: |r| r.wait.p95_ms },
    Column { head: "P99 ms", key: "wait.p99_ms", name: "p99 wait", unit: " ms", decimals: 1, best: Best::LeastOfWilling, value: |r| r.wait.p99_ms },
    Column { head: "INST s", key: "instance_seconds", name: "instance-seconds", unit: "", decimals: 0, best: Best::LeastOfWilling, value: |r| r.instance_seconds },
    Column { head: "IDLE s", key: "idle_seconds", name: "idle instance-seconds", unit: "", decimals: 0, best: Best::LeastOfWilling, value: |r| r.wasted_seconds },
    Column { head: "STARTS", key: "starts", name: "starts", unit: "", decimals: 0, best: Best::LeastOfWilling, value: |r| r.starts as f64 },
    Column { head: "COST s", key: "cost_s", name: "cost", unit: " s", decimals: 1, best: Best::LeastOfWilling, value: |r| r.cost_s },
    Column { head: "PEAK MiB", key: "peak_memory_bytes", name: "peak memory", unit: " MiB", decimals: 0, best: Best::LeastOfWilling, value: |r| r.peak_memory_bytes as f64 / MIB },
];

/// The number of invocations that were neither answered nor refused, because their deadline passed
/// while they waited. Invocations that the simulator lost are included, so that a defect in the
/// simulator becomes visible.
fn lost(report: &Report) -> u64 {
    report.expired + report.lost
}

impl Comparison {
    /// The comparison of a scenario that has not run yet.
    pub fn new(scenario: &Scenario) -> Self {
        Self {
            scenario: scenario.name.clone(),
            functions: scenario.functions.len(),
            duration_s: scenario.duration_s,
            start_ms: scenario.functions.first().map_or(0.0, |it| it.start.cold.mean_ms()),
            seed: scenario.seed,
            runs: Vec::new(),
        }
    }

    /// The line above the table.
    pub fn heading(&self) -> String {
        format!(
            "{}: {} function{}, {}, starts of {} ms, seed {}\n",
            harmless(&self.scenario),
            self.functions,
            if self.functions == 1 { "" } else { "s" },
            duration_text((self.duration_s * 1e3) as u64),
            self.start_ms,
            self.seed
        )
    }

    /// The table and the remarks, followed by an empty line.
    pub fn text(&self) -> String {
        let heads = COLUMNS.iter().map(|column| column.head.to_owned());
        let mut rows = vec![std::iter::once("POLICY".to_owned()).chain(heads).collect()];
        for (at, run) in self.runs.iter().enumerate() {
            let mut row = vec![run.policy.clone()];
            for column in &COLUMNS {
                let mark = if self.best(column).contains(&at) { "*" } else { "" };
                row.push(format!("{:.*}{mark}", column.decimals, (column.value)(&run.report)));
            }
            rows.push(row);
        }
        let mut text = aligned(&rows);
        for remark in self.remarks() {
            let _ = writeln!(text, "{remark}");
        }
        text.push('\n');
        text
    }

    pub fn json(&self) -> Value {
        let policies: Vec<Value> = self
            .runs
            .iter()
            .enumerate()
            .map(|(at, Run { policy, report })| {
                let best: Vec<&str> = COLUMNS
                    .iter()
                    .filter(|column| self.best(column).contains(&at))
                    .map(|column| column.key)
                    .collect();
                json!({
                    "policy": policy,
                    "offered": report.offered,
                    "answered": report.answered,
                    "lost": lost(report),
                    "refused": report.refused,
                    "cold_share": report.cold_share,
                    "wait": report.wait,
                    "instance_seconds": report.instance_seconds,
                    "idle_seconds": report.wasted_seconds,
                    "starts": report.starts,
                    "cost_s": report.cost_s,
                    "start_reasons": report.start_reasons,
                    "evictions": report.evictions,
                    "starts_refused": report.starts_refused,
                    "peak_instances": report.peak_instances,
                    "peak_memory_bytes": report.peak_memory_bytes,
                    "best": best,
                })
            })
            .collect();
        json!({
            "scenario": self.scenario,
            "functions": self.functions,
            "duration_s": self.duration_s,
            "start_ms": self.start_ms,
            "seed": self.seed,
            "policies": policies,
            "remarks": self.remarks(),
        })
    }

    /// The runs with the best value of a column. Empty if all runs have the same value.
    fn best(&self, column: &Column) -> Vec<usize> {
        let willing = |at: &usize| column.best != Best::LeastOfWilling || self.answers_enough(*at);
        let values = || (0..self.runs.len()).filter(willing).map(|at| self.rounded(at, column));
        let best = match column.best {
            Best::None => return Vec::new(),
            Best::Most => values().fold(f64::NEG_INFINITY, f64::max),
            Best::Least | Best::LeastOfWilling => values().fold(f64::INFINITY, f64::min),
        };
        if (0..self.runs.len()).all(|at| self.rounded(at, column) == best) {
            return Vec::new();
        }
        (0..self.runs.len()).filter(|at| willing(at) && self.rounded(*at, column) == best).collect()
    }

    /// The value as it is printed.
    fn rounded(&self, at: usize, column: &Column) -> f64 {
        let scale = 10f64.powi(column.decimals as i32);
        ((column.value)(&self.runs[at].report) * scale).round() / scale
    }

    fn answers_enough(&self, at: usize) -> bool {
        let most = self.runs.iter().map(|run| run.report.answered).max().unwrap_or(0);
        self.runs[at].report.answered as f64 >= most as f64 * ANSWERED_SHARE
    }

    /// One sentence about the policies that do not compete, and one about the measures in which
    /// `auto` is not the best. Either may be missing.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let unwilling: Vec<&str> = (0..self.runs.len())
            .filter(|at| !self.answers_enough(*at))
            .map(|at| self.runs[at].policy.as_str())
            .collect();
        if !unwilling.is_empty() {
            remarks.push(format!(
                "{} answered less than {:.0} % of the calls that the best answered and {} no marks for waits and costs.",
                listed(&unwilling),
                ANSWERED_SHARE * 100.0,
                if unwilling.len() == 1 { "gets" } else { "get" },
            ));
        }
        remarks.extend(self.verdict());
        remarks
    }

    /// A sentence about the measures in which `auto` is not the best. `None` if `auto` was not
    /// compared with another policy.
    fn verdict(&self) -> Option<String> {
        let auto = self.runs.iter().position(|run| run.policy == "auto")?;
        if self.runs.len() < 2 {
            return None;
        }
        let lost: Vec<String> = COLUMNS
            .iter()
            .filter_map(|column| {
                let best = self.best(column);
                let winner = *best.first()?;
                if best.contains(&auto) {
                    return None;
                }
                let value = |at| format!("{:.*}", column.decimals, self.rounded(at, column));
                Some(format!(
                    "{} ({} {} against {}{})",
                    column.name,
                    self.runs[winner].policy,
                    value(winner),
                    value(auto),
                    column.unit
                ))
            })
            .collect();
        Some(if lost.is_empty() {
            "auto is not worse than the others in any column.".to_owned()
        } else {
            format!("auto does not win in {}.", lost.join(", "))
        })
    }
}

/// Joins names as `a`, `a and b`, or `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [before @ .., last] if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        names => names.concat(),
    }
}

/// Formats rows with two spaces between columns. Numbers are aligned at their last digit, and marks
/// follow the numbers.
fn aligned(rows: &[Vec<String>]) -> String {
    let number = |cell: &str| cell.trim_end_matches('*').chars().count();
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|at| rows.iter().map(|row| number(&row[at])).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = format!("{:<width$}", row[0], width = widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let mark = if cell.ends_with('*') { '*' } else { ' ' };
            let _ = write!(line, " {:>width$}{mark}", cell.trim_end_matches('*'));
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// The time series of every run as CSV, for spreadsheets and plots.
pub fn csv(comparisons: &[Comparison]) -> String {
    let mut text = String::new();
    for comparison in comparisons {
        for Run { policy, report } in &comparison.runs {
            let series = crate::csv(report);
            let mut lines = series.lines();
            let heading = lines.next().unwrap_or_default();
            if text.is_empty() {
                let _ = writeln!(text, "scenario,policy,{heading}");
            }
            for line in lines {
                let _ = writeln!(text, "{},{policy},{line}", quoted(&comparison.scenario));
            }
        }
    }
    text
}

/// Quotes a field for CSV (RFC 4180).
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use crate::families::family;
    use mote_spec::policy::Policy;

    use super::*;

    type Change = fn(&mut Report);

    /// A comparison of runs that differ only in the values that a test sets.
    fn comparison(changes: &[(&str, Change)]) -> Comparison {
        let mut scenario = family("steady", Policy::Auto, 1, 50.0).expect("a family");
        scenario.duration_s = 1.0;
        let report = crate::simulate(&scenario);
        let mut comparison = Comparison::new(&scenario);
        for (policy, change) in changes {
            let mut report = report.clone();
            (report.offered, report.answered) = (1_000, 1_000);
            change(&mut report);
            comparison.runs.push(Run { policy: (*policy).to_owned(), report });
        }
        comparison
    }

    fn marks(comparison: &Comparison, head: &str) -> Vec<usize> {
        let column = COLUMNS.iter().find(|column| column.head == head).expect("a column");
        comparison.best(column)
    }

    #[test]
    fn the_best_is_marked_and_equals_are_not() {
        let comparison = comparison(&[
            ("auto", |r| (r.starts, r.wait.mean_ms) = (9, 1.01)),
            ("knative", |r| (r.starts, r.wait.mean_ms) = (3, 1.04)),
            ("hpa", |r| (r.starts, r.wait.mean_ms) = (3, 7.0)),
        ]);
        assert_eq!(marks(&comparison, "STARTS"), [1, 2]);
        assert_eq!(marks(&comparison, "MEAN ms"), [0, 1], "they look the same");
        assert!(marks(&comparison, "OFFERED").is_empty());
        assert!(marks(&comparison, "PEAK MiB").is_empty());
        assert_eq!(comparison.remarks(), ["auto does not win in starts (knative 3 against 9)."]);
    }

    #[test]
    fn who_does_not_answer_saves_nothing() {
        let comparison = comparison(&[
            ("auto", |r| r.instance_seconds = 50.0),
            ("openfaas", |r| (r.answered, r.expired, r.instance_seconds) = (300, 700, 10.0)),
        ]);
        assert_eq!(marks(&comparison, "INST s"), [0]);
        assert_eq!(marks(&comparison, "LOST"), [0]);
        assert_eq!(
            comparison.remarks(),
            [
                "openfaas answered less than 99 % of the calls that the best answered and gets no marks for \
                 waits and costs.",
                "auto is not worse than the others in any column."
            ]
        );
    }

    #[test]
    fn the_sentence_needs_auto_and_another() {
        assert_eq!(comparison(&[("auto", |_| ())]).remarks(), Vec::<String>::new());
        assert_eq!(
            comparison(&[("hpa", |_| ()), ("knative", |_| ())]).remarks(),
            Vec::<String>::new()
        );
    }

    #[test]
    fn names_are_listed_as_people_do() {
        for (names, expected) in
            [(&["a"][..], "a"), (&["a", "b"], "a and b"), (&["a", "b", "c"], "a, b and c")]
        {
            assert_eq!(listed(names), expected);
        }
    }

    #[test]
    fn fields_of_csv_are_quoted() {
        assert_eq!(quoted("a.csv"), "a.csv");
        assert_eq!(quoted("a,\"b\".csv"), "\"a,\"\"b\"\".csv\"");
    }
}
