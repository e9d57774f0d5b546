//! Actions in a namespace of the node. Each action is a function of the namespace. Whatever else the
//! platform stores about an action is an annotation of that function, so that both are removed
//! together. Such a namespace has no packages, sequences, triggers or rules.

use std::collections::BTreeMap;

use crate::compat::node::{Function, NamespaceChange, Space};
use crate::compat::part::Part;
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};

use super::entities::{self, Entity, What, check_name};
use super::not_run::NotRun;
use super::{PARAMETERS_BYTES_MAX, Refused, Whisk};

const KEY: &str = "openwhisk";

/// The content of the annotation.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// The name of the action. It may contain characters that a function's name cannot.
    name: String,
    entity: Entity,
}

/// Returns the annotations for the function of an action.
pub(super) fn annotations(
    name: &str,
    entity: &Entity,
) -> Result<BTreeMap<String, String>, Refused> {
    let kept = Kept { name: name.to_owned(), entity: entity.clone() };
    let json = serde_json::to_string(&kept).unwrap_or_default();
    if json.len() > PARAMETERS_BYTES_MAX {
        let text = "parameters and annotations of an action have at most 1 MB".to_owned();
        return Err(Refused(StatusCode::PAYLOAD_TOO_LARGE, text));
    }
    Ok(BTreeMap::from([(KEY.to_owned(), json)]))
}

/// Returns the action that a function represents, and the action's name.
fn action_of(function: &Function) -> Option<(String, Entity)> {
    let Kept { name, mut entity } =
        serde_json::from_str(function.spec.annotations.get(KEY)?).ok()?;
    // Any client that deploys a function can write its annotations, so the function's name in them is
    // not trusted.
    let What::Action { function: own, .. } = &mut entity.what else { return None };
    *own = function.spec.name.to_string();
    check_name(&name).ok()?;
    Some((name, entity))
}

/// The actions of a namespace.
pub(super) fn list(whisk: &Whisk, space: &Space) -> Vec<(String, Entity)> {
    let all = whisk.context.node.functions();
    let own = all.iter().filter(|one| one.spec.name.namespace() == Some(&*space.name));
    own.filter_map(action_of).collect()
}

/// An action of a namespace.
pub(super) fn get(whisk: &Whisk, space: &Space, name: &str) -> Option<Entity> {
    if !whisk.context.node.namespaces().has(space) {
        return None;
    }
    // Most functions have the name of their action, so that function is tried first.
    let likely = format!("{}.{}", entities::label(name), space.name);
    let is_it = |(found, entity): (String, Entity)| (found == name).then_some(entity);
    let found = whisk.context.node.function(&likely).as_ref().and_then(action_of).and_then(is_it);
    found.or_else(|| list(whisk, space).into_iter().find_map(is_it))
}

/// Removes an action of a namespace.
pub(super) async fn remove(whisk: &Whisk, part: &Part, name: &str) -> Result<Response, Refused> {
    let entity = part.space().and_then(|space| get(whisk, space, name));
    let entity = entity.ok_or_else(Refused::not_found)?;
    if let What::Action { function, .. } = &entity.what {
        part.remove(function).await?;
    }
    Ok(Json(entity.shown_in(part.shown(), name)).into_response())
}

/// Begins an activation. The removal of the activation's namespace waits until the activation has
/// ended.
pub(super) fn begin(
    whisk: &Whisk,
    space: Option<&Space>,
) -> Result<Option<NamespaceChange>, NotRun> {
    let Some(space) = space else { return Ok(None) };
    let all = whisk.context.node.namespaces();
    let change = all.change(&space.name).map_err(|_| NotRun::Missing)?;
    // An activation that was accepted in a deleted namespace does not run in a new namespace of the
    // same name.
    if all.has(space) { Ok(Some(change)) } else { Err(NotRun::Missing) }
}

/// Refuses a kind of entity that a namespace cannot have.
pub(super) fn only_actions(namespace: &str) -> Refused {
    Refused::bad(format!(
        "the namespace {namespace} has actions only: packages, sequences, triggers and rules are \
         possible in the default namespace of the node"
    ))
}
