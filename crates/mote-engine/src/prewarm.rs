//! Programs that wait before anyone asks: which kinds deployed functions need, and how many of each
//! the backend is told to keep up. The rule is [`mote_core::prewarm`].

use std::sync::Arc;
use std::time::Duration;

use mote_core::backend::{InstanceRequest, Launch, Waiting};
use mote_core::prewarm::{Kind, Peak, counts};
use mote_core::spec::Runtime;
use parking_lot::Mutex;

use crate::clock::now_ns;
use crate::engine::Shared;

/// What a waiting interpreter holds with its shim loaded, measured generously.
const PYTHON_BYTES: u64 = 16 << 20;
/// See [`PYTHON_BYTES`].
const NODE_BYTES: u64 = 64 << 20;
/// Pause between two looks while more than the first of a kind are kept.
const LOOK: Duration = Duration::from_secs(30);

/// The kinds of programs on this node.
#[derive(Default)]
pub(crate) struct Prewarm {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    kinds: Vec<Entry>,
    /// Counts the backend knows.
    told: Vec<u32>,
    /// A task looks again, to keep fewer when starts have become rare.
    looking: bool,
}

struct Entry {
    like: InstanceRequest,
    functions: u32,
    peak: Peak,
    memory_bytes: u64,
}

impl Entry {
    fn serves(&self, request: &InstanceRequest) -> bool {
        self.like.launch == request.launch
            && self.like.limits.pids == request.limits.pids
            && self.like.limits.disk_bytes == request.limits.disk_bytes
            && self.like.egress == request.egress
    }
}

impl State {
    fn entry(&mut self, request: &InstanceRequest, runtime: Runtime) -> &mut Entry {
        let at = self.kinds.iter().position(|entry| entry.serves(request));
        let at = at.unwrap_or_else(|| {
            let memory_bytes = if runtime == Runtime::Node { NODE_BYTES } else { PYTHON_BYTES };
            let mut like = request.clone();
            like.limits.memory_bytes = memory_bytes;
            like.limits.cpu_millis = None;
            self.kinds.push(Entry { like, functions: 0, peak: Peak::default(), memory_bytes });
            self.kinds.len() - 1
        });
        &mut self.kinds[at]
    }
}

impl Shared {
    /// Takes note of functions that come or go, each with what an instance of it asks for.
    pub(crate) fn prewarm_functions(
        self: &Arc<Self>,
        changes: impl IntoIterator<Item = (InstanceRequest, Runtime, bool)>,
    ) {
        let mut state = self.prewarm.state.lock();
        for (request, runtime, comes) in changes {
            if !matches!(request.launch, Launch::Shim { .. }) {
                continue;
            }
            let entry = state.entry(&request, runtime);
            entry.functions =
                if comes { entry.functions + 1 } else { entry.functions.saturating_sub(1) };
        }
        drop(state);
        self.prewarm_tell();
    }

    /// Takes note of a start.
    pub(crate) fn prewarm_start(self: &Arc<Self>, request: &InstanceRequest) {
        let now_ns = now_ns();
        let mut state = self.prewarm.state.lock();
        if let Some(entry) = state.kinds.iter_mut().find(|entry| entry.serves(request)) {
            entry.peak.record(now_ns);
            drop(state);
            self.prewarm_tell();
        }
    }

    /// Tells the backend what should wait, when that has changed.
    fn prewarm_tell(self: &Arc<Self>) {
        let now_ns = now_ns();
        let mut state = self.prewarm.state.lock();
        state.kinds.retain(|entry| entry.functions > 0 || entry.peak.value(now_ns) >= 0.5);
        let kinds: Vec<_> = state
            .kinds
            .iter()
            .map(|entry| Kind {
                functions: entry.functions,
                peak: entry.peak.value(now_ns),
                memory_bytes: entry.memory_bytes,
            })
            .collect();
        let wanted = counts(&kinds, self.config.prewarm_bytes);
        let look = wanted.iter().any(|count| *count > 1) && !state.looking;
        state.looking |= look;
        if wanted != state.told {
            state.told.clone_from(&wanted);
            let kinds = state.kinds.iter().zip(&wanted).filter(|(_, count)| **count > 0);
            let list: Vec<_> = kinds
                .map(|(entry, count)| Waiting { like: entry.like.clone(), count: *count })
                .collect();
            let backend = self.backend.clone();
            // On the data path's runtime, which serves their sockets.
            self.runtime.spawn(async move { backend.keep_waiting(list) });
        }
        drop(state);
        if look {
            let shared = Arc::downgrade(self);
            self.runtime.spawn(async move {
                tokio::time::sleep(LOOK).await;
                let Some(shared) = shared.upgrade() else { return };
                shared.prewarm.state.lock().looking = false;
                shared.prewarm_tell();
            });
        }
    }
}
