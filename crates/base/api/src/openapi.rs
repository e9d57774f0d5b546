//! The OpenAPI 3.1 document of the management API.
//!
//! The functions below are never called. Each carries the description of one route.
#![allow(dead_code, reason = "carriers of documentation")]

use utoipa::OpenApi;
#[cfg(test)]
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};

use crate::cells::{Cell, CellList, CellPlace, CellsRequest};
use crate::error::Problem;
use crate::files::{DataFolder, DataFolders, FileEntry, FileKind, FileListing, FileWritten};
use crate::invocations::{
    AcceptedInvocation, AcceptedInvocations, CancelledInvocation, DeletedDeadLetters,
    InvocationState, RunStep, RunStepState,
};
use crate::journals::{JournalList, JournalState, JournalStatus};
use crate::keys::{CallerKey, CallerKeyRequest, CallerKeyRotation, CallerKeys, NewCallerKey};
use crate::kv::{KvKey, KvListing, KvNamespace, KvNamespaces, KvWritten};
use crate::mqtt::{MqttUser, MqttUserRequest, MqttUsers};
use crate::namespaces::{Namespace, NamespaceList, NamespaceRequest, Quotas};
use crate::openwhisk::{
    WhiskAction, WhiskEntity, WhiskManifest, WhiskResult, WhiskRule, WhiskSequence,
};
use crate::operators::{
    AuditEntry, AuditLog, NewOperatorToken, OperatorToken, OperatorTokenRequest, OperatorTokens,
};
use crate::recording::{RecordedAnswer, RecordedBody, RecordedCall};
use crate::sessions::{Session, SessionCode, SessionRequest};
use crate::traces::{Span, Trace, TraceList, TraceSummary};
use crate::types::{
    Check, CheckState, DeployProgress, DeployResult, DoctorReport, Function, FunctionList,
    FunctionState, InvokeAnswer, InvokeRequest, LogLine, LogStream, NodeBudget, NodeStatus, Rate,
    Reach, RevisionInfo, RevisionList, ScaleBounds, ScaleRequest, ScaleResult, Schedule,
    ScheduleList, ScheduleOutcome, ScheduleRun, Secret, SecretList, Stop, TrafficEdit,
    TrafficRequest, TrafficResult, TrafficShare,
};
use crate::watching::{DurationSums, Durations, FunctionSummaries, FunctionSummary};

/// Returns the document as pretty JSON with a final newline. A test writes this document to the
/// file in the repository. Programs contain only the compressed file, which is decompressed at each
/// call, because the generating code or the plain text would take more room.
pub fn document() -> Vec<u8> {
    let packed = include_bytes!(concat!(env!("OUT_DIR"), "/openapi.deflate"));
    miniz_oxide::inflate::decompress_to_vec(packed).expect("the build has compressed it")
}

/// Generates the document from the descriptions below.
#[cfg(test)]
fn described() -> String {
    let mut document = Document::openapi();
    if let Some(components) = document.components.as_mut() {
        components
            .add_security_scheme("bearer", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    }
    let mut text = document.to_pretty_json().unwrap();
    text.push('\n');
    text
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "mote management API",
        version = "1",
        description = "Deploys, runs and watches functions on one node. On the node's Unix socket, the user id identifies the caller (root and the user that runs mote may use it); over TCP, every request needs `Authorization: Bearer TOKEN`, or the cookie of a session, with `Mote-Csrf` if it is not GET or HEAD. Errors are `application/problem+json` with a stable `code`."
    ),
    servers((url = "http://localhost", description = "the Unix socket of the node, or its --admin address")),
    paths(
        status, doctor, cells, put_cells, journals, take_journal, give_journal_back, functions, function, deploy, remove, revisions, place, split, traffic, rollback, invoke, scale, logs, recording, invocations, invocation, cancel_invocation, retry_invocation, delete_dead_letters, delete_dead_letter, schedules, secrets, put_secret, remove_secret, keys, create_key, rotate_key, revoke_key, tokens, create_token, revoke_token, namespaces, create_namespace, namespace, update_namespace, delete_namespace, audit, kv, kv_list, kv_clear, kv_get, kv_put, kv_delete, kv_increment, files, files_list, files_remove_all, file_get, file_put, file_remove, mqtt_users, put_mqtt_user, remove_mqtt_user, openwhisk, begin_session, session, end_session, session_code, progress, durations, traces, trace, openapi_json, functions_openapi, livez,
        readyz, metrics
    ),
    components(schemas(
        AcceptedInvocation, AcceptedInvocations, CancelledInvocation, DeletedDeadLetters,
        Namespace, NamespaceList, NamespaceRequest, Quotas, AuditEntry, AuditLog, NewOperatorToken, OperatorToken, OperatorTokenRequest, OperatorTokens, CallerKey, CallerKeyRequest, CallerKeyRotation, CallerKeys, NewCallerKey, Cell, CellList, CellPlace, CellsRequest, InvocationState, RunStep, RunStepState, Check, CheckState, DataFolder, DataFolders, FileEntry, FileKind, FileListing, FileWritten, DeployResult, DoctorReport, Function, FunctionList, FunctionState,
        InvokeAnswer, InvokeRequest, JournalList, JournalState, JournalStatus, KvKey, KvListing, KvNamespace, KvNamespaces, KvWritten, LogLine, RecordedAnswer, RecordedBody, RecordedCall,
        LogStream, MqttUser, MqttUserRequest, MqttUsers, NodeBudget, NodeStatus, Problem,
        Rate, Reach, RevisionInfo, RevisionList, ScaleBounds, ScaleRequest, ScaleResult, Schedule, ScheduleList,
        ScheduleOutcome, ScheduleRun, Secret, SecretList,
        SplitRequest, Stop, TrafficEdit, TrafficRequest, TrafficResult, TrafficShare, WhiskAction, WhiskEntity,
        WhiskManifest, WhiskResult, WhiskRule, WhiskSequence,
        Span, Trace, TraceList, TraceSummary, SessionRequest, Session, SessionCode, FunctionSummary, FunctionSummaries, Durations, DurationSums
    )),
    security((), ("bearer" = []))
)]
struct Document;

/// The node's properties and current state.
#[utoipa::path(get, path = "/v1/status", tag = "node", responses(
    (status = 200, body = NodeStatus),
    (status = 401, body = Problem, content_type = "application/problem+json"),
))]
fn status() {}

/// The checks of the node's machine: what works and what does not.
#[utoipa::path(get, path = "/v1/doctor", tag = "node", responses(
    (status = 200, body = DoctorReport),
))]
fn doctor() {}

/// The other cells of the cluster, and whether this cell is connected to them.
#[utoipa::path(get, path = "/v1/cells", tag = "node", responses(
    (status = 200, body = CellList),
))]
fn cells() {}

/// Replaces the list of the other cells, and sets the name of this cell. The list applies until the
/// node stops. Connections to cells that stay in the list are kept; connections to other cells end
/// with their last invocation.
#[utoipa::path(put, path = "/v1/cells", tag = "node",
    request_body(content = CellsRequest),
    responses(
        (status = 200, body = CellList),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "the setting `cell` is off"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "not a valid list"),
    ))]
fn put_cells() {}

/// The journals of accepted invocations that this node runs: its own journal, and those that it has
/// taken over from other nodes. Empty if the node keeps no journal in NATS.
#[utoipa::path(get, path = "/v1/journals", tag = "node", responses(
    (status = 200, body = JournalList),
))]
fn journals() {}

/// Takes a journal over and runs it next to the node's own journal. The node that ran the journal
/// before can no longer write to it. The node's own name takes its own journal back from a node
/// that has taken it. Nothing changes if this node already runs the journal.
#[utoipa::path(put, path = "/v1/journals/{name}", tag = "node",
    params(("name" = String, Path, description = "name of the journal: 1 to 64 letters, digits, - and _")),
    responses(
        (status = 200, body = JournalList),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "the node has no journal in NATS, or runs too many"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "not a valid name"),
        (status = 503, body = Problem, content_type = "application/problem+json", description = "NATS does not answer"),
    ))]
fn take_journal() {}

/// Stops running a journal that is not the node's own. The answer is sent when the running attempts
/// have ended and their results are in the stream; unfinished invocations stay there for the next
/// node.
#[utoipa::path(delete, path = "/v1/journals/{name}", tag = "node",
    params(("name" = String, Path, description = "name of the journal")),
    responses(
        (status = 200, body = JournalList),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "it is the node's own journal"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "not a valid name"),
    ))]
fn give_journal_back() {}

/// All functions, sorted by name.
#[utoipa::path(get, path = "/v1/functions", tag = "functions",
    params(("view" = Option<String>, Query, description = "`summary` for the short form, FunctionSummaries")),
    responses(
        (status = 200, body = FunctionList),
    ))]
fn functions() {}

/// One function.
#[utoipa::path(get, path = "/v1/functions/{name}", tag = "functions",
    params(("name" = String, Path, description = "name of the function")),
    responses(
        (status = 200, body = Function),
        (status = 404, body = Problem, content_type = "application/problem+json"),
    ))]
fn function() {}

/// Deploys a new revision.
///
/// The body is a tar, plain or gzip, of the function's folder. Its first entry may be
/// `.mote/spec.json`, the checked spec; this entry is set aside and does not become code. Without
/// this entry, the node reads `mote.toml` in the tar and guesses the rest. The name in the address
/// takes precedence. The old revision serves until the new one is stored and ready; after an error,
/// the old revision stays live.
#[utoipa::path(put, path = "/v1/functions/{name}", tag = "functions",
    params(
        ("name" = String, Path, description = "name of the function"),
        ("dry_run" = Option<bool>, Query, description = "check everything, change nothing"),
        ("no_traffic" = Option<bool>, Query, description = "the revision receives no share of the traffic"),
        ("tag" = Option<String>, Query, description = "the revision receives no share of the traffic, and NAME@TAG reaches it"),
        ("if_changed" = Option<bool>, Query, description = "make no revision if one with this code and these settings serves, or is the newest one that has served"),
    ),
    request_body(content = Vec<u8>, content_type = "application/x-tar", description = "tar of the folder"),
    responses(
        (status = 200, body = DeployResult, description = "nothing was changed (dry run, or an unchanged function)"),
        (status = 201, body = DeployResult, description = "the revision is ready, stored, and live unless it was deployed without traffic"),
        (status = 400, body = Problem, content_type = "application/problem+json", description = "upload cut off"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "another deploy of this function is running, or there is no revision that could receive the traffic"),
        (status = 413, body = Problem, content_type = "application/problem+json", description = "archive too large"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "archive, manifest or code refused, or the function did not become ready"),
        (status = 507, body = Problem, content_type = "application/problem+json", description = "disk full"),
    ))]
fn deploy() {}

/// Removes a function and its revisions. Running invocations finish.
#[utoipa::path(delete, path = "/v1/functions/{name}", tag = "functions",
    params(("name" = String, Path, description = "name of the function")),
    responses(
        (status = 204, description = "removed"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
    ))]
fn remove() {}

/// The stored revisions of a function, newest first.
#[utoipa::path(get, path = "/v1/functions/{name}/revisions", tag = "functions",
    params(("name" = String, Path, description = "name of the function")),
    responses(
        (status = 200, body = RevisionList),
        (status = 404, body = Problem, content_type = "application/problem+json"),
    ))]
fn revisions() {}

/// Stores a revision without traffic, under a number that the sender chose.
///
/// The agent of a cluster's cell uses this route, because all cells have the same revisions. If the
/// cell already has this revision, nothing changes; a different revision under the same number is
/// refused.
#[utoipa::path(put, path = "/v1/functions/{name}/revisions/{number}", tag = "functions",
    params(
        ("name" = String, Path, description = "name of the function"),
        ("number" = u64, Path, description = "number of the revision, above every number that the function had"),
        ("warm" = Option<bool>, Query, description = "an instance of it must become ready first"),
    ),
    request_body(content = Vec<u8>, content_type = "application/x-tar", description = "tar of the folder, as for a deploy"),
    responses(
        (status = 201, body = DeployResult, description = "the revision is stored, and ready if that was asked for"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "another deploy of this function is running"),
        (status = 413, body = Problem, content_type = "application/problem+json", description = "archive too large"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "archive, manifest, code or number refused, or the function did not become ready"),
        (status = 507, body = Problem, content_type = "application/problem+json", description = "disk full"),
    ))]
fn place() {}

/// Sets the whole traffic split of a function with its history.
///
/// The agent of a cluster's cell uses this route. All revisions in the split must already be
/// stored.
#[utoipa::path(put, path = "/v1/functions/{name}/split", tag = "functions",
    params(
        ("name" = String, Path, description = "name of the function"),
        ("warm" = Option<bool>, Query, description = "revisions that did not serve before must become ready first"),
    ),
    request_body(content = SplitRequest),
    responses(
        (status = 200, body = TrafficResult),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "no such function or revision"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "another deploy of this function is running"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "the split is not valid, or a revision did not become ready"),
    ))]
fn split() {}

/// A whole traffic split with its history, as a node stores it.
#[derive(utoipa::ToSchema)]
struct SplitRequest {
    /// The shares, which add up to 100 %.
    split: Vec<TrafficShare>,
    /// The revisions that were live before, the most recent one last. A rollback goes to that one.
    before: Vec<u64>,
    /// While traffic is divided: the revision that had all of the traffic when the division began.
    whole_before: Option<u64>,
    /// Whether another cell runs the function's schedules and subscriptions.
    elsewhere: bool,
}

/// Splits a function's traffic over its revisions.
///
/// Revisions that were not reached before are started first. If one of them does not become ready,
/// nothing changes. The answer is sent when the change is durable and in force.
#[utoipa::path(put, path = "/v1/functions/{name}/traffic", tag = "functions",
    params(("name" = String, Path, description = "name of the function")),
    request_body(content = TrafficRequest),
    responses(
        (status = 200, body = TrafficResult),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "no such function or revision"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "another deploy of this function is running"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "the split is not valid, or a revision did not become ready"),
    ))]
fn traffic() {}

/// Sends all of a function's traffic back to an earlier revision.
///
/// An instance of this revision is started first. If the instance does not become ready, nothing
/// changes.
#[utoipa::path(post, path = "/v1/functions/{name}/rollback", tag = "functions",
    params(
        ("name" = String, Path, description = "name of the function"),
        ("revision" = Option<u64>, Query, description = "the revision; by default the one that was live before"),
    ),
    responses(
        (status = 200, body = TrafficResult),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "no such function or revision, or no earlier revision"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "another deploy of this function is running"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "the revision did not become ready"),
    ))]
fn rollback() {}

/// Runs a function once.
///
/// The function receives the body and the headers unchanged, except for hop-by-hop headers,
/// `Authorization` and `Mote-*`. The answer consists of the function's status, headers and body. If
/// `mote` made the answer instead, `Mote-Fault` carries the code and the body is a problem.
#[utoipa::path(post, path = "/v1/functions/{name}/invoke", tag = "functions",
    params(
        ("name" = String, Path, description = "name of the function, or NAME@TAG"),
        ("Mote-Method" = Option<String>, Header, description = "method that the function receives; POST by default"),
        ("Mote-Path" = Option<String>, Header, description = "path and query that the function receives; / by default"),
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = "default", description = "the function's own answer; Mote-Invocation contains the invocation id")))]
fn invoke() {}

/// Starts or stops instances now, or sets their bounds.
///
/// `instances` applies once and is not stored: started instances idle for `scale.idle` at most, and
/// instances that `min` keeps and busy instances are not stopped. `min` and `max` are durable and
/// apply until the next deploy. The answer does not wait for starts.
#[utoipa::path(post, path = "/v1/functions/{name}/scale", tag = "functions",
    params(("name" = String, Path, description = "name of the function")),
    request_body = ScaleRequest,
    responses(
        (status = 200, body = ScaleResult),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "the numbers contradict each other"),
    ))]
fn scale() {}

/// Log lines, one JSON object per line, oldest first.
#[utoipa::path(get, path = "/v1/functions/{name}/logs", tag = "functions",
    params(
        ("name" = String, Path, description = "name of the function"),
        ("follow" = Option<bool>, Query, description = "keep the stream open for new lines"),
        ("since" = Option<String>, Query, description = "only lines younger than this: RFC 3339 time, or a duration such as 10m"),
        ("tail" = Option<u64>, Query, description = "only the last lines, counted after the other filters; 1,000 without since"),
        ("invocation" = Option<String>, Query, description = "only lines of this invocation"),
        ("grep" = Option<String>, Query, description = "only lines whose message contains this text"),
        ("ignore_case" = Option<bool>, Query, description = "the text of grep may be in upper or lower case"),
        ("level" = Option<String>, Query, description = "only lines of at least this level: debug, info, warn or error"),
    ),
    responses(
        (status = 200, body = LogLine, content_type = "application/jsonl"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
    ))]
fn logs() {}

/// The calls of one function from now on, one JSON object per line, each sent when its answer has
/// ended.
///
/// Needs the role deployer, and is entered in the audit record. Values of header fields that may be
/// secrets are left out, and so are bodies of more than 1 MiB. The stream ends with the connection,
/// or after an hour.
#[utoipa::path(get, path = "/v1/functions/{name}/recording", tag = "functions",
    params(("name" = String, Path, description = "name of the function")),
    responses(
        (status = 200, body = RecordedCall, content_type = "application/jsonl"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 429, body = Problem, content_type = "application/problem+json", description = "too many recordings are running"),
    ))]
fn recording() {}

/// The progress of a function's deploy, while it waits for a container image.
#[utoipa::path(get, path = "/v1/functions/{name}/progress", tag = "functions",
    params(("name" = String, Path, description = "name of the function")),
    responses(
        (status = 200, body = DeployProgress),
        (status = 404, body = Problem, content_type = "application/problem+json"),
    ))]
fn progress() {}

/// How long the invocations and starts of one function took, counted since the node started.
#[utoipa::path(get, path = "/v1/functions/{name}/durations", tag = "functions",
    params(("name" = String, Path, description = "name of the function")),
    responses(
        (status = 200, body = Durations),
        (status = 404, body = Problem, content_type = "application/problem+json"),
    ))]
fn durations() {}

/// Accepted invocations, newest first, without their answers.
#[utoipa::path(get, path = "/v1/invocations", tag = "invocations",
    params(
        ("function" = Option<String>, Query, description = "only those of this function"),
        ("state" = Option<String>, Query, description = "only those in this state: waiting, running, succeeded, dead or cancelled"),
        ("before" = Option<String>, Query, description = "only those that were accepted before the one with this id"),
        ("limit" = Option<usize>, Query, description = "1 to 1000; 100 unless given"),
        ("runs" = Option<bool>, Query, description = "only runs of chains"),
        ("id" = Option<String>, Query, description = "only the one with this id, with its answer; an empty list if the call was not accepted for later"),
    ),
    responses(
        (status = 200, body = AcceptedInvocations),
        (status = 422, body = Problem, content_type = "application/problem+json"),
    ))]
fn invocations() {}

/// One accepted invocation, with the function's answer if it has ended.
#[utoipa::path(get, path = "/v1/invocations/{id}", tag = "invocations",
    params(("id" = String, Path, description = "id of the invocation")),
    responses(
        (status = 200, body = AcceptedInvocation),
        (status = 404, body = Problem, content_type = "application/problem+json"),
    ))]
fn invocation() {}

/// Cancels an accepted invocation. A running attempt is ended, but its effects so far remain.
#[utoipa::path(delete, path = "/v1/invocations/{id}", tag = "invocations",
    params(("id" = String, Path, description = "id of the invocation")),
    responses(
        (status = 200, body = CancelledInvocation),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "it has ended"),
    ))]
fn cancel_invocation() {}

/// Runs a dead letter again, with all its attempts.
#[utoipa::path(post, path = "/v1/invocations/{id}/retry", tag = "invocations",
    params(("id" = String, Path, description = "id of the dead letter")),
    responses(
        (status = 204, description = "it waits to run"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "it is not a dead letter"),
    ))]
fn retry_invocation() {}

/// Removes all dead letters, or those of one function.
#[utoipa::path(delete, path = "/v1/dead-letters", tag = "invocations",
    params(("function" = Option<String>, Query, description = "only those of this function")),
    responses((status = 200, body = DeletedDeadLetters)))]
fn delete_dead_letters() {}

/// Removes one dead letter.
#[utoipa::path(delete, path = "/v1/dead-letters/{id}", tag = "invocations",
    params(("id" = String, Path, description = "id of the dead letter")),
    responses(
        (status = 204, description = "removed"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
    ))]
fn delete_dead_letter() {}

/// The schedules of all functions, sorted by function.
#[utoipa::path(get, path = "/v1/schedules", tag = "functions", responses(
    (status = 200, body = ScheduleList),
))]
fn schedules() {}

/// Names of all secrets, each with the functions that read it. Values are never shown.
#[utoipa::path(get, path = "/v1/secrets", tag = "secrets", responses(
    (status = 200, body = SecretList),
))]
fn secrets() {}

/// Makes or replaces a secret. Instances that start from then on see the new value; running
/// instances keep the old one.
#[utoipa::path(put, path = "/v1/secrets/{name}", tag = "secrets",
    params(("name" = String, Path, description = "1 to 253 of a-z, A-Z, 0-9, -, _ and ., not beginning with .")),
    request_body(content = String, content_type = "text/plain", description = "the value: text of at most 64 KiB, taken as it is"),
    responses(
        (status = 200, body = Secret, description = "replaced"),
        (status = 201, body = Secret, description = "made"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "not a valid name or value of a secret"),
    ))]
fn put_secret() {}

/// Removes a secret. Running instances keep it; functions that read it cannot start further
/// instances.
#[utoipa::path(delete, path = "/v1/secrets/{name}", tag = "secrets",
    params(("name" = String, Path, description = "name of the secret")),
    responses(
        (status = 204, description = "removed"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
    ))]
fn remove_secret() {}

/// The keys of callers, without their secret text.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", responses(
    (status = 200, body = CallerKeys),
))]
fn keys() {}

/// Makes a key for a new caller. Only this answer contains the key.
#[utoipa::path(post, path = "/v1/keys", tag = "keys",
    request_body = CallerKeyRequest,
    responses(
        (status = 201, body = NewCallerKey, description = "made"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "the caller has a key already, or the node has too many"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "not a valid name, pattern or lifetime"),
    ))]
fn create_key() {}

/// Replaces the key of a caller. Only this answer contains the new key.
#[utoipa::path(post, path = "/v1/keys/{name}/rotate", tag = "keys",
    params(("name" = String, Path, description = "name of the caller")),
    request_body = CallerKeyRotation,
    responses(
        (status = 200, body = NewCallerKey, description = "replaced"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "not a valid grace"),
    ))]
fn rotate_key() {}

/// Makes the keys of a caller invalid immediately.
#[utoipa::path(delete, path = "/v1/keys/{name}", tag = "keys",
    params(("name" = String, Path, description = "name of the caller")),
    responses(
        (status = 204, description = "revoked"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
    ))]
fn revoke_key() {}

/// The namespaces that the sender may see, without the default one.
#[utoipa::path(get, path = "/v1/namespaces", tag = "namespaces", responses(
    (status = 200, body = NamespaceList),
))]
fn namespaces() {}

/// Makes a namespace.
#[utoipa::path(post, path = "/v1/namespaces", tag = "namespaces",
    request_body = NamespaceRequest,
    responses(
        (status = 201, body = Namespace, description = "made"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "there is one with this name, or the node shares its functions with others"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "not a valid name"),
    ))]
fn create_namespace() {}

/// One namespace, and what it uses.
#[utoipa::path(get, path = "/v1/namespaces/{name}", tag = "namespaces",
    params(("name" = String, Path, description = "name of the namespace")),
    responses(
        (status = 200, body = Namespace),
        (status = 404, body = Problem, content_type = "application/problem+json"),
    ))]
fn namespace() {}

/// Replaces the limits of a namespace. Functions and instances that exceed a new limit are not removed.
#[utoipa::path(put, path = "/v1/namespaces/{name}", tag = "namespaces",
    params(("name" = String, Path, description = "name of the namespace")),
    request_body = Quotas,
    responses(
        (status = 200, body = Namespace),
        (status = 404, body = Problem, content_type = "application/problem+json"),
    ))]
fn update_namespace() {}

/// Deletes a namespace. The request waits until changes and instances in the namespace have ended.
#[utoipa::path(delete, path = "/v1/namespaces/{name}", tag = "namespaces",
    params(
        ("name" = String, Path, description = "name of the namespace"),
        ("force" = Option<bool>, Query, description = "delete it with its functions, secrets, state, keys, tokens and accepted invocations; without this, it must be empty"),
    ),
    responses(
        (status = 204, description = "deleted"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "it is not empty, or something in it does not end"),
    ))]
fn delete_namespace() {}

/// The tokens for managing the node, without their secret text.
#[utoipa::path(get, path = "/v1/tokens", tag = "operators", responses(
    (status = 200, body = OperatorTokens),
))]
fn tokens() {}

/// Makes a token with a role. Only this answer contains the token.
#[utoipa::path(post, path = "/v1/tokens", tag = "operators",
    request_body = OperatorTokenRequest,
    responses(
        (status = 201, body = NewOperatorToken, description = "made"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "there is a token with this name, or the node has too many"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "not a name, role or lifetime"),
    ))]
fn create_token() {}

/// Makes a token invalid immediately.
#[utoipa::path(delete, path = "/v1/tokens/{name}", tag = "operators",
    params(("name" = String, Path, description = "name of the token")),
    responses(
        (status = 204, description = "revoked"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
    ))]
fn revoke_token() {}

/// The latest requests that changed something, or that were refused because their sender had no
/// permission, oldest first.
#[utoipa::path(get, path = "/v1/audit", tag = "operators",
    params(("limit" = Option<u32>, Query, description = "entries at most, up to 10000; 100 by default")),
    responses((status = 200, body = AuditLog)))]
fn audit() {}

/// Users of the node's own MQTT broker, without their passwords.
#[utoipa::path(get, path = "/v1/mqtt/users", tag = "mqtt", responses(
    (status = 200, body = MqttUsers),
    (status = 409, body = Problem, content_type = "application/problem+json", description = "the node runs no broker"),
))]
fn mqtt_users() {}

/// Makes or replaces a user of the broker, which applies the change within a second.
#[utoipa::path(put, path = "/v1/mqtt/users/{name}", tag = "mqtt",
    params(("name" = String, Path, description = "1 to 256 bytes")),
    request_body = MqttUserRequest,
    responses(
        (status = 200, body = MqttUser),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "the node runs no broker"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "not a valid name, password or filter"),
    ))]
fn put_mqtt_user() {}

/// Removes a user of the broker.
#[utoipa::path(delete, path = "/v1/mqtt/users/{name}", tag = "mqtt",
    params(("name" = String, Path, description = "name of the user")),
    responses(
        (status = 204, description = "removed"),
        (status = 404, body = Problem, content_type = "application/problem+json"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "the node runs no broker"),
    ))]
fn remove_mqtt_user() {}

/// How much state each namespace of functions holds.
#[utoipa::path(get, path = "/v1/kv", tag = "state", responses(
    (status = 200, body = KvNamespaces),
))]
fn kv() {}

/// Lists keys of a namespace, sorted by their bytes.
#[utoipa::path(get, path = "/v1/kv/{namespace}", tag = "state",
    params(
        ("namespace" = String, Path, description = "name of a function, or shared:NAME"),
        ("prefix" = Option<String>, Query, description = "only keys that begin with it"),
        ("after" = Option<String>, Query, description = "only keys behind this one"),
        ("limit" = Option<u32>, Query, description = "keys at most, up to 1000"),
    ),
    responses(
        (status = 200, body = KvListing),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "not a namespace"),
    ))]
fn kv_list() {}

/// Removes everything in a namespace.
#[utoipa::path(delete, path = "/v1/kv/{namespace}", tag = "state", params(("namespace" = String, Path, description = "name of a function, or shared:NAME")),
    responses(
        (status = 204, description = "it is empty"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "not a namespace"),
    ))]
fn kv_clear() {}

/// The value of a key. The header `mote-version` is the entry's version. If the entry expires,
/// `mote-expires-unix-ms` says when.
#[utoipa::path(get, path = "/v1/kv/{namespace}/entry", tag = "state", params(("namespace" = String, Path, description = "name of a function, or shared:NAME"), ("key" = String, Query, description = "the key")),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "there is no such entry"),
    ))]
fn kv_get() {}

/// Writes the value of a key. When the answer is sent, the value is on disk.
#[utoipa::path(put, path = "/v1/kv/{namespace}/entry", tag = "state",
    params(
        ("namespace" = String, Path, description = "name of a function, or shared:NAME"),
        ("key" = String, Query, description = "the key"),
        ("ttl_ms" = Option<u64>, Query, description = "after how many milliseconds it vanishes"),
        ("version" = Option<u64>, Query, description = "the version that the entry must have; 0 if there must be none"),
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "the value"),
    responses(
        (status = 200, body = KvWritten),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "the entry has another version"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "not a namespace, key or value"),
        (status = 507, body = Problem, content_type = "application/problem+json", description = "the quota is used up"),
    ))]
fn kv_put() {}

/// Removes a key.
#[utoipa::path(delete, path = "/v1/kv/{namespace}/entry", tag = "state", params(("namespace" = String, Path, description = "name of a function, or shared:NAME"), ("key" = String, Query, description = "the key")),
    responses(
        (status = 204, description = "removed"),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "there is no such entry"),
    ))]
fn kv_delete() {}

/// Adds to a whole number. A missing entry counts as 0.
#[utoipa::path(post, path = "/v1/kv/{namespace}/entry", tag = "state",
    params(("namespace" = String, Path, description = "name of a function, or shared:NAME"), ("key" = String, Query, description = "the key"), ("by" = Option<i64>, Query, description = "what is added; 1 by default")),
    responses(
        (status = 200, body = KvWritten),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "the entry holds no number"),
        (status = 507, body = Problem, content_type = "application/problem+json", description = "the quota is used up"),
    ))]
fn kv_increment() {}

/// The data folders of functions, also of functions that have been removed.
#[utoipa::path(get, path = "/v1/files", tag = "files", responses(
    (status = 200, body = DataFolders),
))]
fn files() {}

/// Lists a folder in the data folder of a function: at most 10,000 names. Links are not followed.
#[utoipa::path(get, path = "/v1/files/{name}", tag = "files",
    params(
        ("name" = String, Path, description = "name of the function"),
        ("path" = Option<String>, Query, description = "the folder; empty for the data folder itself"),
    ),
    responses(
        (status = 200, body = FileListing),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "there is no such folder"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "not a path that can be used"),
    ))]
fn files_list() {}

/// Removes the data folder of a function that has been removed.
#[utoipa::path(delete, path = "/v1/files/{name}", tag = "files", params(("name" = String, Path, description = "name of the function")),
    responses(
        (status = 204, description = "it is gone"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "the function is deployed"),
    ))]
fn files_remove_all() {}

/// The content of a file.
#[utoipa::path(get, path = "/v1/files/{name}/content", tag = "files", params(("name" = String, Path, description = "name of the function"), ("path" = String, Query, description = "the file")),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "there is no such file"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "it is a folder, a link, a pipe or a socket"),
    ))]
fn file_get() {}

/// Writes a file, and makes the folders above it. The file appears when it is complete and on the
/// disk.
#[utoipa::path(put, path = "/v1/files/{name}/content", tag = "files",
    params(("name" = String, Path, description = "name of the function"), ("path" = String, Query, description = "the file")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream", description = "the content"),
    responses(
        (status = 200, body = FileWritten),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "the function has no data folder"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "not a path that can be used"),
        (status = 507, body = Problem, content_type = "application/problem+json", description = "the folder is full"),
    ))]
fn file_put() {}

/// Removes a file, or a folder.
#[utoipa::path(delete, path = "/v1/files/{name}/content", tag = "files",
    params(
        ("name" = String, Path, description = "name of the function"),
        ("path" = String, Query, description = "the file or folder"),
        ("recursive" = Option<bool>, Query, description = "whether a folder is removed with everything in it"),
    ),
    responses(
        (status = 204, description = "removed"),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "there is no such file"),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "the folder is not empty"),
    ))]
fn file_remove() {}

/// Makes or replaces the entities of an OpenWhisk manifest, or none of them if one cannot be made.
///
/// The functions of its actions must already be deployed. The node keeps such entities if its
/// OpenWhisk API is on.
#[utoipa::path(put, path = "/v1/openwhisk", tag = "functions",
    request_body(content = WhiskManifest),
    responses(
        (status = 200, body = WhiskResult),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "the node's OpenWhisk API is off"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "names that are not valid, or that do not exist"),
    ))]
fn openwhisk() {}

/// Begins a browser session, which has the rights of the token, or of the maker of the code.
///
/// The answer sets a cookie that scripts in the browser's pages cannot read. A session lasts 12
/// hours at most; it also ends with its token and when the node stops.
#[utoipa::path(post, path = "/v1/session", tag = "node",
    request_body(content = SessionRequest),
    responses(
        (status = 200, body = Session),
        (status = 401, body = Problem, content_type = "application/problem+json", description = "the token or code is not valid"),
        (status = 403, body = Problem, content_type = "application/problem+json", description = "the request comes from another site's page, or is not encrypted"),
        (status = 415, body = Problem, content_type = "application/problem+json", description = "the body is not sent as application/json"),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "neither a token nor a code, or both"),
        (status = 429, body = Problem, content_type = "application/problem+json", description = "too many wrong tokens from this address"),
    ),
    security(()))]
fn begin_session() {}

/// The session to which the request belongs.
#[utoipa::path(get, path = "/v1/session", tag = "node", responses(
    (status = 200, body = Session),
    (status = 401, body = Problem, content_type = "application/problem+json", description = "the request belongs to no session"),
))]
fn session() {}

/// Ends the session immediately.
#[utoipa::path(delete, path = "/v1/session", tag = "node", responses(
    (status = 204, description = "ended"),
    (status = 401, body = Problem, content_type = "application/problem+json", description = "the request belongs to no session"),
))]
fn end_session() {}

/// Makes a code that begins one session with the rights of the sender, within 60 seconds. If the
/// management API does not listen on a TCP address, it begins to listen on an address of this
/// machine.
#[utoipa::path(post, path = "/v1/session/code", tag = "node", responses(
    (status = 200, body = SessionCode),
))]
fn session_code() {}

/// Recorded calls, newest first.
#[utoipa::path(get, path = "/v1/traces", tag = "functions",
    params(
        ("function" = Option<String>, Query, description = "only calls of this function"),
        ("outcome" = Option<String>, Query, description = "only calls with this outcome: ok, caller, function, timeout, capacity, platform, or failed for all of them but ok"),
        ("slower_than" = Option<String>, Query, description = "only calls that took at least this long, such as 500ms or 1s"),
        ("limit" = Option<u64>, Query, description = "at most this many calls; 100 by default, 1,000 at most"),
    ),
    responses(
        (status = 200, body = TraceList),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "the node records no traces"),
    ))]
fn traces() {}

/// The parts of one trace, oldest first.
#[utoipa::path(get, path = "/v1/traces/{trace}", tag = "functions",
    params(("trace" = String, Path, description = "id of the trace")),
    responses(
        (status = 200, body = Trace),
        (status = 404, body = Problem, content_type = "application/problem+json"),
    ))]
fn trace() {}

/// This document.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "node", responses((status = 200)))]
fn openapi_json() {}

/// An OpenAPI document of the functions that the sender may see: their addresses, methods and
/// access, and the paths that the file openapi.json in a function's code describes.
#[utoipa::path(get, path = "/v1/openapi/functions.json", tag = "functions", responses((status = 200)))]
fn functions_openapi() {}

/// 200 while the process is running.
#[utoipa::path(get, path = "/livez", tag = "health", responses((status = 200)), security(()))]
fn livez() {}

/// 200 when invocations can be served.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 200), (status = 503, description = "starting or stopping")), security(()))]
fn readyz() {}

/// Metrics in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200)))]
fn metrics() {}

#[cfg(test)]
mod tests {
    /// Checks that the document in the repository is current. `MOTE_BLESS=1 cargo test -p mote-api`
    /// rewrites the document.
    #[test]
    fn the_checked_in_document_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/reference/openapi.json");
        let now = super::described();
        if std::env::var_os("MOTE_BLESS").is_some() {
            std::fs::write(path, &now).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            stored == now,
            "docs/reference/openapi.json is stale; refresh it with MOTE_BLESS=1"
        );
        assert!(now.contains("\"openapi\": \"3.1.0\""));
    }

    #[test]
    fn every_path_is_documented() {
        let document: serde_json::Value = serde_json::from_slice(&super::document()).unwrap();
        // The test reads the constants of all paths, so it also finds paths that are added later.
        let paths = include_str!("paths.rs").lines().filter_map(|line| {
            let (_, value) = line.split_once(": &str = \"")?;
            value.strip_suffix("\";").filter(|value| value.starts_with('/'))
        });
        assert!(paths.clone().count() > 20);
        for path in paths {
            assert!(document["paths"][path].is_object(), "{path}");
        }
    }
}
