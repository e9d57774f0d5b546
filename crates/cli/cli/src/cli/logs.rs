//! `mote logs`.

use std::time::{Duration, Instant};

use mote_api::client::{Client, LogQuery};
use mote_api::types::{LogLine, LogStream};
use mote_api::{ClientError, Timestamp};
use mote_spec::quantity;
use tokio::sync::mpsc;

use super::args::{Format, Logs};
use super::failure::Failure;
use super::output::{Output, escaped, harmless, yaml};

/// The most lines that wait to be printed. When so many are waiting, no more are read from the nodes,
/// so a slow terminal slows the streams down.
const WAITING_LINES_MAX: usize = 256;
/// How long a node that has ended one connection may go on answering on others, and how often it is
/// asked.
const STOP_MAX: Duration = Duration::from_secs(2);
const ASK_EVERY: Duration = Duration::from_millis(50);

pub(super) async fn run(client: &Client, args: &Logs, output: &Output) -> Result<(), Failure> {
    if let Some(since) = &args.since
        && quantity::parse_duration_ms(since).is_err()
        && Timestamp::parse(since).is_err()
    {
        let text = "--since: a duration such as 10m, or a time such as 2026-01-31T12:00:00Z";
        return Err(Failure::new("M0101", text));
    }
    let query = LogQuery {
        follow: args.follow,
        since: args.since.clone(),
        // Without --follow, --tail counts the lines of all functions together. Those lines are
        // among the last ones of each function.
        tail: args.tail,
        invocation: args.invocation.clone(),
        grep: args.grep.clone(),
        level: args.level.clone(),
    };
    let names = if args.names.is_empty() {
        let list = client.functions().await?;
        list.functions.into_iter().map(|f| f.name).collect()
    } else {
        args.names.clone()
    };
    if !args.follow {
        // The lines of all functions are merged in the order of their times.
        let mut lines = Vec::new();
        for name in &names {
            let mut stream = client.logs(name, &query).await?;
            while let Some(line) = stream.next().await? {
                lines.push(line);
            }
        }
        lines.sort_by_key(|line| line.time);
        let tail = args.tail.and_then(|tail| usize::try_from(tail).ok()).unwrap_or(usize::MAX);
        let first = lines.len().saturating_sub(tail);
        return lines[first..].iter().try_for_each(|line| print(line, output));
    }
    let (sender, mut receiver) = mpsc::channel::<Result<LogLine, ClientError>>(WAITING_LINES_MAX);
    for name in &names {
        let mut stream = client.logs(name, &query).await?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while let Some(line) = stream.next().await.transpose() {
                let is_end = line.is_err();
                if sender.send(line).await.is_err() || is_end {
                    return;
                }
            }
        });
    }
    drop(sender);
    while let Some(line) = receiver.recv().await {
        match line {
            Ok(line) => print(&line, output)?,
            Err(error) => {
                if !has_stopped(client).await {
                    return Err(error.into());
                }
                output.say("the node has stopped; the log ends here");
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Whether the node that has ended a connection has stopped. It may still be stopping.
async fn has_stopped(client: &Client) -> bool {
    let end = Instant::now() + STOP_MAX;
    while client.functions().await.is_ok() {
        if Instant::now() >= end {
            return false;
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
    true
}

fn print(line: &LogLine, output: &Output) -> Result<(), Failure> {
    let text = match output.format {
        Format::Json | Format::Jsonl => escaped(&serde_json::to_string(line).unwrap_or_default()),
        Format::Yaml => {
            let yaml = yaml(line).unwrap_or_default();
            format!("---\n{}", yaml.trim_end())
        }
        Format::Name => line.function.clone(),
        Format::Table => {
            let stream = match line.stream {
                LogStream::Platform => "mote",
                other => other.as_str(),
            };
            let id = line.invocation.as_deref().unwrap_or("-");
            format!(
                "{} {:<5} {}@{} {id} {stream}: {}",
                line.time,
                harmless(&line.level),
                line.function,
                line.revision,
                harmless(&line.message)
            )
        }
    };
    output.print(format!("{text}\n").as_bytes())
}
