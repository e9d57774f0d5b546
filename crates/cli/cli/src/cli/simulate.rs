//! `mote simulate`: compares policies against a virtual clock. It needs no node.
//!
//! [`choice`] reads the scenarios and policies; `mote-lab` compares and draws the results.

mod choice;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use mote_lab::comparison::{self, Comparison, Run};
use mote_lab::{Report, Scenario, experiments, families, plot};
use mote_spec::policy::Policy;

use self::choice::{Choice, NamedPolicy, Settings};
use super::args::{Format, Simulate};
use super::failure::Failure;
use super::output::{Output, harmless, table};

pub(super) fn run(args: &Simulate, mut output: Output) -> Result<(), Failure> {
    if args.json {
        output.format = Format::Json;
    }
    if args.list {
        return list(&output);
    }
    let settings = Settings::of(args)?;
    let policies = choice::policies(&args.policy)?;
    let choices = choice::choices(&args.scenarios)?;
    // All arguments are checked before the first scenario is simulated, because a scenario may run for
    // seconds.
    for choice in &choices {
        choice.scenario(Policy::Auto, &settings)?;
    }
    let csv = args.csv.as_deref().map(|path| Target::open(path, &args.scenarios)).transpose()?;
    let plot = args.plot.as_deref().map(|path| Target::open(path, &args.scenarios)).transpose()?;

    let mut comparisons = Vec::new();
    for choice in &choices {
        let comparison = compare(choice, &policies, &settings, &output)?;
        if output.format == Format::Table {
            output.print(comparison.text().as_bytes())?;
        }
        comparisons.push(comparison);
    }
    if output.format != Format::Table {
        let values: Vec<_> = comparisons.iter().map(Comparison::json).collect();
        let names: Vec<&str> = comparisons.iter().map(|it| it.scenario.as_str()).collect();
        let whole = serde_json::json!({ "scenarios": values });
        output.results(&whole, &values, &names, String::new)?;
    }
    if let Some(target) = csv {
        target.write(&comparison::csv(&comparisons), &output)?;
    }
    if let Some(target) = plot {
        let text = plot::svg(&comparisons)
            .map_err(|error| Failure::new("M0103", format!("plot: {error}")))?;
        target.write(&text, &output)?;
    }
    Ok(())
}

/// Simulates one scenario under every policy. Each policy has a thread, because the runs do not depend
/// on each other.
fn compare(
    choice: &Choice,
    policies: &[NamedPolicy],
    settings: &Settings,
    output: &Output,
) -> Result<Comparison, Failure> {
    let scenarios: Vec<Scenario> = policies
        .iter()
        .map(|named| choice.scenario(named.policy.clone(), settings))
        .collect::<Result<_, _>>()?;
    let mut comparison = Comparison::new(&scenarios[0]);
    if output.format == Format::Table {
        // The heading is printed before the work, because some scenarios take seconds.
        output.print(comparison.heading().as_bytes())?;
    }
    let reports: Vec<Report> = std::thread::scope(|scope| {
        let threads: Vec<_> = scenarios
            .iter()
            .map(|scenario| scope.spawn(move || mote_lab::simulate(scenario)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Report>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    for (named, report) in policies.iter().zip(reports) {
        comparison.runs.push(Run { policy: named.name.clone(), report });
    }
    Ok(comparison)
}

/// `mote simulate --list`.
fn list(output: &Output) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for name in families::FAMILIES {
        rows.push(("family", name, families::about(name).unwrap_or_default()));
    }
    for name in experiments::EXPERIMENTS {
        rows.push(("experiment", name, experiments::about(name).unwrap_or_default()));
    }
    for (name, about) in choice::POLICIES {
        rows.push(("policy", name, about));
    }
    let values: Vec<_> = rows
        .iter()
        .map(|(kind, name, about)| serde_json::json!({"kind": kind, "name": name, "about": about}))
        .collect();
    let names: Vec<&str> = rows.iter().map(|(_, name, _)| *name).collect();
    output.results(&values, &values, &names, || {
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|(kind, name, about)| [*kind, *name, *about].map(str::to_owned).to_vec())
            .collect();
        table(&["KIND", "NAME", "WHAT IT IS"], &cells)
    })
}

/// A file for a result. It is opened before the simulation, so that a wrong path is reported at once.
/// It is emptied after the simulation, so that an interrupted run keeps the old content.
struct Target {
    path: PathBuf,
    file: File,
}

impl Target {
    /// Opens the file. Refuses to overwrite one of the traces.
    fn open(path: &Path, scenarios: &[String]) -> Result<Self, Failure> {
        let place = path.canonicalize().ok();
        let is_trace = |name: &String| Path::new(name).canonicalize().ok() == place;
        if place.is_some() && scenarios.iter().any(is_trace) {
            let text = format!("{}: would overwrite the trace itself", path.display());
            return Err(Failure::new("M0101", text).with_hint("name another file"));
        }
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| unwritten(path, &error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    fn write(mut self, text: &str, output: &Output) -> Result<(), Failure> {
        // A file such as /dev/stdout is not a regular file and has no length to set, so an error is
        // ignored.
        let _ = self.file.set_len(0);
        self.file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.flush())
            .map_err(|error| unwritten(&self.path, &error))?;
        output.say(&format!("wrote {}", harmless(&self.path.display().to_string())));
        Ok(())
    }
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new("M0103", format!("{}: {}", path.display(), choice::words(error)))
}
