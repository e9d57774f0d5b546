//! `mote kv`: reads and changes the state that functions keep on their node.

use std::io::{IsTerminal, Read};

use mote_api::client::{Client, ClientError};
use mote_api::kv::{KvNamespaces, KvPut};

use super::args::{KvKeys, KvVerb};
use super::failure::Failure;
use super::functions::is_agreed;
use super::output::{Output, harmless, table};

/// The most bytes of a value that are read. The node accepts fewer, and its error names the limit.
const READ_BYTES_MAX: u64 = 1 << 20;
/// The prefix of the names of shared namespaces.
const SHARED: &str = "shared:";

pub(super) async fn run(client: &Client, verb: &KvVerb, output: &Output) -> Result<(), Failure> {
    match verb {
        KvVerb::Get { namespace, key } => {
            let entry = client.kv_get(namespace, key).await?;
            output.print(&entry.value)
        }
        KvVerb::Put { namespace, key, value, ttl, if_version } => {
            let value = match value {
                Some(text) => text.clone().into_bytes(),
                None => read(key).await?,
            };
            let ttl_ms = ttl.as_deref().map(ttl_ms).transpose()?;
            let put = KvPut { ttl_ms, version: *if_version };
            let written = client.kv_put(namespace, key, value, put).await?;
            let version = written.version;
            warn_of_no_function(client, namespace, output).await;
            output.result(&written, &[&version.to_string()], || {
                format!("{} is written; its version is {version}\n", harmless(key))
            })
        }
        KvVerb::Delete { namespace, key } => {
            client.kv_delete(namespace, key).await?;
            output.say(&format!("{} is removed", harmless(key)));
            Ok(())
        }
        KvVerb::Increment { namespace, key, by } => {
            let written = client.kv_increment(namespace, key, *by).await?;
            warn_of_no_function(client, namespace, output).await;
            let value = written.value.unwrap_or_default().to_string();
            output.result(&written, &[&value], || format!("{value}\n"))
        }
        KvVerb::List(args) => match &args.namespace {
            None => namespaces(&client.kv_namespaces().await?, output),
            Some(namespace) => list(client, namespace, args, output).await,
        },
        KvVerb::Clear { namespace, yes } => {
            let shown = harmless(namespace);
            if !yes && !is_agreed(&format!("remove everything in {shown}?"), output).await? {
                return Ok(());
            }
            client.kv_clear(namespace).await?;
            output.say(&format!("{shown} is empty"));
            Ok(())
        }
    }
}

/// Warns if no function has this name, because no function then reads the written value.
async fn warn_of_no_function(client: &Client, namespace: &str, output: &Output) {
    if namespace.starts_with(SHARED) {
        return;
    }
    let found = client.function(namespace).await;
    if let Err(ClientError::Problem(problem)) = found
        && problem.status == 404
    {
        output.warn(&format!(
            "there is no function named {namespace}; this state is there for one that is deployed later"
        ));
    }
}

fn namespaces(list: &KvNamespaces, output: &Output) -> Result<(), Failure> {
    if list.namespaces.is_empty() {
        output.say("no function keeps state yet");
    }
    let names: Vec<&str> = list.namespaces.iter().map(|one| one.namespace.as_str()).collect();
    output.results(list, &list.namespaces, &names, || {
        if list.namespaces.is_empty() {
            return String::new();
        }
        let rows: Vec<Vec<String>> = list
            .namespaces
            .iter()
            .map(|one| vec![one.namespace.clone(), one.keys.to_string(), one.bytes.to_string()])
            .collect();
        table(&["NAMESPACE", "KEYS", "BYTES"], &rows)
    })
}

async fn list(
    client: &Client,
    namespace: &str,
    args: &KvKeys,
    output: &Output,
) -> Result<(), Failure> {
    let after = args.after.as_deref();
    let found = client.kv_list(namespace, &args.prefix, after, args.limit).await?;
    if found.entries.is_empty() {
        output.say("no keys");
    }
    let keys: Vec<&str> = found.entries.iter().map(|entry| entry.key.as_str()).collect();
    output.results(&found, &found.entries, &keys, || {
        if found.entries.is_empty() {
            return String::new();
        }
        let rows: Vec<Vec<String>> = found
            .entries
            .iter()
            .map(|entry| vec![harmless(&entry.key), entry.version.to_string()])
            .collect();
        table(&["KEY", "VERSION"], &rows)
    })?;
    if let Some(after) = &found.after {
        output.say(&format!("there are more: add --after {}", harmless(after)));
    }
    Ok(())
}

fn ttl_ms(text: &str) -> Result<u64, Failure> {
    mote_spec::quantity::parse_duration_ms(text).map_err(|_| {
        Failure::new("M0101", format!("--ttl {}: not a duration", harmless(text)))
            .with_hint("write a number and a unit, for example 90s or 12h")
    })
}

async fn read(key: &str) -> Result<Vec<u8>, Failure> {
    if std::io::stdin().is_terminal() {
        let key = harmless(key);
        return Err(Failure::new("M0101", format!("no value for {key}"))
            .with_hint("write it after the key, or use a pipe"));
    }
    // Standard input is read on another thread, so that Ctrl-C works while no input arrives.
    let reading = tokio::task::spawn_blocking(|| {
        let mut bytes = Vec::new();
        std::io::stdin().take(READ_BYTES_MAX + 1).read_to_end(&mut bytes).map(|_| bytes)
    });
    let bytes = reading.await.map_err(std::io::Error::other).and_then(|read| read);
    bytes.map_err(|error| Failure::of_file("M0102", "standard input", &error))
}
