//! `mote top`: shows the current state of the node and redraws it every second.
//!
//! The verb prints plain lines on the terminal's alternate screen and needs no further library. All
//! values come from the management API. A rate is the difference between two answers.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::tables::screen::{Key, Screen};
use mote_api::client::Client;
use mote_api::types::{Function, NodeBudget, NodeStatus};
use mote_spec::quantity::{duration_text, size_text};
use serde::Serialize;

use super::args::{Format, Top};
use super::failure::Failure;
use super::output::{Narrow, Output, table_narrowed};

/// The time between two requests.
const PACE: Duration = Duration::from_secs(1);

/// The columns of the table of functions, and the order in which a narrow terminal shortens them. The
/// last change is cut early, because the table of instances also shows the reasons for changes.
const FUNCTIONS_HEAD: [&str; 12] = [
    "NAME",
    "READY",
    "STARTING",
    "DRAINING",
    "RUNNING",
    "QUEUED",
    "RATE/s",
    "P50 ms",
    "P99 ms",
    "STARTS",
    "MEMORY",
    "LAST CHANGE",
];
const FUNCTIONS_NARROW: [Narrow; 7] = [
    Narrow::Drop(3),
    Narrow::Cut(11),
    Narrow::Drop(2),
    Narrow::Drop(7),
    Narrow::Drop(9),
    Narrow::Drop(10),
    Narrow::Cut(0),
];
/// The columns of the table of instances, and the order in which a narrow terminal shortens them.
const INSTANCES_HEAD: [&str; 8] =
    ["NAME", "INSTANCE", "STATE", "AGE", "RUNNING", "SERVED", "MEMORY", "WHY"];
const INSTANCES_NARROW: [Narrow; 5] =
    [Narrow::Cut(7), Narrow::Drop(5), Narrow::Drop(6), Narrow::Drop(4), Narrow::Drop(3)];

/// One answer of the node, with rates since the previous answer.
#[derive(Debug, Serialize)]
struct View {
    node: NodeStatus,
    functions: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    /// How many invocations ended per second since the previous answer.
    rate_per_s: f64,
    #[serde(flatten)]
    function: Function,
}

/// Requests the state from the node, and keeps the values that are needed to compute rates.
struct Looker<'a> {
    client: &'a Client,
    name: Option<String>,
    totals: HashMap<String, u64>,
    at: Instant,
}

impl Looker<'_> {
    async fn look(&mut self) -> Result<View, Failure> {
        let node = self.client.status().await?;
        let functions = match &self.name {
            Some(name) => vec![self.client.function(name).await?],
            None => self.client.functions().await?.functions,
        };
        let elapsed_s = self.at.elapsed().as_secs_f64().max(1e-3);
        self.at = Instant::now();
        let before = std::mem::take(&mut self.totals);
        let row = |function: Function| {
            let total = function.requests.total;
            self.totals.insert(function.name.clone(), total);
            let since =
                before.get(&function.name).map_or(0, |before| total.saturating_sub(*before));
            Row { rate_per_s: (since as f64 / elapsed_s * 10.0).round() / 10.0, function }
        };
        Ok(View { node, functions: functions.into_iter().map(row).collect() })
    }
}

pub(super) async fn run(client: &Client, args: Top, output: &Output) -> Result<(), Failure> {
    let live = !args.once && output.format == Format::Table && std::io::stdout().is_terminal();
    let mut instances = args.name.is_some();
    let totals = HashMap::new();
    let mut looker = Looker { client, name: args.name, totals, at: Instant::now() };
    let first = looker.look().await?;
    if !live {
        tokio::time::sleep(PACE).await;
        let view = looker.look().await?;
        let names: Vec<&str> =
            view.functions.iter().map(|row| row.function.name.as_str()).collect();
        return output.result(&view, &names, || text(&view, instances));
    }
    let mut view = first;
    let mut screen = Screen::open()?;
    loop {
        let keys = if looker.name.is_some() { "q quit" } else { "i instances  q quit" };
        screen.draw(&format!("{}\n{keys}\n", text(&view, instances)))?;
        tokio::select! {
            key = screen.key() => match key {
                Some(Key::Quit) | None => return Ok(()),
                Some(Key::Instances) if looker.name.is_none() => instances = !instances,
                Some(_) => {}
            },
            () = tokio::time::sleep(PACE.saturating_sub(looker.at.elapsed())) => {
                view = looker.look().await?;
            }
        }
    }
}

fn text(view: &View, instances: bool) -> String {
    let mut text = node_text(&view.node);
    text.push('\n');
    text.push_str(&if instances { instances_text(view) } else { functions_text(view) });
    text
}

fn node_text(node: &NodeStatus) -> String {
    let NodeBudget { memory_bytes, taken_bytes, peak_bytes, starting, starts_max, .. } =
        node.budget;
    let share = taken_bytes as f64 * 100.0 / memory_bytes.max(1) as f64;
    format!(
        "node {}, up {}, {} resident: {} functions, {} instances\n\
         memory {} of {} taken ({share:.0} %, at most {}), {starting} of {starts_max} starting\n",
        node.version,
        duration_text(node.uptime_ms),
        size_text(node.memory_bytes),
        node.functions,
        node.instances,
        size_text(taken_bytes),
        size_text(memory_bytes),
        size_text(peak_bytes),
    )
}

fn functions_text(view: &View) -> String {
    let rows: Vec<_> = view.functions.iter().map(function_row).collect();
    table_narrowed(&FUNCTIONS_HEAD, &rows, &FUNCTIONS_NARROW)
}

fn function_row(row: &Row) -> Vec<String> {
    let function = &row.function;
    let count = |state: &str| function.instances.iter().filter(|i| i.state == state).count();
    let ms = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
    let memory: u64 = function.instances.iter().filter_map(|i| i.memory_bytes).sum();
    vec![
        function.name.clone(),
        count("ready").to_string(),
        function.starting.to_string(),
        count("draining").to_string(),
        function.requests.running.to_string(),
        function.requests.queued.to_string(),
        format!("{:.1}", row.rate_per_s),
        ms(function.requests.p50_ms),
        ms(function.requests.p99_ms),
        format!("{} ({:.2} s)", function.requests.starts, function.requests.starts_s),
        if memory > 0 { size_text(memory) } else { "-".to_owned() },
        last_change(function),
    ]
}

/// Returns the reason for the last start or stop, and the time since then.
fn last_change(function: &Function) -> String {
    let started = function.instances.iter().map(|i| (i.started_at, "started", &i.reason));
    let stopped = function.stops.iter().map(|stop| (stop.time, "stopped", &stop.reason));
    match started.chain(stopped).max_by_key(|(time, ..)| *time) {
        Some((time, verb, reason)) => format!("{verb} ({reason}) {} ago", age(time)),
        None => "-".to_owned(),
    }
}

fn age(since: mote_api::Timestamp) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_ms = now.map_or(0, |now| now.as_millis() as u64);
    duration_text(now_ms.saturating_sub(since.unix_ms()))
}

fn instances_text(view: &View) -> String {
    let mut rows = Vec::new();
    for Row { function, .. } in &view.functions {
        for instance in &function.instances {
            rows.push(vec![
                function.name.clone(),
                instance.id.clone(),
                instance.state.clone(),
                age(instance.started_at),
                instance.in_flight.to_string(),
                instance.served.to_string(),
                instance.memory_bytes.map_or_else(|| "-".to_owned(), size_text),
                format!("started ({}): {}", instance.reason, instance.reason_text),
            ]);
        }
        for _ in 0..function.starting {
            let mut row = vec![function.name.clone(), "-".to_owned(), "starting".to_owned()];
            row.resize(8, "-".to_owned());
            rows.push(row);
        }
        for stop in function.stops.iter().rev() {
            let more = if stop.reason_text.is_empty() { "" } else { ": " };
            rows.push(vec![
                function.name.clone(),
                stop.id.clone(),
                "stopped".to_owned(),
                age(stop.time),
                "-".to_owned(),
                "-".to_owned(),
                "-".to_owned(),
                format!("stopped ({}){more}{}", stop.reason, stop.reason_text),
            ]);
        }
    }
    table_narrowed(&INSTANCES_HEAD, &rows, &INSTANCES_NARROW)
}
