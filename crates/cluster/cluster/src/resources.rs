//! The custom resources as Rust types: `Function`, `FunctionRevision` and `Cell`, group `mote.dev`.
//!
//! Their schemas are in `install/crds.yaml`, written by hand, because a derived one has no messages of its
//! own and no examples.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use mote_core::rollout::Traffic;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The annotation of a cell with the address at which it takes the invocations of other cells.
pub(crate) const PLACE: &str = "mote.dev/cell-address";
/// The label of a revision that names its function.
pub(crate) const LABEL_FUNCTION: &str = "mote.dev/function";
/// The label of a revision with its number.
pub(crate) const LABEL_NUMBER: &str = "mote.dev/number";
/// The annotation of a revision with the digest of its archive.
pub(crate) const DIGEST: &str = "mote.dev/digest";
/// The annotation of a revision with its runtime.
pub(crate) const RUNTIME: &str = "mote.dev/runtime";
/// The annotations of a revision with the bounds of instances in its manifest.
pub(crate) const BOUNDS: [&str; 2] = ["mote.dev/min", "mote.dev/max"];
/// What a cell says of a revision that it can start.
pub(crate) const READY: &str = "ready";

/// The annotation of a cell with the uid of its pod. A cell with a journal has no owner, because the
/// controller has to learn of the journal after the pod is gone.
pub(crate) const POD: &str = "mote.dev/pod";
/// The journal that keeps the runs of schedules; the cells have this name as a setting.
pub(crate) const SCHEDULES: &str = "schedules";
/// What a cell says of a journal that it runs and in which nothing is.
pub(crate) const EMPTY: &str = "empty";

/// What should run.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(group = "mote.dev", version = "v1alpha1", kind = "Function", namespaced)]
#[kube(status = "FunctionStatus", schema = "disabled")]
pub(crate) struct FunctionSpec {
    /// The code: paths and contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) files: Option<BTreeMap<String, String>>,
    /// Code that is stored already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<CodeOf>,
    /// The wanted split; all to the newest revision if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) traffic: Option<Vec<WantedShare>>,
    /// The settings, with the names of those in `mote.toml`.
    #[serde(flatten)]
    pub(crate) settings: Map<String, Value>,
}

/// Code that is stored already.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CodeOf {
    /// The number of the revision that has it.
    pub(crate) revision: u64,
}

/// A wanted share of the traffic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct WantedShare {
    /// The number of a revision; otherwise the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<u64>,
    /// The newest revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latest: Option<bool>,
    /// Percent of the invocations.
    #[serde(default)]
    pub(crate) percent: u32,
    /// A name that leads to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<String>,
}

/// What the cluster has made of a function.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FunctionStatus {
    /// The generation of the spec that this describes.
    #[serde(default)]
    pub(crate) observed_generation: i64,
    /// What runs the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runtime: Option<String>,
    /// The revision with the largest share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revision: Option<u64>,
    /// The newest revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latest: Option<u64>,
    /// The highest number that a revision ever had: no number is given twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) highest: Option<u64>,
    /// `traffic` as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) split: Option<String>,
    /// The split that the cells have to serve, and its history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) traffic: Option<Traffic>,
    /// Instances that are kept ready.
    #[serde(default)]
    pub(crate) instances: u32,
    /// A selector of pods, which autoscalers require. It fits none, because an instance is not a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) selector: Option<String>,
    /// The cell that runs the MQTT subscriptions, and without NATS the schedules too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) home: Option<String>,
    /// By cell: its part of the bounds of instances.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) shares: BTreeMap<String, Bounds>,
    /// Cells that serve the split, of all: `2/3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cells: Option<String>,
    /// `Ready`, with its reason.
    #[serde(default)]
    pub(crate) conditions: Vec<Condition>,
}

/// Bounds of instances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bounds {
    /// Instances at least.
    #[serde(default)]
    pub(crate) min: u32,
    /// Instances at most; without it each cell has as many as cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max: Option<u32>,
}

impl Bounds {
    /// The part of one of `count` cells. A cell whose part of the maximum is 0 forwards every
    /// invocation.
    pub(crate) fn part(self, index: u32, count: u32) -> Self {
        let part = |whole: u32| whole / count.max(1) + u32::from(index < whole % count.max(1));
        Self { min: part(self.min), max: self.max.map(part) }
    }
}

/// The code and settings of a function at one time.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(group = "mote.dev", version = "v1alpha1", kind = "FunctionRevision", namespaced)]
#[kube(schema = "disabled")]
pub(crate) struct FunctionRevisionSpec {
    /// The function.
    pub(crate) function: String,
    /// Its number.
    pub(crate) number: u64,
    /// What runs the code.
    #[serde(default)]
    pub(crate) runtime: String,
    /// SHA-256 of the archive, as text.
    pub(crate) digest: String,
    /// Size of the archive.
    pub(crate) bytes: u64,
    /// The archive, compressed with gzip, in base 64; missing if it is large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) archive: Option<String>,
}

/// A node of `mote` in a pod.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(group = "mote.dev", version = "v1alpha1", kind = "Cell", namespaced)]
#[kube(status = "CellStatus", schema = "disabled")]
#[serde(rename_all = "camelCase")]
pub(crate) struct CellSpec {
    /// The IP address of the pod.
    pub(crate) address: String,
    /// The machine on which it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<String>,
    /// The port of its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) agent_port: Option<u16>,
    /// The port for invocations of other cells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cell_port: Option<u16>,
    /// The version of `mote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    /// The journal of the cell in NATS, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) journal: Option<String>,
}

/// What a cell has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct CellStatus {
    /// Whether it has once had all functions.
    #[serde(default)]
    pub(crate) synced: bool,
    /// By function.
    #[serde(default)]
    pub(crate) functions: BTreeMap<String, CellFunction>,
    /// The journals that the cell is to run next to its own. The controller writes this.
    #[serde(default)]
    pub(crate) journals: Vec<String>,
    /// By journal that the cell runs: `open`, `empty`, `away`, or `taken` by another cell.
    #[serde(default)]
    pub(crate) held: BTreeMap<String, String>,
}

/// What a cell has of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CellFunction {
    /// The uid of the `Function` of which this tells: one of the same name that was removed is
    /// another function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<String>,
    /// The split that it serves, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) split: Option<String>,
    /// Why it does not serve the split that it should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Why it cannot follow its part of the bounds of instances.
    #[serde(default, rename = "boundsError", skip_serializing_if = "Option::is_none")]
    pub(crate) bounds_error: Option<String>,
    /// By number: `ready`, or why it is not.
    #[serde(default)]
    pub(crate) revisions: BTreeMap<String, String>,
}

impl Cell {
    /// What the cell has of a function, if it has told of this one and not of an earlier one of the
    /// same name.
    pub(crate) fn of(&self, function: &Function) -> Option<&CellFunction> {
        let functions = &self.status.as_ref()?.functions;
        let told = functions.get(function.metadata.name.as_deref()?)?;
        (told.uid == function.metadata.uid).then_some(told)
    }
}

/// The name of the resource of a revision.
pub(crate) fn revision_name(function: &str, number: u64) -> String {
    format!("{function}-{number:05}")
}
