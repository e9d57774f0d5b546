//! Runs the activation of an action or a sequence, and records the result.

use std::time::Duration;

use crate::compat::journal::Kept;
use crate::compat::node::{Call, Space};
use axum::http::StatusCode;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use mote_api::Timestamp;
use mote_core::body::Body;
use mote_core::invocation::{Head, Reply};
use mote_core::openwhisk_action as whisk;
use mote_core::{Fault, FaultClass, InvocationId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::action_limits::limits;
use super::entities::{self, Entity, EntityKind, What};
use super::id::Id;
use super::not_run::NotRun;
use super::{NAMESPACE, PARAMETERS_BYTES_MAX, Refused, Whisk, activations, spaces, system};

/// How often an activation is tried while the node has no room for it.
const TRIES_MAX: u32 = 8;
/// The pause before the second attempt. Each further pause is twice as long.
const PAUSE: Duration = Duration::from_millis(500);

/// The longest sequence, and how deeply sequences may be nested.
pub(super) const SEQUENCE_MAX: usize = 50;
const DEPTH_MAX: usize = 8;

/// One activation of an action.
#[derive(Debug, Clone)]
pub(super) struct Activation {
    pub(super) id: Id,
    pub(super) found: Found,
    /// The parameters: an object, or the array that the previous action of a sequence returned.
    pub(super) payload: Value,
    pub(super) cause: Option<Id>,
    /// The name of the caller, if it was admitted to a function that requires a key.
    pub(super) caller: Option<String>,
}

/// The behaviour of an activation if the node has no room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// The activation is refused, because a client waits for the answer and may try again.
    Refused,
    /// The activation is tried again for about a minute, because it was already accepted or has begun.
    Waits,
}

/// The result of an activation.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) id: Id,
    pub(super) record: Value,
}

impl Ended {
    pub(super) fn result(&self) -> &Value {
        &self.record["response"]["result"]
    }

    /// Returns 0 for success, 1 for an error that the action reported, 2 if the action failed, and 3 if
    /// the platform failed.
    pub(super) fn code(&self) -> u64 {
        self.record["response"]["statusCode"].as_u64().unwrap_or(3)
    }

    pub(super) fn status(&self) -> StatusCode {
        match self.code() {
            0 => StatusCode::OK,
            1 | 2 => StatusCode::BAD_GATEWAY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// An action with its parameters. The action's own parameters take precedence over those of its
/// package.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// The namespace; `None` is the default namespace.
    pub(super) space: Option<Space>,
    pub(super) name: String,
    pub(super) entity: Entity,
    pub(super) parameters: Map<String, Value>,
}

impl Found {
    /// Returns the name by which clients know the namespace.
    pub(super) fn namespace(&self) -> &str {
        self.space.as_ref().map_or(NAMESPACE, |space| &space.name)
    }
}

/// Finds the action with this name. If the name contains a binding, the action belongs to the binding's
/// package.
pub(super) fn find(whisk: &Whisk, space: Option<&Space>, name: &str) -> Result<Found, Refused> {
    let missing = Refused::not_found;
    if let Some(space) = space {
        let entity = spaces::get(whisk, space, name).ok_or_else(missing)?;
        let parameters = entities::merged([entity.parameters.as_slice()]);
        return Ok(Found { space: Some(space.clone()), name: name.to_owned(), entity, parameters });
    }
    let space = None;
    if system::action_of(name).is_some() {
        let what = What::Action {
            exec: json!({ "kind": "builtin" }),
            limits: limits(None, None)?,
            function: String::new(),
        };
        let entity = Entity::new(what);
        let parameters = Map::new();
        return Ok(Found { space, name: name.to_owned(), entity, parameters });
    }
    let Some((package, own)) = name.split_once('/') else {
        let entity = whisk.entities.get(EntityKind::Action, name).ok_or_else(missing)?;
        let parameters = entities::merged([entity.parameters.as_slice()]);
        return Ok(Found { space, name: name.to_owned(), entity, parameters });
    };
    let holder = whisk.entities.get(EntityKind::Package, package).ok_or_else(missing)?;
    let (real, bound) = match &holder.what {
        What::Package { binding: Some(real) } => {
            let bound = whisk.entities.get(EntityKind::Package, real).ok_or_else(missing)?;
            (real.as_str(), bound.parameters)
        }
        _ => (package, Vec::new()),
    };
    let name = format!("{real}/{own}");
    let entity = whisk.entities.get(EntityKind::Action, &name).ok_or_else(missing)?;
    let lists = [bound.as_slice(), holder.parameters.as_slice(), entity.parameters.as_slice()];
    let parameters = entities::merged(lists);
    Ok(Found { space, name, entity, parameters })
}

pub(super) fn new_id(whisk: &Whisk) -> Id {
    Id(InvocationId::new(entities::unix_ms(), whisk.context.node.random()).0)
}

/// Returns the arguments of an action. The parameters of the call override the action's own.
fn arguments(found: &Found, payload: &Value) -> Value {
    let Value::Object(given) = payload else { return payload.clone() };
    let mut arguments = found.parameters.clone();
    arguments.extend(given.clone());
    Value::Object(arguments)
}

/// Refuses the parameters that [`activate`] would refuse. This is checked before the activation is
/// accepted.
pub(super) fn check_size(found: &Found, payload: &Value) -> Result<(), NotRun> {
    let fits = arguments(found, payload).to_string().len() <= PARAMETERS_BYTES_MAX;
    if fits { Ok(()) } else { Err(NotRun::TooLarge) }
}

/// Runs an action to its end and stores the record. The caller must hold a place (`limits.rs`).
pub(super) async fn activate(
    whisk: &Whisk,
    activation: &Activation,
    patience: Patience,
) -> Result<Ended, NotRun> {
    let _change = spaces::begin(whisk, activation.found.space.as_ref())?;
    nested(whisk, activation, patience, None, 0).await
}

/// Runs an activation that the journal keeps, in the same way as [`activate`]. A sequence continues
/// with the component that it had reached.
pub(super) async fn activate_kept(
    whisk: &Whisk,
    activation: &Activation,
    kept: &Kept,
) -> Result<Ended, NotRun> {
    let _change = spaces::begin(whisk, activation.found.space.as_ref())?;
    nested(whisk, activation, Patience::Waits, Some(kept), 0).await
}

/// The components of a sequence that have succeeded so far, and the last response.
#[derive(Serialize, Deserialize)]
struct Progress {
    ids: Vec<Value>,
    last: Value,
}

fn nested<'a>(
    whisk: &'a Whisk,
    activation: &'a Activation,
    patience: Patience,
    kept: Option<&'a Kept>,
    depth: usize,
) -> BoxFuture<'a, Result<Ended, NotRun>> {
    async move {
        let Activation { id, found, payload, cause, caller } = activation;
        let started = entities::unix_ms();
        let (response, logs) = match &found.entity.what {
            What::Action { .. } if let Some(own) = system::action_of(&found.name) => {
                let now = Timestamp::from_unix_ms(started).to_string();
                let result = built_in(own, &arguments(found, payload), &now);
                let code = u64::from(result.get("error").is_some());
                (response(code, result), json!([]))
            }
            What::Action { function, limits, .. } => {
                let timeout_ms = limits["timeout"].as_u64();
                let body = arguments(found, payload).to_string();
                let caller = caller.as_deref();
                let response =
                    action(whisk, (function, caller), body, timeout_ms, *id, patience).await?;
                (response, logs(whisk, function, *id))
            }
            What::Sequence { components, .. } => {
                let args = arguments(found, payload);
                let cause = (*id, caller.as_deref());
                sequence(whisk, components, args, cause, patience, kept, depth).await?
            }
            _ => return Err(NotRun::Missing),
        };
        let mut record = record(found.space.as_ref(), &found.name, &found.entity, *id, started);
        record["response"] = response;
        record["logs"] = logs;
        if let Some(cause) = cause {
            record["cause"] = (*cause).into();
        }
        whisk.activations.add(*id, record.clone());
        Ok(Ended { id: *id, record })
    }
    .boxed()
}

/// Runs one of the platform's own actions, within the limits that apply to every action.
fn built_in(own: &str, arguments: &Value, now: &str) -> Value {
    let too_long = |value: &Value| value.to_string().len() > PARAMETERS_BYTES_MAX;
    if too_long(arguments) {
        return json!({"error": "the parameters are longer than 1 MiB"});
    }
    let result = system::run(own, arguments, now, NAMESPACE);
    if too_long(&result) { json!({"error": "the result is longer than 1 MiB"}) } else { result }
}

/// Returns the record of an activation that has ended just now, without response and logs.
pub(super) fn record(
    space: Option<&Space>,
    name: &str,
    entity: &Entity,
    id: Id,
    started_ms: u64,
) -> Value {
    let namespace = space.map_or(NAMESPACE, |space| &space.name);
    let ended_ms = entities::unix_ms();
    let kind = match &entity.what {
        What::Action { exec, .. } => exec["kind"].as_str().unwrap_or("").to_owned(),
        What::Sequence { .. } => "sequence".to_owned(),
        _ => String::new(),
    };
    let mut annotations = vec![json!({ "key": "path", "value": entities::path(namespace, name) })];
    if !kind.is_empty() {
        annotations.push(json!({ "key": "kind", "value": kind }));
    }
    if let What::Action { limits, .. } | What::Sequence { limits, .. } = &entity.what {
        annotations.push(json!({ "key": "limits", "value": limits }));
    }
    let mut record = json!({
        "namespace": namespace, "name": name.rsplit('/').next(), "subject": namespace,
        "version": format!("0.0.{}", entity.version), "publish": false, "activationId": id,
        "start": started_ms, "end": ended_ms, "duration": ended_ms.saturating_sub(started_ms),
        "annotations": annotations, "logs": [],
    });
    if let Some(space) = space {
        record[activations::CREATED] = space.created_at_ms.into();
    }
    record
}

pub(super) fn response(code: u64, result: Value) -> Value {
    let words = ["success", "application error", "action developer error", "whisk internal error"];
    let size = result.to_string().len();
    json!({
        "statusCode": code, "status": words[code.min(3) as usize], "success": code == 0,
        "result": result, "size": size,
    })
}

/// Calls the function of an action and turns its answer into a response.
async fn action(
    whisk: &Whisk,
    (function, caller): (&str, Option<&str>),
    body: String,
    timeout_ms: Option<u64>,
    id: Id,
    patience: Patience,
) -> Result<Value, NotRun> {
    if body.len() > PARAMETERS_BYTES_MAX {
        return Err(NotRun::TooLarge);
    }
    let failed = |text: String| response(2, json!({ "error": text }));
    let reply = match call(whisk, (function, caller), body.into(), timeout_ms, id, patience).await {
        Ok(reply) => reply,
        Err(Fault::NoSuchFunction) => return Err(NotRun::Missing),
        Err(Fault::Stopping) => return Err(NotRun::Stopping),
        Err(fault) if fault.class() == FaultClass::Capacity => return Err(NotRun::NoRoom),
        Err(fault) if fault.answer().http == 504 => {
            let text = match timeout_ms {
                Some(ms) => format!("The action exceeded its time limits of {ms} milliseconds."),
                None => "The action exceeded its time limits.".to_owned(),
            };
            return Ok(failed(text));
        }
        Err(_) => return Ok(failed("An error has occurred: the logs say more.".to_owned())),
    };
    let status = reply.status;
    let Ok(bytes) = reply.body.collect(PARAMETERS_BYTES_MAX as u64).await else {
        return Ok(failed("The action produced a result of more than 1 MB.".to_owned()));
    };
    Ok(match (status, serde_json::from_slice::<Value>(&bytes)) {
        (200, Ok(result)) => response(0, result),
        (502, Ok(result)) if result.get("error").is_some() => {
            // An action that ended with an exception or returned no valid result produces an error of
            // the same form.
            let text = result["error"].as_str().unwrap_or_default();
            let is_failure = text == "The action did not return a dictionary or array."
                || text.starts_with("An error has occurred: ");
            response(if is_failure { 2 } else { 1 }, result)
        }
        _ => failed("The action did not return a dictionary or array.".to_owned()),
    })
}

async fn call(
    whisk: &Whisk,
    (function, caller): (&str, Option<&str>),
    body: Bytes,
    timeout_ms: Option<u64>,
    id: Id,
    patience: Patience,
) -> Result<Reply, Fault> {
    let tries = if patience == Patience::Waits { TRIES_MAX } else { 1 };
    let mut pause = PAUSE;
    for left in (0..tries).rev() {
        let mut head = Head::builder(b"POST", b"/", b"");
        head.header(b"content-type", b"application/json");
        head.header(whisk::ACTIVATION, id.to_string().as_bytes());
        let mut head = head.finish();
        if let Some(caller) = caller {
            head.admit(Some(caller.as_bytes()));
        }
        let call = Call {
            function: function.to_owned(),
            head,
            body: Body::Whole(body.clone()),
            timeout_ms,
        };
        match whisk.context.node.invoke_as(id.0, call).await {
            Err(fault) if fault.class() == FaultClass::Capacity && left > 0 => {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            ended => return ended,
        }
    }
    Err(Fault::NodeFull)
}

/// Returns the lines that the function wrote for this activation.
fn logs(whisk: &Whisk, function: &str, id: Id) -> Value {
    let id = InvocationId(id.0).to_string();
    let held = whisk.context.node.logs(function, false).map(|log| log.held).unwrap_or_default();
    let lines = held.iter().filter(|line| line.invocation.as_deref() == Some(id.as_str()));
    let shown = lines.map(|line| {
        let stream =
            if line.stream == mote_api::types::LogStream::Stdout { "stdout" } else { "stderr" };
        Value::from(format!("{} {stream}: {}", line.time, line.message))
    });
    shown.collect()
}

/// Runs components one after another, each with the previous result, and stops at the first that fails.
/// Components after the first wait if the node has no room, so that completed work is not lost. If the
/// activation is kept, the result of each component is on disk before the next component begins. A
/// sequence inside a sequence counts as one component.
async fn sequence(
    whisk: &Whisk,
    components: &[String],
    args: Value,
    (cause, caller): (Id, Option<&str>),
    patience: Patience,
    kept: Option<&Kept>,
    depth: usize,
) -> Result<(Value, Value), NotRun> {
    if depth >= DEPTH_MAX {
        let text = json!({ "error": "The sequence calls others too deeply." });
        return Ok((response(1, text), json!([])));
    }
    let mut ids = Vec::new();
    let mut last = response(0, args);
    if let Some(kept) = kept
        && let Some(progress) = kept.progress().await
        && let Ok(reached) = serde_json::from_slice::<Progress>(&progress)
    {
        (ids, last) = (reached.ids, reached.last);
    }
    for name in components.iter().skip(ids.len()) {
        let payload = last["result"].clone();
        let Ok(found) = find(whisk, None, name) else {
            last = response(1, json!({ "error": "Sequence component does not exist." }));
            break;
        };
        let id = new_id(whisk);
        let caller = caller.map(str::to_owned);
        let one = Activation { id, found, payload, cause: Some(cause), caller };
        let patience = if ids.is_empty() { patience } else { Patience::Waits };
        match nested(whisk, &one, patience, None, depth + 1).await {
            Ok(ended) => {
                last = ended.record["response"].clone();
                ids.push(Value::from(ended.id));
                if let Some(kept) = kept
                    && last["statusCode"] == 0
                    && ids.len() < components.len()
                {
                    let progress = Progress { ids, last };
                    kept.note_progress(serde_json::to_vec(&progress).unwrap_or_default()).await;
                    Progress { ids, last } = progress;
                }
            }
            Err(reason) if ids.is_empty() || reason == NotRun::Stopping => return Err(reason),
            Err(reason) => {
                let Refused(_, text) = reason.into();
                last = response(3, json!({ "error": text }));
            }
        }
        if last["statusCode"] != 0 {
            break;
        }
    }
    Ok((last, ids.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_of_the_platform_have_the_limits_of_others() {
        let run = |own: &str, arguments: Value| built_in(own, &arguments, "2016-03-22T00:59:55Z");
        let name = system::name("utils/split").expect("is here");
        let own = system::action_of(&name).expect("one of ours");
        let commas = |many: usize| json!({ "payload": ",".repeat(many), "separator": "," });
        assert_eq!(run(own, commas(10))["lines"].as_array().map(Vec::len), Some(11));
        let error = |answer: Value| answer["error"].as_str().map(str::to_owned);
        let long = error(run(own, commas(PARAMETERS_BYTES_MAX)));
        assert_eq!(long.as_deref(), Some("the parameters are longer than 1 MiB"));
        // Each byte of the parameters becomes about four bytes of the result.
        let grown = error(run(own, commas(PARAMETERS_BYTES_MAX / 3)));
        assert_eq!(grown.as_deref(), Some("the result is longer than 1 MiB"));
    }
}
