//! `mote invocation` and `mote dead-letters`.

use mote_api::client::{Client, InvocationFilter};
use mote_api::invocations::{AcceptedInvocation, AcceptedInvocations, InvocationState, LIST_MAX};
use mote_core::base64;

use super::args::{DeadLetterVerb, InvocationVerb, RunVerb};
use super::failure::Failure;
use super::functions::is_agreed;
use super::output::{Output, harmless, table};

pub(super) async fn run(
    client: &Client,
    verb: &InvocationVerb,
    output: &Output,
) -> Result<(), Failure> {
    match verb {
        InvocationVerb::List { function, state, limit } => {
            let filter = InvocationFilter {
                function: function.as_deref(),
                state: state.as_deref(),
                limit: *limit,
                runs: false,
            };
            let list = listed(client, &filter).await?;
            show_list(&list, "no accepted invocations", output)
        }
        InvocationVerb::Show { id } => show(client, id, output).await,
        InvocationVerb::Result { id } => result(client, id, output).await,
        InvocationVerb::Cancel { ids, function } => {
            for id in chosen(client, ids, function.as_deref(), "waiting").await? {
                let cancelled = client.cancel_invocation(&id).await?;
                output.result(&cancelled, &[&cancelled.id], || match cancelled.was_running {
                    true => format!("{id} is being ended; what it has done by now remains\n"),
                    false => format!("{id} is cancelled\n"),
                })?;
            }
            Ok(())
        }
    }
}

pub(super) async fn run_runs(
    client: &Client,
    verb: &RunVerb,
    output: &Output,
) -> Result<(), Failure> {
    match verb {
        RunVerb::List { chain, state, limit } => {
            let filter = InvocationFilter {
                function: chain.as_deref(),
                state: state.as_deref(),
                limit: *limit,
                runs: true,
            };
            let list = listed(client, &filter).await?;
            show_list(&list, "no runs", output)
        }
        RunVerb::Show { id } => show(client, id, output).await.map_err(of_run),
        RunVerb::Cancel { ids, chain } => {
            let verb = InvocationVerb::Cancel { ids: ids.clone(), function: chain.clone() };
            Box::pin(run(client, &verb, output)).await.map_err(of_run)
        }
    }
}

/// If a run was not found, adds a hint with the command that lists runs.
fn of_run(failure: Failure) -> Failure {
    if failure.is_of("M0517") { failure.with_hint("list them: mote runs list") } else { failure }
}

/// Returns the invocations that match a filter. If the filter names a function that has no invocations
/// and does not exist, fails.
async fn listed(
    client: &Client,
    filter: &InvocationFilter<'_>,
) -> Result<AcceptedInvocations, Failure> {
    let list = client.invocations(filter).await?;
    if let Some(name) = filter.function.filter(|_| list.invocations.is_empty()) {
        client.function(name).await?;
    }
    Ok(list)
}

pub(super) async fn run_dead_letters(
    client: &Client,
    verb: &DeadLetterVerb,
    output: &Output,
) -> Result<(), Failure> {
    match verb {
        DeadLetterVerb::List { function, limit } => {
            let filter = InvocationFilter {
                function: function.as_deref(),
                state: Some("dead"),
                limit: *limit,
                runs: false,
            };
            let list = listed(client, &filter).await?;
            show_list(&list, "no dead letters", output)
        }
        DeadLetterVerb::Show { id } => show(client, id, output).await,
        DeadLetterVerb::Retry { ids, function } => {
            let ids = chosen(client, ids, function.as_deref(), "dead").await?;
            for id in &ids {
                client.retry_invocation(id).await?;
                output.say(&format!("{id} runs again"));
            }
            Ok(())
        }
        DeadLetterVerb::Delete { ids, function, yes } => {
            let ids = chosen(client, ids, function.as_deref(), "dead").await?;
            let question = match ids.as_slice() {
                [one] => format!("delete the dead letter {one}?"),
                all => format!("delete {} dead letters?", all.len()),
            };
            if !ids.is_empty() && !*yes && !is_agreed(&question, output).await? {
                return Ok(());
            }
            for id in &ids {
                client.delete_dead_letter(id).await?;
                output.say(&format!("{id} is deleted"));
            }
            Ok(())
        }
    }
}

/// Returns the given ids. If there are none, returns the ids of all invocations of the function that
/// are in this state.
async fn chosen(
    client: &Client,
    ids: &[String],
    function: Option<&str>,
    state: &str,
) -> Result<Vec<String>, Failure> {
    if !ids.is_empty() {
        return Ok(ids.to_vec());
    }
    let state = Some(state);
    let limit = Some(1_000);
    let filter = InvocationFilter { function, state, limit, runs: false };
    let list = client.invocations(&filter).await?;
    Ok(list.invocations.into_iter().map(|one| one.id).collect())
}

fn show_list(list: &AcceptedInvocations, none: &str, output: &Output) -> Result<(), Failure> {
    let all = &list.invocations;
    if all.is_empty() {
        output.say(none);
    }
    let ids: Vec<&str> = all.iter().map(|one| one.id.as_str()).collect();
    output.results(list, all, &ids, || {
        if all.is_empty() {
            return String::new();
        }
        let rows: Vec<Vec<String>> = all
            .iter()
            .map(|one| {
                vec![
                    one.id.clone(),
                    harmless(&one.function),
                    one.trigger.clone(),
                    one.state.as_str().to_owned(),
                    one.attempts.to_string(),
                    one.status.map_or_else(|| "-".to_owned(), |status| status.to_string()),
                    one.accepted_at.to_string(),
                    harmless(one.detail.as_deref().unwrap_or_default()),
                ]
            })
            .collect();
        let heads =
            ["ID", "FUNCTION", "TRIGGER", "STATE", "ATTEMPTS", "STATUS", "ACCEPTED", "REASON"];
        table(&heads, &rows)
    })?;
    if list.more {
        output.say(&more_text(all.len()));
    }
    Ok(())
}

/// Describes what a shortened list leaves out.
fn more_text(shown: usize) -> String {
    if shown < LIST_MAX {
        format!("these are the newest {shown} of more; --limit N shows up to {LIST_MAX}")
    } else {
        format!("these are the newest {shown} of more, and a list shows no others")
    }
}

async fn show(client: &Client, id: &str, output: &Output) -> Result<(), Failure> {
    let one = client.invocation(id).await?;
    output.result(&one, &[&one.id], || described(&one))
}

fn described(one: &AcceptedInvocation) -> String {
    let time = |time: Option<mote_api::Timestamp>| time.map(|time| time.to_string());
    let lines = [
        ("function", Some(harmless(&one.function))),
        ("trigger", Some(one.trigger.clone())),
        ("state", Some(one.state.as_str().to_owned())),
        ("accepted", Some(one.accepted_at.to_string())),
        ("due", time(one.due_at)),
        ("key", one.idempotency_key.as_deref().map(harmless)),
        ("attempts", Some(attempts(one))),
        ("began", time(one.began_at)),
        ("ended", time(one.ended_at)),
        ("status", one.status.map(|status| status.to_string())),
        ("fault", one.fault.clone()),
        ("reason", one.detail.as_deref().map(harmless)),
    ];
    let mut text = format!("{}\n", one.id);
    for (name, value) in lines {
        if let Some(value) = value {
            text += &format!("  {name:<10} {value}\n");
        }
    }
    for (name, value) in &one.headers {
        text += &format!("  {:<10} {}: {}\n", "header", harmless(name), harmless(value));
    }
    if let Some(body) = &one.body {
        text += &format!("  {:<10} {}\n", "body", harmless(body.trim_end()));
    } else if let Some(body) = &one.body_base64 {
        text += &format!("  {:<10} {} characters of base 64\n", "body", body.len());
    }
    text + &steps(one)
}

fn attempts(one: &AcceptedInvocation) -> String {
    match one.state {
        InvocationState::Running => format!("{} ended, another one is running", one.attempts),
        _ => one.attempts.to_string(),
    }
}

/// Formats the steps of a run, with one step per line.
fn steps(one: &AcceptedInvocation) -> String {
    if one.steps.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = one
        .steps
        .iter()
        .map(|step| {
            let until = step.until.map(|until| format!("until {until}"));
            let took = step.took_ms.map(|ms| format!("{ms} ms"));
            vec![
                harmless(&step.step),
                step.state.as_str().to_owned(),
                step.at.map_or_else(|| "-".to_owned(), |at| at.to_string()),
                until.or(took).unwrap_or_default(),
            ]
        })
        .collect();
    format!("\n{}", table(&["STEP", "STATE", "AT", "TIME"], &rows))
}

/// Prints the function's answer unchanged.
async fn result(client: &Client, id: &str, output: &Output) -> Result<(), Failure> {
    let one = client.invocation(id).await?;
    let bytes = match (&one.body, &one.body_base64) {
        (Some(text), _) => Some(text.clone().into_bytes()),
        (None, Some(text)) => base64::decode(text.as_bytes()),
        (None, None) => None,
    };
    match bytes {
        Some(bytes) => output.print(&bytes),
        None => {
            let state = one.state.as_str();
            let failure = Failure::new("M0519", format!("{id} has no answer; it is {state}"));
            Err(failure.with_hint(format!("see: mote invocation show {id}")))
        }
    }
}
