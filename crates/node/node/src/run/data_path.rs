//! The data path: the engine, its threads, and the state of functions.

use std::sync::Arc;

use anyhow::Result;
use mote_core::state::State;
use mote_engine::revision::logs::LogSink;
use mote_engine::{Config as EngineConfig, Engine};
use mote_journal::nats::Nats;
use mote_pool::budget::Budget;
use mote_store::seal::Secrets;
use mote_store::state::FileState;
use tokio::runtime::Handle;

use super::open::{Opened, STATE_FILE};
use super::thread::runtime_on_thread;
use crate::config::Config;
use crate::fronts::limits::data_threads;
use crate::logs::{Logs, sink_of};
use crate::traces::Traces;
use crate::{interpreters, nats};

/// The folder of the data folders of functions, in the data folder of the node.
pub(crate) const FILES: &str = "files";

/// One part in this many of the memory budget is for prewarmed interpreters, unless the
/// configuration sets an amount.
const PREWARM_SHARE: u64 = 16;
/// On a small node, up to one part in this many of the budget is used, if that is needed for one
/// Python and one Node ([`PREWARM_FIRST_BYTES`]), because a cold start of Node takes a hundred
/// times as long as a start from a prewarmed interpreter. Prewarmed interpreters are evicted before
/// any instance.
const PREWARM_SHARE_SMALL: u64 = 4;
/// Memory that is counted for one prewarmed Python and one prewarmed Node together.
const PREWARM_FIRST_BYTES: u64 = 80 << 20;
/// Instances that may start at once on the whole node, per core. A start uses mostly the processor,
/// so further starts would only delay each other. The limit is twice the limit of one function, so
/// that one function cannot block all others.
const STARTS_PER_CORE: u32 = 4;

/// The parts that run invocations.
pub(crate) struct DataPath {
    pub(crate) engine: Engine,
    /// The runtime on which the tasks of the engine and the fronts run.
    pub(crate) runtime: Handle,
    /// The runtimes of further threads that serve connections and instances.
    pub(super) further: Vec<Handle>,
    /// The state of functions.
    pub(crate) state: Arc<dyn State>,
    /// The file that holds the functions' state; `None` if NATS holds it.
    pub(super) state_file: Option<FileState>,
    /// The connection to NATS, if the node shares anything with other nodes.
    pub(crate) nats: Option<Nats>,
    /// The memory that all instances together may use.
    pub(crate) memory_bytes: u64,
    /// The number of cores of the machine.
    pub(crate) cores: u32,
}

/// Starts the engine on the current runtime. The engine serves no function yet.
pub(super) fn begin(config: &Config, opened: &Opened, secrets: Secrets) -> Result<DataPath> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cores_max = u32::try_from(cores).unwrap_or(1);
    let budget = Budget {
        memory_bytes: config.memory.of(mote_process::memory::machine_bytes()),
        starts_max: STARTS_PER_CORE.saturating_mul(cores_max),
    };
    let for_prewarmed = config.prewarm_bytes.unwrap_or_else(|| prewarm_bytes(budget.memory_bytes));
    let to_collector = opened.line_sender.clone().map(|sender| sender as Arc<dyn LogSink>);
    let sinks = [opened.logs.as_ref().map(Logs::sink), to_collector].into_iter();
    let engine_config = EngineConfig {
        instances_max_default: cores_max,
        budget,
        interpreters: interpreters::for_engine(&opened.interpreters),
        busy_poll: config.polling && cores > 1,
        prewarm_bytes: for_prewarmed,
        timeout_factor: config.timeout_factor,
        access_default: config.access,
        inspect: config.inspect,
        closed_networks: config.closed_networks.clone(),
        data_folders: config.data.join(FILES),
        shared_folders: config.shared_folders.clone(),
        secrets,
        tracer: opened.traces.as_ref().map(Traces::tracer),
        log_sink: sink_of(sinks.flatten().collect()),
    };
    let mut further = Vec::new();
    for _ in 1..data_threads(config.threads, cores) {
        further.push(runtime_on_thread("mote-data", std::future::pending())?);
    }
    let runtime = Handle::current();
    let engine = Engine::new(engine_config, opened.backend.clone(), runtime.clone(), &further);
    let nats = match &config.nats {
        Some(servers) => Some(nats::start(servers, config.uid_base, &runtime)?),
        None => None,
    };
    let (state, state_file) = nats::state(nats.as_ref(), &config.data.join(STATE_FILE));
    let memory_bytes = budget.memory_bytes;
    Ok(DataPath {
        engine,
        runtime,
        further,
        state,
        state_file,
        nats,
        memory_bytes,
        cores: cores_max,
    })
}

/// The memory for prewarmed interpreters on a node whose instances may use `budget_bytes`.
fn prewarm_bytes(budget_bytes: u64) -> u64 {
    let first = PREWARM_FIRST_BYTES.min(budget_bytes / PREWARM_SHARE_SMALL);
    first.max(budget_bytes / PREWARM_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_node_has_room_for_one_prewarmed_interpreter_of_each_kind() {
        const MIB: u64 = 1 << 20;
        for (budget, expected) in [(128, 32), (320, 80), (768, 80), (1_280, 80), (8_192, 512)] {
            assert_eq!(prewarm_bytes(budget * MIB), expected * MIB, "{budget} MiB");
        }
    }
}
