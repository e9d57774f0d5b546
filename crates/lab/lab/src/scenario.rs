//! The description of a simulation.

use mote_spec::policy::{Balance, Policy};
use serde::{Deserialize, Serialize};

use crate::arrivals::Arrivals;
use crate::distribution::Distribution;

/// A node, its functions and the demand for them, under one policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// The scenario's name in outputs.
    pub name: String,
    /// The seed of all random numbers. Equal seeds give equal results.
    pub seed: u64,
    /// When demand ends. Calls that are in the system by then are still answered. Instances are
    /// counted only until then.
    pub duration_s: f64,
    /// The time between two points of the series; 0 records no series.
    pub sample_s: f64,
    /// The machine.
    pub node: NodeModel,
    /// The policy that scales every function.
    pub policy: Policy,
    /// The rule that chooses the instance for an invocation.
    pub balance: Balance,
    pub functions: Vec<FunctionModel>,
}

/// One machine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NodeModel {
    /// The number of cores. Invocations slow down if together they need more.
    pub cores: f64,
    /// The maximum sum of the instances' memory limits, in bytes.
    pub memory_bytes: u64,
    /// The maximum number of instances that start at once.
    pub starts_max: u32,
    /// The number of generic sandboxes that wait to become an instance of any function.
    pub prewarmed: u32,
    /// The memory that belongs to one core, in bytes: the rate at which memory is compared with
    /// processor time. It is separate from `memory_bytes`, which no family uses up.
    pub memory_per_core_bytes: u64,
}

/// The memory per core of the machine on which [`START_CPU_MS`] was measured: it has two cores, and
/// an installation gives at most 8 GiB to instances.
pub const MEMORY_PER_CORE_BYTES: u64 = 4 << 30;
/// The processor time of a start in milliseconds. `bench/results/starts-2026-11-30.md` has 15.0 and
/// 15.9 for a whole cycle of a Python function: start, load, call, end, and the interpreter that is
/// prewarmed for the next one.
pub const START_CPU_MS: f64 = 16.0;

impl Default for NodeModel {
    /// A node with more resources than any scenario needs. A scenario that tests a budget sets its
    /// own values.
    fn default() -> Self {
        Self {
            cores: 1_024.0,
            memory_bytes: 1 << 50,
            starts_max: 1 << 20,
            prewarmed: 0,
            memory_per_core_bytes: MEMORY_PER_CORE_BYTES,
        }
    }
}

/// How long it takes until an instance is ready, by the kind of start.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StartModel {
    /// The time of a start without any preparation.
    pub cold: Distribution,
    /// The time of a start from a waiting generic sandbox.
    pub prewarmed: Distribution,
    /// The time to resume a paused instance.
    pub resume: Distribution,
    /// How long an instance must be idle before it is paused; `None` means never.
    pub pause_after_s: Option<f64>,
    /// The processor time of a start of any kind, in milliseconds.
    pub cpu_ms: f64,
}

impl StartModel {
    pub fn cold(cold: Distribution) -> Self {
        Self { cold, prewarmed: cold, resume: cold, pause_after_s: None, cpu_ms: START_CPU_MS }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WorkModel {
    /// The run time of an invocation that gets all the CPU it needs.
    pub time: Distribution,
    /// The share of the run time that uses CPU, from 0 to 1. The rest is waiting.
    pub cpu_share: f64,
    /// The number of cores that one instance can use. An interpreter with a global lock can use 1.
    pub cores_per_instance: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionModel {
    /// The function's name in outputs.
    pub name: String,
    /// The times at which the function is called.
    pub arrivals: Arrivals,
    pub work: WorkModel,
    pub start: StartModel,
    /// The maximum number of invocations that one instance runs at once.
    pub concurrency: u32,
    /// The maximum number of waiting invocations.
    pub queue: u32,
    /// The longest time that an invocation may wait, in milliseconds.
    pub timeout_ms: u64,
    /// The minimum number of instances.
    pub min: u32,
    /// The maximum number of instances.
    pub max: u32,
    /// The longest time for which an idle instance is kept, in milliseconds.
    pub idle_timeout_ms: u64,
    /// The memory limit of one instance in bytes.
    pub memory_bytes: u64,
    /// The CPU that is guaranteed to one instance, in thousandths of a core.
    pub cpu_millis: u32,
}

impl FunctionModel {
    /// A function with the defaults of `mote-spec` that runs one CPU-bound invocation at a time.
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
