//! Lists, shows, deploys, changes and removes functions, and shows their replicas and logs.

use std::collections::BTreeMap;

use crate::compat::node::{Code, Deploy, Function, Manifest};
use crate::compat::part::Part;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use mote_api::types::LogLine;
use mote_spec::name::split;
use mote_spec::{FunctionName, Platform};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::building::{Build, Busy};
use super::{Dashboard, NAMESPACE, PROJECT, PROJECT_LABEL, Refused, field, parse, unknown, within};

/// The header field in which a request names a project.
pub(super) const PROJECT_FIELD: &str = "x-nuclio-project-name";
/// The longest document that is stored with its source, so that it can be shown again. A longer
/// document is stored without its source.
const KEPT_BYTES_MAX: usize = 512 << 10;

/// The parts of a document that are stored so that they can be shown again.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Kept {
    #[serde(default)]
    pub(super) metadata: Value,
    #[serde(default)]
    pub(super) spec: Value,
}

impl Kept {
    const KEY: &str = "nuclio";

    pub(super) fn of(function: &Function) -> Self {
        let kept = function.spec.annotations.get(Self::KEY);
        kept.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
    }

    fn json(document: &Value) -> String {
        let text =
            |spec: &Value| json!({ "metadata": document["metadata"], "spec": spec }).to_string();
        let whole = text(&document["spec"]);
        if whole.len() <= KEPT_BYTES_MAX {
            return whole;
        }
        let mut spec = document["spec"].clone();
        if let Some(build) = spec["build"].as_object_mut() {
            build.remove("functionSourceCode");
        }
        text(&spec)
    }
}

/// Returns whether this API made a function. Without credentials, the API shows and manages no other
/// function. Otherwise any process on this machine could read descriptions that others deployed and
/// replace their code.
pub(super) fn is_ours(function: &Function) -> bool {
    function.spec.annotations.contains_key(Kept::KEY)
}

/// The functions that this sender may see and manage.
pub(super) fn managed_ones(part: &Part) -> Vec<Function> {
    let mut all = part.functions();
    all.retain(|function| part.has_token() || is_ours(function));
    all
}

fn managed(part: &Part, name: &str) -> Result<Function, Refused> {
    let function = part.function(name).ok_or_else(|| unknown(name))?;
    if part.has_token() || is_ours(&function) {
        return Ok(function);
    }
    let text = format!(
        "function {name} was not deployed through this API, which requires no credentials here"
    );
    Err(Refused::new(StatusCode::FORBIDDEN, text))
}

/// Returns the part of the node for the project in the request's header field.
pub(super) fn asked(part: &Part, fields: &HeaderMap) -> Result<Part, Refused> {
    within(part, field(fields, PROJECT_FIELD))
}

/// Returns the part of the node for the project that a document names. If the document names no
/// project, the header field of the request does.
fn wished(part: &Part, fields: &HeaderMap, document: &Value) -> Result<Part, Refused> {
    let labelled = document["metadata"]["labels"][PROJECT_LABEL].as_str();
    within(part, labelled.filter(|name| !name.is_empty()).or(field(fields, PROJECT_FIELD)))
}

/// The project that a function's label names.
pub(super) fn project_of(metadata: &Value) -> String {
    metadata["labels"][PROJECT_LABEL].as_str().unwrap_or(PROJECT).to_owned()
}

pub(super) async fn all(
    State(dashboard): State<Dashboard>,
    part: Part,
    fields: HeaderMap,
) -> Result<Json<BTreeMap<String, Value>>, Refused> {
    let project = field(&fields, PROJECT_FIELD);
    let part = asked(&part, &fields)?;
    let mut found = BTreeMap::new();
    for function in managed_ones(&part) {
        found.insert(function.spec.name.label().to_owned(), shown(&function));
    }
    for (name, build) in dashboard.building.all(part.space()) {
        found.insert(split(&name).0.to_owned(), built(&build));
    }
    found.retain(|_, document| {
        let is_wanted = |wanted| project_of(&document["metadata"]) == wanted;
        part.namespace().is_some() || project.is_none_or(is_wanted)
    });
    Ok(Json(found))
}

pub(super) async fn one(
    State(dashboard): State<Dashboard>,
    Path(name): Path<String>,
    part: Part,
    fields: HeaderMap,
) -> Result<Json<Value>, Refused> {
    let part = asked(&part, &fields)?;
    let full = part.full(&name).ok_or_else(|| unknown(&name))?;
    if let Some(build) = dashboard.building.get(&full, part.space()) {
        return Ok(Json(built(&build)));
    }
    Ok(Json(shown(&managed(&part, &full)?)))
}

/// Writes the name of a namespace into the label that the platform uses for the project.
fn label(metadata: &mut Value, project: &str) {
    if !metadata["labels"].is_object() {
        metadata["labels"] = json!({});
    }
    metadata["labels"][PROJECT_LABEL] = project.into();
}

/// The document of an existing function.
fn shown(function: &Function) -> Value {
    let mut kept = Kept::of(function);
    if !kept.metadata.is_object() {
        kept.metadata = json!({ "labels": { PROJECT_LABEL: PROJECT } });
    }
    kept.metadata["name"] = function.spec.name.label().into();
    kept.metadata["namespace"] = NAMESPACE.into();
    if let Some(namespace) = function.spec.name.namespace() {
        label(&mut kept.metadata, namespace);
    }
    if !kept.spec.is_object() {
        // The environment's values are left out, because another client chose them and may keep them
        // secret.
        let runtime = function.spec.runtime.as_str();
        let handler = &function.spec.entry;
        kept.spec = json!({ "runtime": runtime, "handler": handler, "env": [] });
    }
    let mut status = match &function.failure {
        Some(failure) => json!({ "state": "unhealthy", "message": failure }),
        None => json!({ "state": "ready" }),
    };
    let url = function.http_url.as_deref().and_then(|url| url.strip_prefix("http://"));
    status["externalInvocationUrls"] = url.into_iter().collect();
    status["internalInvocationUrls"] = json!([]);
    json!({ "metadata": kept.metadata, "spec": kept.spec, "status": status })
}

/// Returns the document of a function whose deploy is under way or has failed.
fn built(build: &Build) -> Value {
    let metadata = &build.document["metadata"];
    let spec = &build.document["spec"];
    let status = match &build.failure {
        Some(failure) => json!({ "state": "error", "message": failure }),
        None => json!({ "state": "building" }),
    };
    json!({ "metadata": metadata, "spec": spec, "status": status })
}

pub(super) async fn create(
    State(dashboard): State<Dashboard>,
    part: Part,
    fields: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, Refused> {
    let document: Value = parse(&body)?;
    let part = wished(&part, &fields, &document)?;
    let name = name_of(&document, &part)?;
    if part.function(name.as_str()).is_some() {
        return Err(Refused::new(StatusCode::CONFLICT, format!("function {name} already exists")));
    }
    deploy(&dashboard, &part, &fields, name, document, false).await
}

pub(super) async fn update(
    State(dashboard): State<Dashboard>,
    Path(path): Path<String>,
    part: Part,
    fields: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, Refused> {
    let document: Value = parse(&body)?;
    let part = wished(&part, &fields, &document)?;
    let name = name_of(&document, &part)?;
    if part.full(&path).as_deref() != Some(name.as_str()) {
        return Err(Refused::bad(format!(
            "metadata.name is {name}, but the URL names another function"
        )));
    }
    managed(&part, name.as_str())?;
    deploy(&dashboard, &part, &fields, name, document, true).await
}

fn name_of(document: &Value, part: &Part) -> Result<FunctionName, Refused> {
    let name = document["metadata"]["name"].as_str();
    let name = name.ok_or_else(|| Refused::bad("metadata.name: the function's name"))?;
    if !document["spec"].is_object() {
        return Err(Refused::bad("spec: the function's specification"));
    }
    match document["metadata"]["namespace"].as_str() {
        None | Some("" | NAMESPACE) => {}
        Some(_) => {
            return Err(Refused::bad(format!("metadata.namespace: there is {NAMESPACE} only")));
        }
    }
    let name = part.full(name).ok_or_else(|| unknown(name))?;
    FunctionName::new(&name).map_err(|error| Refused::bad(format!("metadata.name: {error}")))
}

/// Begins a deploy. Answers 202 at once, or when the deploy ends if the client asks to wait.
async fn deploy(
    dashboard: &Dashboard,
    part: &Part,
    fields: &HeaderMap,
    name: FunctionName,
    mut document: Value,
    replace: bool,
) -> Result<StatusCode, Refused> {
    if let Some(namespace) = part.namespace() {
        document["metadata"]["name"] = name.label().into();
        label(&mut document["metadata"], namespace);
    }
    let has_code = document["spec"]["build"]["functionSourceCode"].is_string();
    let code = if replace && !has_code { Code::Of(name.clone()) } else { Code::InDocument };
    let annotations = BTreeMap::from([(Kept::KEY.to_owned(), Kept::json(&document))]);
    let manifest = Manifest::Document(Platform::Nuclio, Box::new(document.clone()));
    // A deploy without credentials must not give code access to the secrets of the function that it
    // replaces.
    let known = part.function(name.as_str()).filter(|_| part.has_token());
    let secrets = known.map_or_else(Vec::new, |function| function.spec.secrets);
    let deploy = Deploy {
        name: name.clone(),
        code,
        manifest,
        annotations,
        secrets,
        may_name_secrets: part.has_token(),
        replace,
        registry_login: None,
    };
    dashboard.building.begin(name.as_str(), document, part.space()).map_err(|busy| match busy {
        Busy::Function => {
            Refused::new(StatusCode::CONFLICT, format!("function {name} is being built"))
        }
        Busy::Node => Refused::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many functions are being built".to_owned(),
        ),
    })?;
    let deploying = part.deploy(deploy);
    let building = dashboard.building.clone();
    let task = tokio::spawn(async move {
        let result = deploying.await;
        building.end(name.as_str(), result.as_ref().err().map(crate::compat::words));
        result
    });
    let wait = field(fields, "x-nuclio-wait-function-action").is_some_and(|text| text == "true");
    if wait {
        let gone = |_| {
            Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "the deploy was cut off".to_owned())
        };
        task.await.map_err(gone)??;
    }
    Ok(StatusCode::ACCEPTED)
}

pub(super) async fn patch(
    Path(name): Path<String>,
    part: Part,
    fields: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, Refused> {
    let wish: Value = parse(&body)?;
    let instances = match wish["desiredState"].as_str() {
        Some("ready") => 1,
        Some("scaledToZero") => 0,
        _ => return Err(Refused::bad("desiredState: ready or scaledToZero")),
    };
    let part = asked(&part, &fields)?;
    managed(&part, &name)?;
    part.scale(&name, instances).await?;
    Ok(StatusCode::ACCEPTED)
}

pub(super) async fn remove(
    State(dashboard): State<Dashboard>,
    Path(name): Path<String>,
    part: Part,
    fields: HeaderMap,
) -> Result<StatusCode, Refused> {
    remove_one(&dashboard, &asked(&part, &fields)?, &name).await
}

pub(super) async fn remove_named(
    State(dashboard): State<Dashboard>,
    part: Part,
    fields: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, Refused> {
    let document: Value = parse(&body)?;
    let name = document["metadata"]["name"].as_str();
    let name = name.ok_or_else(|| Refused::bad("metadata.name: the function to remove"))?;
    remove_one(&dashboard, &wished(&part, &fields, &document)?, name).await
}

async fn remove_one(dashboard: &Dashboard, part: &Part, name: &str) -> Result<StatusCode, Refused> {
    let full = part.full(name).ok_or_else(|| unknown(name))?;
    let had_failed = dashboard.building.forget(&full);
    if part.function(&full).is_some() {
        managed(part, &full)?;
    }
    match part.remove(&full).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(problem) if problem.status == 404 && had_failed => Ok(StatusCode::NO_CONTENT),
        Err(problem) if problem.status == 404 => Err(unknown(name)),
        Err(problem) => Err(problem.into()),
    }
}

pub(super) async fn replicas(
    Path(name): Path<String>,
    part: Part,
    fields: HeaderMap,
) -> Result<Json<Value>, Refused> {
    let function = managed(&asked(&part, &fields)?, &name)?;
    Ok(Json(json!({ "names": function.instance_ids })))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LogQuery {
    follow: Option<String>,
    since: Option<String>,
    tail_lines: Option<usize>,
}

/// Returns the log of a replica. If the function's name is given instead of a replica's, returns the
/// log of the function.
pub(super) async fn logs(
    State(dashboard): State<Dashboard>,
    Path((name, replica)): Path<(String, String)>,
    Query(query): Query<LogQuery>,
    part: Part,
    fields: HeaderMap,
) -> Result<Response, Refused> {
    let since_ms = match query.since.as_deref().filter(|text| !text.is_empty()) {
        None => 0,
        Some(text) => match mote_spec::quantity::parse_duration_ms(text) {
            Ok(ms) => now_ms().saturating_sub(ms),
            Err(_) => return Err(Refused::bad("since: a duration such as 10m")),
        },
    };
    let part = asked(&part, &fields)?;
    managed(&part, &name)?;
    let follow = query.follow.as_deref() == Some("true");
    let log = part.logs(&name, follow).ok_or_else(|| unknown(&name))?;
    let everything = replica == name;
    let wanted = move |line: &LogLine| {
        line.time.unix_ms() >= since_ms && (everything || line.instance.as_ref() == Some(&replica))
    };
    let mut held: Vec<LogLine> = log.held.into_iter().filter(|line| wanted(line)).collect();
    if let Some(tail) = query.tail_lines {
        held.drain(..held.len().saturating_sub(tail));
    }
    let following = log.following.filter(move |line| std::future::ready(wanted(line)));
    let stop = dashboard.stop.clone();
    let stopped = async move { stop.stopped().await };
    let lines = futures_util::stream::iter(held).chain(following).take_until(Box::pin(stopped));
    let text = |line: LogLine| {
        let LogLine { time, level, message, .. } = line;
        Ok::<_, std::convert::Infallible>(Bytes::from(format!("{time} ({level}) {message}\n")))
    };
    let kind = [("content-type", "text/plain; charset=utf-8")];
    Ok((kind, Body::from_stream(lines.map(text))).into_response())
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}
