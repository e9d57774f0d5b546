//! Commands for several nodes at a time. A change reaches the first node alone, then the others in
//! waves. After a failure, the change does not begin on further nodes. The output reports the state of
//! each node.

use std::future::Future;
use std::sync::Arc;

use crate::fleet::deploy::{self as change, Applied, Before, Change, Reason, Stopped};
use crate::fleet::rollout::{self, Outcome, PARALLEL_DEFAULT};
use crate::fleet::rows::{Row, State, rows, take_back_all};
use crate::fleet::{Node, ask_all};
use mote_api::client::{Client, ClientError, Endpoint};
use mote_api::types::{DeployResult, Function};
use mote_api::{exit, explain};
use serde_json::{Map, Value, json};

use super::args::{Deploy, Global, OnFailure, Remove, RemoveFunctions, SecretVerb, Verb};
use super::failure::Failure;
use super::functions::{describe_text, is_agreed, list_head, list_row};
use super::output::{Output, harmless, table};
use super::{deploy, image, nodes, rollout as revisions, secret};

/// Runs a verb on several nodes.
pub(super) async fn run(
    nodes: &[Node],
    verb: &Verb,
    global: &Global,
    output: &Output,
) -> Result<(), Failure> {
    match verb {
        Verb::Nodes => nodes::list(global, output).await,
        Verb::Deploy(args) => deploy(nodes, args, output).await,
        Verb::List => list(nodes, output).await,
        Verb::Describe { name } => describe(nodes, name, output).await,
        Verb::Rollback { name, revision } => {
            rollback(nodes, name, revision.as_deref(), output).await
        }
        Verb::Remove(args) => remove(nodes, args, output).await,
        Verb::Secret(args) => match &args.verb {
            SecretVerb::Set(set) => {
                let value = secret::value(set).await?;
                let name = set.name.clone();
                let put = move |client: Client| {
                    let name = name.clone();
                    let value = value.clone();
                    async move { client.put_secret(&name, value).await }
                };
                let said = |_: &_| format!("{} is set", harmless(&set.name));
                everywhere(nodes, put, said, output).await.map(|_| ())
            }
            SecretVerb::List => secrets(nodes, output).await,
            SecretVerb::Remove(args) => remove_secrets(nodes, args, output).await,
        },
        _ => Ok(()),
    }
}

async fn interrupt() {
    let _ = tokio::signal::ctrl_c().await;
}

/// `mote deploy` to several nodes.
async fn deploy(nodes: &[Node], args: &Deploy, output: &Output) -> Result<(), Failure> {
    let is_local = |node: &Node| matches!(node.client.endpoint(), Endpoint::Unix(_));
    let project = deploy::read(args, nodes.iter().all(is_local), output)?;
    let mut functions = Vec::new();
    for (path, planned) in &project.plans {
        let tar = deploy::pack(path, planned, project.plans.len() > 1, output)?;
        let login = image::login(planned)?;
        functions.push((planned.spec.name.as_str().to_owned(), tar, login));
    }
    nodes::all_answer(nodes, output).await?;
    let names: Vec<String> = functions.iter().map(|(name, ..)| name.clone()).collect();
    let goes_back = args.on_failure == OnFailure::Rollback;
    let mut before: Vec<Vec<Before>> = Vec::new();
    if goes_back {
        let asked = names.clone();
        let ask = move |client: Client| {
            let names = asked.clone();
            async move { change::before(&client, &names).await }
        };
        for (node, answer) in nodes.iter().zip(ask_all(nodes, ask).await) {
            let answer = answer.unwrap_or_else(|| Ok(vec![None; names.len()]));
            before.push(answer.map_err(|error| Failure::from(error).on_node(&node.name))?);
        }
    }
    let is_held = args.dry_run || args.no_traffic || args.tag.is_some();
    let planned = Arc::new(Change {
        functions,
        whisk: if is_held { Vec::new() } else { project.manifests },
        options: deploy::options(args),
        invoke: args.invoke,
    });
    let apply = |at: usize| {
        let client = nodes[at].client.clone();
        let planned = planned.clone();
        async move { change::apply(&client, &planned).await }
    };
    let report = |at: usize, result: &Result<Applied, Stopped>| {
        let applied = match result {
            Ok(applied) => applied,
            Err(stopped) => &stopped.applied,
        };
        let name = &nodes[at].name;
        for result in &applied.functions {
            for warning in &result.warnings {
                output.warn(&format!("{name}: {warning}"));
            }
        }
        for note in &applied.notes {
            output.warn(&format!("{name}: {note}"));
        }
        match result {
            Ok(_) => {
                let said = applied.functions.iter().map(|result| said(result, args.dry_run));
                let steps = applied.functions.iter().flat_map(|result| &result.steps);
                let ms = steps.map(|step| step.ms).sum();
                output.step(name, &said.collect::<Vec<_>>().join(", "), Some(ms));
            }
            Err(stopped) => output.failure(&failure(&stopped.reason).on_node(name)),
        }
    };
    let outcomes =
        rollout::run(nodes.len(), usize::from(args.parallel), apply, report, interrupt()).await;
    let why = |reason: &Reason| failure(reason).value();
    let mut rows = rows(nodes, &names, &outcomes, args.dry_run, why);
    let is_complete = outcomes.iter().all(|outcome| outcome.done().is_some());
    let has_failed = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Failed(_)));
    if has_failed && goes_back {
        let tell = |node: &Node, back: Result<String, ClientError>| match back {
            Ok(text) => {
                output.step(&node.name, &text, None);
                None
            }
            Err(error) => {
                let failure = Failure::from(error).on_node(&node.name);
                output.failure(&failure);
                Some(failure.value())
            }
        };
        take_back_all(nodes, &names, &before, &mut rows, tell).await;
    }
    show(&rows, output)?;
    if !is_complete {
        summary(nodes, &outcomes, &rows, output);
        return Err(Failure::quiet(exit_of(&outcomes)));
    }
    deploy::left_out(project.left_out, output)
}

fn said(result: &DeployResult, dry_run: bool) -> String {
    let what = match (dry_run, result.held_back) {
        (true, false) => "would be live",
        (true, true) => "would receive no traffic",
        (false, true) => "is ready and receives no traffic",
        (false, false) => "is live",
    };
    let was = result.previous.map_or_else(String::new, |previous| format!(" (was @{previous})"));
    format!("{}@{} {what}{was}", result.function, result.revision)
}

fn failure(reason: &Reason) -> Failure {
    match reason {
        Reason::Node(error) => Failure::of_client(error),
        Reason::Answer { function, status, fault } => match fault.as_deref().and_then(explain) {
            Some(row) => Failure::new(row.code, format!("{function}: {}", row.title)),
            None => {
                let text = format!("{function} answered its first call with {status}");
                Failure::new("M0207", text)
            }
        },
    }
}

/// Returns the exit code of the first node that failed.
fn exit_of(outcomes: &[Outcome<Applied, Stopped>]) -> u8 {
    let of = |outcome: &Outcome<_, Stopped>| match outcome {
        Outcome::Failed(stopped) => Some(failure(&stopped.reason).exit),
        _ => None,
    };
    outcomes.iter().find_map(of).unwrap_or(exit::INTERRUPTED)
}

fn show(rows: &[Row<Value>], output: &Output) -> Result<(), Failure> {
    let value = |row: &Row<Value>| {
        let result = row.result.as_ref().and_then(|result| serde_json::to_value(result).ok());
        let mut value =
            json!({"node": row.node, "function": row.function, "state": row.state.as_str()});
        if let (Some(Value::Object(result)), Some(all)) = (result, value.as_object_mut()) {
            for (key, field) in result {
                all.entry(key).or_insert(field);
            }
        }
        if let Some(error) = &row.error {
            value["error"] = error.clone();
        }
        value
    };
    let values: Vec<Value> = rows.iter().map(value).collect();
    let live = rows.iter().filter(|row| matches!(row.state, State::Live | State::Ready));
    let mut names: Vec<&str> = live.map(|row| row.node.as_str()).collect();
    names.dedup();
    output.results(&json!({"deploys": values}), &values, &names, || {
        let cells = |row: &Row<Value>| {
            let of = |number: Option<u64>| number.map_or("-".to_owned(), |it| it.to_string());
            let result = row.result.as_ref();
            vec![
                row.node.clone(),
                row.function.clone(),
                of(result.map(|result| result.revision)),
                of(result.and_then(|result| result.previous)),
                row.state.as_str().to_owned(),
            ]
        };
        let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
        table(&["NODE", "FUNCTION", "REV", "WAS", "STATE"], &rows)
    })
}

/// Prints how the user can complete or revert a deploy that has stopped.
fn summary(
    nodes: &[Node],
    outcomes: &[Outcome<Applied, Stopped>],
    rows: &[Row<Value>],
    output: &Output,
) {
    let of = |states: &[State]| {
        let has = |node: &&Node| {
            rows.iter().any(|row| row.node == node.name && states.contains(&row.state))
        };
        nodes.iter().filter(has).map(|node| node.name.as_str()).collect::<Vec<_>>().join(",")
    };
    let went_back = of(&[State::RolledBack, State::Removed]);
    let is_back = |name: &str| went_back.split(',').any(|known| known == name);
    let rest = nodes.iter().zip(outcomes);
    let rest = rest.filter(|(node, outcome)| outcome.done().is_none() || is_back(&node.name));
    let rest: Vec<&str> = rest.map(|(node, _)| node.name.as_str()).collect();
    if !went_back.is_empty() {
        output.say(&format!("  as before the deploy again: {went_back}"));
    }
    let unknown = of(&[State::Unknown]);
    if !unknown.is_empty() {
        output.say(&format!("  to see what is live: mote list --node {unknown}"));
    }
    output.say(&format!("  to go on: repeat the command with --node {}", rest.join(",")));
    let mut functions: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.state == State::Live) {
        if !functions.contains(&row.function.as_str()) {
            functions.push(&row.function);
        }
    }
    for function in functions {
        let live = |is_new: bool| {
            let live =
                rows.iter().filter(|row| row.function == function && row.state == State::Live);
            let result =
                |row: &&Row<Value>| row.result.as_ref().map(|result| result.previous.is_none());
            let nodes = live.filter(|row| result(row) == Some(is_new));
            nodes.map(|row| row.node.as_str()).collect::<Vec<_>>().join(",")
        };
        let old = live(false);
        let new = live(true);
        if !old.is_empty() {
            output.say(&format!("  to go back: mote rollback {function} --node {old}"));
        }
        if !new.is_empty() {
            output.say(&format!("  to go back: mote remove {function} --node {new}"));
        }
    }
}

/// Returns an object from a node's answer, with the name of the node added.
fn of_node(node: &Node, value: &impl serde::Serialize) -> Value {
    let mut all = Map::new();
    all.insert("node".to_owned(), node.name.clone().into());
    if let Ok(Value::Object(fields)) = serde_json::to_value(value) {
        all.extend(fields);
    }
    all.into()
}

/// Sends the same request to all nodes. Reports the nodes that fail, and returns the answers of the
/// others.
async fn answers<'a, T, F>(
    nodes: &'a [Node],
    ask: impl Fn(Client) -> F,
    output: &Output,
) -> (Vec<(&'a Node, T)>, Result<(), Failure>)
where
    T: Send + 'static,
    F: Future<Output = Result<T, ClientError>> + Send + 'static,
{
    let mut found = Vec::new();
    let mut worst = Ok(());
    for (node, answer) in nodes.iter().zip(ask_all(nodes, ask).await) {
        match answer {
            Some(Ok(answer)) => found.push((node, answer)),
            Some(Err(error)) => {
                let failure = Failure::from(error).on_node(&node.name);
                output.failure(&failure);
                worst = worst.and(Err(Failure::quiet(failure.exit)));
            }
            None => worst = worst.and(Err(Failure::quiet(exit::FAILED))),
        }
    }
    (found, worst)
}

async fn list(nodes: &[Node], output: &Output) -> Result<(), Failure> {
    let ask = |client: Client| async move { client.functions().await };
    let (found, worst) = answers(nodes, ask, output).await;
    let all: Vec<(&Node, &Function)> = found
        .iter()
        .flat_map(|(node, list)| list.functions.iter().map(|one| (*node, one)))
        .collect();
    let values: Vec<Value> = all.iter().map(|(node, function)| of_node(node, function)).collect();
    let names: Vec<&str> = all.iter().map(|(_, function)| function.name.as_str()).collect();
    if all.is_empty() {
        output.say("no functions yet; deploy one: mote deploy PATH");
    }
    output.results(&json!({"functions": values}), &values, &names, || {
        if all.is_empty() {
            return String::new();
        }
        let head: Vec<&str> = ["NODE"].into_iter().chain(list_head()).collect();
        let row = |(node, function): &(&Node, &Function)| {
            [node.name.clone()].into_iter().chain(list_row(function)).collect()
        };
        table(&head, &all.iter().map(row).collect::<Vec<Vec<String>>>())
    })?;
    worst
}

async fn describe(nodes: &[Node], name: &str, output: &Output) -> Result<(), Failure> {
    let asked = name.to_owned();
    let ask = move |client: Client| {
        let name = asked.clone();
        async move { client.function(&name).await }
    };
    let (found, worst) = answers(nodes, ask, output).await;
    let values: Vec<Value> = found.iter().map(|(node, function)| of_node(node, function)).collect();
    let names: Vec<&str> = found.iter().map(|(node, _)| node.name.as_str()).collect();
    output.results(&json!({"functions": values}), &values, &names, || {
        let text = |(node, function): &(&Node, Function)| {
            format!("{:<12} {}\n{}", "node", harmless(&node.name), describe_text(function))
        };
        found.iter().map(text).collect::<Vec<_>>().join("\n")
    })?;
    worst
}

async fn secrets(nodes: &[Node], output: &Output) -> Result<(), Failure> {
    let ask = |client: Client| async move { client.secrets().await };
    let (found, worst) = answers(nodes, ask, output).await;
    let all: Vec<_> =
        found.iter().flat_map(|(node, list)| list.secrets.iter().map(|one| (*node, one))).collect();
    let values: Vec<Value> = all.iter().map(|(node, secret)| of_node(node, secret)).collect();
    let names: Vec<&str> = all.iter().map(|(_, secret)| secret.name.as_str()).collect();
    output.results(&json!({"secrets": values}), &values, &names, || {
        let rows = all.iter().map(|(node, secret)| {
            let read_by = match secret.functions.as_slice() {
                [] => "-".to_owned(),
                all => all.join(", "),
            };
            vec![node.name.clone(), secret.name.clone(), read_by]
        });
        table(&["NODE", "NAME", "READ BY"], &rows.collect::<Vec<_>>())
    })?;
    worst
}

/// Checks that all nodes answer, then makes one change on all nodes in the order of a rollout.
async fn everywhere<T, F>(
    nodes: &[Node],
    make: impl Fn(Client) -> F,
    said: impl Fn(&T) -> String,
    output: &Output,
) -> Result<Vec<T>, Failure>
where
    T: serde::Serialize + Send + 'static,
    F: Future<Output = Result<T, ClientError>> + Send + 'static,
{
    nodes::all_answer(nodes, output).await?;
    let make = |at: usize| make(nodes[at].client.clone());
    let report = |at: usize, result: &Result<T, ClientError>| match result {
        Ok(value) => output.step(&nodes[at].name, &said(value), None),
        Err(error) => output.failure(&Failure::of_client(error).on_node(&nodes[at].name)),
    };
    let outcomes = rollout::run(nodes.len(), PARALLEL_DEFAULT, make, report, interrupt()).await;
    let mut values = Vec::new();
    let mut names = Vec::new();
    let mut rest = Vec::new();
    let mut exit = None;
    for (node, outcome) in nodes.iter().zip(&outcomes) {
        let mut value = match outcome {
            Outcome::Done(result) => of_node(node, result),
            _ => json!({"node": node.name}),
        };
        value["state"] = match outcome {
            Outcome::Done(_) => "done",
            Outcome::Failed(_) => "failed",
            Outcome::Interrupted => "unknown",
            Outcome::NotBegun => "not begun",
        }
        .into();
        match outcome {
            Outcome::Done(_) => names.push(node.name.as_str()),
            Outcome::Failed(error) => {
                let failure = Failure::of_client(error);
                value["error"] = failure.value();
                exit.get_or_insert(failure.exit);
                rest.push(node.name.as_str());
            }
            Outcome::Interrupted | Outcome::NotBegun => rest.push(node.name.as_str()),
        }
        values.push(value);
    }
    output.results(&json!({"nodes": values}), &values, &names, String::new)?;
    if rest.is_empty() {
        let done = |outcome| match outcome {
            Outcome::Done(result) => Some(result),
            _ => None,
        };
        return Ok(outcomes.into_iter().filter_map(done).collect());
    }
    output.say(&format!("  to go on: repeat the command with --node {}", rest.join(",")));
    Err(Failure::quiet(exit.unwrap_or(exit::INTERRUPTED)))
}

async fn rollback(
    nodes: &[Node],
    name: &str,
    revision: Option<&str>,
    output: &Output,
) -> Result<(), Failure> {
    let revision = revision.map(revisions::number).transpose()?;
    let asked = name.to_owned();
    let make = move |client: Client| {
        let name = asked.clone();
        async move { client.rollback(&name, revision).await }
    };
    let said = |result: &mote_api::types::TrafficResult| {
        format!("{}@{} is live (was @{})", result.function, result.revision, result.previous)
    };
    everywhere(nodes, make, said, output).await.map(|_| ())
}

async fn remove(nodes: &[Node], args: &RemoveFunctions, output: &Output) -> Result<(), Failure> {
    let with_state = args.with_state;
    let names = &args.remove.names;
    let question = format!("remove {} from {} nodes?", names.join(", "), nodes.len());
    if !args.remove.yes && !is_agreed(&question, output).await? {
        return Ok(());
    }
    let all = names.clone();
    let make = move |client: Client| {
        let names = all.clone();
        async move {
            let mut removed = Vec::new();
            for name in names {
                match client.remove(&name).await {
                    Ok(()) => removed.push(name.clone()),
                    Err(error) if error.exit_code() == exit::NO_FUNCTION => {}
                    Err(error) => return Err(error),
                }
                if with_state {
                    client.kv_clear(&name).await?;
                    client.remove_data_folder(&name).await?;
                }
            }
            Ok(json!({ "removed": removed }))
        }
    };
    let removed = everywhere(nodes, make, removed_text, output).await?;
    all_existed(names, &removed, "M0501", "function")
}

/// Fails if no node had one of the names, because the name is probably mistyped.
fn all_existed(
    names: &[String],
    removed: &[Value],
    code: &'static str,
    what: &str,
) -> Result<(), Failure> {
    let lists = || removed.iter().filter_map(|value| value["removed"].as_array()).flatten();
    match names.iter().find(|name| !lists().any(|one| one == name.as_str())) {
        None => Ok(()),
        Some(name) => Err(Failure::new(code, format!("no node has a {what} named {name}"))),
    }
}

async fn remove_secrets(nodes: &[Node], args: &Remove, output: &Output) -> Result<(), Failure> {
    let question = format!("remove {} from {} nodes?", args.names.join(", "), nodes.len());
    if !args.yes && !is_agreed(&question, output).await? {
        return Ok(());
    }
    let all = args.names.clone();
    let make = move |client: Client| {
        let names = all.clone();
        async move {
            let known = client.secrets().await?.secrets;
            let has = |name: &String| known.iter().any(|secret| secret.name == *name);
            let removed: Vec<String> = names.into_iter().filter(has).collect();
            for name in &removed {
                client.remove_secret(name).await?;
            }
            Ok(json!({ "removed": removed }))
        }
    };
    let removed = everywhere(nodes, make, removed_text, output).await?;
    all_existed(&args.names, &removed, "M0415", "secret")
}

fn removed_text(value: &Value) -> String {
    let removed = value["removed"].as_array();
    let names: Vec<&str> = removed.into_iter().flatten().filter_map(Value::as_str).collect();
    match names.is_empty() {
        true => "has none of them".to_owned(),
        false => format!("{} removed", names.join(", ")),
    }
}
