//! The pods that wait to become instances of functions: what the controller, which makes them, and
//! the agents, which tell their cells of them, both have to know.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use mote_api::pods::PodPlace;
use mote_core::FunctionSpec;
use mote_core::spec::{PodKind, Transport};
use serde::{Deserialize, Serialize};

/// The label with [`PodKind::shape`].
pub(crate) const SHAPE: &str = "mote.dev/shape";
/// The label with what a pod does: [`STARTING`], [`WAITING`], [`WITHDRAWN`] or [`CLAIMED`]. No pod
/// waits again that has waited once.
pub(crate) const STATE: &str = "mote.dev/state";
/// Its interpreter starts.
pub(crate) const STARTING: &str = "starting";
/// It waits for a cell.
pub(crate) const WAITING: &str = "waiting";
/// No cell may claim it any more. It is removed if none has.
pub(crate) const WITHDRAWN: &str = "withdrawn";
/// A cell has claimed it, or it has failed.
pub(crate) const CLAIMED: &str = "claimed";
/// The condition of a pod that the agent of the cell writes that has claimed it.
pub(crate) const HAS_CELL: &str = "mote.dev/Claimed";
/// The condition of a pod that the agent of a cell writes that has tried to claim it several times.
pub(crate) const IN_VAIN: &str = "mote.dev/ClaimFailed";
/// The annotation with the pod's public key.
pub(crate) const KEY: &str = "mote.dev/key";
/// The annotation of a revision with its [`PodNeeds`], if its instances are pods.
pub(crate) const NEEDS: &str = "mote.dev/pod";
/// The port at which pods wait.
pub(crate) const PORT: u16 = 8097;

pub(crate) use crate::resources::LABEL_FUNCTION;

/// What a revision needs of its pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodNeeds {
    /// [`PodKind::shape`].
    pub(crate) shape: String,
    /// [`PodKind::function`].
    #[serde(default)]
    pub(crate) function: String,
    /// The word of the runtime.
    pub(crate) runtime: String,
    /// Memory of an instance.
    pub(crate) memory_bytes: u64,
    /// Thousandths of a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_millis: Option<u32>,
    /// Hosts and ports that it may reach over TCP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) net: Vec<(String, u16)>,
    /// Hosts and ports that it may reach over UDP.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) net_udp: Vec<(String, u16)>,
}

impl PodNeeds {
    /// What `spec` needs, if its instances are pods.
    pub(crate) fn of(spec: &FunctionSpec) -> Option<Self> {
        let PodKind { shape, function } = spec.pod_kind()?;
        let net_of = |transport| {
            let all = spec.egress.iter().filter(|to| to.transport == transport);
            let mut net: Vec<_> = all.map(|to| (to.host.clone(), to.port)).collect();
            net.sort();
            net
        };
        Some(Self {
            shape,
            function,
            runtime: spec.runtime.as_str().to_owned(),
            memory_bytes: spec.limits.memory_bytes,
            cpu_millis: spec.limits.cpu_millis,
            net: net_of(Transport::Tcp),
            net_udp: net_of(Transport::Udp),
        })
    }

    pub(crate) fn kind(&self) -> PodKind {
        PodKind { shape: self.shape.clone(), function: self.function.clone() }
    }
}

/// The settings of a function that have no effect in pods. Values that are the defaults do not count.
pub(crate) fn without_effect(spec: &FunctionSpec) -> Vec<String> {
    if spec.pod_kind().is_none() {
        return Vec::new();
    }
    let limits = &spec.limits;
    let set = [
        ("limits.disk", limits.disk_bytes != mote_core::spec::DISK_BYTES_DEFAULT),
        ("limits.pids", limits.pids != mote_core::spec::PIDS_DEFAULT),
    ];
    let named = set.into_iter().filter(|(_, is_set)| *is_set);
    named.map(|(field, _)| format!("{field} has no effect on instances that are pods")).collect()
}

/// The kind of a pod, if it is one of these.
pub(crate) fn kind(pod: &Pod) -> Option<PodKind> {
    let label = |name: &str| pod.labels().get(name).cloned();
    Some(PodKind { shape: label(SHAPE)?, function: label(LABEL_FUNCTION).unwrap_or_default() })
}

/// What a pod does, as the controller has written it.
pub(crate) fn state(pod: &Pod) -> &str {
    pod.labels().get(STATE).map_or("", String::as_str)
}

/// Whether the kubelet says that it is ready, which it is for as long as its port is open.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && has(pod, "Ready")
}

/// Whether a condition of a pod is true.
pub(crate) fn has(pod: &Pod, type_: &str) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut of_type = conditions.filter(|condition| condition.type_ == type_);
    of_type.any(|condition| condition.status == "True")
}

/// Where a cell finds a pod that waits; `None` if it does not wait.
pub(crate) fn place(pod: &Pod) -> Option<PodPlace> {
    if state(pod) != WAITING || !is_ready(pod) || has(pod, HAS_CELL) {
        return None;
    }
    let kind = kind(pod)?;
    let ip: std::net::IpAddr = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
    Some(PodPlace {
        name: pod.name_any(),
        address: std::net::SocketAddr::new(ip, PORT).to_string(),
        key: pod.annotations().get(KEY)?.clone(),
        shape: kind.shape,
        function: kind.function,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_without_effect_are_named() {
        let name = mote_core::FunctionName::new("f").unwrap();
        let python = mote_core::spec::Runtime::Python;
        let mut spec = FunctionSpec::with_defaults(name, python, "app:handle");
        spec.limits.pids += 1;
        assert!(without_effect(&spec).is_empty(), "in a sandbox it has one");
        spec.isolation = mote_core::spec::Isolation::Pod;
        assert_eq!(without_effect(&spec), ["limits.pids has no effect on instances that are pods"]);
        spec.limits.disk_bytes += 1;
        assert_eq!(without_effect(&spec).len(), 2);
    }

    #[test]
    fn only_a_pod_that_waits_and_is_ready_has_a_place() {
        let pod = |state: &str, ready: &str, gone: bool| -> Pod {
            let deleted = gone.then_some("2026-01-01T00:00:00Z");
            serde_json::from_value(json!({
                "metadata": {
                    "name": "p", "deletionTimestamp": deleted, "annotations": {KEY: "ab"},
                    "labels": {STATE: state, SHAPE: "python-1", LABEL_FUNCTION: "f"},
                },
                "status": {
                    "podIP": "192.0.2.7",
                    "conditions": [{"type": "Ready", "status": ready}],
                },
            }))
            .unwrap()
        };
        let found = place(&pod(WAITING, "True", false)).unwrap();
        assert_eq!((found.address.as_str(), found.key.as_str()), ("192.0.2.7:8097", "ab"));
        assert_eq!((found.shape.as_str(), found.function.as_str()), ("python-1", "f"));
        // A function could open the port again after it has taken over its pod.
        for other in [
            pod(CLAIMED, "True", false),
            pod(WITHDRAWN, "True", false),
            pod(STARTING, "True", false),
            pod(WAITING, "False", false),
            pod(WAITING, "True", true),
        ] {
            assert_eq!(place(&other), None);
        }
        // The controller has not seen yet that a cell has claimed it.
        let mut claimed = pod(WAITING, "True", false);
        let more = serde_json::from_value(json!({"type": HAS_CELL, "status": "True"})).unwrap();
        claimed.status.as_mut().unwrap().conditions.as_mut().unwrap().push(more);
        assert_eq!(place(&claimed), None);
    }
}
