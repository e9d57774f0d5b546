//! Reads the user's choices: scenarios, policies, and changes to the scenarios.

use std::collections::BTreeMap;
use std::io::Read;

use mote_lab::experiments::{EXPERIMENTS, experiment};
use mote_lab::families::{FAMILIES, family};
use mote_lab::{Arrivals, Distribution, FunctionModel, NodeModel, Scenario, StartModel, trace};
use mote_spec::policy::Policy;
use mote_spec::quantity::{duration_text, parse_duration_ms, parse_size, size_text};

use super::super::args::Simulate;
use super::super::failure::Failure;
use super::super::output::harmless;

/// The most scenarios of one command. All of them appear below each other in one table and one picture.
const SCENARIOS_MAX: usize = 32;
/// The most policies of one command. They appear next to each other, and each has a thread.
const POLICIES_MAX: usize = 8;
/// The longest simulated time. A year of policies that decide every few seconds would take minutes to
/// simulate.
const SIMULATED_MS_MAX: u64 = 31 * 24 * 3_600_000;
/// The largest trace that is read, which is about eight million calls.
const TRACE_BYTES_MAX: u64 = 128 << 20;
/// The start time of instances in the families and traces. A process in a sandbox on a small machine
/// takes about this long to start.
const START_MS_DEFAULT: f64 = 50.0;
/// The seed of random numbers. It is not one of the seeds with which the constants of `auto` were
/// chosen.
const SEED_DEFAULT: u64 = 11;
/// The run time of a recorded call whose trace contains none. It is the run time in the families.
const TRACE_TIME: Distribution = Distribution::LogNormal { mean_ms: 200.0, variation: 0.5 };
/// The most points of a series, which is as many as a panel of a picture can show.
const POINTS_MAX: f64 = 480.0;

/// The policies, each with a one-line description.
pub(super) const POLICIES: [(&str, &str); 8] = [
    (
        "auto",
        "no threshold: learns run, start and idle times, can start an instance at every arrival",
    ),
    ("knative", "the rule of Knative's pod autoscaler, with its defaults"),
    ("hpa", "the rule of Kubernetes' horizontal pod autoscaler: 80 % CPU, every 15 s"),
    ("openfaas", "the classic alert rule of OpenFaaS: 5 answers per second, steps of 20 %"),
    ("concurrency:N", "N invocations per instance, running and waiting"),
    ("rps:N", "N offered invocations per second and instance"),
    ("cpu:PERCENT", "CPU use in percent of what one instance is promised"),
    ("memory:PERCENT", "memory in use in percent of an instance's limit"),
];

/// A policy with the name that the user wrote.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NamedPolicy {
    pub(super) name: String,
    pub(super) policy: Policy,
}

/// Returns the policies that `--policy` names, each once.
pub(super) fn policies(texts: &[String]) -> Result<Vec<NamedPolicy>, Failure> {
    let mut policies: Vec<NamedPolicy> = Vec::new();
    for text in texts {
        let policy = policy(text.trim())?;
        let named = NamedPolicy { name: text.trim().to_owned(), policy };
        if !policies.contains(&named) {
            policies.push(named);
        }
    }
    match policies.len() {
        0..=POLICIES_MAX => Ok(policies),
        count => Err(Failure::new(
            "M0101",
            format!("--policy: {count} policies; at most {POLICIES_MAX} can be compared"),
        )),
    }
}

fn policy(text: &str) -> Result<Policy, Failure> {
    let (name, target) = match text.split_once(':') {
        Some((name, target)) => (name, Some(target)),
        None => (text, None),
    };
    let of = |unit: &str, max: u32| match target.and_then(|target| target.parse().ok()) {
        Some(target) if (1..=max).contains(&target) => Ok(target),
        _ => Err(Failure::new("M0802", format!("policy {name} needs a {unit} of 1 to {max}"))
            .with_hint(format!(
                "write it after a colon: --policy {name}:{}",
                if unit == "target" { 10 } else { 70 }
            ))),
    };
    let preset = match name {
        "concurrency" => return Ok(Policy::Concurrency { target: of("target", 1_000)? }),
        "rps" => return Ok(Policy::Rps { target: of("target", 100_000)? }),
        "cpu" => return Ok(Policy::Cpu { target_percent: of("percentage", 100)? }),
        "memory" => return Ok(Policy::Memory { target_percent: of("percentage", 100)? }),
        "auto" => Policy::Auto,
        "knative" => Policy::Knative(Default::default()),
        "hpa" => Policy::Hpa(Default::default()),
        "openfaas" => Policy::OpenFaas(Default::default()),
        _ => {
            let failure = Failure::new("M0802", format!("no policy named {}", shown(text)));
            let names = POLICIES.map(|(name, _)| name.split(':').next().unwrap_or(name));
            return Err(match mote_spec::nearest(name, names) {
                Some(near) => failure.with_hint(format!("did you mean `{near}`?")),
                None => failure.with_hint("all of them: mote simulate --list"),
            });
        }
    };
    match target {
        None => Ok(preset),
        Some(_) => Err(Failure::new("M0802", format!("policy {name} takes no target"))
            .with_hint(format!("write: --policy {name}"))),
    }
}

/// Changes that apply to every scenario.
#[derive(Debug, Default)]
pub(super) struct Settings {
    start_ms: Option<u64>,
    start_cpu_ms: Option<u64>,
    core_memory_bytes: Option<u64>,
    max: Option<u32>,
    memory_bytes: Option<u64>,
    seed: Option<u64>,
    duration_ms: Option<u64>,
}

impl Settings {
    pub(super) fn of(args: &Simulate) -> Result<Self, Failure> {
        let size = |option: &str, text: Option<&str>| {
            let read = text.map(|text| {
                parse_size(text).map_err(|error| {
                    Failure::new("M0101", format!("{option} {}: {error}", shown(text)))
                        .with_hint("sizes are written 512MiB (B, KiB, MiB, GiB)")
                })
            });
            read.transpose()
        };
        let memory_bytes = size("--memory", args.memory.as_deref())?;
        let core_memory_bytes = size("--core-memory", args.core_memory.as_deref())?;
        let duration_ms = args.duration.as_deref().map(|text| match parse_duration_ms(text) {
            Ok(ms @ 1..=SIMULATED_MS_MAX) => Ok(ms),
            Ok(_) => Err(Failure::new("M0101", format!("--for {}: out of range", shown(text)))
                .with_hint("simulated time is 1 ms to 744 h (31 days)")),
            Err(error) => Err(Failure::new("M0101", format!("--for {}: {error}", shown(text)))
                .with_hint("durations are written 10m (ms, s, m, h)")),
        });
        Ok(Self {
            start_ms: args.start_ms,
            start_cpu_ms: args.start_cpu_ms,
            core_memory_bytes,
            max: args.max,
            memory_bytes,
            seed: args.seed,
            duration_ms: duration_ms.transpose()?,
        })
    }

    fn start(&self) -> Distribution {
        let mean_ms = self.start_ms.map_or(START_MS_DEFAULT, |ms| ms as f64);
        Distribution::LogNormal { mean_ms, variation: 0.2 }
    }

    fn apply(&self, scenario: &mut Scenario) -> Result<(), Failure> {
        if let Some(ms) = self.duration_ms {
            scenario.duration_s = ms as f64 / 1e3;
        }
        if let Some(seed) = self.seed {
            scenario.seed = seed;
        }
        for function in &mut scenario.functions {
            if self.start_ms.is_some() {
                function.start = StartModel::cold(self.start());
            }
            if let Some(ms) = self.start_cpu_ms {
                function.start.cpu_ms = ms as f64;
            }
            if let Some(max) = self.max {
                function.max = max;
                function.min = function.min.min(max);
            }
        }
        if let Some(bytes) = self.memory_bytes {
            let largest = scenario.functions.iter().map(|it| it.memory_bytes).max().unwrap_or(0);
            if bytes < largest {
                let text = format!(
                    "--memory {}: less than one instance of {}",
                    size_text(bytes),
                    size_text(largest)
                );
                let hint = format!("give the node at least {}", size_text(largest));
                return Err(Failure::new("M0101", text).with_hint(hint));
            }
            scenario.node.memory_bytes = bytes;
        }
        if let Some(bytes) = self.core_memory_bytes {
            scenario.node.memory_per_core_bytes = bytes;
        }
        scenario.sample_s = sample_s(scenario.duration_s);
        Ok(())
    }
}

/// Returns the interval between points: a round number that gives at most [`POINTS_MAX`] points.
fn sample_s(duration_s: f64) -> f64 {
    let fine = duration_s / POINTS_MAX;
    let decade = 10f64.powf(fine.log10().floor());
    let round = [1.0, 2.0, 5.0].map(|step| step * decade).into_iter().find(|step| *step >= fine);
    round.unwrap_or(10.0 * decade).max(0.001)
}

/// One scenario or trace to simulate.
#[derive(Debug)]
pub(super) enum Choice {
    Family(String),
    Experiment(String),
    Trace { path: String, demand: BTreeMap<String, Arrivals> },
}

/// Returns the scenarios and traces that the arguments name, each once. Returns all families if the
/// arguments name none.
pub(super) fn choices(texts: &[String]) -> Result<Vec<Choice>, Failure> {
    let mut names: Vec<&str> = Vec::new();
    for text in texts {
        if !names.contains(&text.as_str()) {
            names.push(text);
        }
    }
    if names.is_empty() {
        names = FAMILIES.to_vec();
    }
    if names.len() > SCENARIOS_MAX {
        let text = format!("{} scenarios; at most {SCENARIOS_MAX} in one command", names.len());
        return Err(Failure::new("M0101", text));
    }
    names.into_iter().map(choice).collect()
}

fn choice(text: &str) -> Result<Choice, Failure> {
    if FAMILIES.contains(&text) {
        return Ok(Choice::Family(text.to_owned()));
    }
    if EXPERIMENTS.contains(&text) {
        return Ok(Choice::Experiment(text.to_owned()));
    }
    let is_path =
        text.ends_with(".csv") || text.contains('/') || std::path::Path::new(text).is_file();
    if is_path {
        return Ok(Choice::Trace { path: text.to_owned(), demand: demand(text)? });
    }
    let failure =
        Failure::new("M0801", format!("no family, experiment or trace named {}", shown(text)));
    Err(match mote_spec::nearest(text, FAMILIES.into_iter().chain(EXPERIMENTS)) {
        Some(near) => failure.with_hint(format!("did you mean `{near}`?")),
        None => failure.with_hint("all of them: mote simulate --list"),
    })
}

/// Reads a trace.
fn demand(path: &str) -> Result<BTreeMap<String, Arrivals>, Failure> {
    let unread = |error: std::io::Error| {
        Failure::new("M0102", format!("{}: {}", shown(path), words(&error)))
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unread)?;
    file.take(TRACE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unread)?;
    let wrong = |problem: String| {
        Failure::new("M0803", format!("{}: {problem}", shown(path))).with_hint(
            "write one line per call: time_s,function[,service_ms]; time_s is in seconds from the start",
        )
    };
    if bytes.len() as u64 > TRACE_BYTES_MAX {
        return Err(wrong(format!("larger than {}", size_text(TRACE_BYTES_MAX))));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..good].iter().filter(|byte| **byte == b'\n').count() + 1;
        wrong(format!("line {line}: not UTF-8"))
    })?;
    let demand = trace::read(&text).map_err(|error| wrong(error.to_string()))?;
    if demand.is_empty() { Err(wrong("no calls".to_owned())) } else { Ok(demand) }
}

impl Choice {
    /// Returns the scenario as it runs under `policy`.
    pub(super) fn scenario(
        &self,
        policy: Policy,
        settings: &Settings,
    ) -> Result<Scenario, Failure> {
        let seed = settings.seed.unwrap_or(SEED_DEFAULT);
        let known = "the name was checked when it was read";
        let mut scenario = match self {
            Choice::Family(name) => {
                let start_ms = settings.start().mean_ms();
                family(name, policy, seed, start_ms).expect(known)
            }
            Choice::Experiment(name) => experiment(name, policy).expect(known),
            Choice::Trace { path, demand } => recorded(path, demand, policy, seed, settings)?,
        };
        settings.apply(&mut scenario)?;
        Ok(scenario)
    }
}

/// Converts a trace to a scenario. It ends with the second of the trace's last call, unless `--for`
/// sets another end.
fn recorded(
    path: &str,
    demand: &BTreeMap<String, Arrivals>,
    policy: Policy,
    seed: u64,
    settings: &Settings,
) -> Result<Scenario, Failure> {
    let last_ns = demand.values().filter_map(last_call_ns).max().unwrap_or(0);
    let duration_s = (last_ns / 1_000_000_000 + 1) as f64;
    if duration_s > SIMULATED_MS_MAX as f64 / 1e3 && settings.duration_ms.is_none() {
        let text = format!(
            "{}: its last call comes after {}",
            shown(path),
            duration_text(last_ns / 1_000_000)
        );
        return Err(Failure::new("M0803", text).with_hint(
            "time_s is in seconds from the start, at most 31 days; to use a part: --for 24h",
        ));
    }
    let function = |(name, arrivals): (&String, &Arrivals)| {
        FunctionModel::new(name, arrivals.clone(), TRACE_TIME, settings.start())
    };
    Ok(Scenario {
        name: path.to_owned(),
        seed,
        duration_s,
        sample_s: 0.0,
        node: NodeModel::default(),
        policy,
        balance: Default::default(),
        functions: demand.iter().map(function).collect(),
    })
}

fn last_call_ns(arrivals: &Arrivals) -> Option<u64> {
    match arrivals {
        Arrivals::Recorded { calls } => calls.last().map(|(at_ns, _)| *at_ns),
        _ => None,
    }
}

/// Returns a word that the user wrote, cut and without control characters.
fn shown(text: &str) -> String {
    if text.is_empty() {
        return "\"\"".to_owned();
    }
    harmless(&text.chars().take(200).collect::<String>())
}

/// Returns the system's error message in the style of `mote`'s messages.
pub(super) fn words(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_round_and_bounded() {
        for (duration_s, expected) in
            [(0.5, 0.002), (2.0, 0.005), (1_200.0, 5.0), (3_600.0, 10.0), (7_200.0, 20.0)]
        {
            let sample_s = sample_s(duration_s);
            assert!((sample_s / expected - 1.0).abs() < 1e-9, "{duration_s}: {sample_s}");
            assert!(duration_s / sample_s <= POINTS_MAX, "{duration_s}");
        }
    }

    #[test]
    fn settings_reach_every_function() {
        let settings = Settings {
            start_ms: Some(700),
            start_cpu_ms: Some(80),
            core_memory_bytes: Some(2 << 30),
            max: Some(3),
            memory_bytes: Some(1 << 30),
            seed: Some(5),
            duration_ms: Some(60_000),
        };
        for choice in choices(&["steady".into(), "hpa-ramp2".into()]).expect("known names") {
            let scenario = choice.scenario(Policy::Auto, &settings).expect("a scenario");
            assert_eq!((scenario.seed, scenario.duration_s), (5, 60.0));
            assert_eq!(scenario.node.memory_bytes, 1 << 30);
            assert_eq!(scenario.node.memory_per_core_bytes, 2 << 30);
            for function in &scenario.functions {
                let start = &function.start;
                assert_eq!((function.max, start.cold.mean_ms(), start.cpu_ms), (3, 700.0, 80.0));
            }
        }
    }

    #[test]
    fn every_listed_policy_is_read() {
        for (name, _) in POLICIES {
            let text = name.replace("PERCENT", "70").replace('N', "10");
            let read = policies(&[text.clone(), text.clone()]).expect("a policy");
            assert_eq!(read.len(), 1, "once each");
            assert!(text.starts_with(read[0].policy.as_str()), "{text}");
        }
    }
}
