//! Routes about functions: list, describe, deploy, remove, invoke.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::Body as HttpBody;
use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, CONTENT_LENGTH};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::TryStreamExt;
use mote_api::types::{
    AcceptedSignatures, AcceptedTokens, DeployProgress, DeployResult, Function, FunctionState,
    Instance, LastError, Limits, RegistryLogin, Requests, ScaleBounds, Scaling, ScheduleList, Stop,
};
use mote_api::watching::FunctionSummary;
use mote_api::{Problem, Timestamp, paths};
use mote_core::body::{Body, BodyError};
use mote_core::invocation::{CALLER_FIELD, Head, PARAMETERS_FIELD, headers};
use mote_core::{Fault, Invocation, InvocationId, Invoker, Trigger};
use mote_engine::{InstanceStatus, PoolStatus, Revision, Serving};
use mote_process::clock;
use mote_spec::ScaleOverride;
use mote_spec::hop_by_hop::{Named, is_hop_by_hop};
use serde::Deserialize;
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::access::Seen;
use super::extract::{Path, Query};
use super::refused::{Refused, to_the_end};
use crate::functions::{self as node_functions, find};
use crate::{Node, deploy as node_deploy, rollout, schedules};

pub(super) async fn describe(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<Json<Function>, Refused> {
    let revision = find(&node.data_path.engine, &name)?;
    Ok(Json(function(&node, &revision)))
}

pub(super) async fn schedules(
    State(node): State<Arc<Node>>,
    Seen(view): Seen,
) -> Json<ScheduleList> {
    let mut list = schedules::list(&node.accepted).await;
    list.schedules.retain(|schedule| view.shows(&schedule.function));
    Json(list)
}

/// What a function does now: its live revision, and every revision that a share or a tag reaches.
struct Now {
    status: PoolStatus,
    serving: Serving,
    /// Each with the number of its current invocations.
    instances: Vec<(Instance, u64)>,
    state: FunctionState,
    requests: Requests,
    last_error: Option<LastError>,
}

fn now(node: &Node, revision: &Arc<Revision>) -> Now {
    let status = revision.status();
    let serving = node.data_path.engine.serving(revision.spec.name.as_str());
    let serving = serving.unwrap_or_else(|| revision.clone().into());
    let others = serving.revisions().iter().filter(|other| other.number != revision.number);
    let mut instances = described(revision.number, &status);
    let mut queued = status.queued;
    let mut last_error = revision.last_error();
    for other in others {
        let status = other.status();
        instances.extend(described(other.number, &status));
        queued += status.queued;
        let error = other.last_error();
        last_error = last_error.into_iter().chain(error).max_by_key(|error| error.unix_ms);
    }
    let running = instances.iter().map(|(_, in_flight)| in_flight).sum();
    let totals = revision.totals();
    let total: u64 = totals.iter().map(|(_, count)| count).sum();
    let ok = totals.iter().find(|(outcome, _)| *outcome == "ok").map_or(0, |(_, count)| *count);
    let (starts, starts_ns) = revision.starts();
    let state = if !status.instances.is_empty() {
        FunctionState::Ready
    } else if status.starting > 0 {
        FunctionState::Starting
    } else if status.last_failure.is_some() {
        FunctionState::Failed
    } else {
        FunctionState::Idle
    };
    let requests = Requests {
        total,
        failed: total - ok,
        running,
        queued: queued as u64,
        cold_starts: revision.cold_starts(),
        starts,
        starts_s: starts_ns as f64 / 1e9,
        p50_ms: latency_ms(revision, 0.5),
        p99_ms: latency_ms(revision, 0.99),
    };
    let last_error = last_error.map(|error| LastError {
        time: Timestamp::from_unix_ms(error.unix_ms),
        code: error.code.to_owned(),
        message: error.message,
        invocation: error.invocation.map(|id| id.to_string()),
    });
    Now { status, serving, instances, state, requests, last_error }
}

/// Describes a function in the short form.
pub(super) fn summary(node: &Node, revision: &Arc<Revision>) -> FunctionSummary {
    let spec = &revision.spec;
    let Now { status, instances, state, requests, last_error, .. } = now(node, revision);
    FunctionSummary {
        name: spec.name.to_string(),
        runtime: spec.runtime.as_str().to_owned(),
        revision: revision.number,
        state,
        instances: instances.len() as u64,
        starting: status.starting,
        access: node.config.access_of(spec.access).as_str().to_owned(),
        requests,
        last_error,
    }
}

/// Describes a function.
pub(super) fn function(node: &Node, revision: &Arc<Revision>) -> Function {
    let spec = &revision.spec;
    let Now { status, serving, instances, state, requests, last_error } = now(node, revision);
    Function {
        name: spec.name.to_string(),
        runtime: spec.runtime.as_str().to_owned(),
        compat: spec.compat.map(|compat| compat.as_str().to_owned()),
        template: spec.template.clone(),
        image: spec.image.as_ref().map(|image| image.shown()),
        revision: revision.number,
        traffic: rollout::shares(&serving.split()),
        state,
        instances: instances.into_iter().map(|(instance, _)| instance).collect(),
        starting: status.starting,
        stops: stops(revision),
        bounds: bounds(revision),
        scaling: status.decision.map(|decision| Scaling {
            desired: decision.desired,
            wished: decision.wished,
            reason: decision.reason.as_str().to_owned(),
            reason_text: decision.reason.text().to_owned(),
        }),
        no_copies: revision.no_copies(),
        access: node.config.access_of(spec.access).as_str().to_owned(),
        tokens: spec.tokens.as_ref().map(|rules| AcceptedTokens {
            issuer: rules.issuer.clone(),
            audience: rules.audience.clone(),
        }),
        certificate_names: spec.certificates.as_ref().map_or(vec![], |rules| rules.callers.clone()),
        webhook: spec.webhook.as_ref().map(|rules| AcceptedSignatures {
            scheme: rules.scheme.as_str().to_owned(),
            secret: rules.secret.clone(),
            window_ms: rules.scheme.has_time().then_some(rules.window_ms),
        }),
        secrets: spec.secret_names().into_iter().map(str::to_owned).collect(),
        schedules: schedules::of(&node.accepted.schedules, &spec.name),
        urls: node.urls(spec),
        mqtt: node
            .mqtt
            .triggers
            .status(&spec.name)
            .into_iter()
            .map(crate::mqtt::described)
            .collect(),
        limits: Limits {
            memory_bytes: spec.limits.memory_bytes,
            process_memory_bytes: node.opened.backend.process_bytes(spec.limits.memory_bytes),
            cpu_millis: spec.limits.cpu_millis,
            pids: spec.limits.pids,
            timeout_ms: revision.timeout_ms(),
            init_timeout_ms: revision.init_timeout_ms(),
            concurrency: spec.limits.concurrency,
            body_bytes: spec.limits.body_bytes,
            disk_bytes: spec.limits.disk_bytes,
            instances_min: spec.scale.min,
            instances_max: spec.scale.max,
            idle_timeout_ms: spec.scale.idle_timeout_ms,
            queue: spec.scale.queue,
            policy: spec.scale.policy.as_str().to_owned(),
            start: spec.scale.start.as_str().to_owned(),
            balance: spec.scale.balance.as_str().to_owned(),
            rate: spec.rates.all.map(rate),
            caller_rate: spec.rates.caller.map(rate),
            calls_at_once: spec.rates.at_once,
            caller_calls_at_once: spec.rates.caller_at_once,
        },
        created_at: Timestamp::from_unix_ms(node.deployed.created_at_ms(revision)),
        requests,
        last_error,
        advice: crate::advice::of(revision),
    }
}

fn rate(rate: mote_spec::Rate) -> mote_api::types::Rate {
    let mote_spec::Rate { calls, period_ms, burst } = rate;
    mote_api::types::Rate { calls, period_ms, burst }
}

/// The instances of one revision, each with the number of its current invocations.
fn described(revision: u64, status: &PoolStatus) -> Vec<(Instance, u64)> {
    let describe = |instance: &InstanceStatus| Instance {
        id: instance.instance.to_string(),
        revision: Some(revision),
        state: instance.state.to_owned(),
        pid: instance.pid,
        memory_bytes: instance.memory_bytes,
        started_at: Timestamp::from_unix_ms(instance.started_unix_ms),
        reason: instance.why.word.to_owned(),
        reason_text: instance.why.text.to_owned(),
        in_flight: instance.in_flight as u64,
        served: instance.served,
    };
    let all = status.instances.iter();
    all.map(|instance| (describe(instance), instance.in_flight as u64)).collect()
}

/// The instances that stopped last.
fn stops(revision: &Revision) -> Vec<Stop> {
    let stop = |stopped: mote_engine::revision::logs::Stopped| Stop {
        id: stopped.instance.to_string(),
        revision: stopped.revision,
        time: Timestamp::from_unix_ms(stopped.unix_ms),
        reason: stopped.reason.to_owned(),
        reason_text: stopped.text,
    };
    revision.log.stops().into_iter().map(stop).collect()
}

/// The bounds that replace the manifest's, if any are set.
fn bounds(revision: &Revision) -> Option<ScaleBounds> {
    let ScaleOverride { min, max } = revision.bounds();
    (min.is_some() || max.is_some()).then_some(ScaleBounds { min, max })
}

/// A latency in milliseconds with three decimals.
fn latency_ms(revision: &Revision, share: f64) -> Option<f64> {
    revision.latency_ns(share).map(|ns| (ns / 1_000) as f64 / 1e3)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeployQuery {
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    no_traffic: bool,
    #[serde(default)]
    if_changed: bool,
    tag: Option<String>,
}

pub(super) async fn deploy(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    Query(query): Query<DeployQuery>,
    request: Request,
) -> Result<(StatusCode, Json<DeployResult>), Refused> {
    let DeployQuery { dry_run, no_traffic, if_changed, tag } = query;
    let registry_login = registry_login(request.headers())?;
    let options =
        node_deploy::Options { dry_run, no_traffic, if_changed, tag, registry_login, place: None };
    let result = upload(node, name, request, options).await?;
    let status = match dry_run || result.unchanged {
        true => StatusCode::OK,
        false => StatusCode::CREATED,
    };
    Ok((status, Json(result)))
}

/// The progress of a deploy that waits for a container image.
pub(super) async fn progress(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<Json<DeployProgress>, Refused> {
    match node.deploys.image_progress.get(&name) {
        Some(detail) => Ok(Json(DeployProgress { detail })),
        None => {
            let text = format!("no deploy of {} waits for an image", name.escape_debug());
            Err(Refused(Problem::new(404, "M0501", text)))
        }
    }
}

/// The login at the registry of the function's image.
fn registry_login(fields: &HeaderMap) -> Result<Option<RegistryLogin>, Refused> {
    let Some(field) = fields.get(paths::HEADER_REGISTRY_LOGIN) else { return Ok(None) };
    match RegistryLogin::decode(field.as_bytes()) {
        Some(login) => Ok(Some(login)),
        None => {
            let text = "the login at the registry cannot be read: it is JSON in base64";
            Err(Refused(Problem::new(400, "M0303", text).with_field(paths::HEADER_REGISTRY_LOGIN)))
        }
    }
}

/// Deploys the archive in the body of `request`. The deploy runs in a separate task, so that a
/// client that disconnects cannot leave it half done.
pub(super) async fn upload(
    node: Arc<Node>,
    name: String,
    request: Request,
    options: node_deploy::Options,
) -> Result<DeployResult, Refused> {
    let stream = request.into_body().into_data_stream().map_err(std::io::Error::other);
    let reader = SyncIoBridge::new(StreamReader::new(stream));
    to_the_end(async move { node_deploy::deploy(&node, &name, Box::new(reader), &options).await })
        .await
}

pub(super) async fn remove(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
) -> Result<StatusCode, Refused> {
    node_functions::remove(&node, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Runs a function once and returns the function's own answer. If `mote` answers instead, the
/// answer has the field `Mote-Fault` and the full reason, because only those who manage the node
/// can use this route.
pub(super) async fn invoke(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    request_headers: HeaderMap,
    request: Request,
) -> Result<Response, Refused> {
    let route = rollout::route(&node.data_path.engine, &name)?;
    let spec = &route.revision().spec;
    if let Some(Seen(view)) = request.extensions().get()
        && view.scope().namespace().is_some()
        && let Err(fault) = node.callers.guard.count_namespace(spec.name.as_str(), None)
    {
        let mut response = Refused(fault_problem(&fault, &name)).into_response();
        if let Fault::TooManyCalls { retry_after_s, .. } = fault {
            response.headers_mut().insert("retry-after", retry_after_s.into());
        }
        return Ok(response);
    }
    let text = |name: &str| request_headers.get(name).and_then(|value| value.to_str().ok());
    let method = text(paths::HEADER_METHOD).unwrap_or("POST").to_ascii_uppercase();
    let target = text(paths::HEADER_PATH).unwrap_or("/");
    let full = format!("/{name}{}{target}", if target.starts_with('/') { "" } else { "/" });
    let split = mote_http::http::target::split(full.as_bytes()).map_err(|refusal| {
        Problem::new(400, refusal.code, refusal.detail).with_field(paths::HEADER_PATH)
    })?;
    let trigger = request_headers.get(paths::HEADER_TRIGGER).map(repeated).transpose()?;
    let mut head = Head::builder(method.as_bytes(), split.path, split.query);
    for (name, value) in passed_on(&request_headers) {
        head.header(name, value);
    }
    if trigger.is_some() {
        for name in [CALLER_FIELD, PARAMETERS_FIELD] {
            let field =
                HeaderName::from_bytes(name).ok().and_then(|name| request_headers.get(name));
            if let Some(value) = field {
                head.header(name, value.as_bytes());
            }
        }
    }
    let limit = spec.limits.body_bytes;
    let body =
        axum::body::to_bytes(request.into_body(), usize::try_from(limit).unwrap_or(usize::MAX))
            .await
            .map_err(|_| fault_problem(&Fault::BodyTooLarge { limit_bytes: limit }, &name))?;
    let received_ns = clock::now_ns();
    let id = InvocationId::new(clock::unix_ms(), node.ids.random());
    let invocation = Invocation {
        id,
        trigger: trigger.unwrap_or(Trigger::Admin),
        head: head.finish(),
        body: Body::whole(body),
        received_ns,
        deadline_ns: received_ns + route.revision().timeout_ms() * 1_000_000,
        chain: None,
    };
    let route = mote_journal::Route::Function(route);
    let reply = match node.callers.invoker.invoke(&route, invocation).await {
        Ok(reply) => reply,
        Err(fault) => {
            let mut response = Refused(fault_problem(&fault, &name)).into_response();
            response.headers_mut().insert(
                HeaderName::from_static(paths::HEADER_INVOCATION),
                HeaderValue::from_str(&id.to_string()).expect("ids are base 32"),
            );
            return Ok(response);
        }
    };
    let mut response = Response::builder().status(reply.status);
    for (name, value) in headers(&reply.headers) {
        // Header fields that HTTP cannot carry are left out here. The HTTP front refuses such an
        // answer, but the owner should see the rest of it.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
            && !is_hop_by_hop(name.as_str().as_bytes())
            && name != CONTENT_LENGTH
        {
            response = response.header(name, value);
        }
    }
    let phases = reply.phases;
    let ms = |ns: u64| ns as f64 / 1e6;
    let timing = format!(
        "queue;dur={:.3}, init;dur={:.3}, handover;dur={:.3}, invoke;dur={:.3}, \
         to-worker;dur={:.3}, from-worker;dur={:.3}",
        ms(phases.queue_ns()),
        ms(phases.init_ns),
        ms(phases.handover_ns()),
        ms(phases.run_ns()),
        // The times of the two halves of the handover. The fronts do not send these, because that
        // would slow down every answer.
        ms(phases.to_worker_ns()),
        ms(phases.from_worker_ns())
    );
    response
        .header(paths::HEADER_INVOCATION, id.to_string())
        .header("server-timing", timing)
        .body(HttpBody::from_stream(Chunks(reply.body)))
        .map_err(|error| Refused(Problem::new(502, "M0513", error.to_string())))
}

fn fault_problem(fault: &Fault, function: &str) -> Problem {
    let row = fault.answer();
    let text = match fault {
        Fault::HandlerError { message } | Fault::BadReply { message } => {
            format!("{function} failed: {message}")
        }
        Fault::StartFailed { message } => format!("{function} did not start: {message}"),
        Fault::NamespaceFull { message } => format!("{function} cannot start: {message}"),
        other => other.public_text(function),
    };
    Problem::new(row.http, row.code, text).with_hint(format!("see: mote logs {function}"))
}

/// The chunks of an answer as a stream.
struct Chunks(Body);

impl futures_util::Stream for Chunks {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_chunk(cx)
    }
}

/// The trigger of a recorded invocation. A client that may invoke functions here may also deploy them,
/// so it gains nothing by naming a trigger or a caller.
fn repeated(field: &HeaderValue) -> Result<Trigger, Refused> {
    field.to_str().ok().and_then(Trigger::from_word).ok_or_else(|| {
        let text = "not a trigger: one of http, coap, admin, schedule, mqtt and function";
        Refused(Problem::new(400, "M0303", text).with_field(paths::HEADER_TRIGGER))
    })
}

/// The fields of a management request that its function receives.
fn passed_on(fields: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    let named = Named::of(fields.get_all(CONNECTION).iter().map(HeaderValue::as_bytes));
    let all = fields.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
    all.filter(move |(name, _)| {
        // The token is meant for the node and not for the function. Programs receive fields as
        // variables, and would take `proxy` for their own HTTP_PROXY.
        let of_node = (name.starts_with(b"mote-") && !mote_core::accept::is_wish(name))
            || matches!(*name, b"authorization" | b"expect" | b"proxy");
        !of_node && !is_hop_by_hop(name) && !named.contains(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_receives_no_field_of_the_connection_to_the_management_api() {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer x"),
            ("connection", "keep-alive, x-hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("proxy", "http://other.example"),
            ("mote-timeout", "5"),
            ("content-length", "2"),
            ("x-mine", "1"),
        ] {
            fields.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let names: Vec<_> = passed_on(&fields).map(|(name, _)| name).collect();
        assert_eq!(names, [&b"content-length"[..], b"x-mine"]);
    }
}
