//! The pods of a cluster that wait to become instances of functions with `isolation = "pod"`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The whole list of waiting pods; it replaces the one before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PodsRequest {
    /// The pods.
    pub pods: Vec<PodPlace>,
}

/// A pod that waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PodPlace {
    /// Its name.
    pub name: String,
    /// The address and port at which it waits for a cell, for example `198.18.128.9:8097`.
    pub address: String,
    /// Its public key, as 64 hexadecimal digits.
    pub key: String,
    /// Runtime and limits: `python-67108864`.
    pub shape: String,
    /// The function whose network rules it has; empty if it reaches nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub function: String,
}

/// The pods as a node sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PodList {
    /// The public key that pods have to accept, as 64 hexadecimal digits; empty if the node is not a
    /// cell.
    pub key: String,
    /// Those of the list.
    pub pods: Vec<WaitingPod>,
    /// Instances in pods that run now.
    pub running: u64,
    /// Pods that were claimed since the start.
    pub claimed: u64,
    /// Claims that failed: another cell was faster, or the pod was gone.
    pub in_vain: u64,
    /// The names of the pods that this node is claiming or that are its instances.
    #[serde(default)]
    pub held: Vec<String>,
}

/// A pod of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingPod {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// Runtime and limits.
    pub shape: String,
    /// Whether this node has tried to claim it.
    pub tried: bool,
    /// How often that was in vain.
    #[serde(default)]
    pub failed: u32,
}
