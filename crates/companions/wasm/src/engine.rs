//! The settings of wasmtime, and the limits that all instances of one process share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, ResourceLimiter,
};

/// The version of wasmtime. Machine code for one version does not run with another.
pub(crate) const VERSION: &str = "48.0.8";
/// The stack of a guest. Deeper recursion ends the call.
const STACK_BYTES: usize = 512 << 10;
/// Stack of a guest and of the host functions that it calls.
const FIBER_BYTES: usize = 2 << 20;
/// Memory of the process itself, which the instances cannot use.
const OWN_BYTES: usize = 12 << 20;
/// How many bytes of a memory are cleared by writing, which is faster than giving back the pages.
const KEPT_BYTES: usize = 128 << 10;
/// The least room for each instance.
const TABLE_ELEMENTS: usize = 20_000;
const MEMORIES: u32 = 1;
const TABLES: u32 = 2;
/// The maximum number of modules in a component.
const MODULES_MAX: u32 = 500;
/// How often running guests are interrupted, so that the worker can read cancellations and other
/// calls can continue.
const TICK: Duration = Duration::from_millis(2);
/// The clock stops after this many ticks without work.
const IDLE_TICKS: u32 = 25;

/// How a function answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Shape {
    /// A component that exports `wasi:http/incoming-handler`.
    Http,
    /// A component that exports `wasi:cli/run`.
    Command,
    /// A core module of WASI preview 1.
    Module,
}

/// The facts that a build finds out about a program, so that a worker can make room for its
/// instances.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) engine: String,
    pub(crate) shape: Shape,
    /// The number of memories and tables of one instance; `None` if the program does not say.
    pub(crate) memories: Option<u32>,
    pub(crate) tables: Option<u32>,
    /// The elements of its largest table.
    pub(crate) table_elements: u64,
}

/// The settings that both the build and the worker have. They determine the machine code.
fn config() -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .concurrency_support(false)
        .max_wasm_stack(STACK_BYTES)
        .async_stack_size(FIBER_BYTES)
        .memory_init_cow(true);
    config
}

/// An engine that compiles and checks programs.
pub(crate) fn for_builds() -> wasmtime::Result<Engine> {
    Engine::new(&config())
}

/// The room for the instances of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Room {
    /// How many instances run at once.
    pub(crate) calls: u32,
    /// Memories and tables of one instance; `None` if the program does not say.
    each: Option<(u32, u32)>,
    table_elements: usize,
    memory_bytes: usize,
}

impl Room {
    /// Nearly all components fit into the least room, so it is the same for all of them.
    pub(crate) fn new(facts: &Facts, calls: u32, memory_bytes: usize) -> Self {
        let each = facts.memories.zip(facts.tables);
        let elements = usize::try_from(facts.table_elements).unwrap_or(usize::MAX);
        Self {
            calls,
            each: each.map(|(memories, tables)| (memories.max(MEMORIES), tables.max(TABLES))),
            table_elements: elements.max(TABLE_ELEMENTS),
            memory_bytes: memory_bytes.next_multiple_of(64 << 10),
        }
    }
}

/// An engine that runs instances which fit into `room`.
pub(crate) fn for_calls(room: &Room) -> wasmtime::Result<Engine> {
    let mut config = config();
    let Some((memories, tables)) = room.each else { return Engine::new(&config) };
    let calls = room.calls;
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(calls)
        .total_core_instances(calls.saturating_mul(MODULES_MAX))
        .total_memories(calls.saturating_mul(memories))
        .total_tables(calls.saturating_mul(tables))
        .total_stacks(calls)
        .max_core_instances_per_component(MODULES_MAX)
        .max_memories_per_component(memories)
        .max_tables_per_component(tables)
        .max_memories_per_module(memories)
        .max_tables_per_module(tables)
        .max_core_instance_size(8 << 20)
        .max_component_instance_size(8 << 20)
        .table_elements(room.table_elements)
        .max_memory_size(room.memory_bytes)
        .max_unused_warm_slots(calls)
        .linear_memory_keep_resident(KEPT_BYTES)
        .table_keep_resident(KEPT_BYTES)
        .pagemap_scan(Enabled::Auto)
        .decommit_batch_size(1);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&config)
}

/// The memory that all instances of the process may use together.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) bytes: usize,
    left: AtomicUsize,
}

impl Memory {
    /// `limit` is the limit of the sandbox.
    pub(crate) fn new(limit: Option<u64>) -> Arc<Self> {
        let limit = limit.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(64 << 20);
        let bytes = limit.saturating_sub(OWN_BYTES).max(limit / 2);
        Arc::new(Self { bytes, left: AtomicUsize::new(bytes) })
    }

    fn take(&self, bytes: usize) -> bool {
        let taken = |left: usize| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }
}

/// The share of one instance.
///
/// The pages with which an instance begins do not count, because they are shared until they are
/// changed. Each memory may grow to the whole limit, and the pages by which all memories grow count
/// against that limit. The sandbox's own limit stays the last resort.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<Memory>,
    taken: usize,
    /// Whether the instance has requested more than it may have.
    pub(crate) refused: bool,
}

impl Share {
    pub(crate) fn new(memory: &Arc<Memory>) -> Self {
        Self { memory: memory.clone(), taken: 0, refused: false }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.left.fetch_add(self.taken, Ordering::Relaxed);
    }
}

impl ResourceLimiter for Share {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let more = if current == 0 { 0 } else { desired.saturating_sub(current) };
        let fits = desired <= self.memory.bytes && self.memory.take(more);
        if fits {
            self.taken += more;
        } else {
            self.refused = true;
        }
        Ok(fits)
    }

    fn table_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired.saturating_mul(size_of::<usize>()) <= self.memory.bytes)
    }
}

/// The clock that interrupts guests. It stops while the worker has nothing to do.
pub(crate) struct Clock {
    /// Whether the worker's thread runs.
    is_active: AtomicBool,
    is_stopped: AtomicBool,
    thread: std::sync::OnceLock<std::thread::Thread>,
}

impl Clock {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            is_active: AtomicBool::new(true),
            is_stopped: AtomicBool::new(false),
            thread: std::sync::OnceLock::new(),
        })
    }

    /// Must be called when the worker's thread begins to work (`true`) and when it stops (`false`).
    pub(crate) fn active(&self, now: bool) {
        self.is_active.store(now, Ordering::SeqCst);
        if now
            && self.is_stopped.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    pub(crate) fn start(self: &Arc<Self>, engine: Engine) -> std::io::Result<()> {
        let clock = self.clone();
        let run = move || {
            let _ = clock.thread.set(std::thread::current());
            let mut idle = 0;
            loop {
                std::thread::sleep(TICK);
                engine.increment_epoch();
                idle = if clock.is_active.load(Ordering::SeqCst) { 0 } else { idle + 1 };
                if idle < IDLE_TICKS {
                    continue;
                }
                idle = 0;
                clock.is_stopped.store(true, Ordering::SeqCst);
                if clock.is_active.load(Ordering::SeqCst) {
                    clock.is_stopped.store(false, Ordering::SeqCst);
                }
                while clock.is_stopped.load(Ordering::SeqCst) {
                    std::thread::park();
                }
            }
        };
        std::thread::Builder::new().name("clock".to_owned()).stack_size(64 << 10).spawn(run)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_share_the_memory_and_give_it_back() {
        let memory = Memory::new(Some(112 << 20));
        assert_eq!(memory.bytes, 100 << 20);
        let mut first = Share::new(&memory);
        let mut second = Share::new(&memory);
        let mib = |n: usize| n << 20;
        assert!(first.memory_growing(0, mib(50), None).unwrap(), "the first pages are shared");
        assert!(first.memory_growing(mib(1), mib(61), None).unwrap());
        assert!(!second.memory_growing(mib(1), mib(51), None).unwrap(), "only 40 are left");
        assert!(second.refused && !first.refused);
        drop(first);
        assert!(second.memory_growing(mib(1), mib(51), None).unwrap());
        assert!(!second.memory_growing(0, mib(101), None).unwrap(), "more than the whole");
    }
}
