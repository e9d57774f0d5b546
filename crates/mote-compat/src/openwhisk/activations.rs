//! Records of what ran. In memory and, half a second later, in the store; the oldest are forgotten.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{NAMESPACE, Refused, Whisk};
use crate::Context;
use crate::node::{Change, Node};

const COLLECTION: &str = "openwhisk/activations";
/// Records kept, and bytes of them.
const RECORDS_MAX: usize = 10_000;
const BYTES_MAX: usize = 32 << 20;
/// How long a record may be in memory alone.
const WRITE_EVERY: Duration = Duration::from_millis(500);
/// Lists without a limit, and their longest.
const LIST_DEFAULT: usize = 30;
const LIST_MAX: usize = 200;

/// See the module.
#[derive(Default)]
pub(super) struct Activations {
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// By id, which begins with the time.
    records: BTreeMap<String, Value>,
    bytes: usize,
    unwritten: Vec<Change>,
}

impl Activations {
    /// Reads what was kept.
    pub(super) async fn load(node: &dyn Node) -> Self {
        let mut held = Held::default();
        for (id, bytes) in node.documents(COLLECTION).await.unwrap_or_default() {
            if let Ok(record) = serde_json::from_slice(&bytes) {
                held.bytes += bytes.len();
                held.records.insert(id, record);
            }
        }
        Self { held: Mutex::new(held) }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a record.
    pub(super) fn add(&self, id: &str, record: Value) {
        let bytes = record.to_string().into_bytes();
        let mut held = self.held();
        held.bytes += bytes.len();
        let change =
            |key: &str, value| Change { collection: COLLECTION, key: key.to_owned(), value };
        held.unwritten.push(change(id, Some(bytes)));
        held.records.insert(id.to_owned(), record);
        while held.records.len() > RECORDS_MAX || held.bytes > BYTES_MAX {
            let Some((oldest, record)) = held.records.pop_first() else { break };
            held.bytes = held.bytes.saturating_sub(record.to_string().len());
            held.unwritten.push(change(&oldest, None));
        }
    }

    pub(super) fn get(&self, id: &str) -> Option<Value> {
        self.held().records.get(id).cloned()
    }

    /// Writes what is new until the node stops.
    pub(super) async fn keep(&self, context: Context) {
        loop {
            let stopping = tokio::select! {
                () = tokio::time::sleep(WRITE_EVERY) => false,
                () = context.stopped() => true,
            };
            let changes = std::mem::take(&mut self.held().unwritten);
            if !changes.is_empty()
                && let Err(problem) = context.node.put_documents(changes).await
            {
                tracing::warn!(problem = problem.detail, "activations are not kept");
            }
            if stopping {
                return;
            }
        }
    }
}

/// What a list is asked for.
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
    /// How many a list may hold.
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
