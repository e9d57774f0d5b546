//! Triggers, and the rules that run an action when a trigger fires.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::actions::{self, ActionChange, Flags, Page};
use super::callers::{self, Sender};
use super::entities::{self, Entity, EntityKind, What};
use super::id::Id;
use super::{NAMESPACE, Refused, Whisk, accepted, object, run};

pub(super) async fn list(State(whisk): State<Whisk>, Query(page): Query<Page>) -> Json<Value> {
    actions::list_of(&whisk, EntityKind::Trigger, &page)
}

pub(super) async fn list_rules(
    State(whisk): State<Whisk>,
    Query(page): Query<Page>,
) -> Json<Value> {
    actions::list_of(&whisk, EntityKind::Rule, &page)
}

pub(super) async fn dispatch(
    State(whisk): State<Whisk>,
    Path(name): Path<String>,
    Query(flags): Query<Flags>,
    sender: Sender,
    body: Bytes,
) -> Result<Response, Refused> {
    entities::check_name(&name)?;
    let node = whisk.context.node.as_ref();
    let known = whisk.entities.get(EntityKind::Trigger, &name);
    match sender.method {
        Method::PUT => {
            let wish: ActionChange = object(&body)?;
            let _turn = whisk.entities.turn().await;
            if known.is_some() && !flags.overwrite {
                return Err(Refused::conflict("resource already exists"));
            }
            let mut entity = known.unwrap_or_else(|| Entity::new(What::Trigger));
            actions::take(&mut entity, &wish);
            let entity = whisk.entities.put(node, EntityKind::Trigger, &name, entity, None).await?;
            Ok(Json(entity.shown(&name)).into_response())
        }
        Method::GET => {
            let mut shown = known.ok_or_else(Refused::not_found)?.shown(&name);
            shown.insert("rules".into(), rules_of(&whisk, &name));
            Ok(Json(shown).into_response())
        }
        Method::DELETE => {
            let _turn = whisk.entities.turn().await;
            let entity = known.ok_or_else(Refused::not_found)?;
            whisk.entities.remove(node, EntityKind::Trigger, &name).await?;
            Ok(Json(entity.shown(&name)).into_response())
        }
        Method::POST => {
            let known = known.ok_or_else(Refused::not_found)?;
            fire(&whisk, &name, &known, &sender, &body).await
        }
        _ => Err(Refused::method()),
    }
}

/// Returns the rules of a trigger in the form in which the API shows them with the trigger.
fn rules_of(whisk: &Whisk, trigger: &str) -> Value {
    let mut rules = Map::new();
    for (name, rule) in whisk.entities.list(EntityKind::Rule) {
        let shown = rule.shown(&name);
        if matches!(&rule.what, What::Rule { trigger: of, .. } if of == trigger) {
            let rule = json!({ "action": shown["action"], "status": shown["status"] });
            rules.insert(format!("{NAMESPACE}/{name}"), rule);
        }
    }
    rules.into()
}

/// Accepts the actions of all active rules. Answers 204 if no rule is active. If no action could be
/// accepted, answers with the first refusal.
async fn fire(
    whisk: &Whisk,
    name: &str,
    trigger: &Entity,
    sender: &Sender,
    body: &[u8],
) -> Result<Response, Refused> {
    let given: Map<String, Value> = object(body)?;
    whisk.limits.of(None).fire()?;
    let mut payload = entities::merged([trigger.parameters.as_slice()]);
    payload.extend(given);
    let id = run::new_id(whisk);
    let started = entities::unix_ms();
    let mut ran = Vec::new();
    let mut refused = Vec::new();
    for (rule, entity) in whisk.entities.list(EntityKind::Rule) {
        let What::Rule { trigger: of, action, active: true } = &entity.what else { continue };
        if of != name {
            continue;
        }
        let mut line = json!({ "rule": format!("{NAMESPACE}/{rule}"), "action": format!("{NAMESPACE}/{action}") });
        match start(whisk, action, payload.clone(), id, sender).await {
            Ok(caused) => {
                line["success"] = true.into();
                line["activationId"] = caused.into();
                line["statusCode"] = 0.into();
            }
            Err(reason) => {
                line["success"] = false.into();
                line["statusCode"] = reason.0.as_u16().into();
                line["error"] = reason.1.clone().into();
                refused.push(reason);
            }
        }
        ran.push(Value::from(line.to_string()));
    }
    if ran.len() == refused.len() {
        return match refused.into_iter().next() {
            Some(reason) => Err(reason),
            None => Ok(StatusCode::NO_CONTENT.into_response()),
        };
    }
    let mut record = run::record(None, name, trigger, id, started);
    record["response"] = run::response(0, Value::Object(payload));
    record["logs"] = ran.into();
    whisk.activations.add(id, record);
    // The record names the accepted activations, so it must be on disk before the client receives the
    // id of the record.
    whisk.activations.write(whisk.context.node.as_ref()).await;
    Ok((StatusCode::ACCEPTED, Json(json!({ "activationId": id }))).into_response())
}

async fn start(
    whisk: &Whisk,
    action: &str,
    payload: Map<String, Value>,
    cause: Id,
    sender: &Sender,
) -> Result<Id, Refused> {
    let found = run::find(whisk, None, action)?;
    let caller = callers::admit(whisk, &found, &mut sender.fields.clone(), sender.from);
    let (caller, _places) = caller.map_err(|fault| callers::refused(&fault, action))?;
    accepted::accept(whisk, action, found, payload, (Some(cause), caller)).await
}

/// A client's description of a rule. The trigger and the action are given as names or as `{name,
/// path}`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuleWish {
    trigger: Value,
    action: Value,
    status: Option<String>,
}

fn reference(value: &Value) -> Result<Option<String>, Refused> {
    match value {
        Value::Null => Ok(None),
        Value::String(name) => entities::local_name(name).map(Some),
        other => {
            let path = other["path"].as_str();
            let name = other["name"].as_str().unwrap_or("");
            entities::local_name(&format!("/{}/{name}", path.unwrap_or(NAMESPACE))).map(Some)
        }
    }
}

pub(super) async fn dispatch_rule(
    State(whisk): State<Whisk>,
    Path(name): Path<String>,
    Query(flags): Query<Flags>,
    method: Method,
    body: Bytes,
) -> Result<Response, Refused> {
    entities::check_name(&name)?;
    let node = whisk.context.node.as_ref();
    let _turn = whisk.entities.turn().await;
    let known = whisk.entities.get(EntityKind::Rule, &name);
    match method {
        Method::PUT => {
            if known.is_some() && !flags.overwrite {
                return Err(Refused::conflict("resource already exists"));
            }
            let entity = rule(&whisk, known, object(&body)?)?;
            let entity = whisk.entities.put(node, EntityKind::Rule, &name, entity, None).await?;
            Ok(Json(entity.shown(&name)).into_response())
        }
        Method::GET => Ok(Json(known.ok_or_else(Refused::not_found)?.shown(&name)).into_response()),
        Method::DELETE => {
            let entity = known.ok_or_else(Refused::not_found)?;
            whisk.entities.remove(node, EntityKind::Rule, &name).await?;
            Ok(Json(entity.shown(&name)).into_response())
        }
        Method::POST => {
            let wish: RuleWish = object(&body)?;
            let mut entity = known.ok_or_else(Refused::not_found)?;
            let wanted = is_active(wish.status.as_deref())?;
            if let What::Rule { active, .. } = &mut entity.what {
                *active = wanted.ok_or_else(|| Refused::bad("status undefined"))?;
            }
            whisk.entities.put(node, EntityKind::Rule, &name, entity, None).await?;
            Ok(StatusCode::OK.into_response())
        }
        _ => Err(Refused::method()),
    }
}

fn is_active(status: Option<&str>) -> Result<Option<bool>, Refused> {
    match status {
        // wsk sends an empty status with every rule that it creates or changes.
        None | Some("") => Ok(None),
        Some("active") => Ok(Some(true)),
        Some("inactive") => Ok(Some(false)),
        Some(other) => Err(Refused::bad(format!("'{other}' is not a recognized rule state"))),
    }
}

fn rule(whisk: &Whisk, known: Option<Entity>, wish: RuleWish) -> Result<Entity, Refused> {
    let (before, mut entity) = match known {
        Some(Entity { what: What::Rule { trigger, action, active }, .. }) => {
            (Some((trigger, action, active)), Entity::new(What::Trigger))
        }
        _ => (None, Entity::new(What::Trigger)),
    };
    let (old_trigger, old_action, old_active) = match before {
        Some((trigger, action, active)) => (Some(trigger), Some(action), active),
        None => (None, None, true),
    };
    let missing = |what: &str| Refused::bad(format!("{what} undefined"));
    let trigger = reference(&wish.trigger)?.or(old_trigger).ok_or_else(|| missing("trigger"))?;
    let action = reference(&wish.action)?.or(old_action).ok_or_else(|| missing("action"))?;
    let active = is_active(wish.status.as_deref())?.unwrap_or(old_active);
    if whisk.entities.get(EntityKind::Trigger, &trigger).is_none() {
        return Err(Refused(StatusCode::NOT_FOUND, "trigger does not exist".to_owned()));
    }
    if run::find(whisk, None, &action).is_err() {
        return Err(Refused(StatusCode::NOT_FOUND, "action does not exist".to_owned()));
    }
    entity.what = What::Rule { trigger, action, active };
    Ok(entity)
}
