//! The interface between the engine and the recording of traces.

use mote_core::invocation::Head;
use mote_core::trace::TraceParent;
use mote_core::{Fault, Invocation, InvocationId, Phases, Trigger};
use mote_spec::FunctionName;

/// Records invocations as parts of traces.
pub trait Tracer: Send + Sync + std::fmt::Debug {
    /// Decides whether an invocation is recorded. If it is, the function receives its own place in
    /// the trace as `traceparent`.
    fn begin(&self, invocation: &mut Invocation) -> Option<Box<Recorded>>;

    /// Ends an invocation. `recorded` is what [`Tracer::begin`] returned.
    fn end(&self, recorded: Option<Box<Recorded>>, ended: &EndedCall<'_>);

    /// The place of a running invocation in its trace, if it is recorded.
    fn place(&self, invocation: InvocationId) -> Option<TraceParent>;
}

/// What is kept of an invocation that is recorded, until it ends.
#[derive(Debug)]
pub struct Recorded {
    pub own: TraceParent,
    /// The span that made the request, if it came with one.
    pub parent: Option<u64>,
}

/// The beginning of an invocation's method and path. If a node records, every invocation has this
/// text, because an invocation that turns out to fail is recorded too. For this reason, the text is
/// kept without an allocation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MethodAndPath {
    bytes: [u8; MethodAndPath::BYTES_MAX],
    method_len: u8,
    len: u8,
}

impl MethodAndPath {
    const BYTES_MAX: usize = 254;

    pub(crate) fn of(head: &Head) -> Self {
        let mut bytes = [0; Self::BYTES_MAX];
        let mut len = 0;
        let mut add = |part: &[u8]| {
            let part = &part[..part.len().min(Self::BYTES_MAX - len)];
            bytes[len..len + part.len()].copy_from_slice(part);
            len += part.len();
            len as u8
        };
        let method_len = add(head.method());
        let len = add(head.path());
        Self { bytes, method_len, len }
    }

    fn method(&self) -> &[u8] {
        &self.bytes[..self.method_len.into()]
    }

    fn path(&self) -> &[u8] {
        &self.bytes[self.method_len.into()..self.len.into()]
    }
}

/// An invocation that has ended.
#[derive(Debug)]
pub struct EndedCall<'a> {
    pub id: InvocationId,
    pub trigger: Trigger,
    pub function: &'a FunctionName,
    pub revision: u64,
    pub method: &'a [u8],
    /// The beginning of a long path.
    pub path: &'a [u8],
    /// When the invocation arrived, in monotonic nanoseconds.
    pub received_ns: u64,
    pub outcome: Outcome<'a>,
}

/// How an invocation has ended.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    Answered {
        status: u16,
        phases: Phases,
    },
    Failed {
        fault: &'a Fault,
        phases: Phases,
    },
    /// The caller no longer waited for the answer.
    Left,
}

/// This ends the recording even if the caller leaves.
pub(crate) struct Traced<'a> {
    pub(crate) tracer: &'a dyn Tracer,
    pub(crate) asked: MethodAndPath,
    pub(crate) recorded: Option<Box<Recorded>>,
    pub(crate) id: InvocationId,
    pub(crate) trigger: Trigger,
    pub(crate) function: &'a FunctionName,
    pub(crate) revision: u64,
    pub(crate) received_ns: u64,
    pub(crate) is_ended: bool,
}

impl Traced<'_> {
    pub(crate) fn end(mut self, outcome: Outcome<'_>) {
        self.report(outcome);
    }

    fn report(&mut self, outcome: Outcome<'_>) {
        self.is_ended = true;
        let recorded = self.recorded.take();
        let Traced { id, trigger, function, revision, received_ns, .. } = *self;
        let ended = EndedCall {
            id,
            trigger,
            function,
            revision,
            method: self.asked.method(),
            path: self.asked.path(),
            received_ns,
            outcome,
        };
        self.tracer.end(recorded, &ended);
    }
}

impl Drop for Traced<'_> {
    fn drop(&mut self) {
        if !self.is_ended {
            self.report(Outcome::Left);
        }
    }
}
