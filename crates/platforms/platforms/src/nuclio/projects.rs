//! Projects. The list contains the default project, the projects that clients created or named in
//! labels of functions, and the node's namespaces, which cannot be changed here.

use std::collections::BTreeMap;

use crate::compat::node::Change;
use crate::compat::part::Part;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use mote_spec::FunctionName;
use serde_json::{Value, json};

use super::functions::{Kept, managed_ones, project_of};
use super::{Dashboard, NAMESPACE, PROJECT, Refused, parse};

const COLLECTION: &str = "nuclio/projects";
/// The most projects. Their number is limited because each project is a row that every list reads.
const PROJECTS_MAX: usize = 1_000;
const PROJECT_BYTES_MAX: usize = 16 << 10;

pub(super) async fn all(
    State(dashboard): State<Dashboard>,
    part: Part,
) -> Result<Json<BTreeMap<String, Value>>, Refused> {
    Ok(Json(known(&dashboard, &part).await?))
}

pub(super) async fn one(
    State(dashboard): State<Dashboard>,
    Path(name): Path<String>,
    part: Part,
) -> Result<Json<Value>, Refused> {
    known(&dashboard, &part).await?.remove(&name).map(Json).ok_or_else(not_found)
}

pub(super) async fn create(
    State(dashboard): State<Dashboard>,
    part: Part,
    body: Bytes,
) -> Result<(StatusCode, Json<Value>), Refused> {
    let project = sent(&body)?;
    let known = known(&dashboard, &part).await?;
    if known.contains_key(&project.name) {
        return Err(Refused::new(StatusCode::CONFLICT, "project already exists".to_owned()));
    }
    if known.len() >= PROJECTS_MAX {
        return Err(Refused::bad(format!("there are {PROJECTS_MAX} projects, which is the limit")));
    }
    keep(&dashboard, &project.name, Some(&project.document)).await?;
    Ok((StatusCode::CREATED, Json(project.document)))
}

pub(super) async fn update(
    State(dashboard): State<Dashboard>,
    Path(name): Path<String>,
    part: Part,
    body: Bytes,
) -> Result<StatusCode, Refused> {
    let project = sent(&body)?;
    if project.name != name {
        return Err(Refused::bad(format!(
            "metadata.name is {}, but the URL names another project",
            project.name
        )));
    }
    may_change(&dashboard, &part, &name).await?;
    keep(&dashboard, &name, Some(&project.document)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn remove_named(
    State(dashboard): State<Dashboard>,
    part: Part,
    body: Bytes,
) -> Result<StatusCode, Refused> {
    let name = sent(&body)?.name;
    remove(State(dashboard), Path(name), part).await
}

/// Removes a project that has no functions. The platform can also remove a project together with its
/// functions if the client asks for that; this API refuses.
pub(super) async fn remove(
    State(dashboard): State<Dashboard>,
    Path(name): Path<String>,
    part: Part,
) -> Result<StatusCode, Refused> {
    may_change(&dashboard, &part, &name).await?;
    if name == PROJECT {
        let text = format!("the project {PROJECT} cannot be removed");
        return Err(Refused::new(StatusCode::PRECONDITION_FAILED, text));
    }
    if named(&part).any(|used| used == name) {
        let text = "project has functions: remove them first".to_owned();
        return Err(Refused::new(StatusCode::PRECONDITION_FAILED, text));
    }
    keep(&dashboard, &name, None).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Fails unless this API manages a project with this name.
async fn may_change(dashboard: &Dashboard, part: &Part, name: &str) -> Result<(), Refused> {
    if part.has_token() && part.is_namespace(name) {
        let text = format!("project {name} is a namespace of the node: see mote namespace");
        return Err(Refused::new(StatusCode::PRECONDITION_FAILED, text));
    }
    let is_known = known(dashboard, part).await?.contains_key(name);
    if is_known { Ok(()) } else { Err(not_found()) }
}

struct Project {
    name: String,
    document: Value,
}

fn sent(body: &[u8]) -> Result<Project, Refused> {
    if body.len() > PROJECT_BYTES_MAX {
        let text = format!("body: a project has up to {PROJECT_BYTES_MAX} bytes");
        return Err(Refused::new(StatusCode::PAYLOAD_TOO_LARGE, text));
    }
    let document: Value = parse(body)?;
    let metadata = &document["metadata"];
    let name = metadata["name"].as_str();
    let name = name.ok_or_else(|| Refused::bad("metadata.name: the project's name"))?;
    if let Err(error) = FunctionName::new(name) {
        return Err(Refused::bad(format!("metadata.name: {error}")));
    }
    let mut kept = document_of(name);
    for part in ["labels", "annotations"] {
        if metadata[part].is_object() {
            kept["metadata"][part] = metadata[part].clone();
        }
    }
    if document["spec"].is_object() {
        kept["spec"] = document["spec"].clone();
    }
    Ok(Project { name: name.to_owned(), document: kept })
}

async fn known(dashboard: &Dashboard, part: &Part) -> Result<BTreeMap<String, Value>, Refused> {
    let mut all = BTreeMap::new();
    if part.is_confined() {
        all.insert(part.shown().to_owned(), document_of(part.shown()));
        return Ok(all);
    }
    let names = named(part).chain(part.namespaces());
    all.extend(names.map(|name| (name.clone(), document_of(&name))));
    for (name, bytes) in dashboard.documents.documents(COLLECTION).await? {
        // A client without a token may have created a label that has the name of a namespace.
        if part.has_token() && part.is_namespace(&name) {
            continue;
        }
        if let Ok(document) = serde_json::from_slice(&bytes) {
            all.insert(name, document);
        }
    }
    Ok(all)
}

/// The projects that labels of functions name.
fn named(part: &Part) -> impl Iterator<Item = String> + use<> {
    managed_ones(part).into_iter().map(|one| project_of(&Kept::of(&one).metadata))
}

async fn keep(dashboard: &Dashboard, name: &str, document: Option<&Value>) -> Result<(), Refused> {
    let value = document.map(|document| document.to_string().into_bytes());
    let change = Change { collection: COLLECTION, key: name.to_owned(), value };
    Ok(dashboard.documents.put_documents(vec![change]).await?)
}

fn document_of(name: &str) -> Value {
    json!({ "metadata": { "name": name, "namespace": NAMESPACE }, "spec": {}, "status": {} })
}

pub(super) fn not_found() -> Refused {
    Refused::new(StatusCode::NOT_FOUND, "project not found".to_owned())
}
