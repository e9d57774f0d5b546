//! `mote list`, `mote describe` and `mote remove`.

use std::io::IsTerminal;

use mote_api::client::{Client, InvocationFilter};
use mote_api::types::{Advice, Function, Instance, MqttStatus, Rate, Scaling, Stop, Urls};
use mote_spec::quantity::{duration_text, size_text};

use super::args::RemoveFunctions;
use super::failure::Failure;
use super::input;
use super::output::{Output, harmless, table};
use super::schedules;

/// How many stopped instances `mote describe` prints, newest first. Its JSON output contains all of
/// them.
const STOPS_SHOWN: usize = 5;
/// How many waiting invocations are counted at most when their function is removed.
const WAITING_COUNTED: usize = 1_000;

pub(super) async fn list(client: &Client, output: &Output) -> Result<(), Failure> {
    let list = client.functions().await?;
    let names: Vec<&str> = list.functions.iter().map(|f| f.name.as_str()).collect();
    if list.functions.is_empty() {
        output.say("no functions yet; deploy one: mote deploy PATH");
    }
    output.results(&list, &list.functions, &names, || {
        if list.functions.is_empty() {
            return String::new();
        }
        let mut head = list_head();
        let mut rows: Vec<Vec<String>> = list.functions.iter().map(list_row).collect();
        if list.functions.iter().any(|function| !function.schedules.is_empty()) {
            head.insert(head.len() - 1, "NEXT RUN");
            for (row, function) in rows.iter_mut().zip(&list.functions) {
                let next = function.schedules.iter().filter_map(|schedule| schedule.next).min();
                let next = next.map_or_else(|| "-".to_owned(), |next| next.to_string());
                row.insert(row.len() - 1, next);
            }
        }
        table(&head, &rows)
    })
}

pub(super) fn list_head() -> Vec<&'static str> {
    vec!["NAME", "RUNTIME", "REV", "STATE", "INST", "REQUESTS", "ERRORS", "P50", "P99", "URL"]
}

pub(super) fn list_row(function: &Function) -> Vec<String> {
    let time = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms"));
    let url = function.urls.http.as_ref().or(function.urls.coap.as_ref());
    vec![
        function.name.clone(),
        function.runtime.clone(),
        function.revision.to_string(),
        function.state.as_str().to_owned(),
        function.instances.len().to_string(),
        function.requests.total.to_string(),
        function.requests.failed.to_string(),
        time(function.requests.p50_ms),
        time(function.requests.p99_ms),
        url.cloned().unwrap_or_else(|| "-".to_owned()),
    ]
}

pub(super) async fn describe(client: &Client, name: &str, output: &Output) -> Result<(), Failure> {
    let function = client.function(name).await?;
    output.result(&function, &[&function.name], || describe_text(&function))
}

pub(super) fn describe_text(function: &Function) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        text.push_str(format!("{key:<12} {}", harmless(value)).trim_end());
        text.push('\n');
    };
    line("name", &function.name);
    line("runtime", &function.runtime);
    if let Some(image) = &function.image {
        line("image", image);
    }
    if let Some(compat) = &function.compat {
        let template = function.template.as_ref().map(|template| format!(", {template}"));
        line("compat", &format!("{compat}{}", template.unwrap_or_default()));
    }
    line("revision", &function.revision.to_string());
    if function.traffic.iter().any(|share| share.percent < 100 || share.tag.is_some()) {
        for (at, share) in function.traffic.iter().enumerate() {
            let tag = share.tag.as_ref().map(|tag| format!("  tag {tag}")).unwrap_or_default();
            let key = if at == 0 { "traffic" } else { "" };
            line(key, &format!("@{}  {} %{tag}", share.revision, share.percent));
        }
    }
    line("access", &function.access);
    if let Some(tokens) = &function.tokens {
        line("", &format!("issuer {}, audience {}", tokens.issuer, tokens.audience));
    }
    if !function.certificate_names.is_empty() {
        line("", &format!("certificates {}", function.certificate_names.join(", ")));
    }
    if let Some(webhook) = &function.webhook {
        line("", &format!("scheme {}, secret {}", webhook.scheme, webhook.secret));
    }
    if !function.secrets.is_empty() {
        line("secrets", &function.secrets.join(", "));
    }
    for (at, schedule) in function.schedules.iter().enumerate() {
        line(if at == 0 { "schedules" } else { "" }, &schedules::line(schedule));
    }
    line("state", function.state.as_str());
    line("created", &function.created_at.to_string());
    let Urls { http, coap, coaps, .. } = &function.urls;
    for (front, url) in [("http", http), ("coap", coap), ("coaps", coaps)] {
        url.iter().for_each(|url| line(front, url));
    }
    if let Some(port) = &function.urls.port {
        line("port", &port.to_string());
    }
    for (at, route) in function.urls.routes.iter().enumerate() {
        line(if at == 0 { "routes" } else { "" }, route);
    }
    for trigger in &function.mqtt {
        let MqttStatus { filter, broker, state, received, done, given_up, running, .. } = trigger;
        line("mqtt", &format!("{filter}  {state}  {broker}"));
        if let (Some(code), Some(message)) = (&trigger.code, &trigger.message) {
            line("", &format!("{code} {message}"));
        }
        let counts = format!("{received} received, {done} done, {given_up} given up");
        line("", &format!("{counts}, {running} running"));
    }
    let limits = &function.limits;
    let memory = size_text(limits.memory_bytes);
    line(
        "memory",
        &match limits.process_memory_bytes {
            Some(bytes) => format!(
                "{memory}; enforced here: {} for each process, without /tmp and child processes (mote doctor)",
                size_text(bytes)
            ),
            None => memory,
        },
    );
    line("timeout", &duration_text(limits.timeout_ms));
    let max = limits.instances_max.map_or_else(|| "cores".to_owned(), |max| max.to_string());
    line(
        "scale",
        &format!(
            "{} to {max}, idle at most {}, queue {}",
            limits.instances_min,
            duration_text(limits.idle_timeout_ms),
            limits.queue
        ),
    );
    if let Some(bounds) = &function.bounds {
        let of = |number: Option<u32>, word: &str| number.map(|number| format!("{word} {number}"));
        let set = [of(bounds.min, "min"), of(bounds.max, "max")];
        let set: Vec<_> = set.into_iter().flatten().collect();
        line("", &format!("{} until the next deploy (mote scale)", set.join(", ")));
    }
    if let Some(why) = &function.no_copies {
        line("copies", &format!("none, each instance loads the function: {why}"));
    }
    for (name, rate) in [("rate", limits.rate), ("caller rate", limits.caller_rate)] {
        if let Some(Rate { calls, period_ms, burst }) = rate {
            let unit = match period_ms {
                1_000 => "s".to_owned(),
                60_000 => "m".to_owned(),
                3_600_000 => "h".to_owned(),
                _ => duration_text(period_ms),
            };
            line(name, &format!("{calls}/{unit}, burst {burst}"));
        }
    }
    let at_once = [
        ("calls at once", limits.calls_at_once),
        ("caller calls at once", limits.caller_calls_at_once),
    ];
    for (name, calls) in at_once {
        if let Some(calls) = calls {
            line(name, &calls.to_string());
        }
    }
    if !limits.policy.is_empty() {
        line("policy", &format!("{}, start {}", limits.policy, limits.start));
    }
    if !limits.balance.is_empty() {
        line("balance", &limits.balance);
    }
    if let Some(scaling) = &function.scaling {
        let Scaling { desired, wished, reason, reason_text } = scaling;
        let cut = if wished == desired { String::new() } else { format!(" (rule: {wished})") };
        line("wanted", &format!("{desired}{cut}  {reason}: {reason_text}"));
    }
    let requests = &function.requests;
    line(
        "requests",
        &format!(
            "{} ({} failed, {} running, {} queued, {} cold starts)",
            requests.total,
            requests.failed,
            requests.running,
            requests.queued,
            requests.cold_starts
        ),
    );
    for (at, advice) in function.advice.iter().enumerate() {
        let Advice { code, text, section, change } = advice;
        line(if at == 0 { "advice" } else { "" }, &format!("{code}: {text}"));
        line("", &format!("in mote.toml: [{section}] {change}"));
    }
    for instance in &function.instances {
        let memory = instance.memory_bytes.map(size_text).unwrap_or_default();
        let pid = instance.pid.map(|pid| format!("pid {pid}")).unwrap_or_default();
        let revision = instance.revision.map(|number| format!("@{number}  ")).unwrap_or_default();
        let Instance { id, state, .. } = instance;
        line("instance", &format!("{id}  {revision}{state}  {pid}  {memory}"));
        if !instance.reason.is_empty() {
            line("", &format!("started ({}): {}", instance.reason, instance.reason_text));
        }
    }
    for stop in function.stops.iter().rev().take(STOPS_SHOWN) {
        let Stop { id, time, reason, reason_text, .. } = stop;
        let more = if reason_text.is_empty() { String::new() } else { format!(": {reason_text}") };
        line("stopped", &format!("{id}  {time}  {reason}{more}"));
    }
    if let Some(error) = &function.last_error {
        line("last error", &format!("{} {} {}", error.time, error.code, error.message));
    }
    text
}

/// Returns a sentence about invocations that still wait for a removed function.
async fn still_waiting(client: &Client, name: &str) -> Option<String> {
    let function = Some(name);
    let state = Some("waiting");
    let limit = Some(WAITING_COUNTED);
    let filter = InvocationFilter { function, state, limit, runs: false };
    let waiting = client.invocations(&filter).await.ok()?.invocations.len();
    let (count, wait) = match waiting {
        0 => return None,
        1 => ("1 accepted invocation".to_owned(), "waits"),
        most if most == WAITING_COUNTED => (format!("{most} accepted invocations or more"), "wait"),
        some => (format!("{some} accepted invocations"), "wait"),
    };
    Some(format!(
        "{count} still {wait} for a function of this name, for up to six hours; cancel with: mote \
         invocation cancel --function {name}"
    ))
}

pub(super) async fn remove(
    client: &Client,
    args: &RemoveFunctions,
    output: &Output,
) -> Result<(), Failure> {
    let with_state = args.with_state;
    let args = &args.remove;
    if !args.yes && !is_agreed(&format!("remove {}?", args.names.join(", ")), output).await? {
        return Ok(());
    }
    for name in &args.names {
        client.remove(name).await?;
        if with_state {
            client.kv_clear(name).await?;
            client.remove_data_folder(name).await?;
        }
        output.say(&format!("{name} is removed"));
        if let Some(note) = still_waiting(client, name).await {
            output.say(&note);
        }
    }
    Ok(())
}

/// Asks the user before something is removed.
pub(super) async fn is_agreed(question: &str, output: &Output) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        let problem = Failure::new("M0101", "cannot ask for confirmation: stdin is not a terminal");
        return Err(problem.with_hint("add --yes to confirm on the command line"));
    }
    let agreed = input::says_yes(question).await?;
    if !agreed {
        output.say("nothing was removed");
    }
    Ok(agreed)
}
