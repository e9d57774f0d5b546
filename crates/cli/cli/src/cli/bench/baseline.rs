//! `--baseline`: measures two functions or URLs in turns and compares them.

use mote_load::turns::{Side, Turns, TurnsPlan, median};
use mote_load::{Live, Machine, run_in_turns};
use serde::Serialize;
use tokio::runtime::Runtime;

use super::super::args::{self, Format};
use super::super::failure::Failure;
use super::super::output::{Output, harmless, table};
use super::setup::{self, Setup};
use super::{Checked, attended, or_interrupt, save};

/// If the generator was busy for more than this share of the run, the generator itself limited the
/// result.
const SATURATED: f64 = 0.9;

#[derive(Serialize)]
struct Comparison {
    version: u32,
    mote: &'static str,
    at: String,
    machine: Machine,
    /// The URLs of the two targets.
    targets: [String; 2],
    clients: usize,
    turn_s: f64,
    /// The results of both targets over all turns.
    sides: [Side; 2],
    /// The median of the ratios of all pairs of turns. A ratio is the rate of the first target divided
    /// by the rate of the second.
    ratio: Option<f64>,
    /// The interval that contains the true ratio with 95 % confidence.
    interval: Option<[f64; 2]>,
    ratios: Vec<f64>,
    /// The share of the run in which the generator used a processor.
    generator_busy: f64,
}

pub(super) fn run(
    runtime: &Runtime,
    args: &args::Bench,
    global: &args::Global,
    setup: &Setup,
    plan: &TurnsPlan,
    output: &Output,
) -> Result<(), Failure> {
    let via = setup.via(args);
    let one = Checked::find(runtime, args, global, via)?;
    let other = args.baseline.as_deref().unwrap_or_default();
    let other = or_interrupt(runtime, setup::target(args, other, global, via))?;
    let other = Checked::new(other, one.request.clone())?;
    let checked = [one, other];
    let sides = checked.each_ref().map(|one| (&one.target, one.address, &one.request));
    let live = Live::default();
    let (turns, interrupted) =
        attended(runtime, &live, output, || run_in_turns(sides, plan, &live))?;
    let comparison = Comparison::new(checked.map(|one| one.target.url()), plan, &turns);
    if let Some(path) = &args.save {
        save(path, &comparison, output)?;
    }
    let [one, other] = &comparison.targets;
    output.result(&comparison, &[one, other], || as_table(&comparison))?;
    if output.format == Format::Table && comparison.generator_busy > SATURATED {
        output.warn("the generator was the bottleneck: both targets may be able to do more");
    }
    if interrupted {
        return Err(Failure::interrupted());
    }
    let mut sides = comparison.targets.iter().zip(&comparison.sides);
    match sides.find(|(_, side)| side.answered == 0) {
        Some((target, side)) if side.errors > 0 => {
            let text = format!("{target}: no answer was a success; {} errors", side.errors);
            Err(Failure::new("M0142", text)
                .with_hint("run mote bench on it alone to count the statuses"))
        }
        Some((target, _)) => {
            Err(Failure::new("M0141", format!("{target}: no operation was answered")))
        }
        None => Ok(()),
    }
}

impl Comparison {
    fn new(targets: [String; 2], plan: &TurnsPlan, turns: &Turns) -> Self {
        let ratios = turns.ratios();
        let found = median(&ratios);
        Self {
            version: 1,
            mote: env!("CARGO_PKG_VERSION"),
            at: setup::now(),
            machine: Machine::here(),
            targets,
            clients: plan.clients,
            turn_s: plan.turn.as_secs_f64(),
            sides: [turns.whole(0), turns.whole(1)],
            ratio: found.map(|(ratio, _)| ratio),
            interval: found.and_then(|(_, interval)| interval),
            ratios,
            generator_busy: turns.busy,
        }
    }
}

fn as_table(comparison: &Comparison) -> String {
    let rows: Vec<Vec<String>> = comparison
        .targets
        .iter()
        .zip(&comparison.sides)
        .map(|(target, side)| {
            vec![target.clone(), format!("{:.1}/s", side.answered_per_s), side.failed.to_string()]
        })
        .collect();
    let clients = match comparison.clients {
        1 => "1 client".to_owned(),
        clients => format!("{clients} clients"),
    };
    let mut text = format!(
        "{} compared with {}: {clients} in turns of {:.0} ms\n\n{}",
        harmless(&comparison.targets[0]),
        harmless(&comparison.targets[1]),
        comparison.turn_s * 1e3,
        table(&["TARGET", "ANSWERED", "FAILED"], &rows)
    );
    let Some(ratio) = comparison.ratio else { return text };
    text.push_str(&format!(
        "\nratio       {ratio:.3}, first to second target, median of {} pairs",
        comparison.ratios.len()
    ));
    if let Some([low, high]) = comparison.interval {
        let verdict = if low > 1.0 || high < 1.0 { "differs" } else { "may be chance" };
        text.push_str(&format!("; {low:.3} to {high:.3} with 95 % confidence: {verdict}"));
    }
    text + "\n"
}
