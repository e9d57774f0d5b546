//! `mote revisions`, `mote rollback` and `mote traffic`.

use mote_api::client::Client;
use mote_api::types::{RevisionInfo, TrafficEdit, TrafficRequest, TrafficResult, TrafficShare};
use mote_spec::quantity::duration_text;

use super::args::Traffic;
use super::failure::Failure;
use super::output::{Output, harmless, table};

/// How many letters of a code's hash are printed. They are enough to distinguish two deploys.
const CODE_LETTERS: usize = 12;

pub(super) async fn revisions(client: &Client, name: &str, output: &Output) -> Result<(), Failure> {
    let list = client.revisions(name).await?;
    let names: Vec<String> = list.revisions.iter().map(|info| info.revision.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    output.results(&list, &list.revisions, &names, || {
        let rows: Vec<Vec<String>> = list.revisions.iter().map(row).collect();
        table(&["REV", "STATE", "TRAFFIC", "TAG", "AGE", "CODE"], &rows)
    })
}

fn row(info: &RevisionInfo) -> Vec<String> {
    vec![
        info.revision.to_string(),
        info.state.clone(),
        if info.percent > 0 { format!("{} %", info.percent) } else { "-".to_owned() },
        info.tag.clone().unwrap_or_else(|| "-".to_owned()),
        duration_text(info.age_ms),
        code(info).chars().take(CODE_LETTERS).collect(),
    ]
}

/// The hash that tells two revisions apart: of the code, or of the image.
fn code(info: &RevisionInfo) -> &str {
    let digest = info.image.as_ref().and_then(|image| image.rsplit_once("@sha256:"));
    digest.map_or(&info.code, |(_, digest)| digest)
}

pub(super) async fn rollback(
    client: &Client,
    name: &str,
    revision: Option<&str>,
    output: &Output,
) -> Result<(), Failure> {
    let revision = revision.map(number).transpose()?;
    let result = client.rollback(name, revision).await?;
    show(&result, output, |result| {
        let was = match result.previous == result.revision {
            true => String::new(),
            false => format!(" (was @{})", result.previous),
        };
        format!("{}@{} is live{was}\n", harmless(&result.function), result.revision)
    })
}

pub(super) async fn traffic(
    client: &Client,
    args: &Traffic,
    output: &Output,
) -> Result<(), Failure> {
    let edits = args.shares.iter().map(|text| edit(text)).collect::<Result<Vec<_>, _>>()?;
    if edits.is_empty() {
        let function = client.function(&args.name).await?;
        return output.result(&function.traffic, &[&function.name], || shares(&function.traffic));
    }
    let result = client.traffic(&args.name, &TrafficRequest { shares: edits }).await?;
    show(&result, output, |_| String::new())
}

fn show(
    result: &TrafficResult,
    output: &Output,
    headline: impl FnOnce(&TrafficResult) -> String,
) -> Result<(), Failure> {
    for step in &result.steps {
        output.step(&harmless(&step.name), &harmless(&step.detail), Some(step.ms));
    }
    output.result(result, &[&result.function], || headline(result) + &shares(&result.traffic))
}

/// Formats the traffic split as a table.
fn shares(shares: &[TrafficShare]) -> String {
    let row = |share: &TrafficShare| {
        let tag = share.tag.clone().unwrap_or_else(|| "-".to_owned());
        vec![share.revision.to_string(), format!("{} %", share.percent), tag]
    };
    table(&["REV", "TRAFFIC", "TAG"], &shares.iter().map(row).collect::<Vec<_>>())
}

/// Parses a share from an argument: `3=90`, `4:next=10`, `4:next` or `4:`.
fn edit(text: &str) -> Result<TrafficEdit, Failure> {
    let shown: String = text.chars().take(64).flat_map(char::escape_debug).collect();
    let bad = |what: &str| {
        let failure = Failure::new("M0413", format!("`{shown}`: {what}"));
        failure.with_hint("write REVISION[:TAG][=PERCENT], such as 3=90 4:next=10")
    };
    let (left, percent) = match text.split_once('=') {
        Some((left, percent)) => (left, Some(percent)),
        None => (text, None),
    };
    let (revision, tag) = match left.split_once(':') {
        Some((revision, tag)) => (revision, Some(tag)),
        None => (left, None),
    };
    if percent.is_none() && tag.is_none() {
        return Err(bad("neither a share nor a tag"));
    }
    let percent = percent.map(|percent| {
        let whole = percent.strip_suffix('%').unwrap_or(percent).parse::<u32>().ok();
        whole.filter(|percent| *percent <= 100).ok_or_else(|| bad("a share is 0 to 100"))
    });
    Ok(TrafficEdit {
        revision: number(revision).map_err(|_| bad("a revision is a number"))?,
        percent: percent.transpose()?,
        tag: tag.map(str::to_owned),
    })
}

/// Parses the number of a revision, with or without `@` in front.
pub(super) fn number(text: &str) -> Result<u64, Failure> {
    let digits = text.strip_prefix('@').unwrap_or(text);
    digits.parse().ok().filter(|number| *number > 0).ok_or_else(|| {
        let shown: String = text.chars().take(64).flat_map(char::escape_debug).collect();
        Failure::new("M0101", format!("`{shown}`: a revision is a number, such as 3"))
    })
}
