//! What separates an instance from everything else.

use serde::{Deserialize, Serialize};

use super::{FunctionSpec, OWN_FRONT, Runtime};

/// What separates an instance from everything else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// A sandbox on the node.
    #[default]
    Sandbox,
    /// A pod of its own in the node's Kubernetes cluster.
    Pod,
}

impl Isolation {
    /// Whether it is the default.
    pub fn is_sandbox(&self) -> bool {
        *self == Isolation::Sandbox
    }
}

/// Pods that can take each other's place: the same interpreter and limits, and, if the function may
/// reach other hosts, the same rules for that.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodKind {
    /// Runtime and limits as text: `python-67108864-500`.
    pub shape: String,
    /// The function whose network rules the pods have; empty for pods that reach nothing.
    pub function: String,
}

/// What the node itself needs for an instance that is a pod: buffers of its connections.
const POD_BYTES_HERE: u64 = 1 << 20;

impl FunctionSpec {
    /// The pods that can become an instance of it; `None` if its instances are no pods.
    pub fn pod_kind(&self) -> Option<PodKind> {
        if self.isolation == Isolation::Sandbox {
            return None;
        }
        let mut shape = format!("{}-{}", self.runtime.as_str(), self.limits.memory_bytes);
        if let Some(cpu_millis) = self.limits.cpu_millis {
            shape.push_str(&format!("-{cpu_millis}"));
        }
        let function = if self.egress.is_empty() { String::new() } else { self.name.to_string() };
        Some(PodKind { shape, function })
    }

    /// Memory that one of its instances uses on the node itself.
    pub fn memory_bytes_here(&self) -> u64 {
        match self.isolation {
            Isolation::Sandbox => self.limits.memory_bytes,
            Isolation::Pod => POD_BYTES_HERE,
        }
    }

    /// What must hold for instances in pods: whether it does, the setting, and the problem.
    pub(super) fn isolation_rules(&self) -> [(bool, &'static str, &'static str); 3] {
        let pod = self.isolation == Isolation::Pod;
        let calls_front = self.egress.iter().any(|to| to.host == OWN_FRONT.0);
        [
            (
                !pod || matches!(self.runtime, Runtime::Python | Runtime::Node),
                "isolation",
                "\"pod\" only for the runtimes python and node; leave it out, and the function runs \
                 in a sandbox of its cell",
            ),
            (
                !pod || !calls_front,
                "allow.net",
                "a pod does not reach mote.internal; name the functions in [allow] functions and \
                 call them with ctx.call",
            ),
            (
                !pod || (self.scale.spare == 0 && self.scale.pause_ms.is_none()),
                "scale",
                "spare and pause are not possible in pods, which cannot be paused; the waiting pods \
                 of the cluster take their place",
            ),
        ]
    }
}
