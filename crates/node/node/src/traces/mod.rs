//! Traces: which invocations are recorded, what their records contain, and where the records go.
//!
//! The data path calls [`Recorder`] at the beginning and the end of each invocation. Its records
//! ([`call`]) are kept in memory for people ([`kept`]) and sent to a collector in the wire format of
//! OpenTelemetry ([`otlp`]).

mod call;
mod kept;
mod otlp;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mote_core::invocation::headers;
use mote_core::trace::{TRACEPARENT, TraceParent};
use mote_core::{Invocation, InvocationId, Trigger};
use mote_engine::{EndedCall, Outcome, Recorded, Tracer};
use mote_process::clock;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::config::TraceRules;
use crate::ids::Ids;
use crate::otlp::collector::Collector;
pub(crate) use call::{Call, OUTCOMES};
use kept::Kept;

/// Invocations that take longer are recorded in any case.
const SLOW_NS: u64 = 1_000_000_000;
/// The maximum number of running invocations that are being recorded. Further invocations are not
/// recorded.
const RUNNING_MAX: usize = 8_192;
/// How many calls in a second are recorded only because their callers record their traces.
const WISHES_PER_S: u32 = 20;
/// The random bits of a trace id that decide whether the trace is recorded (W3C Trace Context,
/// level 2, 4.3).
const RANDOM_BITS: u32 = 56;

/// The records of a node. Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Traces(Arc<Recorder>);

#[derive(Debug)]
struct Recorder {
    /// A new trace is recorded if its random bits are below this.
    below: u64,
    ids: Ids,
    running: Mutex<HashMap<InvocationId, TraceParent>>,
    wishes: Mutex<Wishes>,
    kept: Mutex<Kept>,
    collector: Option<Collector<Arc<Call>>>,
}

/// The number of calls in this second that were recorded because their callers asked for it.
#[derive(Debug, Default)]
struct Wishes {
    since_ns: u64,
    count: u32,
}

impl Traces {
    /// Begins to record. A task on `runtime` sends the records.
    pub(crate) fn start(rules: TraceRules, runtime: &Handle) -> Self {
        let all = 1_u64 << RANDOM_BITS;
        let below = u128::from(all) * u128::from(rules.millionths) / 1_000_000;
        Self(Arc::new(Recorder {
            below: below as u64,
            ids: Ids::default(),
            running: Mutex::default(),
            wishes: Mutex::default(),
            kept: Mutex::default(),
            collector: rules.collector.map(|url| Collector::start(url, runtime)),
        }))
    }

    /// The events of invocations, as the engine reports them.
    pub(crate) fn tracer(&self) -> Arc<dyn Tracer> {
        self.0.clone()
    }

    /// The newest recorded invocations for which `wanted` returns true, newest first.
    pub(crate) fn newest(
        &self,
        count: usize,
        wanted: impl Fn(&Call) -> bool,
    ) -> Vec<mote_api::traces::TraceSummary> {
        self.0.kept.lock().newest(count, wanted)
    }

    /// All recorded parts of a trace for which `wanted` returns true, oldest first.
    pub(crate) fn spans(
        &self,
        trace: u128,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<mote_api::traces::Span> {
        self.0.kept.lock().spans(trace, wanted)
    }

    /// Sends the waiting records to the collector. Returns after `wait` at the latest.
    pub(crate) async fn flush(&self, wait: Duration) {
        if let Some(collector) = &self.0.collector {
            let _ = tokio::time::timeout(wait, collector.flush()).await;
        }
    }
}

impl Tracer for Recorder {
    fn begin(&self, invocation: &mut Invocation) -> Option<Box<Recorded>> {
        let field = TRACEPARENT.as_bytes();
        let head = &invocation.head;
        let sent = headers(head.headers()).find(|(name, _)| *name == field);
        let sent = sent.and_then(|(_, value)| TraceParent::parse(value));
        let trace = sent.map_or(invocation.id.0, |sent| sent.trace);
        let is_chosen = (trace as u64) & ((1 << RANDOM_BITS) - 1) < self.below;
        let is_wanted = match sent {
            // The node itself wrote the field.
            Some(sent) if invocation.trigger == Trigger::Function => sent.is_sampled,
            Some(sent) => sent.is_sampled && (is_chosen || self.takes_wish(clock::now_ns())),
            None => is_chosen,
        };
        if !is_wanted {
            return None;
        }
        let span = (self.ids.random() as u64).max(1);
        let own = TraceParent { trace, span, is_sampled: true };
        let mut running = self.running.lock();
        if running.len() >= RUNNING_MAX {
            return None;
        }
        running.insert(invocation.id, own);
        drop(running);
        invocation.head.replace_header(field, own.to_string().as_bytes());
        Some(Box::new(Recorded { own, parent: sent.map(|sent| sent.span) }))
    }

    fn end(&self, recorded: Option<Box<Recorded>>, ended: &EndedCall<'_>) {
        let now_ns = clock::now_ns();
        if recorded.is_some() {
            self.running.lock().remove(&ended.id);
        } else if !is_remarkable(ended, now_ns) {
            return;
        }
        let recorded = recorded.unwrap_or_else(|| self.late(ended.id));
        let call = Arc::new(Call::new(*recorded, ended, now_ns));
        if let Some(collector) = &self.collector {
            collector.send(call.clone());
        }
        self.kept.lock().push(call);
    }

    fn place(&self, invocation: InvocationId) -> Option<TraceParent> {
        self.running.lock().get(&invocation).copied()
    }
}

impl Recorder {
    /// Whether there is room in this second to record a call at its caller's request. Without a
    /// limit, callers could push out all other records.
    fn takes_wish(&self, now_ns: u64) -> bool {
        let mut wishes = self.wishes.lock();
        if now_ns.saturating_sub(wishes.since_ns) >= 1_000_000_000 {
            *wishes = Wishes { since_ns: now_ns, count: 0 };
        }
        wishes.count += 1;
        wishes.count <= WISHES_PER_S
    }

    /// The place of an invocation that was not chosen to be recorded: it forms a separate trace.
    fn late(&self, id: InvocationId) -> Box<Recorded> {
        let span = (self.ids.random() as u64).max(1);
        let own = TraceParent { trace: id.0.max(1), span, is_sampled: true };
        Box::new(Recorded { own, parent: None })
    }
}

/// Whether an invocation is recorded although it was not chosen.
fn is_remarkable(ended: &EndedCall<'_>, now_ns: u64) -> bool {
    let is_slow = now_ns.saturating_sub(ended.received_ns) > SLOW_NS;
    match &ended.outcome {
        Outcome::Answered { status, .. } => *status >= 500 || is_slow,
        // Strangers can cause any number of refused calls, and these say nothing about the
        // function.
        Outcome::Failed { fault, .. } => fault.class() != mote_core::FaultClass::Caller,
        Outcome::Left => is_slow,
    }
}
