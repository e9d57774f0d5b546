//! Merges the answers of all cells into one answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use kube::ResourceExt as _;
use mote_api::invocations::AcceptedInvocations;
use mote_api::types::{
    Check, CheckState, DoctorReport, Function, FunctionState, LogLine, LogStream, NodeBudget,
    NodeStatus, ScheduleList,
};
use mote_api::{ClientError, Timestamp};

use super::Controller;
use super::answer::{Refused, shares, urls};
use crate::resources::Cell;

type Answers<T> = Vec<(Arc<Cell>, Result<T, ClientError>)>;

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// The instance's name with its cell, because instance numbers are unique only within a cell.
fn instance(cell: &Cell, id: &str) -> String {
    format!("{}/{id}", cell.name_any())
}

pub(super) fn of_cell(cell: &Cell, line: LogLine) -> LogLine {
    LogLine { instance: line.instance.as_deref().map(|id| instance(cell, id)), ..line }
}

/// The log line that reports that a cell's lines are missing.
pub(super) fn silent(cell: &str, function: &str) -> LogLine {
    LogLine {
        time: Timestamp::from_unix_ms(now_ms()),
        level: "warn".to_owned(),
        message: format!("the cell {cell} does not answer: its lines are missing"),
        function: function.to_owned(),
        revision: 0,
        instance: None,
        invocation: None,
        stream: LogStream::Platform,
        sequence: 0,
    }
}

/// Sums up the status of all cells.
pub(super) fn status(controller: &Controller, answers: Answers<NodeStatus>) -> NodeStatus {
    let mut sum = NodeStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_ms: 0,
        http: controller.options.url.clone(),
        coap: None,
        lan: true,
        data_dir: "the API server of the cluster".to_owned(),
        functions: controller.functions.names().len() as u64,
        instances: 0,
        memory_bytes: 0,
        budget: NodeBudget::default(),
        notes: BTreeMap::new(),
    };
    let known = controller.cells.all().len();
    let live = answers.iter().filter(|(_, answer)| answer.is_ok()).count();
    sum.notes.insert("cells".to_owned(), format!("{live} of {known} answer"));
    for (cell, answer) in answers {
        let node = cell.spec.node.clone().unwrap_or_default();
        match answer {
            Ok(one) => {
                sum.uptime_ms = sum.uptime_ms.max(one.uptime_ms);
                sum.instances += one.instances;
                sum.memory_bytes += one.memory_bytes;
                let budget = &mut sum.budget;
                let of = one.budget;
                budget.memory_bytes += of.memory_bytes;
                budget.taken_bytes += of.taken_bytes;
                budget.peak_bytes += of.peak_bytes;
                budget.leaving_bytes += of.leaving_bytes;
                budget.promised_bytes += of.promised_bytes;
                budget.starting += of.starting;
                budget.starts_max += of.starts_max;
                let note = format!(
                    "{} instances, {} of {} MiB for instances, on {node}",
                    one.instances,
                    of.taken_bytes >> 20,
                    of.memory_bytes >> 20
                );
                sum.notes.insert(cell.name_any(), note);
                for (what, note) in one.notes {
                    sum.notes.entry(what).or_insert(note);
                }
            }
            Err(error) => {
                sum.notes.insert(cell.name_any(), format!("on {node} does not answer: {error}"));
            }
        }
    }
    sum
}

/// Lists the checks of all cells, each with the name of its cell.
pub(super) fn doctor(controller: &Controller, answers: Answers<DoctorReport>) -> DoctorReport {
    let mut checks = Vec::new();
    let known = controller.cells.all();
    if answers.is_empty() {
        checks.push(Check {
            name: "cells".into(),
            state: CheckState::Fail,
            detail: format!("none of the {} cells that are known is ready", known.len()),
            hint: Some(controller.see_pods()),
        });
    }
    if !known.is_empty() && known.iter().all(|cell| cell.spec.journal.is_none()) {
        let detail = "the cells have no NATS: accepted invocations and the state of functions are \
            lost with their cell, and schedules leave out what is due while they move";
        let hint = "give them one: mote cluster install --nats nats://HOST:4222";
        checks.push(Check {
            name: "nats".into(),
            state: CheckState::Warn,
            detail: detail.to_owned(),
            hint: Some(hint.to_owned()),
        });
    }
    for (cell, answer) in answers {
        let name = |check: &str| format!("{}: {check}", cell.name_any());
        match answer {
            Ok(report) => checks.extend(
                report.checks.into_iter().map(|check| Check { name: name(&check.name), ..check }),
            ),
            Err(error) => checks.push(Check {
                name: name("answer"),
                state: CheckState::Fail,
                detail: error.to_string(),
                hint: Some(controller.see_pods()),
            }),
        }
    }
    DoctorReport { checks, ..Default::default() }
}

/// Merges the functions of all cells with their instances and numbers.
pub(super) fn functions(
    controller: &Controller,
    of_cells: Vec<(Arc<Cell>, Vec<Function>)>,
) -> Vec<Function> {
    let mut all: BTreeMap<String, Function> = BTreeMap::new();
    for (cell, functions) in of_cells {
        for mut function in functions {
            for one in &mut function.instances {
                one.id = instance(&cell, &one.id);
                one.pid = None;
            }
            for stop in &mut function.stops {
                stop.id = instance(&cell, &stop.id);
            }
            match all.get_mut(&function.name) {
                None => {
                    all.insert(function.name.clone(), function);
                }
                Some(sum) => add(sum, function),
            }
        }
    }
    let mut functions: Vec<Function> = all.into_values().collect();
    for function in &mut functions {
        function.urls = urls(controller, &function.name);
        let Some(resource) = controller.functions.get(&function.name) else { continue };
        let made = resource
            .creation_timestamp()
            .and_then(|time| u64::try_from(time.0.as_millisecond()).ok());
        function.created_at = Timestamp::from_unix_ms(made.unwrap_or(0));
        if let Some(traffic) = resource.status.as_ref().and_then(|status| status.traffic.as_ref()) {
            function.revision = traffic.split.main();
            function.traffic = shares(&traffic.split);
        }
    }
    functions
}

fn add(sum: &mut Function, other: Function) {
    let rank = |state: FunctionState| match state {
        FunctionState::Idle => 0,
        FunctionState::Starting => 1,
        FunctionState::Failed => 2,
        FunctionState::Ready => 3,
    };
    if rank(other.state) > rank(sum.state) {
        sum.state = other.state;
    }
    sum.instances.extend(other.instances);
    sum.starting += other.starting;
    sum.stops.extend(other.stops);
    if let (Some(one), Some(of)) = (&mut sum.scaling, other.scaling) {
        one.desired += of.desired;
        one.wished += of.wished;
    }
    let requests = &mut sum.requests;
    let of = other.requests;
    requests.total += of.total;
    requests.failed += of.failed;
    requests.running += of.running;
    requests.queued += of.queued;
    requests.cold_starts += of.cold_starts;
    requests.starts += of.starts;
    requests.starts_s += of.starts_s;
    // Percentiles of two cells cannot be added, so the slower cell counts, because a caller may
    // reach it.
    let slower = |one: Option<f64>, other: Option<f64>| match (one, other) {
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    };
    requests.p50_ms = slower(requests.p50_ms, of.p50_ms);
    requests.p99_ms = slower(requests.p99_ms, of.p99_ms);
    let later = match (&sum.last_error, &other.last_error) {
        (Some(one), Some(other)) => other.time > one.time,
        (None, Some(_)) => true,
        _ => false,
    };
    if later {
        sum.last_error = other.last_error;
    }
}

/// Merges the schedules of all cells. Without NATS, the schedules of a function are at its home
/// cell. With NATS, the schedules of all functions are at the cell that runs their journal.
pub(super) async fn schedules(
    State(controller): State<Arc<Controller>>,
) -> Result<Json<ScheduleList>, Refused> {
    let answers = controller.ask(|cell| async move { cell.schedules().await }).await;
    let mut all = ScheduleList::default();
    for (_, answer) in answers {
        all.schedules.extend(answer?.schedules);
    }
    all.schedules.sort_by(|one, other| one.function.cmp(&other.function));
    Ok(Json(all))
}

/// Merges the accepted invocations of all cells, newest first.
pub(super) async fn invocations(
    State(controller): State<Arc<Controller>>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Result<Json<AcceptedInvocations>, Refused> {
    let pairs: Vec<String> = query
        .iter()
        .filter(|(key, value)| {
            (*key)
                .chars()
                .chain(value.chars())
                .all(|c| c.is_ascii_alphanumeric() || "-_@".contains(c))
        })
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let path = format!("{}?{}", mote_api::paths::INVOCATIONS, pairs.join("&"));
    let answers = controller
        .ask(|cell| {
            let path = path.clone();
            async move { cell.bytes(&path).await }
        })
        .await;
    let mut all = AcceptedInvocations { invocations: Vec::new(), more: false };
    for (_, answer) in answers {
        let list: Option<AcceptedInvocations> = serde_json::from_slice(&answer?).ok();
        let Some(list) = list else { continue };
        all.more |= list.more;
        all.invocations.extend(list.invocations);
    }
    all.invocations.sort_by(|one, other| other.id.cmp(&one.id));
    // While a journal moves, two cells may list the same invocation.
    all.invocations.dedup_by(|one, other| one.id == other.id);
    if let Some(limit) = query.get("limit").and_then(|limit| limit.parse().ok()) {
        all.more |= all.invocations.len() > limit;
        all.invocations.truncate(limit);
    }
    Ok(Json(all))
}
