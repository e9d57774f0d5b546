//! Writes a worker's output to the log of its function: LOG frames, and how many lines were
//! dropped.

use mote_core::InvocationId;
use mote_core::line_budget::{LINES_PER_S, Line, LineBudget};

use crate::revision::Revision;
use crate::revision::logs::{LogLevel, LogSource};

/// Whether there is room for a line of `bytes`. Logs when lines begin to be dropped and how many
/// were dropped.
pub(crate) fn tell_dropped(
    lines: &mut LineBudget,
    bytes: usize,
    now_ns: u64,
    revision: &Revision,
    instance: u64,
) -> bool {
    match lines.admit(bytes, now_ns) {
        Line::Kept => return true,
        Line::KeptAfter(dropped) => {
            log_dropped(revision, instance, dropped);
            return true;
        }
        Line::FirstDropped => log_dropped(revision, instance, 0),
        Line::Dropped => {}
    }
    false
}

/// When an instance ends, logs how many dropped lines were not reported yet.
pub(crate) fn tell_rest(lines: &LineBudget, revision: &Revision, instance: u64) {
    if lines.dropped() > 0 {
        log_dropped(revision, instance, lines.dropped());
    }
}

pub(crate) fn log_dropped(revision: &Revision, instance: u64, count: u64) {
    let text = match count {
        0 => format!("dropping log lines: more than {LINES_PER_S} lines or 4 MiB in a second"),
        count => format!("dropped {count} log lines"),
    };
    revision.log.platform(LogLevel::Warn, revision.number, instance, &text);
}

/// Keeps a LOG frame's line. Malformed lines are kept as they are: a log line never ends a worker.
pub(crate) fn log_frame(revision: &Revision, instance: u64, id: InvocationId, payload: &[u8]) {
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
    revision.log.push(level, source, revision.number, instance, invocation, text.trim_end());
}
