//! The lines that wait to be written.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mote_engine::revision::logs::{LogLine, LogSink};
use mote_spec::FunctionName;
use parking_lot::{Condvar, Mutex};

/// The maximum number of bytes that wait. Further lines are counted, but not written.
const BYTES_MAX: usize = 4 << 20;
/// The bytes that a line takes in addition to its text.
const LINE_BYTES: usize = 160;

/// A line and its function.
pub(super) type Waiting = (FunctionName, Arc<LogLine>);

#[derive(Default, Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Notified when there is work for the writer.
    work: Condvar,
    /// Notified when the writer has written.
    written: Condvar,
}

#[derive(Default, Debug)]
struct State {
    lines: Vec<Waiting>,
    bytes: usize,
    /// How many of the bytes each function has filled.
    of_functions: HashMap<FunctionName, usize>,
    /// Lines that were not written, because too many were waiting.
    left_out: u64,
    /// How often the writer has taken lines, and how often it has written them.
    taken: u64,
    written: u64,
    /// Somebody waits for the lines to be written.
    is_urgent: bool,
    is_closed: bool,
}

/// What the writer has to do next.
pub(super) struct Batch {
    pub(super) lines: Vec<Waiting>,
    pub(super) left_out: u64,
    /// Whether the queue is closed, so that this is the last batch.
    pub(super) is_last: bool,
}

impl LogSink for Queue {
    fn take(&self, function: &FunctionName, line: &Arc<LogLine>) {
        let mut state = self.state.lock();
        let bytes = line.text.len() + LINE_BYTES;
        let free = BYTES_MAX.saturating_sub(state.bytes);
        let of_function = state.of_functions.get(function).copied().unwrap_or(0);
        // No function may fill more than it leaves for all others.
        if of_function + bytes > free || state.is_closed {
            state.left_out += 1;
            return;
        }
        state.bytes += bytes;
        match state.of_functions.get_mut(function) {
            Some(of_function) => *of_function += bytes,
            None => {
                state.of_functions.insert(function.clone(), bytes);
            }
        }
        state.lines.push((function.clone(), line.clone()));
        if state.lines.len() == 1 {
            self.work.notify_one();
        }
    }
}

impl Queue {
    /// Waits for lines, then for `pause`, so that one write takes many lines. Returns an empty
    /// batch if no line arrived for `rest`.
    pub(super) fn next(&self, pause: Duration, rest: Duration) -> Batch {
        let mut state = self.state.lock();
        let is_idle =
            |state: &mut State| state.lines.is_empty() && !state.is_closed && !state.is_urgent;
        self.work.wait_while_for(&mut state, is_idle, rest);
        if !state.lines.is_empty() {
            let waits = |state: &mut State| !state.is_closed && !state.is_urgent;
            self.work.wait_while_for(&mut state, waits, pause);
        }
        state.is_urgent = false;
        state.taken += 1;
        state.bytes = 0;
        state.of_functions.clear();
        Batch {
            lines: std::mem::take(&mut state.lines),
            left_out: std::mem::take(&mut state.left_out),
            is_last: state.is_closed,
        }
    }

    /// Says that the last batch is written.
    pub(super) fn wrote(&self) {
        let mut state = self.state.lock();
        state.written = state.taken;
        self.written.notify_all();
    }

    /// Waits, but at most for `wait`, until all lines so far are written.
    pub(super) fn flush(&self, wait: Duration) {
        let until = Instant::now() + wait;
        let mut state = self.state.lock();
        // Lines that are waiting belong to the next batch; lines that were already taken belong to
        // the current one.
        let wanted = if state.lines.is_empty() { state.taken } else { state.taken + 1 };
        state.is_urgent |= !state.lines.is_empty();
        self.work.notify_one();
        while state.written < wanted {
            if self.written.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    /// Takes no more lines, and waits, but at most for `wait`, until the last ones are written.
    pub(super) fn close(&self, wait: Duration) {
        let until = Instant::now() + wait;
        let mut state = self.state.lock();
        state.is_closed = true;
        let wanted = state.taken + 1;
        self.work.notify_one();
        while state.written < wanted {
            if self.written.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }
}
