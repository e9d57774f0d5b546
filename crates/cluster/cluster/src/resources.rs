//! The custom resources as Rust types: `Function`, `FunctionRevision` and `Cell`, group `mote.dev`.
//!
//! Their schemas are in `install/crds.yaml`. They are written by hand, because derived schemas
//! would lack custom messages and examples.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use mote_core::rollout::Traffic;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The annotation of a cell with the address for invocations from other cells.
pub(crate) const PLACE: &str = "mote.dev/cell-address";
/// The label of a revision that names its function.
pub(crate) const LABEL_FUNCTION: &str = "mote.dev/function";
/// The label of a revision with its number.
pub(crate) const LABEL_NUMBER: &str = "mote.dev/number";
/// The annotation of a revision with the digest of its archive.
pub(crate) const DIGEST: &str = "mote.dev/digest";
/// The annotation of a revision with its runtime.
pub(crate) const RUNTIME: &str = "mote.dev/runtime";
/// The annotations of a revision with the limits of instances from its manifest.
pub(crate) const BOUNDS: [&str; 2] = ["mote.dev/min", "mote.dev/max"];
/// The state that a cell reports for a revision that it can start.
pub(crate) const READY: &str = "ready";

/// The annotation of a cell with the uid of its pod. A cell with a journal has no owner reference,
/// because the controller must learn of the journal even after the pod is gone.
pub(crate) const POD: &str = "mote.dev/pod";
/// The journal that keeps the runs of schedules. The cells have this name as a setting.
pub(crate) const SCHEDULES: &str = "schedules";
/// The state that a cell reports for a journal that it runs and that holds nothing.
pub(crate) const EMPTY: &str = "empty";

/// The desired state of a function.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(group = "mote.dev", version = "v1alpha1", kind = "Function", namespaced)]
#[kube(status = "FunctionStatus", schema = "disabled")]
pub(crate) struct FunctionSpec {
    /// The code: paths and contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) files: Option<BTreeMap<String, String>>,
    /// Code that is already stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<CodeOf>,
    /// The wanted split. If it is missing, all traffic goes to the newest revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) traffic: Option<Vec<WantedShare>>,
    /// The settings, named as in `mote.toml`.
    #[serde(flatten)]
    pub(crate) settings: Map<String, Value>,
}

/// Code that is already stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CodeOf {
    /// The number of the revision that contains the code.
    pub(crate) revision: u64,
}

/// A wanted share of the traffic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct WantedShare {
    /// The number of a revision. Without a number, the share goes to the newest revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<u64>,
    /// The newest revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latest: Option<bool>,
    /// Percent of the invocations.
    #[serde(default)]
    pub(crate) percent: u32,
    /// A tag under which the revision can be called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<String>,
}

/// The actual state of a function in the cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FunctionStatus {
    /// The generation of the spec that this status describes.
    #[serde(default)]
    pub(crate) observed_generation: i64,
    /// The runtime of the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runtime: Option<String>,
    /// The revision with the largest share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<u64>,
    /// The newest revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latest: Option<u64>,
    /// The highest number that a revision ever had. Numbers are never reused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) highest: Option<u64>,
    /// `traffic` as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) split: Option<String>,
    /// The split that the cells must serve, and its history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) traffic: Option<Traffic>,
    /// Number of instances that are kept ready.
    #[serde(default)]
    pub(crate) instances: u32,
    /// A selector of pods, which autoscalers require. It matches no pod, because instances are not
    /// pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) selector: Option<String>,
    /// The cell that runs the MQTT subscriptions and, without NATS, the schedules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) home: Option<String>,
    /// Each cell's part of the limits of instances, by cell.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) shares: BTreeMap<String, Bounds>,
    /// How many cells serve the split, out of all: `2/3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cells: Option<String>,
    /// The condition `Ready`, with its reason.
    #[serde(default)]
    pub(crate) conditions: Vec<Condition>,
}

/// Limits of the number of instances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bounds {
    /// The smallest number of instances.
    #[serde(default)]
    pub(crate) min: u32,
    /// The largest number of instances. Without it, each cell runs at most as many as it has cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max: Option<u32>,
}

impl Bounds {
    /// Returns the part of one of `count` cells. A cell whose part of the maximum is 0 forwards
    /// every invocation.
    pub(crate) fn part(self, index: u32, count: u32) -> Self {
        let part = |whole: u32| whole / count.max(1) + u32::from(index < whole % count.max(1));
        Self { min: part(self.min), max: self.max.map(part) }
    }
}

/// The code and settings of a function at one moment.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(group = "mote.dev", version = "v1alpha1", kind = "FunctionRevision", namespaced)]
#[kube(schema = "disabled")]
pub(crate) struct FunctionRevisionSpec {
    pub(crate) function: String,
    pub(crate) number: u64,
    /// The runtime of the code.
    #[serde(default)]
    pub(crate) runtime: String,
    /// SHA-256 of the archive, as text.
    pub(crate) digest: String,
    /// Size of the archive in bytes.
    pub(crate) bytes: u64,
    /// The archive, compressed with gzip, in base 64. Missing if the archive is large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) archive: Option<String>,
}

/// A cell: a node of `mote` in a pod.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(group = "mote.dev", version = "v1alpha1", kind = "Cell", namespaced)]
#[kube(status = "CellStatus", schema = "disabled")]
#[serde(rename_all = "camelCase")]
pub(crate) struct CellSpec {
    /// The IP address of the pod.
    pub(crate) address: String,
    /// The machine on which the pod runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// The port of the cell's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) agent_port: Option<u16>,
    /// The port for invocations from other cells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cell_port: Option<u16>,
    /// The version of `mote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// The journal of the cell in NATS, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) journal: Option<String>,
}

/// The functions and journals of a cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CellStatus {
    /// Whether the cell has had all functions at least once.
    #[serde(default)]
    pub(crate) synced: bool,
    /// The state of each function, by its name.
    #[serde(default)]
    pub(crate) functions: BTreeMap<String, CellFunction>,
    /// The journals that the cell should run in addition to its own. The controller writes this
    /// field.
    #[serde(default)]
    pub(crate) journals: Vec<String>,
    /// The state of each journal that the cell runs: `open`, `empty`, `away`, or `taken` by another
    /// cell.
    #[serde(default)]
    pub(crate) held: BTreeMap<String, String>,
}

/// The state of a function at a cell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CellFunction {
    /// The uid of the `Function` that this describes. A removed function of the same name had
    /// another uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<String>,
    /// The split that the cell serves, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) split: Option<String>,
    /// Why the cell does not serve the split that it should serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Why the cell cannot follow its part of the limits of instances.
    #[serde(default, rename = "boundsError", skip_serializing_if = "Option::is_none")]
    pub(crate) bounds_error: Option<String>,
    /// The state of each revision, by number: `ready`, or why it is not ready.
    #[serde(default)]
    pub(crate) revisions: BTreeMap<String, String>,
}

impl Cell {
    /// Returns the state of a function at the cell. Returns `None` if the cell has only reported an
    /// earlier function with the same name.
    pub(crate) fn of(&self, function: &Function) -> Option<&CellFunction> {
        let functions = &self.status.as_ref()?.functions;
        let told = functions.get(function.metadata.name.as_deref()?)?;
        (told.uid == function.metadata.uid).then_some(told)
    }
}

pub(crate) fn revision_name(function: &str, number: u64) -> String {
    format!("{function}-{number:05}")
}
