//! Routes that read and change the state of functions.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use mote_api::Problem;
use mote_api::kv::{
    HEADER_EXPIRES, HEADER_VERSION, KvKey, KvListing, KvNamespace, KvNamespaces, KvWritten,
};
use mote_core::state::{
    Begun, Condition, KEYS_MAX, Namespace, Operation, Outcome, Quota, StateError, Usage,
    VALUE_BYTES_MAX,
};
use mote_process::clock;
use mote_spec::{QUOTA_BYTES_MAX, name};
use serde::Deserialize;

use super::access::Seen;
use super::extract::{Path, Query};
use super::refused::Refused;
use crate::Node;

/// The prefix of shared namespaces. No function's name contains it.
const SHARED: &str = "shared:";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    #[serde(default)]
    prefix: String,
    after: Option<String>,
    #[serde(default)]
    limit: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EntryQuery {
    key: String,
    ttl_ms: Option<u64>,
    version: Option<u64>,
    by: Option<i64>,
}

pub(super) async fn namespaces(
    State(node): State<Arc<Node>>,
    Seen(view): Seen,
) -> Result<Json<KvNamespaces>, Refused> {
    let usage = node.data_path.state.usage().await.map_err(|error| problem(&error))?;
    let shown = |usage: &Usage| match &usage.namespace {
        Namespace::Function(name) | Namespace::Shared(name) => view.shows(name),
    };
    let mut namespaces: Vec<_> = usage
        .into_iter()
        .filter(shown)
        .map(|usage| KvNamespace {
            namespace: match usage.namespace {
                Namespace::Function(name) => name,
                Namespace::Shared(name) => format!("{SHARED}{name}"),
            },
            keys: usage.keys,
            bytes: usage.bytes,
        })
        .collect();
    namespaces.sort_unstable_by(|a, b| a.namespace.cmp(&b.namespace));
    Ok(Json(KvNamespaces { namespaces }))
}

pub(super) async fn list(
    State(node): State<Arc<Node>>,
    Path(namespace): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Json<KvListing>, Refused> {
    let ListQuery { prefix, after, limit } = query;
    let operation = Operation::List { prefix, after, limit, values: false };
    match run(&node, &namespace, operation).await? {
        Outcome::Listed { entries, more } => {
            let after = entries.last().map(|(key, _)| key.clone()).filter(|_| more);
            let entries = entries.into_iter().map(|(key, entry)| KvKey {
                key,
                version: entry.version,
                expires_unix_ms: entry.expires_unix_ms,
            });
            Ok(Json(KvListing { entries: entries.collect(), after }))
        }
        _ => Err(no_entry().into()),
    }
}

/// Everything is removed, so a parameter that would remove less is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClearQuery {}

pub(super) async fn clear(
    State(node): State<Arc<Node>>,
    Path(namespace): Path<String>,
    Query(ClearQuery {}): Query<ClearQuery>,
) -> Result<StatusCode, Refused> {
    let namespace = parse(&namespace)?;
    node.data_path.state.clear(namespace).await.map_err(|error| problem(&error))?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn get(
    State(node): State<Arc<Node>>,
    Path(namespace): Path<String>,
    Query(query): Query<EntryQuery>,
) -> Result<Response, Refused> {
    match run(&node, &namespace, Operation::Get { key: query.key }).await? {
        Outcome::Entry(Some(entry)) => {
            let mut response = entry.value.into_response();
            let headers = response.headers_mut();
            headers.insert("content-type", "application/octet-stream".parse().expect("a value"));
            headers.insert(HEADER_VERSION, entry.version.into());
            if let Some(expires) = entry.expires_unix_ms {
                headers.insert(HEADER_EXPIRES, expires.into());
            }
            Ok(response)
        }
        _ => Err(no_entry().into()),
    }
}

pub(super) async fn put(
    State(node): State<Arc<Node>>,
    Path(namespace): Path<String>,
    Query(query): Query<EntryQuery>,
    body: Body,
) -> Result<Json<KvWritten>, Refused> {
    let EntryQuery { key, ttl_ms, version, .. } = query;
    let value = axum::body::to_bytes(body, VALUE_BYTES_MAX).await.map_err(|_| {
        Problem::new(422, "M0903", "a value has at most 256 KiB").with_field("value")
    })?;
    let condition = match version {
        None => Condition::None,
        Some(0) => Condition::Absent,
        Some(version) => Condition::Version(version),
    };
    written(run(&node, &namespace, Operation::Put { key, value, condition, ttl_ms }).await?)
}

pub(super) async fn delete(
    State(node): State<Arc<Node>>,
    Path(namespace): Path<String>,
    Query(query): Query<EntryQuery>,
) -> Result<StatusCode, Refused> {
    let operation = Operation::Delete { key: query.key, condition: Condition::None };
    match run(&node, &namespace, operation).await? {
        Outcome::Deleted(true) => Ok(StatusCode::NO_CONTENT),
        _ => Err(no_entry().into()),
    }
}

pub(super) async fn increment(
    State(node): State<Arc<Node>>,
    Path(namespace): Path<String>,
    Query(query): Query<EntryQuery>,
) -> Result<Json<KvWritten>, Refused> {
    let EntryQuery { key, ttl_ms, by, .. } = query;
    let operation = Operation::Increment { key, by: by.unwrap_or(1), ttl_ms };
    written(run(&node, &namespace, operation).await?)
}

fn written(outcome: Outcome) -> Result<Json<KvWritten>, Refused> {
    match outcome {
        Outcome::Written { version } => Ok(Json(KvWritten { version, value: None })),
        Outcome::Counted { version, value } => Ok(Json(KvWritten { version, value: Some(value) })),
        _ => Err(no_entry().into()),
    }
}

async fn run(node: &Node, namespace: &str, operation: Operation) -> Result<Outcome, Problem> {
    let namespace = parse(namespace)?;
    operation.check().map_err(|text| Problem::new(422, "M0903", text))?;
    let bytes = match &namespace {
        Namespace::Function(name) => {
            node.data_path.engine.get(name).map(|revision| revision.spec.state.quota_bytes)
        }
        Namespace::Shared(_) => None,
    };
    // If no function sets a quota for the namespace, whoever manages the node may fill it up to the
    // largest quota.
    let (Namespace::Function(name) | Namespace::Shared(name)) = &namespace;
    let limits = name::split(name).1.and_then(|owner| node.tenants.namespaces.get(owner).ok());
    let together_bytes = limits.and_then(|limits| limits.quotas.state_bytes);
    let quota = Quota { bytes: bytes.unwrap_or(QUOTA_BYTES_MAX), keys: KEYS_MAX, together_bytes };
    let result =
        match node.data_path.state.begin(namespace, operation, quota, true, clock::unix_ms()) {
            Begun::Done(result) => result,
            Begun::Later(result) => result.await,
        };
    result.map_err(|error| problem(&error))
}

fn parse(namespace: &str) -> Result<Namespace, Problem> {
    let shared = namespace.strip_prefix(SHARED);
    let text = shared.unwrap_or(namespace);
    if !name::is_valid(text) {
        let wrong = "namespace: the name of a function, or shared:NAME";
        return Err(Problem::new(422, "M0903", wrong).with_field("namespace"));
    }
    let text = text.to_owned();
    Ok(if shared.is_some() { Namespace::Shared(text) } else { Namespace::Function(text) })
}

fn no_entry() -> Problem {
    Problem::new(404, "M0901", "there is no entry with this key")
        .with_hint("see which keys there are: mote kv list NAMESPACE")
}

fn problem(error: &StateError) -> Problem {
    let text = error.to_string();
    match error {
        StateError::Conflict { .. } => Problem::new(409, "M0902", text),
        StateError::Invalid(_) => Problem::new(422, "M0903", text),
        StateError::Full(_) => Problem::new(507, "M0904", text)
            .with_hint("remove keys, or raise the quota in the manifest: [kv] quota"),
        StateError::Disk(_) => Problem::new(503, "M0905", text),
    }
}
