//! Formats a result of `mote bench` as text: for a terminal, a spreadsheet or a document.
//!
//! [`table`] is for people; [`csv`] and [`markdown`] are for files. This module must not know how a
//! result was measured or where the text goes.

use mote_api::harmless;
use mote_load::{PERCENTILES, PHASES, Report, Summary, compare};

use crate::tables::table as columns;

/// Describes the run in one line.
pub fn heading(report: &Report) -> String {
    let load = match report.rate_wanted {
        Some(rate) => format!("open loop, {} operations/s", number(rate)),
        None => "closed loop".to_owned(),
    };
    let clients =
        if report.clients == 1 { "1 client" } else { &format!("{} clients", report.clients) };
    let limit = match (report.operations_wanted, report.rate_wanted) {
        (Some(operations), Some(_)) => format!("{operations} operations"),
        (Some(operations), None) => format!("{operations} operations each"),
        (None, _) => format!("{:.1} s", report.duration_wanted_s.unwrap_or_default()),
    };
    let warmup = if report.warmup_s > 0.0 {
        format!(" after {:.1} s of warm-up", report.warmup_s)
    } else {
        String::new()
    };
    let target = harmless(&report.target);
    format!("{} {target}: {load}, {clients}, {limit}{warmup}", report.method)
}

/// Formats all measured values as tables.
pub fn table(report: &Report) -> String {
    let mut text = heading(report) + "\n\n";
    let interval = report
        .answered_per_s_interval
        .map(|[low, high]| format!(" ({low:.0} to {high:.0})"))
        .unwrap_or_default();
    text.push_str(&format!("rate        {:.1}/s answered{interval}", report.answered_per_s));
    if report.rate_wanted.is_some() {
        text.push_str(&format!(", {:.1}/s offered", report.offered_per_s));
    }
    let failed = match report.failed {
        0 => "none failed".to_owned(),
        failed => format!(
            "{failed} failed ({:.3} %: {})",
            report.failed_share() * 100.0,
            failures(report)
        ),
    };
    text.push_str(&format!(
        "\noperations  {} in {:.2} s, {failed}\n\n",
        report.offered, report.elapsed_s
    ));
    text.push_str(&columns(
        &["MS", "P50", "P90", "P95", "P99", "P99.9", "MAX", "MEAN"],
        &rows(report),
    ));
    let generator = &report.generator;
    text.push_str(&format!(
        "\ngenerator   {} thread{}, {:.1} us of processor per operation, busiest thread {:.0} %, machine {:.0} %\n",
        generator.threads,
        if generator.threads == 1 { "" } else { "s" },
        generator.cpu_us_per_operation,
        generator.busiest_thread * 100.0,
        generator.machine_busy * 100.0,
    ));
    text
}

/// Returns the rows for latency and for its parts.
fn rows(report: &Report) -> Vec<Vec<String>> {
    let mut rows = vec![row("latency", &report.latency)];
    if let Some(delay) = &report.delay {
        rows.push(row("  delay", delay));
    }
    for name in PHASES {
        if let Some(phase) = report.phases.get(name) {
            rows.push(row(&format!("  {name}"), phase));
        }
    }
    rows
}

fn row(name: &str, summary: &Summary) -> Vec<String> {
    let mut cells = vec![name.to_owned()];
    cells.extend(summary.percentiles().map(millis));
    // These values describe answers, so they are shown only if there are answers.
    let of_answers = |value: f64| (summary.p50_ms.is_some() || value > 0.0).then_some(value);
    cells.extend([millis(of_answers(summary.max_ms)), millis(of_answers(summary.mean_ms))]);
    cells
}

fn millis(value: Option<f64>) -> String {
    value.map_or("failed".to_owned(), |value| format!("{value:.3}"))
}

/// Lists how often operations failed, by reason.
pub fn failures(report: &Report) -> String {
    let parts: Vec<String> =
        report.failures.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    parts.join(", ")
}

fn number(value: f64) -> String {
    format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Compares this run with an earlier one.
pub fn comparison(before: &Report, after: &Report) -> String {
    let shown =
        |value: Option<f64>| value.map_or("failed".to_owned(), |value| format!("{value:.3}"));
    let rows: Vec<Vec<String>> = compare::ratios(before, after)
        .into_iter()
        .map(|ratio| {
            let interval = match ratio.interval {
                Some([low, high]) => format!("{low:.3} to {high:.3}"),
                None => "-".to_owned(),
            };
            let clear = if ratio.is_clear() { "differs" } else { "" };
            vec![
                ratio.name.to_owned(),
                shown(ratio.before),
                shown(ratio.after),
                ratio.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
                interval,
                clear.to_owned(),
            ]
        })
        .collect();
    let head = ["", "BEFORE", "NOW", "RATIO", "95 % OF IT", ""];
    format!(
        "\ncompared with {} of {}\n{}",
        harmless(&before.target),
        harmless(&before.at),
        columns(&head, &rows)
    )
}

/// Formats one row per measure: name, value and unit.
pub fn csv(report: &Report) -> String {
    let mut text = "measure,value,unit\n".to_owned();
    let mut put = |name: &str, value: Option<f64>, unit: &str| {
        let value = value.map_or(String::new(), |value| value.to_string());
        text.push_str(&format!("{name},{value},{unit}\n"));
    };
    put("clients", Some(report.clients as f64), "count");
    put("elapsed", Some(report.elapsed_s), "s");
    put("offered", Some(report.offered as f64), "count");
    put("answered", Some(report.answered as f64), "count");
    put("failed", Some(report.failed as f64), "count");
    put("offered_rate", Some(report.offered_per_s), "1/s");
    put("answered_rate", Some(report.answered_per_s), "1/s");
    let own = PHASES.iter().filter_map(|name| Some((*name, report.phases.get(*name)?)));
    let delay = report.delay.iter().map(|delay| ("delay", delay));
    for (name, summary) in [("latency", &report.latency)].into_iter().chain(delay).chain(own) {
        for ((percentile, _), value) in PERCENTILES.iter().zip(summary.percentiles()) {
            put(&format!("{name}_{percentile}"), value, "ms");
        }
        put(&format!("{name}_max"), Some(summary.max_ms), "ms");
        put(&format!("{name}_mean"), Some(summary.mean_ms), "ms");
    }
    put("generator_cpu", Some(report.generator.cpu_s), "s");
    text
}

/// Formats a table for a document.
pub fn markdown(report: &Report) -> String {
    let mut text = format!("**{}**\n\n", heading(report).replace('|', "\\|"));
    text.push_str(
        "| ms | p50 | p90 | p95 | p99 | p99.9 | max | mean |\n|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows(report) {
        let cells: Vec<&str> = row.iter().map(|cell| cell.trim()).collect();
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    text.push_str(&format!(
        "\n{:.1}/s answered of {:.1}/s offered; {} of {} operations failed. {} on {} cores, Linux {}, mote {}, {}.\n",
        report.answered_per_s,
        report.offered_per_s,
        report.failed,
        report.offered,
        report.machine.arch,
        report.machine.cores,
        report.machine.kernel,
        report.mote,
        report.at,
    ));
    for warning in &report.warnings {
        text.push_str(&format!("\n> {warning}\n"));
    }
    text
}
