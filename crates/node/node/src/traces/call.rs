//! The record of one invocation.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use mote_core::{InvocationId, Phases, Trigger};
use mote_engine::{EndedCall, Outcome, Recorded};
use mote_process::clock;
use mote_spec::FunctionName;

/// The outcome of a call, in a word. The first word means that nothing failed.
pub(crate) const OUTCOMES: [&str; 6] =
    ["ok", "caller", "function", "timeout", "capacity", "platform"];

/// One invocation, as it was.
#[derive(Debug)]
pub(crate) struct Call {
    pub(super) trace: u128,
    pub(super) span: u64,
    pub(super) parent: Option<u64>,
    pub(super) id: InvocationId,
    pub(crate) function: FunctionName,
    pub(super) revision: u64,
    pub(super) trigger: Trigger,
    pub(super) method: String,
    pub(super) path: String,
    /// Wall-clock time in nanoseconds since 1970.
    pub(super) began_unix_ns: u64,
    pub(crate) duration_ns: u64,
    /// The status of the answer; 0 if there was none.
    pub(super) status: u16,
    /// Why the function gave no answer: a word such as `timeout`, and an error code.
    pub(super) fault: Option<(&'static str, &'static str)>,
    /// The parts of the call's time. Their beginnings are in nanoseconds after that of the first
    /// part.
    pub(super) parts: Vec<Part>,
    /// Whether it waited for the start of an instance.
    pub(super) is_cold: bool,
}

/// A part of the time of an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) begin_ns: u64,
    pub(super) duration_ns: u64,
}

impl Call {
    pub(super) fn new(recorded: Recorded, ended: &EndedCall<'_>, now_ns: u64) -> Self {
        let whole_ns = now_ns.saturating_sub(ended.received_ns);
        let (status, fault, phases) = match &ended.outcome {
            Outcome::Answered { status, phases } => (*status, None, *phases),
            Outcome::Failed { fault, phases } => {
                let answer = fault.answer();
                (answer.http, Some((answer.outcome, answer.code)), *phases)
            }
            Outcome::Left => (0, Some(("caller", "cancelled")), Phases::default()),
        };
        Self {
            trace: recorded.own.trace,
            span: recorded.own.span,
            parent: recorded.parent,
            id: ended.id,
            function: ended.function.clone(),
            revision: ended.revision,
            trigger: ended.trigger,
            method: String::from_utf8_lossy(ended.method).into_owned(),
            path: String::from_utf8_lossy(ended.path).into_owned(),
            began_unix_ns: (clock::unix_us() * 1_000).saturating_sub(whole_ns),
            duration_ns: whole_ns,
            status,
            fault,
            is_cold: phases.init_ns > 0,
            parts: parts(&phases),
        }
    }

    /// One of [`OUTCOMES`].
    pub(crate) fn outcome(&self) -> &'static str {
        match self.fault {
            Some((outcome, _)) => outcome,
            None if self.is_error() => "function",
            None => "ok",
        }
    }

    /// Whether the function or the node failed.
    pub(super) fn is_error(&self) -> bool {
        self.fault.is_some_and(|(outcome, _)| outcome != "caller") || self.status >= 500
    }

    /// The id of the span of a part.
    pub(super) fn part_span(&self, part: &Part) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.span, part.name).hash(&mut hasher);
        hasher.finish().max(1)
    }
}

/// The parts in the order in which they happened: waiting in the queue, the start of an instance,
/// handing over, and running. Unknown parts are left out.
fn parts(phases: &Phases) -> Vec<Part> {
    let mut all = Vec::new();
    let mut add = |name, from_ns: u64, to_ns: u64| {
        if to_ns > from_ns {
            let begin_ns = from_ns.saturating_sub(phases.received_ns);
            all.push(Part { name, begin_ns, duration_ns: to_ns - from_ns });
        }
    };
    if phases.sent_ns == 0 {
        // It failed before an instance took it.
        let started_ns = phases.answered_ns.saturating_sub(phases.init_ns);
        add("queue", phases.received_ns, started_ns);
        add("start", started_ns.max(phases.received_ns), phases.answered_ns);
        return all;
    }
    // An instance that was started for an invocation takes the invocation at once.
    let started_ns = phases.sent_ns - phases.init_ns.min(phases.sent_ns);
    add("queue", phases.received_ns, started_ns.max(phases.received_ns));
    add("start", started_ns.max(phases.received_ns), phases.sent_ns);
    if phases.entered_ns > 0 {
        add("hand-over", phases.sent_ns, phases.entered_ns);
        add("run", phases.entered_ns, phases.returned_ns);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_follow_each_other() {
        let phases = Phases {
            received_ns: 100,
            init_ns: 30,
            sent_ns: 150,
            entered_ns: 160,
            returned_ns: 190,
            answered_ns: 200,
        };
        let part = |name, begin_ns, duration_ns| Part { name, begin_ns, duration_ns };
        let all = [
            part("queue", 0, 20),
            part("start", 20, 30),
            part("hand-over", 50, 10),
            part("run", 60, 30),
        ];
        assert_eq!(parts(&phases), all);
        assert_eq!(parts(&Phases::default()), []);
        let waited = Phases { received_ns: 100, answered_ns: 250, ..Phases::default() };
        assert_eq!(parts(&waited), [part("queue", 0, 150)]);
        let started = Phases { init_ns: 150, ..waited };
        assert_eq!(parts(&started), [part("start", 0, 150)]);
    }
}
