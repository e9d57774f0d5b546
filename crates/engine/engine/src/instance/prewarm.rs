//! Prewarmed programs: which kinds the deployed functions need, and how many of each kind the
//! backend should keep. [`mote_pool::prewarm`] holds the rule.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mote_core::backend::{Backend, InstanceRequest, Launch, Prewarmed};
use mote_pool::budget::IdleInstance;
use mote_pool::prewarm::{Peak, ProgramKind, counts};
use mote_spec::Runtime;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::ledger::{Evictable, Ledger, Reservation, RoomRequest, Survey};
use mote_process::clock::now_ns;

/// The memory of a prewarmed Python interpreter with its shim loaded. The value is a generous
/// estimate from measurements.
const PYTHON_BYTES: u64 = 16 << 20;
/// The same estimate for a prewarmed Node interpreter.
const NODE_BYTES: u64 = 64 << 20;
/// The same estimate for a prewarmed Bun, and for a prewarmed Deno.
const BUN_BYTES: u64 = 48 << 20;
const DENO_BYTES: u64 = 64 << 20;
/// The memory of a sandbox whose pid 1 runs a program for each invocation. It needs very little.
const EXEC_BYTES: u64 = 4 << 20;
/// The memory of `mote-wasm` before it has loaded a function.
const WASM_BYTES: u64 = 8 << 20;
/// The pause between two checks. Checks are needed while more than one program of a kind is kept,
/// or while the node has no room for a wanted program.
const LOOK: Duration = Duration::from_secs(30);

/// The kinds of prewarmed programs on this node.
pub(crate) struct Prewarm {
    backend: Arc<dyn Backend>,
    runtime: Handle,
    ledger: Arc<Ledger>,
    /// The maximum number of programs of one kind. It is the number of instances that may start at
    /// once.
    count_max: u32,
    /// The maximum memory of all programs together.
    bytes_max: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kinds: Vec<Entry>,
    /// The number of the next kind. No number is used twice.
    next: u64,
    /// The kinds and counts that were last passed to the backend.
    told: Vec<(u64, u32)>,
    /// Whether a task will check again later, because starts may have become rare or room may be
    /// free.
    looking: bool,
}

struct Entry {
    number: u64,
    like: InstanceRequest,
    functions: u32,
    peak: Peak,
    memory_bytes: u64,
    /// The room for the waiting programs, with one reservation for each program.
    held: Vec<Reservation>,
}

impl Entry {
    /// Reserves room for as many of the wanted programs as fit. No instance is evicted for them.
    fn hold(&mut self, wanted: usize, ledger: &Arc<Ledger>) {
        self.held.truncate(wanted);
        while self.held.len() < wanted {
            let wish = RoomRequest { memory_bytes: self.memory_bytes, ..RoomRequest::default() };
            let Ok(reservation) = ledger.reserve(&wish) else { return };
            reservation.started();
            self.held.push(reservation);
        }
    }
}

/// The prewarmed programs as a source of room. They are evicted before any instance.
pub(crate) struct PrewarmedPrograms(pub(crate) Weak<Prewarm>);

impl PrewarmedPrograms {
    /// The first id of prewarmed programs, which is far above the numbers of instances.
    const FIRST_ID: u64 = 1 << 63;
}

impl Evictable for PrewarmedPrograms {
    fn survey(&self, _wish: &RoomRequest<'_>, _now_ns: u64, into: &mut Survey) {
        let Some(prewarm) = self.0.upgrade() else { return };
        let state = prewarm.state.lock();
        for entry in &state.kinds {
            into.idle.extend(entry.held.iter().map(|_| IdleInstance {
                id: Self::FIRST_ID + entry.number,
                memory_bytes: entry.memory_bytes,
                paused: true,
                idle_ns: u64::MAX,
                demand_per_s: 0.0,
                start_ns: 0,
            }));
        }
    }

    fn evict(&self, id: u64, _wish: &RoomRequest<'_>, _now_ns: u64) -> bool {
        let (Some(prewarm), Some(number)) = (self.0.upgrade(), id.checked_sub(Self::FIRST_ID))
        else {
            return false;
        };
        let mut state = prewarm.state.lock();
        let entry = state.kinds.iter_mut().find(|entry| entry.number == number);
        let gone = entry.is_some_and(|entry| entry.held.pop().is_some());
        prewarm.pass_on(&mut state);
        gone
    }
}

impl State {
    fn entry(&mut self, request: &InstanceRequest, runtime: Runtime) -> &mut Entry {
        let at = self.kinds.iter().position(|entry| entry.like.suits(request));
        let at = at.unwrap_or_else(|| {
            let memory_bytes = match runtime {
                Runtime::Python | Runtime::Server => PYTHON_BYTES,
                Runtime::Node => NODE_BYTES,
                Runtime::Bun => BUN_BYTES,
                Runtime::Deno => DENO_BYTES,
                Runtime::Wasm => WASM_BYTES,
                Runtime::Exec | Runtime::Go | Runtime::Rust | Runtime::Chain => EXEC_BYTES,
            };
            let mut like = request.clone();
            // An interpreter needs more memory to start than to wait, and how much more depends on
            // the version.
            like.limits.memory_bytes = 2 * memory_bytes;
            like.limits.cpu_millis = None;
            let functions = 0;
            let peak = Peak::default();
            let held = Vec::new();
            let number = self.next;
            self.next += 1;
            self.kinds.push(Entry { number, like, functions, peak, memory_bytes, held });
            self.kinds.len() - 1
        });
        &mut self.kinds[at]
    }
}

impl Prewarm {
    /// Creates the set without any kinds. At most `count_max` programs of each kind wait, and all
    /// programs together use at most `bytes_max`.
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        runtime: Handle,
        ledger: Arc<Ledger>,
        count_max: u32,
        bytes_max: u64,
    ) -> Arc<Self> {
        Arc::new(Self { backend, runtime, ledger, count_max, bytes_max, state: Mutex::default() })
    }

    /// Notes that functions were added or removed. Each change contains the request for an instance
    /// of the function.
    pub(crate) fn functions(
        self: &Arc<Self>,
        changes: impl IntoIterator<Item = (InstanceRequest, Runtime, bool)>,
    ) {
        let mut state = self.state.lock();
        for (request, runtime, comes) in changes {
            if matches!(request.launch, Launch::Server { .. } | Launch::Worker { .. }) {
                continue;
            }
            let entry = state.entry(&request, runtime);
            entry.functions =
                if comes { entry.functions + 1 } else { entry.functions.saturating_sub(1) };
        }
        drop(state);
        self.tell();
    }

    /// Notes a start for which a caller waits.
    pub(crate) fn start(self: &Arc<Self>, request: &InstanceRequest) {
        let now_ns = now_ns();
        let mut state = self.state.lock();
        if let Some(entry) = state.kinds.iter_mut().find(|entry| entry.like.suits(request)) {
            entry.peak.record(now_ns);
            drop(state);
            self.tell();
        }
    }

    /// Tells the backend how many programs of each kind have room, if these numbers have changed.
    fn pass_on(&self, state: &mut State) {
        let up = || state.kinds.iter().filter(|entry| !entry.held.is_empty());
        let counts: Vec<_> = up().map(|entry| (entry.number, entry.held.len() as u32)).collect();
        if counts == state.told {
            return;
        }
        let list: Vec<_> = up()
            .map(|entry| Prewarmed { like: entry.like.clone(), count: entry.held.len() as u32 })
            .collect();
        state.told = counts;
        let backend = self.backend.clone();
        // The task runs on the data path's runtime, which serves the sockets of the programs.
        self.runtime.spawn(async move { backend.keep_prewarmed(list) });
    }

    /// Decides again which programs should wait, and passes the result to the backend.
    fn tell(self: &Arc<Self>) {
        let now_ns = now_ns();
        let mut state = self.state.lock();
        state.kinds.retain(|entry| entry.functions > 0 || entry.peak.value(now_ns) >= 0.5);
        let kinds: Vec<_> = state
            .kinds
            .iter()
            .map(|entry| ProgramKind {
                functions: entry.functions,
                peak: entry.peak.value(now_ns),
                memory_bytes: entry.memory_bytes,
            })
            .collect();
        let wanted = counts(&kinds, self.count_max, self.bytes_max);
        let mut unsettled = false;
        for (entry, wanted) in state.kinds.iter_mut().zip(wanted) {
            entry.hold(wanted as usize, &self.ledger);
            unsettled |= entry.held.len() > 1 || entry.held.len() < wanted as usize;
        }
        let look = unsettled && !state.looking;
        state.looking |= look;
        self.pass_on(&mut state);
        drop(state);
        if look {
            let prewarm = Arc::downgrade(self);
            self.runtime.spawn(async move {
                tokio::time::sleep(LOOK).await;
                let Some(prewarm) = prewarm.upgrade() else { return };
                prewarm.state.lock().looking = false;
                prewarm.tell();
            });
        }
    }
}
