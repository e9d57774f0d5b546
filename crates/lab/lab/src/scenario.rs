//! The description of a simulation.

use mote_spec::policy::{Balance, Policy};
use serde::{Deserialize, Serialize};

use crate::arrivals::Arrivals;
use crate::distribution::Distribution;

/// A node, its functions and their demand, under one policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// Its name in outputs.
    pub name: String,
    /// Equal seeds give equal results.
    pub seed: u64,
    /// The end of demand. Calls that are in the system by then are still answered. Instances are
    /// counted until here.
    pub duration_s: f64,
    /// Time between two points of the series; 0 records none.
    pub sample_s: f64,
    /// The machine.
    pub node: NodeModel,
    /// The rule that scales every function.
    pub policy: Policy,
    /// The rule that chooses instances.
    pub balance: Balance,
    pub functions: Vec<FunctionModel>,
}

/// One machine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NodeModel {
    /// Cores; invocations slow down when they ask for more CPU than there is.
    pub cores: f64,
    /// Largest sum of the instances' memory limits, in bytes.
    pub memory_bytes: u64,
    /// Most instances that start at once.
    pub starts_max: u32,
    /// Generic sandboxes that can become an instance of any function.
    pub prewarmed: u32,
}

impl Default for NodeModel {
    /// More than any scenario needs; scenarios in which budgets matter set them.
    fn default() -> Self {
        Self { cores: 1_024.0, memory_bytes: 1 << 50, starts_max: 1 << 20, prewarmed: 0 }
    }
}

/// The time until an instance is ready.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StartModel {
    /// For a start without any preparation.
    pub cold: Distribution,
    /// For a start from a waiting generic sandbox.
    pub prewarmed: Distribution,
    /// For resuming a paused instance.
    pub resume: Distribution,
    /// An idle instance is paused after this time; `None` means never.
    pub pause_after_s: Option<f64>,
}

impl StartModel {
    pub fn cold(cold: Distribution) -> Self {
        Self { cold, prewarmed: cold, resume: cold, pause_after_s: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WorkModel {
    /// Its run time when it has the CPU that it needs.
    pub time: Distribution,
    /// Share of it that uses CPU, 0 to 1; the rest is waiting.
    pub cpu_share: f64,
    /// Cores that one instance can use; an interpreter with a lock has 1.
    pub cores_per_instance: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionModel {
    /// Its name in outputs.
    pub name: String,
    /// The times of its calls.
    pub arrivals: Arrivals,
    pub work: WorkModel,
    pub start: StartModel,
    /// Most invocations that one instance runs at once.
    pub concurrency: u32,
    /// Most invocations that wait.
    pub queue: u32,
    /// Longest wait in milliseconds.
    pub timeout_ms: u64,
    /// Fewest instances.
    pub min: u32,
    /// Most instances.
    pub max: u32,
    /// Longest time that an idle instance is kept, in milliseconds.
    pub idle_timeout_ms: u64,
    /// Memory limit of one instance in bytes.
    pub memory_bytes: u64,
    /// CPU that is guaranteed to one instance, in thousandths of a core.
    pub cpu_millis: u32,
}

impl FunctionModel {
    /// A function with the defaults of `mote-spec`, which runs one CPU-bound invocation at a
    /// time.
    pub fn new(name: &str, arrivals: Arrivals, time: Distribution, cold: Distribution) -> Self {
        Self {
            name: name.to_owned(),
            arrivals,
            work: WorkModel { time, cpu_share: 1.0, cores_per_instance: 1.0 },
            start: StartModel::cold(cold),
            concurrency: 1,
            queue: mote_spec::QUEUE_DEFAULT,
            timeout_ms: mote_spec::TIMEOUT_MS_DEFAULT,
            min: 0,
            max: 20,
            idle_timeout_ms: mote_spec::IDLE_TIMEOUT_MS_DEFAULT,
            memory_bytes: mote_spec::MEMORY_BYTES_DEFAULT,
            cpu_millis: 1_000,
        }
    }
}
