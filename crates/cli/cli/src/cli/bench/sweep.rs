//! `--experiment closed-sweep`: repeats the closed sweep of the tinyFaaS study over HTTP and CoAP. An
//! answer within one second counts as a success. Each step runs three times. Of these three runs, the
//! one with the median mean latency counts.

use std::time::Duration;

use mote_load::{Limit, Load, Plan, Report};
use serde::Serialize;
use tokio::runtime::Runtime;

use super::super::args::{self, BenchVia, Format};
use super::super::failure::Failure;
use super::super::output::{Output, table};
use super::setup::Setup;
use super::{Checked, measure, save};

const CLIENTS: [usize; 6] = [1, 4, 16, 64, 256, 1024];
const OPERATIONS: u64 = 500;
const REPEATS: usize = 3;
const SUCCESS_WITHIN: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Sweep {
    version: u32,
    experiment: &'static str,
    operations_per_client: u64,
    success_within_s: f64,
    steps: Vec<SweepStep>,
}

#[derive(Serialize)]
struct SweepStep {
    protocol: String,
    clients: usize,
    /// The mean latency and the share of successes of each repetition.
    repeats: Vec<Repeat>,
    /// The repetition whose mean latency is the median.
    run: Report,
}

#[derive(Serialize)]
struct Repeat {
    mean_ms: f64,
    success: f64,
}

pub(super) fn run(
    runtime: &Runtime,
    args: &args::Bench,
    global: &args::Global,
    setup: &Setup,
    output: &Output,
) -> Result<(), Failure> {
    let ways = match args.via {
        Some(via) => vec![via],
        None if args.target.contains("://") => vec![BenchVia::Http],
        None => vec![BenchVia::Http, BenchVia::Coap],
    };
    let operations = args.operations.unwrap_or(OPERATIONS);
    let mut sweep = Sweep {
        version: 1,
        experiment: "closed-sweep",
        operations_per_client: operations,
        success_within_s: SUCCESS_WITHIN.as_secs_f64(),
        steps: Vec::new(),
    };
    for via in ways {
        let target = Checked::find(runtime, args, global, via)?;
        for clients in CLIENTS {
            let plan = Plan {
                load: Load::Closed,
                clients,
                threads: setup.plan.threads,
                warmup: Duration::ZERO,
                limit: Limit::Operations(operations),
                timeout: SUCCESS_WITHIN,
                keeps_rows: false,
            };
            let step = step(runtime, &target, &plan, output)?;
            output.step(&step.run.protocol, &format!("{clients} clients"), None);
            sweep.steps.push(step);
        }
    }
    if let Some(path) = &args.save {
        save(path, &sweep, output)?;
    }
    let names: Vec<String> =
        sweep.steps.iter().map(|step| format!("{}-{}", step.protocol, step.clients)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    output.results(&sweep, &sweep.steps, &names, || as_table(&sweep))?;
    if output.format == Format::Table {
        let mut warnings: Vec<&String> =
            sweep.steps.iter().flat_map(|step| &step.run.warnings).collect();
        warnings.retain(|text| text.contains("bottleneck"));
        if let Some(warning) = warnings.first() {
            output.warn(warning);
        }
    }
    Ok(())
}

fn step(
    runtime: &Runtime,
    target: &Checked,
    plan: &Plan,
    output: &Output,
) -> Result<SweepStep, Failure> {
    let mut runs = Vec::with_capacity(REPEATS);
    for _ in 0..REPEATS {
        let (report, _, interrupted) = measure(runtime, target, plan, output)?;
        if interrupted {
            return Err(Failure::interrupted());
        }
        runs.push(report);
    }
    let repeats = runs
        .iter()
        .map(|run| Repeat { mean_ms: run.latency.mean_ms, success: 1.0 - run.failed_share() })
        .collect();
    runs.sort_by(|a, b| a.latency.mean_ms.total_cmp(&b.latency.mean_ms));
    let run = runs.swap_remove(REPEATS / 2);
    Ok(SweepStep { protocol: run.protocol.clone(), clients: plan.clients, repeats, run })
}

fn as_table(sweep: &Sweep) -> String {
    let ms = |value: Option<f64>| value.map_or("failed".to_owned(), |value| format!("{value:.3}"));
    let rows: Vec<Vec<String>> = sweep
        .steps
        .iter()
        .map(|step| {
            let run = &step.run;
            vec![
                step.protocol.clone(),
                step.clients.to_string(),
                format!("{:.3} %", (1.0 - run.failed_share()) * 100.0),
                format!("{:.1}", run.answered_per_s),
                ms(Some(run.latency.mean_ms)),
                ms(run.latency.p50_ms),
                ms(run.latency.p99_ms),
                ms(Some(run.latency.max_ms)),
            ]
        })
        .collect();
    table(&["VIA", "CLIENTS", "WITHIN 1 S", "PER SECOND", "MEAN MS", "P50", "P99", "MAX"], &rows)
}
