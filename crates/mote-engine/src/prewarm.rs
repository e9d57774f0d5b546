//! Prewarmed programs: which kinds deployed functions need, and how many of each
//! the backend is told to keep up. The rule is [`mote_pool::prewarm`].

use std::sync::{Arc, Weak};
use std::time::Duration;

use mote_core::backend::{Backend, InstanceRequest, Launch, Prewarmed};
use mote_core::spec::Runtime;
use mote_pool::budget::IdleInstance;
use mote_pool::prewarm::{Peak, ProgramKind, counts};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::clock::now_ns;
use crate::ledger::{Evictable, Ledger, Reservation, RoomRequest, Survey};

/// What a prewarmed interpreter holds with its shim loaded, measured generously.
const PYTHON_BYTES: u64 = 16 << 20;
/// See [`PYTHON_BYTES`].
const NODE_BYTES: u64 = 64 << 20;
/// A sandbox whose pid 1 runs a program per invocation: next to nothing.
const EXEC_BYTES: u64 = 4 << 20;
/// Pause between two looks while more than the first of a kind are kept, or the node has no room for
/// one.
const LOOK: Duration = Duration::from_secs(30);

/// The kinds of programs on this node.
pub(crate) struct Prewarm {
    backend: Arc<dyn Backend>,
    runtime: Handle,
    ledger: Arc<Ledger>,
    /// As many as start at once are enough of one kind.
    count_max: u32,
    /// Memory for all of them.
    bytes_max: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kinds: Vec<Entry>,
    /// Number of the next kind; none is used twice.
    next: u64,
    /// Kinds and counts the backend knows.
    told: Vec<(u64, u32)>,
    /// A task looks again: starts may have become rare, or room free.
    looking: bool,
}

struct Entry {
    number: u64,
    like: InstanceRequest,
    functions: u32,
    peak: Peak,
    memory_bytes: u64,
    /// Room for those that wait, one each.
    held: Vec<Reservation>,
}

impl Entry {
    /// Holds room for as many as are wanted and there is room for. They take it from nobody.
    fn hold(&mut self, wanted: usize, ledger: &Arc<Ledger>) {
        self.held.truncate(wanted);
        while self.held.len() < wanted {
            let wish = RoomRequest {
                memory_bytes: self.memory_bytes,
                evict: false,
                function: "",
                revision: 0,
                waiter: None,
            };
            let Ok(reservation) = ledger.reserve(&wish) else { return };
            reservation.started();
            self.held.push(reservation);
        }
    }
}

/// Prewarmed programs, as something that makes room: the first to go.
pub(crate) struct PrewarmedPrograms(pub(crate) Weak<Prewarm>);

impl PrewarmedPrograms {
    /// Far from the numbers of instances.
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
                Runtime::Exec | Runtime::Go => EXEC_BYTES,
            };
            let mut like = request.clone();
            // Coming up takes more than waiting, and more with some versions than with others.
            like.limits.memory_bytes = 2 * memory_bytes;
            like.limits.cpu_millis = None;
            let (functions, peak, held) = (0, Peak::default(), Vec::new());
            let number = self.next;
            self.next += 1;
            self.kinds.push(Entry { number, like, functions, peak, memory_bytes, held });
            self.kinds.len() - 1
        });
        &mut self.kinds[at]
    }
}

impl Prewarm {
    /// No kinds yet. At most `count_max` programs of each kind wait, in `bytes_max` in all.
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        runtime: Handle,
        ledger: Arc<Ledger>,
        count_max: u32,
        bytes_max: u64,
    ) -> Arc<Self> {
        Arc::new(Self { backend, runtime, ledger, count_max, bytes_max, state: Mutex::default() })
    }

    /// Takes note of functions that come or go, each with what an instance of it asks for.
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

    /// Takes note of a start that somebody waits for.
    pub(crate) fn start(self: &Arc<Self>, request: &InstanceRequest) {
        let now_ns = now_ns();
        let mut state = self.state.lock();
        if let Some(entry) = state.kinds.iter_mut().find(|entry| entry.like.suits(request)) {
            entry.peak.record(now_ns);
            drop(state);
            self.tell();
        }
    }

    /// Tells the backend how many there is room for, when that has changed.
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
        // On the data path's runtime, which serves their sockets.
        self.runtime.spawn(async move { backend.keep_prewarmed(list) });
    }

    /// Decides anew what should wait.
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
