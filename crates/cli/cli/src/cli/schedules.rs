//! `mote schedules`.

use mote_api::client::Client;
use mote_api::types::{Schedule, ScheduleOutcome, ScheduleRun};

use super::failure::Failure;
use super::output::{Output, table};

/// Lists the schedules of one function or of all functions.
pub(super) async fn run(
    client: &Client,
    name: Option<&str>,
    output: &Output,
) -> Result<(), Failure> {
    let mut list = client.schedules().await?;
    if let Some(name) = name {
        // The list is also empty if the function does not exist, which is an error.
        client.function(name).await?;
        list.schedules.retain(|schedule| schedule.function == name);
    }
    if list.schedules.is_empty() {
        let of = name.map_or_else(String::new, |name| format!(" of {name}"));
        output.say(&format!("no schedules{of}; add a [[trigger]] with cron or every to mote.toml"));
    }
    let names: Vec<&str> = list.schedules.iter().map(|one| one.function.as_str()).collect();
    output.results(&list, &list.schedules, &names, || {
        if list.schedules.is_empty() {
            return String::new();
        }
        let rows: Vec<Vec<String>> = list.schedules.iter().map(row).collect();
        table(&["FUNCTION", "SCHEDULE", "ZONE", "NEXT", "LAST", "RESULT"], &rows)
    })
}

fn row(schedule: &Schedule) -> Vec<String> {
    let none = || "-".to_owned();
    let last = schedule.last.as_ref();
    vec![
        schedule.function.clone(),
        schedule.expression.clone(),
        schedule.timezone.clone().unwrap_or_else(none),
        schedule.next.map_or_else(none, |next| next.to_string()),
        last.map_or_else(none, |last| last.due.to_string()),
        last.map_or_else(none, result),
    ]
}

/// Describes the outcome of a run in words.
fn result(run: &ScheduleRun) -> String {
    match run.outcome {
        ScheduleOutcome::Accepted => {
            let state = run.state.map_or("", |state| state.as_str());
            let id = run.invocation.as_deref().unwrap_or_default();
            format!("{state} {id}").trim().to_owned()
        }
        ScheduleOutcome::LeftOut => "left out: the run before had not ended".to_owned(),
        ScheduleOutcome::Failed => {
            format!("not accepted: {}", run.error.as_deref().unwrap_or_default())
        }
    }
}

/// Formats a schedule as one line of `mote describe`.
pub(super) fn line(schedule: &Schedule) -> String {
    let zone = schedule.timezone.as_ref().map(|zone| format!(" {zone}")).unwrap_or_default();
    let next = schedule.next.map_or_else(|| "never".to_owned(), |next| next.to_string());
    let Schedule { expression, missed, overlap, .. } = schedule;
    format!("{expression}{zone}  next {next}  missed {missed}, overlap {overlap}")
}
