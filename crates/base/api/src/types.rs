//! The types that the management API sends and receives, version 1. Existing fields are never removed
//! or changed; new ones may be added.

use std::collections::BTreeMap;

use base64::Engine as _;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Timestamp;
use crate::invocations::InvocationState;
pub use crate::reach::{AcceptedSignatures, AcceptedTokens, OwnPort, Urls};

/// A login at a registry of container images. `Debug` shows no secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegistryLogin {
    /// A name and a password, or a token in place of the password.
    Password {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
    /// A token that the registry exchanges for short-lived ones.
    IdentityToken(String),
}

impl RegistryLogin {
    /// Returns the encoded form that the header field of a deploy carries.
    pub fn encode(&self) -> String {
        let json = serde_json::to_vec(self).unwrap_or_default();
        base64::prelude::BASE64_STANDARD.encode(json)
    }

    /// Decodes the header field of a deploy.
    pub fn decode(text: &[u8]) -> Option<Self> {
        let json = base64::prelude::BASE64_STANDARD.decode(text).ok()?;
        serde_json::from_slice(&json).ok()
    }
}

impl RegistryLogin {
    /// Reads a login in the form of `auths` in Docker's `config.json`: `USER:PASSWORD` in base64.
    pub fn from_docker_auth(text: &str) -> Option<Self> {
        let bytes = base64::prelude::BASE64_STANDARD.decode(text.trim()).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        // Docker has ended the text with NUL bytes.
        let (user, password) = text.trim_end_matches('\0').split_once(':')?;
        let is_whole = !user.is_empty() && !password.is_empty();
        is_whole.then(|| Self::Password { user: user.to_owned(), password: password.to_owned() })
    }
}

impl std::fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RegistryLogin(..)")
    }
}

/// The progress of a deploy that waits for a container image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeployProgress {
    /// What the deploy is doing now, as text for people: `12 MiB of 80 MiB`.
    pub detail: String,
}

/// A function as the node sees it now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// `python`, `node`, `go`, `exec` or `server`.
    pub runtime: String,
    /// The platform whose contract the function follows; absent for `mote`'s own contract.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compat: Option<String>,
    /// Which of that platform's contracts the function follows, if the manifest says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The container image that the function runs, with its digest; absent for a function that is
    /// code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The live revision: the one with the largest share of the traffic.
    pub revision: u64,
    /// The split of its traffic: every revision that a share or tag reaches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<TrafficShare>,
    /// What it does now.
    pub state: FunctionState,
    /// Its instances that have been ready, oldest first.
    pub instances: Vec<Instance>,
    /// Number of instances that are starting.
    #[serde(default)]
    pub starting: u32,
    /// The instances that ended last, oldest first, with the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stops: Vec<Stop>,
    /// Bounds set by hand, which apply until the next deploy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<ScaleBounds>,
    /// The autoscaler's last decision; absent before the first invocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
    /// Why each instance loads the function itself, if loading it takes long. Absent if further
    /// instances are copies of one that has loaded it, or if nothing is known about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_copies: Option<String>,
    /// Who may call it: `public`, `key`, `basic`, `jwt`, `mtls`, `webhook` or `local`.
    #[serde(default = "public")]
    pub access: String,
    /// The tokens that callers must send, with the mode `jwt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<AcceptedTokens>,
    /// The names in client certificates that the function accepts, with the mode `mtls`; empty for
    /// every name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificate_names: Vec<String>,
    /// The signed requests that it accepts, with the mode `webhook`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<AcceptedSignatures>,
    /// Names of the secrets that the function reads, as files or variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// The schedules on which the function runs.
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
    /// Counters of its invocations since the node started.
    pub requests: Requests,
    /// The last failure, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    /// Changes that the owner could make in the manifest, the most urgent first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Advice>,
}

/// A suggested change of a function's manifest, with the observation that supports the change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Advice {
    /// `memory-low`, `memory-high`, `cpu-low`, `queue-full`, `idle-short`, `min-zero`, `min-unused` or
    /// `start-cold`.
    pub code: String,
    /// What the node observed, and over which period.
    pub text: String,
    /// The section of `mote.toml`.
    pub section: String,
    /// The line to put into this section.
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
    /// The time zone of a cron expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// The interval in milliseconds, if the schedule has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<u64>,
    /// `skip`, `run-once` or `run-all`.
    pub missed: String,
    /// The upper limit of the constant delay of each run, in milliseconds.
    #[serde(default)]
    pub jitter_ms: u64,
    /// `skip`, `queue` or `allow`.
    pub overlap: String,
    /// When the schedule runs next, including jitter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, format = DateTime)]
    pub next: Option<Timestamp>,
    /// The last run since the node started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<ScheduleRun>,
    /// Scheduled times since the node started that were left out, because the previous run had not
    /// ended.
    #[serde(default)]
    pub left_out: u64,
}

/// A run that was due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleRun {
    /// When it was due, without jitter.
    #[schema(value_type = String, format = DateTime)]
    pub due: Timestamp,
    /// The outcome of the run.
    pub outcome: ScheduleOutcome,
    /// The id of the invocation, if it was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation: Option<String>,
    /// The state of that invocation, in a list of schedules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<InvocationState>,
    /// Why the run was not accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The outcome of a run that was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleOutcome {
    /// The node has accepted the run, which is running, is waiting or has ended.
    Accepted,
    /// The run was left out, because the previous run had not ended.
    LeftOut,
    /// The run could not be accepted.
    Failed,
}

/// Schedules, sorted by function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleList {
    /// The schedules.
    pub schedules: Vec<Schedule>,
}

/// Whether a function can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FunctionState {
    /// The function has no instance; the next invocation starts one.
    Idle,
    /// An instance is starting, and none is ready.
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
    /// Its id, which is unique on the node until the node restarts.
    pub id: String,
    /// Its revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// `starting`, `ready`, `draining`, `stopped` or `failed`.
    pub state: String,
    /// Process id, on the host, of the instance's first process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Memory that the instance uses now, in bytes, if it can be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// When it was started.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// Why the instance was started: a stable word such as `first-invocation`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same reason in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason_text: String,
    /// Invocations that the instance is running.
    #[serde(default)]
    pub in_flight: u64,
    /// Invocations that the instance has finished.
    #[serde(default)]
    pub served: u64,
}

/// An instance that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Stop {
    /// Its id.
    pub id: String,
    /// The revision that the instance ran.
    pub revision: u64,
    /// When the instance ended.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// The reason: a stable word such as `idle`, `evicted`, `scale`, `redeploy`, `deadline`,
    /// `memory` or `crash`; `start` for an instance that was never ready.
    pub reason: String,
    /// Further details of the reason, if there are any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason_text: String,
}

/// A secret, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Secret {
    /// Its name.
    pub name: String,
    /// The functions whose live revisions read the secret, sorted by name.
    #[serde(default)]
    pub functions: Vec<String>,
}

/// The secrets of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretList {
    /// The secrets, sorted by name.
    pub secrets: Vec<Secret>,
}

/// Bounds of a function's instances that replace those in the manifest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScaleBounds {
    /// Minimum number of instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// Maximum number of instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
}

/// A change of a function's instances by hand. At least one field must be set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScaleRequest {
    /// Starts instances up to this number, or stops idle ones down to it, now. The autoscaler
    /// continues from this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<u32>,
    /// Minimum number of instances, until the next deploy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u32>,
    /// Maximum number of instances, until the next deploy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// Removes bounds that were set before, so that the manifest's bounds apply again.
    #[serde(default)]
    pub reset: bool,
}

/// The result of changing instances by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScaleResult {
    /// The function.
    pub function: String,
    /// Number of ready instances.
    pub ready: u32,
    /// Number of instances that are starting.
    pub starting: u32,
    /// Number of idle instances that were asked to exit.
    pub stopped: u32,
    /// The bounds that now apply in place of the manifest's.
    pub bounds: ScaleBounds,
    /// What was not done, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// How many instances there should be, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Scaling {
    /// The number of instances to have, within `instances_min` and `instances_max`.
    pub desired: u32,
    /// The number of instances that the scaling rule asks for without these bounds.
    pub wished: u32,
    /// A stable word such as `offered-load`.
    pub reason: String,
    /// The same reason in a sentence.
    pub reason_text: String,
}

/// An MQTT trigger of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MqttStatus {
    /// The topic filter.
    pub filter: String,
    /// The broker.
    pub broker: String,
    /// The client id with which the trigger connects to the broker.
    pub client_id: String,
    /// `connecting`, `subscribed` or `failing`; a failing trigger tries again automatically.
    pub state: String,
    /// The code of the failure, see `mote explain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The same failure in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Messages that arrived since the node started, including those that arrived again.
    pub received: u64,
    /// Messages that the function answered, or that were stored.
    pub done: u64,
    /// Messages that were given up.
    pub given_up: u64,
    /// Messages that are running or waiting now.
    pub running: u64,
}

/// Limits of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// Memory of one instance in bytes.
    pub memory_bytes: u64,
    /// Memory of each process of an instance in bytes, if this machine can limit only single
    /// processes; absent if the instance as a whole is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_memory_bytes: Option<u64>,
    /// CPU of one instance in thousandths of a core; absent for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u32>,
    /// Processes and threads of one instance.
    pub pids: u32,
    /// Deadline of one invocation in milliseconds.
    pub timeout_ms: u64,
    /// How long a start may take, in milliseconds.
    pub init_timeout_ms: u64,
    /// Invocations that run at once in one instance; absent if the runtime chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Largest request body in bytes.
    pub body_bytes: u64,
    /// Private writable space of one instance in bytes.
    pub disk_bytes: u64,
    /// Minimum number of instances.
    pub instances_min: u32,
    /// Maximum number of instances; absent for the number of cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances_max: Option<u32>,
    /// How long an instance stays at most after its last invocation, in milliseconds.
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
    /// Calls from outside that the function accepts, from all callers together; absent for no
    /// limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Calls from outside that the function accepts from each caller; absent for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller_rate: Option<Rate>,
    /// Calls from outside that may be accepted and unfinished at once; absent for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls_at_once: Option<u32>,
    /// The same limit for each caller; absent for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller_calls_at_once: Option<u32>,
}

/// A limit on the number of calls per period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rate {
    /// Calls per `period_ms`, spread evenly.
    pub calls: u32,
    /// The period in milliseconds.
    pub period_ms: u64,
    /// Calls that may arrive at once after a pause.
    pub burst: u32,
}

/// Counters of a function over all its revisions, since the node started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Requests {
    /// Invocations that ended.
    pub total: u64,
    /// The invocations of `total` that ended with a fault.
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
    /// The total duration of these starts in seconds. The policy `auto` compares the cost of a
    /// start with the memory of a waiting instance.
    #[serde(default)]
    pub starts_s: f64,
    /// Median time from arrival to answer in milliseconds, over the recent past.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    /// 99th percentile of the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
}

/// The last failure of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LastError {
    /// When it happened.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// The error code, see `mote explain`.
    pub code: String,
    /// The error text, including the function's own words.
    pub message: String,
    /// The invocation that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation: Option<String>,
}

/// All functions, sorted by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionList {
    /// The functions.
    pub functions: Vec<Function>,
}

/// The result of a deploy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeployResult {
    /// The function.
    pub function: String,
    /// The new revision, or with `dry_run` the number that it would get; the live revision if
    /// nothing was changed.
    pub revision: u64,
    /// The revision that was live before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<u64>,
    /// The current traffic split; empty for a dry run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<TrafficShare>,
    /// Who may call the function: `public`, `key`, `basic`, `jwt`, `mtls`, `webhook` or `local`.
    #[serde(default = "public")]
    pub access: String,
    /// Whether nothing was done, because the function already has a revision like this one
    /// (`if_changed`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchanged: bool,
    /// Whether the deploy asked for a revision without a share of the traffic.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held_back: bool,
    /// The steps of the deploy, in order.
    pub steps: Vec<DeployStep>,
    /// What was changed or ignored and the user should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Where the function can be called.
    pub urls: Urls,
}

/// One finished step of a deploy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeployStep {
    /// `unpack`, `packages`, `start`, `check`, `store`.
    pub name: String,
    /// The result, in a few words.
    pub detail: String,
    /// How long the step took, in milliseconds.
    pub ms: u64,
}

/// A revision's share of a function's traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrafficShare {
    /// The revision.
    pub revision: u64,
    /// Percentage of the invocations.
    pub percent: u32,
    /// Its tag: `NAME@TAG` reaches exactly this revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// A change of one revision's share or tag.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrafficEdit {
    /// The revision.
    pub revision: u64,
    /// The revision's new share in percent; absent to keep the share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u32>,
    /// The revision's new tag, which is taken from the revision that had it. Empty removes the tag;
    /// absent keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// A change of the traffic split. If an edit sets a share, revisions that are not named lose their
/// shares, and the shares must add up to 100. Tags stay until they are removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrafficRequest {
    /// The edits.
    pub shares: Vec<TrafficEdit>,
}

/// The traffic split after a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TrafficResult {
    /// The function.
    pub function: String,
    /// The revision with the largest share.
    pub revision: u64,
    /// The revision that had the largest share before.
    pub previous: u64,
    /// Every revision that a share or tag reaches, in ascending order.
    pub traffic: Vec<TrafficShare>,
    /// The steps of the change, in order.
    pub steps: Vec<DeployStep>,
}

/// A stored revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevisionInfo {
    /// Its number.
    pub revision: u64,
    /// `live` (receives a share of the traffic), `retired` (received one in the past) or `added`
    /// (never received one).
    pub state: String,
    /// Percentage of the invocations.
    pub percent: u32,
    /// Its tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// When it was deployed.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// How long ago that was, in milliseconds by the node's clock.
    pub age_ms: u64,
    /// SHA-256 of its code.
    pub code: String,
    /// The container image that it runs, with its digest; absent for a function of code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

/// The stored revisions of a function, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevisionList {
    /// The function.
    pub function: String,
    /// The revisions.
    pub revisions: Vec<RevisionInfo>,
}

/// An invocation through the management API. On the wire, body and headers are those of the HTTP
/// request; method and path are sent as `Mote-Method` and `Mote-Path`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InvokeRequest {
    /// The method that the function receives.
    pub method: String,
    /// Path and query that the function receives, beginning with `/`.
    pub path: String,
    /// Headers that the function receives, in order.
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
    /// The error code, if `mote` and not the function made the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// The source of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogStream {
    /// The function's standard output.
    Stdout,
    /// The function's standard error.
    Stderr,
    /// The function's logging calls.
    Log,
    /// Messages from `mote` about the function.
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
    /// The time of the line.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// The text of the line.
    pub message: String,
    /// The function.
    pub function: String,
    /// Its revision.
    pub revision: u64,
    /// The instance that wrote the line, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The invocation, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation: Option<String>,
    /// The source of the line.
    pub stream: LogStream,
    /// Its position in the function's log since the node started, counted from 1; 0 for a line that
    /// is not in the log, such as a notice about skipped lines.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sequence: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
    /// Works as it should.
    Ok,
    /// An optional part that is not installed.
    Absent,
    /// Works, but with limitations.
    Warn,
    /// Does not work.
    Fail,
}

/// One check of the machine or the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    /// What was checked.
    pub name: String,
    /// The result of the check.
    pub state: CheckState,
    /// What was found.
    pub detail: String,
    /// What to do, if something is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// What works on this machine and what does not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorReport {
    /// The checks, in a fixed order.
    pub checks: Vec<Check>,
    /// What other machines can reach: listeners, then functions. Empty if they can reach nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reach: Vec<Reach>,
    /// If other machines can reach nothing on the node: its functions, and who may call them.
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
    /// Who may use it, as a sentence.
    pub who: String,
}

/// The node's properties and current state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeStatus {
    /// Version of `mote`.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Milliseconds since the process started.
    pub uptime_ms: u64,
    /// Address of the HTTP front, if it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Address of the CoAP front, if it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coap: Option<String>,
    /// Whether the fronts listen beyond this machine.
    pub lan: bool,
    /// The folder in which the node keeps its data.
    pub data_dir: String,
    /// Number of functions.
    pub functions: u64,
    /// Number of running instances.
    pub instances: u64,
    /// Resident memory of the node process in bytes.
    pub memory_bytes: u64,
    /// What the node can give to instances, and how much of that is taken.
    #[serde(default)]
    pub budget: NodeBudget,
    /// What users should know about the node's isolation and durability, as text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub notes: BTreeMap<String, String>,
}

/// What a node can give to all its instances. Memory is counted by limits, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeBudget {
    /// Memory for instances.
    pub memory_bytes: u64,
    /// Memory taken by instances that have not ended, including those that are starting.
    pub taken_bytes: u64,
    /// The largest amount of memory that was taken since the node started.
    pub peak_bytes: u64,
    /// The part of the taken memory that idle instances are giving back.
    pub leaving_bytes: u64,
    /// Memory promised to starts that wait for that part.
    pub promised_bytes: u64,
    /// Number of starting instances.
    pub starting: u32,
    /// How many instances may start at once.
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
