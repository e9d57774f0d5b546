//! Packages, which group actions under one name with common parameters, and bindings of packages.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::actions::{self, ActionChange, Flags, Page};
use super::entities::{self, Entity, EntityKind, What};
use super::{NAMESPACE, Refused, Whisk, object};

pub(super) async fn list(State(whisk): State<Whisk>, Query(page): Query<Page>) -> Json<Value> {
    actions::list_of(&whisk, EntityKind::Package, &page)
}

pub(super) async fn dispatch(
    State(whisk): State<Whisk>,
    Path(name): Path<String>,
    Query(flags): Query<Flags>,
    method: Method,
    body: Bytes,
) -> Result<Response, Refused> {
    entities::check_name(&name)?;
    match method {
        Method::PUT => put(&whisk, &name, &flags, &body).await,
        Method::GET => show(&whisk, &name),
        Method::DELETE => remove(&whisk, &name, flags.force).await,
        _ => Err(Refused::method()),
    }
}

fn show(whisk: &Whisk, name: &str) -> Result<Response, Refused> {
    let entity = whisk.entities.get(EntityKind::Package, name).ok_or_else(Refused::not_found)?;
    let mut shown = entity.shown(name);
    let of = match &entity.what {
        What::Package { binding: Some(real) } => real.as_str(),
        _ => name,
    };
    let inside: Vec<Value> = actions_of(whisk, of)
        .into_iter()
        .map(|(full, action)| {
            json!({
                "name": full.rsplit('/').next(), "version": format!("0.0.{}", action.version),
                "annotations": action.annotations, "parameters": action.parameters,
            })
        })
        .collect();
    shown.insert("actions".into(), inside.into());
    shown.insert("feeds".into(), json!([]));
    Ok(Json(shown).into_response())
}

fn actions_of(whisk: &Whisk, package: &str) -> Vec<(String, Entity)> {
    let inside = |name: &str| name.split_once('/').is_some_and(|(of, _)| of == package);
    whisk.entities.list(EntityKind::Action).into_iter().filter(|(name, _)| inside(name)).collect()
}

async fn put(whisk: &Whisk, name: &str, flags: &Flags, body: &[u8]) -> Result<Response, Refused> {
    let written: Value = object(body)?;
    let wish: ActionChange = object(body)?;
    let _turn = whisk.entities.turn().await;
    let known = whisk.entities.get(EntityKind::Package, name);
    if known.is_some() && !flags.overwrite {
        return Err(Refused::conflict("resource already exists"));
    }
    let binding = match written["binding"]["name"].as_str().filter(|name| !name.is_empty()) {
        Some(bound) => {
            let namespace = written["binding"]["namespace"].as_str().unwrap_or(NAMESPACE);
            let bound = entities::local_name(&format!("/{namespace}/{bound}"));
            let missing = |_| Refused::bad("Binding references a package that does not exist.");
            let bound = bound.map_err(missing)?;
            let real = whisk.entities.get(EntityKind::Package, &bound);
            match real.map(|real| real.what) {
                Some(What::Package { binding: None }) => Some(bound),
                Some(_) => return Err(Refused::bad("Cannot bind to another package binding.")),
                None => return Err(missing(Refused::not_found())),
            }
        }
        None => known.as_ref().and_then(|known| match &known.what {
            What::Package { binding } => binding.clone(),
            _ => None,
        }),
    };
    let mut entity = known.unwrap_or_else(|| Entity::new(What::Package { binding: None }));
    actions::take(&mut entity, &wish);
    entity.what = What::Package { binding };
    let node = whisk.context.node.as_ref();
    let entity = whisk.entities.put(node, EntityKind::Package, name, entity, None).await?;
    Ok(Json(entity.shown(name)).into_response())
}

async fn remove(whisk: &Whisk, name: &str, force: bool) -> Result<Response, Refused> {
    let entity = whisk.entities.get(EntityKind::Package, name).ok_or_else(Refused::not_found)?;
    let inside = actions_of(whisk, name);
    if !inside.is_empty() && !force {
        let text = format!(
            "Package not empty (contains {} entities). Set force param or delete package contents.",
            inside.len()
        );
        return Err(Refused::conflict(text));
    }
    for (action, _) in inside {
        actions::remove(whisk, &action).await?;
    }
    let _turn = whisk.entities.turn().await;
    whisk.entities.remove(whisk.context.node.as_ref(), EntityKind::Package, name).await?;
    Ok(Json(entity.shown(name)).into_response())
}
