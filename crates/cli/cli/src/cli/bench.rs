//! `mote bench`: puts load on a function or a URL and reports the result.
//!
//! [`setup`] reads the arguments, [`text`] formats results for terminals and files, [`page`] writes
//! them as a page, [`sweep`] runs the named series of runs, and [`baseline`] measures two targets in
//! turns. The load generator is in `mote-load`.

mod baseline;
mod setup;
mod sweep;

use std::io::{IsTerminal, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::bench_text as text;
use mote_api::exit;
use mote_load::{
    Live, LoadError, Plan, Protocol, ROWS_MAX, Report, Request, Row, Target, coap, compare,
};
use tokio::runtime::Runtime;

use self::setup::Setup;
use super::args::{self, BenchVia, Export, Format};
use super::failure::Failure;
use super::output::Output;

/// How long a target may take to accept a connection before it counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval at which the progress line is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(250);

pub(super) fn run(
    args: &args::Bench,
    global: &args::Global,
    output: &Output,
) -> Result<(), Failure> {
    // Mistakes that can be found without a node are all reported before the first call to a node.
    let setup = Setup::of(args, global)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new("M0103", format!("cannot start: {error}")))?;
    let result = match (args.experiment, &setup.turns) {
        (Some(args::Experiment::ClosedSweep), _) => {
            sweep::run(&runtime, args, global, &setup, output)
        }
        (None, Some(turns)) => baseline::run(&runtime, args, global, &setup, turns, output),
        (None, None) => single(&runtime, args, global, &setup, output),
    };
    // A thread that is still waiting for standard input must not delay the end of the command.
    runtime.shutdown_background();
    result
}

fn single(
    runtime: &Runtime,
    args: &args::Bench,
    global: &args::Global,
    setup: &Setup,
    output: &Output,
) -> Result<(), Failure> {
    let target = Checked::find(runtime, args, global, setup.via(args))?;
    let (report, rows, interrupted) = measure(runtime, &target, &setup.plan, output)?;
    if let Some(path) = &args.raw {
        write_raw(path, &rows, &report, output)?;
    }
    if let Some(path) = &args.save {
        save(path, &report, output)?;
    }
    show(args.export, setup, &report, output)?;
    if interrupted {
        return Err(Failure::interrupted());
    }
    if report.answered == 0 {
        return Err(unanswered(&report));
    }
    let broken = setup.limits.iter().filter_map(|limit| Some((limit, limit.broken_by(&report)?)));
    let mut failure = Failure::quiet(exit::LIMIT);
    for (limit, value) in broken {
        let text = format!("{limit}: the value was {value}");
        failure.mistakes.extend(Failure::new("M0140", text).mistakes);
    }
    if failure.mistakes.is_empty() { Ok(()) } else { Err(failure) }
}

/// Returns the failure for a run without any successful answer. If the target answered every request
/// with an error, it is reachable, so the function is at fault.
fn unanswered(report: &Report) -> Failure {
    let target = &report.target;
    let failures = text::failures(report);
    let is_answer = |kind: &String| kind.starts_with("status ") || kind.starts_with("code ");
    let answers: u64 =
        report.failures.iter().filter(|(kind, _)| is_answer(kind)).map(|(_, count)| count).sum();
    if answers == 0 {
        let why = if failures.is_empty() { String::new() } else { format!(" ({failures})") };
        return Failure::new("M0141", format!("{target}: no operation was answered{why}"));
    }
    let text = if answers == report.offered {
        format!("{target}: every answer was an error ({failures})")
    } else {
        format!("{target}: no answer was a success ({failures})")
    };
    Failure::new("M0142", text)
        .with_hint("see one answer with mote invoke NAME, and the log with mote logs NAME")
}

fn show(
    export: Option<Export>,
    setup: &Setup,
    report: &Report,
    output: &Output,
) -> Result<(), Failure> {
    let exported = match export {
        Some(Export::Csv) => Some(text::csv(report)),
        Some(Export::Md) => Some(text::markdown(report)),
        Some(Export::Html) => Some(
            mote_load::page::html(report, &text::heading(report), &text::table(report))
                .map_err(|error| Failure::new("M0103", format!("page: {error}")))?,
        ),
        None => None,
    };
    if let Some(exported) = exported {
        return output.print(exported.as_bytes());
    }
    output.result(report, &[&report.target], || text::table(report))?;
    if output.format != Format::Table {
        return Ok(());
    }
    if let Some(before) = &setup.before {
        output.print(text::comparison(before, report).as_bytes())?;
        for difference in compare::differences(before, report) {
            output.warn(&format!("the two runs differ: {difference}"));
        }
    }
    for warning in &report.warnings {
        output.warn(warning);
    }
    Ok(())
}

/// The request, after its target has proved to be reachable.
struct Checked {
    target: Target,
    address: SocketAddr,
    request: Request,
}

impl Checked {
    /// Reads the arguments, finds the target, and checks that the target is reachable.
    fn find(
        runtime: &Runtime,
        args: &args::Bench,
        global: &args::Global,
        via: BenchVia,
    ) -> Result<Self, Failure> {
        let request = or_interrupt(runtime, setup::request(args))?;
        let target = or_interrupt(runtime, setup::target(args, &args.target, global, via))?;
        Self::new(target, request)
    }

    fn new(target: Target, request: Request) -> Result<Self, Failure> {
        let absent = |error: &std::io::Error| {
            let text = error.to_string();
            let words = text.split(" (os error").next().unwrap_or("").to_lowercase();
            Failure::new("M0141", format!("{}: {words}", target.url()))
        };
        let address = target.address().map_err(|error| absent(&error))?;
        match target.protocol {
            Protocol::Http => {
                TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)
                    .map_err(|error| absent(&error))?;
            }
            Protocol::Coap => coap::check(&target, &request)
                .map_err(|error| Failure::new("M0101", error.to_string()))?,
        }
        Ok(Self { target, address, request })
    }
}

/// Runs the measurement. Returns `true` if the user ended it early.
fn measure(
    runtime: &Runtime,
    checked: &Checked,
    plan: &Plan,
    output: &Output,
) -> Result<(Report, Vec<Row>, bool), Failure> {
    let live = Live::default();
    let target = &checked.target;
    let request = &checked.request;
    let (tally, interrupted) = attended(runtime, &live, output, || {
        mote_load::run(target, checked.address, request, plan, &live)
    })?;
    let version = env!("CARGO_PKG_VERSION");
    let report = Report::new(target, request, plan, &tally, version, &setup::now());
    Ok((report, tally.into_rows(), interrupted))
}

/// Runs the load on a separate thread and draws its progress. If the user presses Ctrl-C, stops the
/// load and returns `true`.
fn attended<T: Send>(
    runtime: &Runtime,
    live: &Live,
    output: &Output,
    engine: impl FnOnce() -> Result<T, LoadError> + Send,
) -> Result<(T, bool), Failure> {
    let (sender, mut ended) = tokio::sync::oneshot::channel();
    std::thread::scope(|scope| {
        let engine = scope.spawn(|| {
            let result = engine();
            let _ = sender.send(());
            result
        });
        let interrupted = runtime.block_on(async {
            let mut line = LiveLine::new(output);
            let mut interrupted = false;
            loop {
                tokio::select! {
                    _ = &mut ended => break,
                    _ = tokio::time::sleep(DRAW_EVERY) => line.draw(live),
                    _ = tokio::signal::ctrl_c() => {
                        interrupted = true;
                        live.stop();
                    }
                }
            }
            line.clear();
            interrupted
        });
        let result = engine.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let result = result.map_err(|error| {
            let source = std::error::Error::source(&error);
            let cause = source.map(|source| format!(": {source}")).unwrap_or_default();
            Failure::new("M0103", format!("{error}{cause}"))
        })?;
        Ok((result, interrupted))
    })
}

/// Sends a request to the node. Ctrl-C ends the request.
fn or_interrupt<T>(
    runtime: &Runtime,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    runtime.block_on(async {
        tokio::select! {
            result = work => result,
            _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
        }
    })
}

fn save(path: &Path, value: &impl serde::Serialize, output: &Output) -> Result<(), Failure> {
    let bad = |error: &dyn std::fmt::Display| {
        Failure::new("M0103", format!("{}: {error}", path.display()))
    };
    let text = serde_json::to_string(value).map_err(|error| bad(&error))?;
    std::fs::write(path, text + "\n").map_err(|error| bad(&error))?;
    output.say(&format!("wrote {}", super::output::harmless(&path.display().to_string())));
    Ok(())
}

fn write_raw(path: &Path, rows: &[Row], report: &Report, output: &Output) -> Result<(), Failure> {
    let write = || -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        mote_load::write_rows(rows, &mut file)?;
        file.flush()
    };
    write().map_err(|error| Failure::new("M0103", format!("{}: {error}", path.display())))?;
    output.say(&format!("wrote {}", super::output::harmless(&path.display().to_string())));
    if (rows.len() as u64) < report.offered {
        output.warn(&format!(
            "{} has {} of {} operations: at most {ROWS_MAX} are kept",
            super::output::harmless(&path.display().to_string()),
            rows.len(),
            report.offered
        ));
    }
    Ok(())
}

/// The line of the terminal that shows the progress.
struct LiveLine {
    is_on: bool,
    started: Instant,
    drawn: Instant,
    totals: (u64, u64, u64),
}

impl LiveLine {
    fn new(output: &Output) -> Self {
        let now = Instant::now();
        let is_on = output.is_talkative() && std::io::stderr().is_terminal();
        Self { is_on, started: now, drawn: now, totals: (0, 0, 0) }
    }

    fn draw(&mut self, live: &Live) {
        if !self.is_on {
            return;
        }
        let now = Instant::now();
        let totals = live.totals();
        let answered = totals.0 - self.totals.0;
        let rate = answered as f64 / (now - self.drawn).as_secs_f64();
        let mean = (totals.2 - self.totals.2) as f64 / 1e6 / answered.max(1) as f64;
        let max = live.take_max() as f64 / 1e6;
        let line = format!(
            "{:6.1} s  {rate:9.0}/s  mean {mean:.3} ms  max {max:.3} ms  {} failed",
            (now - self.started).as_secs_f64(),
            totals.1,
        );
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        (self.drawn, self.totals) = (now, totals);
    }

    fn clear(&self) {
        if self.is_on {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
