//! Records of activations. They are in memory and, half a second later, in the store; the oldest
//! are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use mote_compat::node::{Change, Documents};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::run::Id;
use super::{NAMESPACE, Refused, Whisk};

const COLLECTION: &str = "openwhisk/activations";
/// Most records that are kept, and their bytes.
const RECORDS_MAX: usize = 10_000;
const BYTES_MAX: usize = 32 << 20;
/// A longer record is shortened, so that one activation does not displace all others. A result and
/// the usual logs fit.
const RECORD_BYTES_MAX: usize = 4 << 20;
/// The last line of shortened logs, in OpenWhisk's wording.
const LOGS_CUT: &str =
    "Logs were truncated because the total bytes size exceeds the limit of the node.";
/// How long a record may be in memory alone.
const WRITE_EVERY: Duration = Duration::from_millis(500);
/// Length of lists without a limit, and the longest list.
const LIST_DEFAULT: usize = 30;
const LIST_MAX: usize = 200;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Activations {
    held: Mutex<Held>,
    /// The number of added records that have been written.
    written: watch::Sender<u64>,
    /// Only one task writes at a time, so that an earlier state never overwrites a later one.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Held {
    /// Records by id, which begins with the time.
    records: BTreeMap<String, Value>,
    bytes: usize,
    /// Ids of records that differ from their copies in the store.
    unwritten: BTreeSet<String>,
    added: u64,
}

impl Held {
    fn add(&mut self, id: String, record: Value) {
        self.added += 1;
        self.unwritten.insert(id.clone());
        if let Some(before) = self.records.remove(&id) {
            self.bytes = self.bytes.saturating_sub(before.to_string().len());
        }
        let Some((record, bytes)) = shortened(record) else {
            tracing::warn!(%id, "the record of an activation is too long to store");
            return;
        };
        self.bytes += bytes;
        self.records.insert(id, record);
        while self.records.len() > RECORDS_MAX || self.bytes > BYTES_MAX {
            let Some((oldest, record)) = self.records.pop_first() else { break };
            self.bytes = self.bytes.saturating_sub(record.to_string().len());
            self.unwritten.insert(oldest);
        }
    }
}

/// A record of at most [`RECORD_BYTES_MAX`], and its length. A long result is removed first, then
/// the last lines of the logs. `None` if the rest is still too long.
fn shortened(mut record: Value) -> Option<(Value, usize)> {
    let mut bytes = record.to_string().len();
    if bytes > RECORD_BYTES_MAX
        && record["response"]["result"].to_string().len() > RECORD_BYTES_MAX / 2
    {
        record["response"]["result"] = json!({ "error": "The result is too long to be kept." });
        bytes = record.to_string().len();
    }
    if bytes > RECORD_BYTES_MAX
        && let Some(lines) = record["logs"].as_array_mut()
    {
        while bytes + LOGS_CUT.len() + 3 > RECORD_BYTES_MAX
            && let Some(line) = lines.pop()
        {
            // The comma counts as well; only the first line has none.
            bytes = bytes.saturating_sub(line.to_string().len() + 1);
        }
        lines.push(LOGS_CUT.into());
        bytes = record.to_string().len();
    }
    (bytes <= RECORD_BYTES_MAX).then_some((record, bytes))
}

impl Activations {
    /// Reads the stored records.
    pub(super) async fn load(node: &dyn Documents) -> Self {
        let mut held = Held::default();
        for (id, bytes) in node.documents(COLLECTION).await.unwrap_or_default() {
            let Ok(record) = serde_json::from_slice(&bytes) else { continue };
            if bytes.len() > RECORD_BYTES_MAX {
                held.add(id, record);
                continue;
            }
            held.bytes += bytes.len();
            held.records.insert(id, record);
        }
        Self { held: Mutex::new(held), ..Self::default() }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a record.
    pub(super) fn add(&self, id: Id, record: Value) {
        self.held().add(id.to_string(), record);
    }

    pub(super) fn get(&self, id: &str) -> Option<Value> {
        self.held().records.get(id).cloned()
    }

    /// Waits until every record added so far is in the store.
    pub(super) async fn written(&self) {
        let added = self.held().added;
        // `self` holds the sender, so it cannot be dropped.
        let _ = self.written.subscribe().wait_for(|written| *written >= added).await;
    }

    /// Writes new records.
    pub(super) async fn write(&self, node: &dyn Documents) {
        let _turn = self.turn.lock().await;
        let (changes, added) = {
            let mut held = self.held();
            let unwritten = std::mem::take(&mut held.unwritten);
            let change = |key: String| {
                let value = held.records.get(&key).map(|record| record.to_string().into_bytes());
                Change { collection: COLLECTION, key, value }
            };
            (unwritten.into_iter().map(change).collect::<Vec<_>>(), held.added)
        };
        if changes.is_empty() {
            return;
        }
        let keys: Vec<String> = changes.iter().map(|change| change.key.clone()).collect();
        match node.put_documents(changes).await {
            Ok(()) => drop(self.written.send_replace(added)),
            Err(problem) => {
                tracing::warn!(problem = problem.detail, "activations are not written to disk yet");
                self.held().unwritten.extend(keys);
            }
        }
    }

    /// Writes new records every half second.
    pub(super) async fn keep(&self, node: &dyn Documents) {
        loop {
            tokio::time::sleep(WRITE_EVERY).await;
            self.write(node).await;
        }
    }
}

/// The parameters of a list request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    name: Option<String>,
    pub(super) limit: Option<usize>,
    pub(super) skip: usize,
    since: Option<u64>,
    upto: Option<u64>,
    docs: bool,
    count: bool,
}

impl Asked {
    /// The largest number of records in the list.
    pub(super) fn limit(&self) -> Result<usize, Refused> {
        match self.limit.unwrap_or(LIST_DEFAULT) {
            0 => Ok(LIST_MAX),
            many if many > LIST_MAX => {
                let text = format!(
                    "The value '{many}' is not in the range of 0 to {LIST_MAX} for activation list."
                );
                Err(Refused::bad(text))
            }
            limit => Ok(limit),
        }
    }
}

pub(super) async fn list(
    State(whisk): State<Whisk>,
    Query(asked): Query<Asked>,
) -> Result<Response, Refused> {
    let limit = asked.limit()?;
    let held = whisk.activations.held();
    let matches = |record: &&Value| {
        let start = record["start"].as_u64().unwrap_or(0);
        let path = record["annotations"].as_array().into_iter().flatten();
        let path = path.filter(|pair| pair["key"] == "path").map(|pair| &pair["value"]);
        asked.since.is_none_or(|since| start >= since)
            && asked.upto.is_none_or(|upto| start <= upto)
            && asked.name.as_ref().is_none_or(|name| {
                record["name"] == name.as_str()
                    || path.clone().any(|path| path == &json!(format!("{NAMESPACE}/{name}")))
            })
    };
    let found = held.records.values().rev().filter(matches);
    if asked.count {
        let count = found.skip(asked.skip).count();
        return Ok(Json(json!({ "activations": count })).into_response());
    }
    let shown = |record: &Value| {
        let mut record = record.clone();
        if !asked.docs
            && let Some(members) = record.as_object_mut()
        {
            members.remove("logs");
            let response = members.remove("response").unwrap_or_default();
            members.insert("statusCode".into(), response["statusCode"].clone());
        }
        record
    };
    let all: Vec<Value> = found.skip(asked.skip).take(limit).map(shown).collect();
    Ok(Json(all).into_response())
}

pub(super) async fn show(
    State(whisk): State<Whisk>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refused> {
    whisk.activations.get(&id).map(Json).ok_or_else(Refused::not_found)
}

pub(super) async fn show_part(
    State(whisk): State<Whisk>,
    Path((id, part)): Path<(String, String)>,
) -> Result<Json<Value>, Refused> {
    let record = whisk.activations.get(&id).ok_or_else(Refused::not_found)?;
    match part.as_str() {
        "logs" => Ok(Json(json!({ "logs": record["logs"] }))),
        "result" => Ok(Json(record["response"].clone())),
        _ => Err(Refused::not_found()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> Id {
        Id::try_from(format!("{n:032x}")).expect("an id")
    }

    fn kept(activations: &Activations, n: usize) -> Option<Value> {
        activations.get(&id(n).to_string())
    }

    fn filled() -> Activations {
        let activations = Activations::default();
        for n in 0..100 {
            activations.add(id(n), json!({ "n": n, "logs": [] }));
        }
        activations
    }

    #[test]
    fn a_long_record_pushes_no_other_out() {
        let line = "x".repeat(1 << 10);
        let logs = vec![line.as_str(); 40 << 10];
        let long = "y".repeat(BYTES_MAX);
        let too_long = json!({ "error": "The result is too long to be kept." });
        for (logs, result, lines, shown) in [
            (json!(logs), json!("fine"), 4_000..4_096, json!("fine")),
            (json!(logs), json!(long), 4_000..4_096, too_long.clone()),
            (json!([]), json!(long), 0..1, too_long),
        ] {
            let activations = filled();
            activations.add(id(1_000), json!({ "logs": logs, "response": { "result": result } }));
            assert!((0..100).all(|n| kept(&activations, n).is_some()), "others are gone");
            let record = kept(&activations, 1_000).expect("a shorter one");
            let found = record["logs"].as_array().expect("lines");
            assert!(lines.contains(&found.len()), "{} lines", found.len());
            assert!(found.last().is_none_or(|last| last == LOGS_CUT));
            assert_eq!(record["response"]["result"], shown);
            let held = activations.held();
            let counted: usize = held.records.values().map(|one| one.to_string().len()).sum();
            assert_eq!(held.bytes, counted);
        }
    }

    #[test]
    fn a_record_that_cannot_be_shortened_is_left_out() {
        let activations = filled();
        activations.add(id(1_000), json!({ "name": "z".repeat(BYTES_MAX), "logs": [] }));
        assert_eq!(kept(&activations, 1_000), None);
        assert!((0..100).all(|n| kept(&activations, n).is_some()), "others are gone");
    }

    #[test]
    fn the_oldest_are_forgotten_first() {
        let activations = Activations::default();
        let result = "y".repeat(1 << 20);
        for n in 0..40 {
            activations.add(id(n), json!({ "response": { "result": result }, "logs": [] }));
        }
        let held = activations.held();
        assert!(held.bytes <= BYTES_MAX && held.records.len() == 31, "{}", held.records.len());
        assert_eq!(*held.records.first_key_value().expect("some").0, id(9).to_string());
    }
}
