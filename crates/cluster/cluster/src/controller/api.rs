//! The management API of `mote` for a whole cluster, with the same routes and types as on a node.
//!
//! Changes go to the resources (`change.rs`). Questions go to all cells, and their answers are
//! merged (`merge.rs`). A request that one cell can answer alone goes to a single cell.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use bytes::{Bytes, BytesMut};
use futures_util::stream::{SelectAll, StreamExt as _};
use hyper::body::Body as _;
use hyper_util::rt::TokioIo;
use kube::ResourceExt as _;
use mote_api::client::LogQuery;
use mote_api::types::{
    DeployResult, DoctorReport, Function, FunctionList, LogLine, NodeStatus, RevisionInfo,
    RevisionList, ScaleRequest, ScaleResult, Secret, SecretList, TrafficRequest, TrafficResult,
};
use mote_api::{Problem, Timestamp, paths};
use serde::Deserialize;
use tokio::net::TcpStream;

use super::answer::{Refused, known};
use super::{Controller, change, merge};
use crate::keys::{self, same};
use crate::resources::Cell;
use crate::source::{ARCHIVE_BYTES_MAX, LARGE_BYTES};

type Shared = State<Arc<Controller>>;
type Answer<T> = Result<Json<T>, Refused>;

/// How many bytes of an archive are read from disk at a time.
const PIECE_BYTES: usize = 64 << 10;

pub(super) fn routes(controller: Arc<Controller>) -> Router {
    Router::new()
        .route(paths::STATUS, get(status))
        .route(paths::DOCTOR, get(doctor))
        .route(paths::FUNCTIONS, get(functions))
        .route(paths::FUNCTION, get(describe).put(deploy).delete(remove))
        .route(paths::REVISIONS, get(revisions))
        .route(paths::TRAFFIC, put(traffic))
        .route(paths::ROLLBACK, post(rollback))
        .route(paths::SCALE, post(scale))
        .route(paths::LOGS, get(logs))
        .route(paths::INVOKE, post(to_one_cell))
        .route(paths::SCHEDULES, get(merge::schedules))
        .route(paths::OPENAPI, get(to_one_cell))
        .route(paths::INVOCATIONS, get(merge::invocations))
        .route(paths::INVOCATION, get(to_its_cell).delete(to_its_cell))
        .route(paths::RETRY, post(to_its_cell))
        .route(paths::DEAD_LETTER, delete(to_its_cell))
        .route(paths::SECRETS, get(secrets))
        .route(paths::SECRET, put(put_secret).delete(remove_secret))
        .route(paths::KV, get(to_one_cell))
        .route(paths::KV_NAMESPACE, get(to_one_cell).delete(to_one_cell))
        .route(
            paths::KV_ENTRY,
            get(to_one_cell).put(to_one_cell).delete(to_one_cell).post(to_one_cell),
        )
        .fallback(no_such_route)
        .layer(axum::middleware::from_fn_with_state(controller.clone(), check_token))
        .route("/v1/archives/{digest}", get(archive))
        .route(paths::METRICS, get(metrics))
        .route(paths::LIVEZ, get(|| async { "ok\n" }))
        .route(paths::READYZ, get(|| async { "ok\n" }))
        .layer(DefaultBodyLimit::max(ARCHIVE_BYTES_MAX as usize))
        .with_state(controller)
}

fn shows(request: &Request, key: &str) -> bool {
    let shown = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    shown.and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|shown| same(shown, key))
}

async fn check_token(State(controller): Shared, request: Request, next: Next) -> Response {
    if shows(&request, &controller.token) {
        // Ignoring this header would deploy a function that is meant for one owner for everybody.
        if request.headers().contains_key(mote_api::paths::HEADER_NAMESPACE) {
            let text = "a cluster has no namespaces of mote: leave out --namespace";
            return Refused(Problem::new(422, "M0429", text)).into_response();
        }
        return next.run(request).await;
    }
    let problem = Problem::new(401, "M1401", "the request has no valid token").with_hint(format!(
        "read it with: kubectl get secret -n {} {} -o jsonpath='{{.data.token}}' | base64 -d",
        controller.options.place.system_namespace,
        keys::TOKEN.0
    ));
    Refused(problem).into_response()
}

/// Sends a large archive to an agent.
async fn archive(
    State(controller): Shared,
    Path(digest): Path<String>,
    request: Request,
) -> Response {
    if !shows(&request, &controller.key) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    match controller.archives.open_one(&digest).await {
        Ok((file, length)) => {
            let pieces = futures_util::stream::try_unfold(file, |mut file| async move {
                let mut piece = BytesMut::with_capacity(PIECE_BYTES);
                let read = tokio::io::AsyncReadExt::read_buf(&mut file, &mut piece).await?;
                Ok::<_, std::io::Error>((read > 0).then(|| (piece.freeze(), file)))
            });
            ([("content-length", length.to_string())], Body::from_stream(pieces)).into_response()
        }
        Err(_) => {
            let text = "the controller does not have this archive";
            let hint = "its volume may have been replaced; deploy the function again";
            Refused(Problem::new(404, "M0412", text).with_hint(hint)).into_response()
        }
    }
}

/// Returns the metrics to programs that present the token of the API or the key of the cells.
async fn metrics(State(controller): Shared, request: Request) -> Response {
    if !shows(&request, &controller.key) && !shows(&request, &controller.token) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    super::metrics(&controller)
}

async fn no_such_route(State(controller): Shared, request: Request) -> Refused {
    let text = format!("{} {} is not a route of a cluster", request.method(), request.uri().path());
    Refused(
        Problem::new(404, "M1404", text)
            .with_hint(format!(
                "a cluster does not offer this request; to ask one cell: kubectl exec -n {} POD -c node -- mote …",
                controller.options.place.system_namespace
            )),
    )
}

async fn status(State(controller): Shared) -> Answer<NodeStatus> {
    let answers = controller.ask(|cell| async move { cell.status().await }).await;
    Ok(Json(merge::status(&controller, answers)))
}

async fn doctor(State(controller): Shared) -> Answer<DoctorReport> {
    let answers = controller.ask(|cell| async move { cell.doctor().await }).await;
    Ok(Json(merge::doctor(&controller, answers)))
}

async fn functions(State(controller): Shared) -> Answer<FunctionList> {
    let answers = controller.ask(|cell| async move { cell.functions().await }).await;
    let of_cells =
        answers.into_iter().filter_map(|(cell, list)| Some((cell, list.ok()?.functions)));
    let functions = merge::functions(&controller, of_cells.collect());
    Ok(Json(FunctionList { functions }))
}

async fn describe(State(controller): Shared, Path(name): Path<String>) -> Answer<Function> {
    known(&controller, &name)?;
    Ok(Json(described(&controller, &name).await?))
}

/// Returns a function with the merged state of all cells.
pub(super) async fn described(controller: &Controller, name: &str) -> Result<Function, Problem> {
    let answers = controller
        .ask(|cell| {
            let name = name.to_owned();
            async move { cell.function(&name).await }
        })
        .await;
    let of_cells = answers.into_iter().filter_map(|(cell, one)| Some((cell, vec![one.ok()?])));
    let found = merge::functions(controller, of_cells.collect()).pop();
    found.ok_or_else(|| {
        let why = controller.functions.get(name);
        let why =
            why.as_ref().and_then(|it| super::ready_condition(it).map(|it| it.message.clone()));
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        let text = format!("no cell answers for {name}{why}");
        Problem::new(503, "M0505", text).with_hint(format!("see: kubectl describe function {name}"))
    })
}

#[derive(Deserialize)]
struct DeployQuery {
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    no_traffic: bool,
    tag: Option<String>,
}

async fn deploy(
    State(controller): Shared,
    Path(name): Path<String>,
    Query(query): Query<DeployQuery>,
    request: Request,
) -> Result<(StatusCode, Json<DeployResult>), Refused> {
    let DeployQuery { dry_run, no_traffic, tag } = query;
    let body = request.into_body();
    let length = body.size_hint().exact().unwrap_or(u64::MAX);
    // A body without a declared length may be large.
    let large = match length {
        0..LARGE_BYTES => None,
        _ => Some(controller.large.clone().acquire_owned().await.expect("it is never closed")),
    };
    let tar = collect(body).await?;
    let held_back = no_traffic || tag.is_some();
    let wish = change::Deploy { name, tar, large, dry_run, held_back, tag };
    // The change runs to its end even if the client disconnects, so that no change stays half done.
    let result = to_the_end(async move { change::deploy(&controller, wish).await }).await?;
    Ok((if dry_run { StatusCode::OK } else { StatusCode::CREATED }, Json(result)))
}

/// Reads the whole archive. If its length is known, the memory is allocated at once.
async fn collect(body: Body) -> Result<Bytes, Problem> {
    let length = body.size_hint().exact().unwrap_or(0).min(ARCHIVE_BYTES_MAX);
    let mut whole = BytesMut::with_capacity(usize::try_from(length).unwrap_or(0));
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| {
            Problem::new(400, "M1301", format!("the archive did not arrive: {error}"))
        })?;
        if (whole.len() + piece.len()) as u64 > ARCHIVE_BYTES_MAX {
            let text = format!("the archive is larger than {} MiB", ARCHIVE_BYTES_MAX >> 20);
            return Err(Problem::new(413, "M1301", text));
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

/// Runs a change in a separate task, which a disconnect does not cancel.
async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refused>> + Send + 'static,
) -> Result<T, Refused> {
    let failed =
        |_| Problem::new(500, "M0599", "the controller could not make the change; see its log");
    tokio::spawn(work).await.map_err(failed)?
}

async fn remove(
    State(controller): Shared,
    Path(name): Path<String>,
) -> Result<StatusCode, Refused> {
    to_the_end(async move { change::remove(&controller, &name).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn revisions(State(controller): Shared, Path(name): Path<String>) -> Answer<RevisionList> {
    let function = known(&controller, &name)?;
    let traffic = function.status.as_ref().and_then(|status| status.traffic.clone());
    let now_ms = merge::now_ms();
    let info = |known: super::reconcile::Known| {
        let percent = traffic.as_ref().map_or(0, |traffic| traffic.split.percent(known.number));
        let shares = traffic.iter().flat_map(|traffic| traffic.split.shares());
        let share = shares.into_iter().find(|share| share.revision == known.number);
        let was_live =
            traffic.as_ref().is_some_and(|traffic| traffic.before.contains(&known.number));
        let state = if percent > 0 {
            "live"
        } else if was_live {
            "retired"
        } else {
            "added"
        };
        RevisionInfo {
            revision: known.number,
            state: state.to_owned(),
            percent,
            tag: share.and_then(|share| share.tag.clone()),
            created_at: Timestamp::from_unix_ms(known.created_ms),
            age_ms: now_ms.saturating_sub(known.created_ms),
            code: known.digest,
            image: None,
        }
    };
    let revisions = controller.known(&name).into_iter().map(info).collect();
    Ok(Json(RevisionList { function: name, revisions }))
}

async fn traffic(
    State(controller): Shared,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer<TrafficResult> {
    let wish: TrafficRequest = serde_json::from_slice(&body).map_err(|error| {
        Problem::new(400, "M1403", format!("traffic: {error}")).with_field("shares")
    })?;
    let moved = to_the_end(async move { change::traffic(&controller, &name, wish).await });
    Ok(Json(moved.await?))
}

#[derive(Deserialize)]
struct RollbackQuery {
    revision: Option<u64>,
}

async fn rollback(
    State(controller): Shared,
    Path(name): Path<String>,
    Query(query): Query<RollbackQuery>,
) -> Answer<TrafficResult> {
    let moved =
        to_the_end(async move { change::rollback(&controller, &name, query.revision).await });
    Ok(Json(moved.await?))
}

async fn scale(
    State(controller): Shared,
    Path(name): Path<String>,
    body: Bytes,
) -> Answer<ScaleResult> {
    let wish: ScaleRequest = serde_json::from_slice(&body)
        .map_err(|error| Problem::new(422, "M0303", format!("scale: {error}")))?;
    Ok(Json(to_the_end(async move { change::scale(&controller, &name, wish).await }).await?))
}

#[derive(Deserialize)]
struct LogsQuery {
    #[serde(default)]
    follow: bool,
    since: Option<String>,
    tail: Option<u64>,
    invocation: Option<String>,
    grep: Option<String>,
    level: Option<String>,
}

/// Returns the log lines of all cells: first the existing lines by time, then new lines as they
/// arrive.
async fn logs(
    State(controller): Shared,
    Path(name): Path<String>,
    Query(query): Query<LogsQuery>,
) -> Result<Response, Refused> {
    known(&controller, &name)?;
    let LogsQuery { follow, since, tail, invocation, grep, level } = query;
    let held_query = LogQuery { follow: false, since, tail, invocation, grep, level };
    let started = Instant::now();
    let answers = controller
        .ask(|cell| {
            let name = name.clone();
            let query = held_query.clone();
            async move {
                let mut lines = cell.logs(&name, &query).await?;
                let mut held = Vec::new();
                while let Some(line) = lines.next().await? {
                    held.push(line);
                }
                Ok(held)
            }
        })
        .await;
    let mut held: Vec<LogLine> = Vec::new();
    let mut silent: BTreeSet<_> = controller.cells.all().iter().map(|it| it.name_any()).collect();
    for (cell, lines) in answers {
        let Ok(lines) = lines else { continue };
        silent.remove(&cell.name_any());
        held.extend(lines.into_iter().map(|line| merge::of_cell(&cell, line)));
    }
    held.sort_by_key(|line| line.time);
    if let Some(tail) = tail {
        held.drain(..held.len().saturating_sub(usize::try_from(tail).unwrap_or(usize::MAX)));
    }
    held.extend(silent.iter().map(|cell| merge::silent(cell, &name)));
    let first = held.iter().map(json_line).collect::<String>();
    if !follow {
        return Ok(lines_of(Body::from(first)));
    }
    // This also covers lines that were written while the existing lines were being read.
    let since = format!("{}ms", started.elapsed().as_millis() + 1);
    let query = LogQuery { follow: true, since: Some(since), tail: None, ..held_query };
    let answers = controller
        .ask(|cell| {
            let name = name.clone();
            let query = query.clone();
            async move { cell.logs(&name, &query).await }
        })
        .await;
    let mut following = SelectAll::new();
    for (cell, lines) in answers {
        let Ok(lines) = lines else { continue };
        let stream = futures_util::stream::unfold((cell, lines), |(cell, mut lines)| async move {
            let line = lines.next().await.ok()??;
            let line = merge::of_cell(&cell, line);
            Some((json_line(&line), (cell, lines)))
        });
        following.push(stream.boxed());
    }
    let head = futures_util::stream::once(async move { first });
    let whole = head.chain(following).map(Ok::<_, std::convert::Infallible>);
    Ok(lines_of(Body::from_stream(whole)))
}

fn json_line(line: &LogLine) -> String {
    let mut text = serde_json::to_string(line).unwrap_or_default();
    text.push('\n');
    text
}

fn lines_of(body: Body) -> Response {
    ([("content-type", "application/x-ndjson")], body).into_response()
}

async fn secrets(State(controller): Shared) -> Answer<SecretList> {
    let stored = change::secret_names(&controller).await?;
    let answers = controller.ask(|cell| async move { cell.secrets().await }).await;
    let used = answers.into_iter().find_map(|(_, list)| list.ok());
    let functions = |name: &str| {
        let all = used.iter().flat_map(|list| &list.secrets);
        let found = all.into_iter().find(|secret| secret.name == name);
        found.map(|secret| secret.functions.clone()).unwrap_or_default()
    };
    let secrets = stored.into_iter().map(|name| Secret { functions: functions(&name), name });
    Ok(Json(SecretList { secrets: secrets.collect() }))
}

async fn put_secret(
    State(controller): Shared,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<(StatusCode, Json<Secret>), Refused> {
    let is_new = change::put_secret(&controller, &name, &body).await?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(Secret { name, functions: Vec::new() })))
}

async fn remove_secret(
    State(controller): Shared,
    Path(name): Path<String>,
) -> Result<StatusCode, Refused> {
    change::remove_secret(&controller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Forwards a request to any cell that takes part.
async fn to_one_cell(State(controller): Shared, request: Request) -> Result<Response, Refused> {
    let cells = controller.live_cells();
    let Some(cell) = cells.first() else { return Err(controller.no_cells().into()) };
    pass(&controller, cell, request).await
}

/// Forwards a request about one accepted invocation to the cell that has the invocation.
async fn to_its_cell(State(controller): Shared, request: Request) -> Result<Response, Refused> {
    let path = request.uri().path().to_owned();
    let id = path.split('/').nth(3).unwrap_or_default().to_owned();
    let answers = controller
        .ask(|cell| {
            let id = id.clone();
            async move { cell.invocation(&id).await }
        })
        .await;
    let found = answers.iter().find(|(_, answer)| answer.is_ok()).or(answers.first());
    let Some((cell, _)) = found else { return Err(controller.no_cells().into()) };
    pass(&controller, &cell.clone(), request).await
}

async fn pass(controller: &Controller, cell: &Cell, request: Request) -> Result<Response, Refused> {
    let failed = |reason: String| {
        let text = format!("{} does not answer: {reason}", cell.name_any());
        Refused(Problem::new(502, "M0201", text))
    };
    let address = (cell.spec.address.as_str(), cell.spec.agent_port.unwrap_or(8082));
    let (mut parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    parts.uri = target.parse().map_err(|_| failed("the path is not valid".to_owned()))?;
    let key = format!("Bearer {}", controller.key);
    let key = key.parse().map_err(|_| failed("the key is not valid".to_owned()))?;
    parts.headers.insert("authorization", key);
    let stream = TcpStream::connect(address).await.map_err(|error| failed(error.to_string()))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed(error.to_string()))?;
    tokio::spawn(connection);
    let request = Request::from_parts(parts, body);
    debug_assert_ne!(request.method(), Method::CONNECT);
    let answer = sender.send_request(request).await.map_err(|error| failed(error.to_string()))?;
    Ok(answer.map(Body::new))
}
