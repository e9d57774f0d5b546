//! Writes a worker's LOG frames to the log of its function, and reports how many lines were
//! dropped.

use mote_core::InvocationId;
use mote_core::line_budget::{LINES_PER_S, Line, LineBudget};

use crate::revision::Revision;
use crate::revision::logs::{FunctionLog, LogLevel, LogSource};

/// The log of a function, with the revision and the instance to which lines are attributed.
#[derive(Clone, Copy)]
pub(crate) struct InstanceLog<'a> {
    pub(crate) to: &'a FunctionLog,
    pub(crate) revision: u64,
    pub(crate) instance: u64,
}

impl Revision {
    /// The log for the lines of one instance.
    pub(crate) fn log_of(&self, instance: u64) -> InstanceLog<'_> {
        InstanceLog { to: &self.log, revision: self.number, instance }
    }
}

/// Whether there is room for a line of `bytes`. Logs when lines begin to be dropped, and how many
/// were dropped.
pub(crate) fn tell_dropped(
    lines: &mut LineBudget,
    bytes: usize,
    now_ns: u64,
    log: InstanceLog<'_>,
) -> bool {
    match lines.admit(bytes, now_ns) {
        Line::Kept => return true,
        Line::KeptAfter(dropped) => {
            log_dropped(log, dropped);
            return true;
        }
        Line::FirstDropped => log_dropped(log, 0),
        Line::Dropped => {}
    }
    false
}

/// Logs how many dropped lines were not reported yet. Called when an instance ends.
pub(crate) fn tell_rest(lines: &LineBudget, log: InstanceLog<'_>) {
    if lines.dropped() > 0 {
        log_dropped(log, lines.dropped());
    }
}

pub(crate) fn log_dropped(log: InstanceLog<'_>, count: u64) {
    let text = match count {
        0 => format!("dropping log lines: more than {LINES_PER_S} lines or 4 MiB in a second"),
        count => format!("dropped {count} log lines"),
    };
    log.to.platform(LogLevel::Warn, log.revision, log.instance, &text);
}

/// Keeps the line of a LOG frame. A malformed line is kept as it is, because a log line must never
/// end a worker.
pub(crate) fn log_frame(log: InstanceLog<'_>, id: InvocationId, payload: &[u8]) {
    let (source, level, text) = match payload {
        [source, level, text @ ..] => (*source, *level, text),
        short => (0, 2, short),
    };
    let source = match source {
        1 => LogSource::Stdout,
        2 => LogSource::Stderr,
        _ => LogSource::Log,
    };
    let level = match level {
        1 => LogLevel::Debug,
        3 => LogLevel::Warn,
        4 => LogLevel::Error,
        _ => LogLevel::Info,
    };
    let invocation = (id.0 != 0).then_some(id);
    let text = String::from_utf8_lossy(text);
    log.to.push(level, source, log.revision, log.instance, invocation, text.trim_end());
}
