//! `mote namespace`: manages the namespaces of a node and their limits.

use mote_api::client::Client;
use mote_api::namespaces::{Namespace, NamespaceRequest, Quotas};
use mote_spec::quantity::{parse_size, size_text};

use super::args::{Limits, NamespaceVerb};
use super::failure::Failure;
use super::functions::is_agreed;
use super::output::{Output, harmless, table};

/// The largest rate that a node can enforce, in calls per second.
const RATE_MAX: u64 = 1_000_000;
/// The largest processor limit that the command accepts, in thousandths of a processor.
const CPU_MILLIS_MAX: f64 = 1e9;

pub(super) async fn run(
    client: &Client,
    verb: &NamespaceVerb,
    output: &Output,
) -> Result<(), Failure> {
    match verb {
        NamespaceVerb::Create { name, limits } => {
            let quotas = changed(Quotas::default(), limits)?;
            let wish = NamespaceRequest { name: name.clone(), quotas };
            let made = client.create_namespace(&wish).await?;
            output.result(&made, &[&made.name], || {
                let name = harmless(&made.name);
                format!("{name} is made; deploy into it: mote deploy --namespace {name} PATH\n")
            })
        }
        NamespaceVerb::List => list(client, output).await,
        NamespaceVerb::Describe { name } => {
            let one = client.namespace(name).await?;
            output.result(&one, &[&one.name], || shown(std::slice::from_ref(&one)))
        }
        NamespaceVerb::Update { name, limits } => {
            let now = client.namespace(name).await?;
            let one = client.update_namespace(name, &changed(now.quotas, limits)?).await?;
            output.result(&one, &[&one.name], || shown(std::slice::from_ref(&one)))
        }
        NamespaceVerb::Delete { name, force, yes } => {
            let what = if *force { " and everything in it" } else { "" };
            let question = format!("delete the namespace {}{what}?", harmless(name));
            if !yes && !is_agreed(&question, output).await? {
                return Ok(());
            }
            client.delete_namespace(name, *force).await?;
            output.say(&format!("{} is deleted", harmless(name)));
            Ok(())
        }
    }
}

async fn list(client: &Client, output: &Output) -> Result<(), Failure> {
    let list = client.namespaces().await?;
    if list.namespaces.is_empty() {
        output.say("no namespaces; make one: mote namespace create NAME");
    }
    let names: Vec<&str> = list.namespaces.iter().map(|one| one.name.as_str()).collect();
    output.results(&list, &list.namespaces, &names, || match list.namespaces.as_slice() {
        [] => String::new(),
        all => shown(all),
    })
}

/// Formats what namespaces use and, after a slash, what they may use.
fn shown(all: &[Namespace]) -> String {
    let of = |used: String, most: Option<String>| match most {
        Some(most) => format!("{used}/{most}"),
        None => used,
    };
    let row = |one: &Namespace| {
        let count =
            |used: u64, most: Option<u64>| of(used.to_string(), most.map(|most| most.to_string()));
        vec![
            one.name.clone(),
            count(one.functions, one.quotas.functions),
            count(one.instances, one.quotas.instances),
            of(size_text(one.memory_bytes), one.quotas.memory_bytes.map(size_text)),
            of(cpu_text(one.cpu_millis), one.quotas.cpu_millis.map(cpu_text)),
            of(size_text(one.disk_bytes), one.quotas.disk_bytes.map(size_text)),
            of(size_text(one.state_bytes), one.quotas.state_bytes.map(size_text)),
            one.quotas.calls_per_s.map_or("-".to_owned(), |calls| format!("{calls}/s")),
            if one.is_being_deleted { "being deleted".to_owned() } else { "-".to_owned() },
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    table(
        &["NAME", "FUNCTIONS", "INSTANCES", "MEMORY", "CPU", "DISK", "STATE", "RATE", "NOTE"],
        &rows,
    )
}

/// Formats a number of processors with as many digits as necessary.
fn cpu_text(millis: u64) -> String {
    (millis as f64 / 1_000.0).to_string()
}

/// Returns the limits after a change. Limits that the command does not name are kept.
fn changed(now: Quotas, limits: &Limits) -> Result<Quotas, Failure> {
    let number = |text: &str| text.parse().ok();
    let size = |text: &str| parse_size(text).ok();
    let cpu = |text: &str| {
        let millis = text.parse::<f64>().ok()? * 1_000.0;
        (1.0..=CPU_MILLIS_MAX).contains(&millis).then_some(millis.round() as u64)
    };
    let rate = |text: &str| {
        let calls = text.strip_suffix("/s").unwrap_or(text).parse().ok();
        calls.filter(|calls| (1..=RATE_MAX).contains(calls))
    };
    let limit = |flag: &str,
                 text: &Option<String>,
                 now: Option<u64>,
                 read: &dyn Fn(&str) -> Option<u64>| {
        match text.as_deref() {
        None => Ok(now),
        Some("none") => Ok(None),
        Some(text) => read(text).map(Some).ok_or_else(|| {
            let text = format!("{flag} {}: not a limit", harmless(text));
            Failure::new("M0101", text)
                .with_hint("write a number, a size such as 512MiB, processors such as 1.5, a rate such as 100/s, or none")
        }),
    }
    };
    Ok(Quotas {
        functions: limit("--functions", &limits.functions, now.functions, &number)?,
        instances: limit("--instances", &limits.instances, now.instances, &number)?,
        memory_bytes: limit("--memory", &limits.memory, now.memory_bytes, &size)?,
        cpu_millis: limit("--cpu", &limits.cpu, now.cpu_millis, &cpu)?,
        disk_bytes: limit("--disk", &limits.disk, now.disk_bytes, &size)?,
        state_bytes: limit("--state", &limits.state, now.state_bytes, &size)?,
        calls_per_s: limit("--rate", &limits.rate, now.calls_per_s.map(u64::from), &rate)?
            .map(|calls| u32::try_from(calls).unwrap_or(u32::MAX)),
    })
}
