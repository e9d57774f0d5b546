//! Activations: an action or a sequence is called, and what came of it becomes a record.

use axum::http::StatusCode;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use mote_core::body::Body;
use mote_core::invocation::Head;
use mote_core::{Fault, InvocationId, whisk};
use serde_json::{Map, Value, json};

use super::entities::{self, Entity, Kind, What};
use super::{NAMESPACE, PARAMETERS_BYTES_MAX, Refused, Whisk};
use crate::node::Call;

/// Longest sequence, and how deep one may call others.
pub(super) const SEQUENCE_MAX: usize = 50;
const DEPTH_MAX: usize = 8;

/// What came of an activation.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) id: String,
    pub(super) record: Value,
}

impl Ended {
    pub(super) fn result(&self) -> &Value {
        &self.record["response"]["result"]
    }

    /// 0 success, 1 the action's own error, 2 the action failed, 3 the platform did.
    pub(super) fn code(&self) -> u64 {
        self.record["response"]["statusCode"].as_u64().unwrap_or(3)
    }

    /// The answer's status.
    pub(super) fn status(&self) -> StatusCode {
        match self.code() {
            0 => StatusCode::OK,
            1 | 2 => StatusCode::BAD_GATEWAY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// An action with the parameters it brings: those of its package below its own.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) name: String,
    pub(super) entity: Entity,
    pub(super) parameters: Map<String, Value>,
}

/// The action of a name; a name in a binding means the package it stands for.
pub(super) fn find(whisk: &Whisk, name: &str) -> Result<Found, Refused> {
    let missing = Refused::not_found;
    let Some((package, own)) = name.split_once('/') else {
        let entity = whisk.entities.get(Kind::Action, name).ok_or_else(missing)?;
        let parameters = entities::merged([entity.parameters.as_slice()]);
        return Ok(Found { name: name.to_owned(), entity, parameters });
    };
    let holder = whisk.entities.get(Kind::Package, package).ok_or_else(missing)?;
    let (real, bound) = match &holder.what {
        What::Package { binding: Some(real) } => {
            let bound = whisk.entities.get(Kind::Package, real).ok_or_else(missing)?;
            (real.as_str(), bound.parameters)
        }
        _ => (package, Vec::new()),
    };
    let name = format!("{real}/{own}");
    let entity = whisk.entities.get(Kind::Action, &name).ok_or_else(missing)?;
    let lists = [bound.as_slice(), holder.parameters.as_slice(), entity.parameters.as_slice()];
    let parameters = entities::merged(lists);
    Ok(Found { name, entity, parameters })
}

/// A new id: its first letters are the time, so ids sort by it.
pub(super) fn new_id(whisk: &Whisk) -> (u128, String) {
    let id = InvocationId::new(entities::unix_ms(), whisk.context.node.random()).0;
    (id, format!("{id:032x}"))
}

/// Runs an action to its end. Counts against the limits; refused is what does not begin.
pub(super) async fn invoke(
    whisk: &Whisk,
    found: &Found,
    payload: Map<String, Value>,
    cause: Option<&str>,
    id: (u128, String),
) -> Result<Ended, Refused> {
    let _place = whisk.limits.place()?;
    activation(whisk, found, payload, cause, id, 0).await
}

fn activation<'a>(
    whisk: &'a Whisk,
    found: &'a Found,
    payload: Map<String, Value>,
    cause: Option<&'a str>,
    id: (u128, String),
    depth: usize,
) -> BoxFuture<'a, Result<Ended, Refused>> {
    async move {
        let mut args = found.parameters.clone();
        args.extend(payload);
        let started = entities::unix_ms();
        let (response, logs) = match &found.entity.what {
            What::Action { function, limits, .. } => {
                let timeout_ms = limits["timeout"].as_u64();
                let response = action(whisk, function, args, timeout_ms, &id).await?;
                (response, logs(whisk, function, id.0))
            }
            What::Sequence { components, .. } => {
                sequence(whisk, components, args, &id.1, depth).await?
            }
            _ => return Err(Refused::not_found()),
        };
        let mut record = record(&found.name, &found.entity, &id.1, started);
        record["response"] = response;
        record["logs"] = logs;
        if let Some(cause) = cause {
            record["cause"] = cause.into();
        }
        whisk.activations.add(&id.1, record.clone());
        Ok(Ended { id: id.1, record })
    }
    .boxed()
}

/// A record of something that ended now, without response and logs.
pub(super) fn record(name: &str, entity: &Entity, id: &str, started_ms: u64) -> Value {
    let ended_ms = entities::unix_ms();
    let kind = match &entity.what {
        What::Action { exec, .. } => exec["kind"].as_str().unwrap_or("").to_owned(),
        What::Sequence { .. } => "sequence".to_owned(),
        _ => String::new(),
    };
    let mut annotations = vec![json!({ "key": "path", "value": format!("{NAMESPACE}/{name}") })];
    if !kind.is_empty() {
        annotations.push(json!({ "key": "kind", "value": kind }));
    }
    if let What::Action { limits, .. } | What::Sequence { limits, .. } = &entity.what {
        annotations.push(json!({ "key": "limits", "value": limits }));
    }
    json!({
        "namespace": NAMESPACE, "name": name.rsplit('/').next(), "subject": NAMESPACE,
        "version": format!("0.0.{}", entity.version), "publish": false, "activationId": id,
        "start": started_ms, "end": ended_ms, "duration": ended_ms.saturating_sub(started_ms),
        "annotations": annotations, "logs": [],
    })
}

pub(super) fn response(code: u64, result: Value) -> Value {
    let words = ["success", "application error", "action developer error", "whisk internal error"];
    let size = result.to_string().len();
    json!({
        "statusCode": code, "status": words[code.min(3) as usize], "success": code == 0,
        "result": result, "size": size,
    })
}

/// Calls the function of an action; what it answers becomes a response.
async fn action(
    whisk: &Whisk,
    function: &str,
    args: Map<String, Value>,
    timeout_ms: Option<u64>,
    (number, id): &(u128, String),
) -> Result<Value, Refused> {
    let body = Value::Object(args).to_string();
    if body.len() > PARAMETERS_BYTES_MAX {
        let text = "Request larger than allowed: parameters of at most 1 MB.";
        return Err(Refused(StatusCode::PAYLOAD_TOO_LARGE, text.to_owned()));
    }
    let mut head = Head::builder(b"POST", b"/", b"");
    head.header(b"content-type", b"application/json");
    head.header(whisk::ACTIVATION, id.as_bytes());
    let call = Call {
        function: function.to_owned(),
        head: head.finish(),
        body: Body::Whole(Bytes::from(body)),
        timeout_ms,
    };
    let failed = |text: String| response(2, json!({ "error": text }));
    let reply = match whisk.context.node.invoke_as(*number, call).await {
        Ok(reply) => reply,
        Err(Fault::NoSuchFunction) => return Err(Refused::not_found()),
        Err(fault) => {
            return match fault.answer().http {
                429 | 503 => Err(Refused(
                    StatusCode::TOO_MANY_REQUESTS,
                    "Too many concurrent requests in flight: the node has no room.".to_owned(),
                )),
                504 => {
                    let text = match timeout_ms {
                        Some(ms) => {
                            format!("The action exceeded its time limits of {ms} milliseconds.")
                        }
                        None => "The action exceeded its time limits.".to_owned(),
                    };
                    Ok(failed(text))
                }
                _ => Ok(failed("An error has occurred: the logs say more.".to_owned())),
            };
        }
    };
    let status = reply.status;
    let Ok(bytes) = reply.body.collect(PARAMETERS_BYTES_MAX as u64).await else {
        return Ok(failed("The action produced a result of more than 1 MB.".to_owned()));
    };
    Ok(match (status, serde_json::from_slice::<Value>(&bytes)) {
        (200, Ok(result)) => response(0, result),
        (502, Ok(result)) if result.get("error").is_some() => {
            // A program's answer that is none is an error of the same form.
            let none = result["error"] == "The action did not return a dictionary or array.";
            response(if none { 2 } else { 1 }, result)
        }
        _ => failed("The action did not return a dictionary or array.".to_owned()),
    })
}

/// What the function wrote for this activation.
fn logs(whisk: &Whisk, function: &str, number: u128) -> Value {
    let id = InvocationId(number).to_string();
    let held = whisk.context.node.logs(function, false).map(|log| log.held).unwrap_or_default();
    let lines = held.iter().filter(|line| line.invocation.as_deref() == Some(id.as_str()));
    let shown = lines.map(|line| {
        let stream =
            if line.stream == mote_api::types::LogStream::Stdout { "stdout" } else { "stderr" };
        Value::from(format!("{} {stream}: {}", line.time, line.message))
    });
    shown.collect()
}

/// Calls components one after another, each with the result before. Ends at the first that fails.
async fn sequence(
    whisk: &Whisk,
    components: &[String],
    args: Map<String, Value>,
    cause: &str,
    depth: usize,
) -> Result<(Value, Value), Refused> {
    if depth >= DEPTH_MAX {
        let text = json!({ "error": "The sequence calls others too deeply." });
        return Ok((response(1, text), json!([])));
    }
    let mut ids = Vec::new();
    let mut last = response(0, Value::Object(args));
    for name in components {
        let Some(payload) = last["result"].as_object().cloned() else { break };
        let Ok(found) = find(whisk, name) else {
            last = response(1, json!({ "error": "Sequence component does not exist." }));
            break;
        };
        let id = new_id(whisk);
        let ended = activation(whisk, &found, payload, Some(cause), id, depth + 1).await?;
        last = ended.record["response"].clone();
        ids.push(Value::from(ended.id));
        if last["statusCode"] != 0 {
            break;
        }
    }
    Ok((last, ids.into()))
}

/// Runs an action later, as far as anyone waits for it; refusals become records too.
pub(super) fn invoke_later(
    whisk: &Whisk,
    found: Found,
    payload: Map<String, Value>,
    cause: Option<String>,
) -> String {
    let id = new_id(whisk);
    let shown = id.1.clone();
    let whisk = whisk.clone();
    tokio::spawn(async move {
        let started = entities::unix_ms();
        let ended = invoke(&whisk, &found, payload, cause.as_deref(), id.clone()).await;
        if let Err(Refused(_, text)) = ended {
            let mut record = record(&found.name, &found.entity, &id.1, started);
            record["response"] = response(3, json!({ "error": text }));
            whisk.activations.add(&id.1, record);
        }
    });
    shown
}
