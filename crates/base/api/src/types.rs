//! The types that the management API sends and receives, version 1. Existing fields are never removed
//! or changed; new ones may be added.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Timestamp;
use crate::invocations::InvocationState;
pub use crate::reach::{AcceptedSignatures, AcceptedTokens, OwnPort, Urls};

/// A function as the node sees it now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// `python`, `node`, `go`, `exec` or `server`.
    pub runtime: String,
    /// The platform whose contract it follows; absent for `mote`'s own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compat: Option<String>,
    /// Which of that platform's contracts, where it was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The live revision: the one with the largest share of the traffic.
    pub revision: u64,
    /// How its traffic goes: every revision that a share or tag reaches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<TrafficShare>,
    /// What it does now.
    pub state: FunctionState,
    /// Its instances that were ready once, oldest first.
    pub instances: Vec<Instance>,
    /// Instances on their way.
    #[serde(default)]
    pub starting: u32,
    /// The last instances that are gone, oldest first, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stops: Vec<Stop>,
    /// Bounds set by hand, which hold until the next deploy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<ScaleBounds>,
    /// What the autoscaler decided last; absent before the first invocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
    /// Who may call it: `public`, `key`, `basic`, `jwt`, `mtls`, `webhook` or `local`.
    #[serde(default = "public")]
    pub access: String,
    /// Whose tokens its callers send, with the mode `jwt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<AcceptedTokens>,
    /// The names of clients' certificates that it accepts, with the mode `mtls`; empty for every name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificate_names: Vec<String>,
    /// The signed requests that it accepts, with the mode `webhook`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<AcceptedSignatures>,
    /// Names of the secrets it reads, as files or variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// The schedules by which it runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<Schedule>,
    /// Where it can be called.
    pub urls: Urls,
    /// Its MQTT triggers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mqtt: Vec<MqttStatus>,
    /// Its limits.
    pub limits: Limits,
    /// When its first revision was deployed.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Invocations since the node started.
    pub requests: Requests,
    /// The last failure, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    /// What its owner could change in its manifest, the most urgent first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Advice>,
}

/// A change of a function's manifest, and what the node has seen that speaks for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Advice {
    /// `memory-low`, `memory-high`, `cpu-low`, `queue-full`, `idle-short`, `min-zero`, `min-unused` or
    /// `start-cold`.
    pub code: String,
    /// What was seen, and over how long.
    pub text: String,
    /// The section of `mote.toml`.
    pub section: String,
    /// The line for this section.
    pub change: String,
}

/// The access mode that is assumed for a function of an older node, which sends no access mode.
fn public() -> String {
    "public".to_owned()
}

/// A schedule of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    /// The function.
    pub function: String,
    /// The cron expression, or `every 10s`.
    pub expression: String,
    /// The zone of a cron expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// The interval in milliseconds, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<u64>,
    /// `skip`, `run-once` or `run-all`.
    pub missed: String,
    /// Each run is delayed by a constant below this, in milliseconds.
    #[serde(default)]
    pub jitter_ms: u64,
    /// `skip`, `queue` or `allow`.
    pub overlap: String,
    /// When it runs next, jitter included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, format = DateTime)]
    pub next: Option<Timestamp>,
    /// Its last run since the node started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<ScheduleRun>,
    /// Times since the node started that were left out, because the run before had not ended.
    #[serde(default)]
    pub left_out: u64,
}

/// A run that was due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleRun {
    /// When it was due, without jitter.
    #[schema(value_type = String, format = DateTime)]
    pub due: Timestamp,
    /// What became of it.
    pub outcome: ScheduleOutcome,
    /// The id of the invocation, if it was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation: Option<String>,
    /// The state of that invocation, in a list of schedules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<InvocationState>,
    /// Why it was not accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What became of a run that was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleOutcome {
    /// The node has accepted it: it runs, waits or has ended.
    Accepted,
    /// It was left out, because the run before had not ended.
    LeftOut,
    /// It could not be accepted.
    Failed,
}

/// Schedules in the order of their functions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleList {
    /// The schedules.
    pub schedules: Vec<Schedule>,
}

/// Whether a function can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FunctionState {
    /// No instance; the next invocation starts one.
    Idle,
    /// An instance is starting, none is ready.
    Starting,
    /// At least one instance is ready.
    Ready,
    /// The last start failed.
    Failed,
}

impl FunctionState {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            FunctionState::Idle => "idle",
            FunctionState::Starting => "starting",
            FunctionState::Ready => "ready",
            FunctionState::Failed => "failed",
        }
    }
}

/// One running copy of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Instance {
    /// Its id, unique on the node until restart.
    pub id: String,
    /// Its revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// `starting`, `ready`, `draining`, `stopped` or `failed`.
    pub state: String,
    /// Process id of its first process on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Memory it uses now, in bytes, where it can be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// When it was started.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// Why it was started: a stable word such as `first-invocation`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason_text: String,
    /// Invocations it holds.
    #[serde(default)]
    pub in_flight: u64,
    /// Invocations it ended.
    #[serde(default)]
    pub served: u64,
}

/// An instance that is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stop {
    /// Its id.
    pub id: String,
    /// The revision it ran.
    pub revision: u64,
    /// When it was gone.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// Why: a stable word such as `idle`, `evicted`, `scale`, `redeploy`, `deadline`, `memory` or
    /// `crash`; `start` for one that never was ready.
    pub reason: String,
    /// More of it, where there is more to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason_text: String,
}

/// A secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Secret {
    /// Its name.
    pub name: String,
    /// Functions whose live revisions read it, by name.
    #[serde(default)]
    pub functions: Vec<String>,
}

/// The secrets of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretList {
    /// By name.
    pub secrets: Vec<Secret>,
}

/// Bounds of a function's instances in place of the manifest's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScaleBounds {
    /// Instances at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// Instances at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
}

/// What to do with a function's instances by hand. At least one field must say something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScaleRequest {
    /// Starts instances up to this number, or stops idle ones down to it, now; the autoscaler goes
    /// on from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<u32>,
    /// Minimum number of instances, until the next deploy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// Maximum number of instances, until the next deploy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// Forgets bounds set before; those of the manifest hold again.
    #[serde(default)]
    pub reset: bool,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScaleResult {
    /// The function.
    pub function: String,
    /// Instances ready.
    pub ready: u32,
    /// Instances on their way.
    pub starting: u32,
    /// Idle instances told to exit.
    pub stopped: u32,
    /// Bounds that hold now in place of the manifest's.
    pub bounds: ScaleBounds,
    /// What was not done, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// How many instances there should be, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Scaling {
    /// Instances wanted, within `instances_min` and `instances_max`.
    pub desired: u32,
    /// Instances the rule alone would want.
    pub wished: u32,
    /// A stable word such as `offered-load`.
    pub reason: String,
    /// The same in a sentence.
    pub reason_text: String,
}

/// An MQTT trigger of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MqttStatus {
    /// Its topic filter.
    pub filter: String,
    /// Its broker.
    pub broker: String,
    /// The name under which the broker knows it.
    pub client_id: String,
    /// `connecting`, `subscribed` or `failing`; a failing trigger tries again by itself.
    pub state: String,
    /// Why it is failing: a code, see `mote explain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The same in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Messages that arrived since the node started, those that arrived again included.
    pub received: u64,
    /// Messages whose function answered, or that were stored.
    pub done: u64,
    /// Messages that were given up.
    pub given_up: u64,
    /// Messages that run or wait now.
    pub running: u64,
}

/// Limits of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// Memory of one instance in bytes.
    pub memory_bytes: u64,
    /// Memory of each of its processes in bytes, if this machine can limit nothing else; absent if the
    /// instance as a whole is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_memory_bytes: Option<u64>,
    /// CPU of one instance in thousandths of a core; absent is no cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u32>,
    /// Processes and threads of one instance.
    pub pids: u32,
    /// Deadline of one invocation in milliseconds.
    pub timeout_ms: u64,
    /// How long a start may take, in milliseconds.
    pub init_timeout_ms: u64,
    /// Invocations at once in one instance; absent lets the runtime choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Largest request body in bytes.
    pub body_bytes: u64,
    /// Private writable space of one instance in bytes.
    pub disk_bytes: u64,
    /// Instances kept at least.
    pub instances_min: u32,
    /// Instances at most; absent is the number of cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances_max: Option<u32>,
    /// Milliseconds an instance stays after its last invocation at most.
    pub idle_timeout_ms: u64,
    /// Invocations that may wait.
    pub queue: u32,
    /// The scaling rule: `auto`, `concurrency`, `rps`, `cpu`, `memory`, `knative`, `hpa` or
    /// `openfaas`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub policy: String,
    /// `cold`, `warm` or `always`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub start: String,
    /// `late-binding`, `round-robin`, `random` or `least-connections`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub balance: String,
    /// Calls from outside that it accepts of all callers together; absent is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Those that it accepts of each caller; absent is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller_rate: Option<Rate>,
    /// Calls from outside that may be accepted and unfinished at once; absent is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_at_once: Option<u32>,
    /// Those of each caller; absent is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller_calls_at_once: Option<u32>,
}

/// Calls in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rate {
    /// Calls in `period_ms`, evenly.
    pub calls: u32,
    /// Milliseconds.
    pub period_ms: u64,
    /// Calls that may come at once after a pause.
    pub burst: u32,
}

/// Counters of a function over all its revisions, since the node started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Requests {
    /// Invocations that ended.
    pub total: u64,
    /// Of these, those that ended with a fault.
    pub failed: u64,
    /// Invocations running now.
    pub running: u64,
    /// Invocations waiting now.
    pub queued: u64,
    /// Invocations that waited for an instance to start.
    pub cold_starts: u64,
    /// Instances that became ready.
    #[serde(default)]
    pub starts: u64,
    /// How many seconds their starts took in all. The policy `auto` weighs a start against the memory
    /// of an instance that waits.
    #[serde(default)]
    pub starts_s: f64,
    /// Median time from arrival to answer in milliseconds, over the recent past.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    /// 99th percentile of the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
}

/// The last failure of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LastError {
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// Its code, see `mote explain`.
    pub code: String,
    /// Its text, the function's own words included.
    pub message: String,
    /// The invocation it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation: Option<String>,
}

/// All functions, by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionList {
    /// The functions.
    pub functions: Vec<Function>,
}

/// What a deploy did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeployResult {
    /// The function.
    pub function: String,
    /// Its new revision, or with `dry_run` the one it would get; the live one if it is unchanged.
    pub revision: u64,
    /// The revision that was live before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<u64>,
    /// How traffic goes now; empty from a dry run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<TrafficShare>,
    /// Who may call it: `public`, `key`, `basic`, `jwt`, `mtls`, `webhook` or `local`.
    #[serde(default = "public")]
    pub access: String,
    /// Whether nothing was done, because the function has a revision like this one (`if_changed`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchanged: bool,
    /// Whether it was asked to take no traffic by share.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held_back: bool,
    /// What was done, in order.
    pub steps: Vec<DeployStep>,
    /// What was changed or ignored and should be known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Where it can be called.
    pub urls: Urls,
}

/// One finished step of a deploy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeployStep {
    /// `unpack`, `packages`, `start`, `check`, `store`.
    pub name: String,
    /// What came out, in a few words.
    pub detail: String,
    /// How long it took, in milliseconds.
    pub ms: u64,
}

/// A revision's part of a function's traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrafficShare {
    /// The revision.
    pub revision: u64,
    /// Percent of the invocations.
    pub percent: u32,
    /// Its tag: `NAME@TAG` reaches exactly this revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// A wish to change one revision's part.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrafficEdit {
    /// The revision.
    pub revision: u64,
    /// Its new share in percent; absent leaves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
    /// Its new tag, which leaves the revision that had it; empty takes its tag away, absent
    /// leaves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// How traffic should go. Once an edit gives a share, revisions that are not named lose theirs;
/// the shares must then add up to 100. Tags stay until they are taken away.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrafficRequest {
    /// The edits.
    pub shares: Vec<TrafficEdit>,
}

/// How traffic goes after it was moved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TrafficResult {
    /// The function.
    pub function: String,
    /// The revision with the largest share.
    pub revision: u64,
    /// The one that had it before.
    pub previous: u64,
    /// Every revision that a share or tag reaches, in ascending order.
    pub traffic: Vec<TrafficShare>,
    /// What was done, in order.
    pub steps: Vec<DeployStep>,
}

/// A stored revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevisionInfo {
    /// Its number.
    pub revision: u64,
    /// `live` (takes traffic by share), `retired` (took some once) or `added` (never did).
    pub state: String,
    /// Percent of the invocations.
    pub percent: u32,
    /// Its tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// When it was deployed.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Milliseconds since then, by the node's clock.
    pub age_ms: u64,
    /// SHA-256 of its code.
    pub code: String,
}

/// The stored revisions of a function, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevisionList {
    /// The function.
    pub function: String,
    /// The revisions.
    pub revisions: Vec<RevisionInfo>,
}

/// An invocation through the management API. On the wire the body is the request's body, the
/// headers are its headers, and method and path travel as `Mote-Method` and `Mote-Path`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InvokeRequest {
    /// The method the function sees.
    pub method: String,
    /// Path and query that the function receives, beginning with `/`.
    pub path: String,
    /// Headers the function sees, in order.
    pub headers: Vec<(String, String)>,
    /// The body.
    #[schema(value_type = String, format = Binary)]
    pub body: Vec<u8>,
}

/// The answer to an invocation: the function's own status, headers and body, passed through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InvokeAnswer {
    /// HTTP status.
    pub status: u16,
    /// Headers, in order.
    pub headers: Vec<(String, String)>,
    /// The body.
    #[schema(value_type = String, format = Binary)]
    pub body: Vec<u8>,
    /// The id of the invocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation: Option<String>,
    /// The error code when `mote` and not the function made the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Where a log line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogStream {
    /// The function's standard output.
    Stdout,
    /// The function's standard error.
    Stderr,
    /// The function's logging calls.
    Log,
    /// What `mote` has to say about the function.
    Platform,
}

impl LogStream {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            LogStream::Stdout => "stdout",
            LogStream::Stderr => "stderr",
            LogStream::Log => "log",
            LogStream::Platform => "platform",
        }
    }
}

/// One log line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogLine {
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// The text, one line.
    pub message: String,
    /// The function.
    pub function: String,
    /// Its revision.
    pub revision: u64,
    /// The instance, where one spoke.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The invocation, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation: Option<String>,
    /// Where it came from.
    pub stream: LogStream,
    /// Its position in the function's log since the node started, counted from 1; 0 for a line that
    /// is not in the log, for instance about lines that were skipped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sequence: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// Works, with something less.
    Warn,
    /// Does not work.
    Fail,
}

/// One check of the machine or the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    /// What was checked.
    pub name: String,
    /// How it came out.
    pub state: CheckState,
    /// What was found.
    pub detail: String,
    /// What helps, where something is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// What works on this machine and what does not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorReport {
    /// The checks, in a fixed order.
    pub checks: Vec<Check>,
    /// What other machines reach: listeners, then functions. Empty if they reach nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reach: Vec<Reach>,
    /// The functions of a node of which other machines reach nothing, and who may call them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<Reach>,
}

/// A listener, or a function, and who may use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reach {
    /// The name of the listener, or `function NAME`.
    pub what: String,
    /// The address at which a listener listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Who may use it, in words.
    pub who: String,
}

/// What a node is and does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeStatus {
    /// Version of `mote`.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// Address of the HTTP front, when it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Address of the CoAP front, when it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coap: Option<String>,
    /// Whether the fronts listen beyond this machine.
    pub lan: bool,
    /// Where it keeps its data.
    pub data_dir: String,
    /// How many functions it has.
    pub functions: u64,
    /// How many instances run.
    pub instances: u64,
    /// Resident memory of the node process in bytes.
    pub memory_bytes: u64,
    /// What the node gives to instances, and what is taken of it.
    #[serde(default)]
    pub budget: NodeBudget,
    /// What should be known about its isolation and durability, in words.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub notes: BTreeMap<String, String>,
}

/// What a node gives to instances in all. Memory is counted by limits, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeBudget {
    /// Memory there is.
    pub memory_bytes: u64,
    /// Taken by instances that are not gone, those that start among them.
    pub taken_bytes: u64,
    /// The most that was ever taken since the node started.
    pub peak_bytes: u64,
    /// The part of what is taken that idle instances are giving back.
    pub leaving_bytes: u64,
    /// Promised to starts that wait for that part.
    pub promised_bytes: u64,
    /// Instances starting.
    pub starting: u32,
    /// How many may start at once.
    pub starts_max: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_on_the_wire() {
        let line = LogLine {
            time: Timestamp::from_unix_ms(0),
            level: "info".into(),
            message: "hi".into(),
            function: "hello".into(),
            revision: 1,
            instance: None,
            invocation: None,
            stream: LogStream::Stdout,
            sequence: 0,
        };
        let text = r#"{"time":"1970-01-01T00:00:00.000Z","level":"info","message":"hi","function":"hello","revision":1,"stream":"stdout"}"#;
        assert_eq!(serde_json::to_string(&line).unwrap(), text);
        assert_eq!(serde_json::from_str::<LogLine>(text).unwrap(), line);
    }
}
