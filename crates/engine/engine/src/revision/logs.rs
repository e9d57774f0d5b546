//! The output of functions, and the platform's messages about them, in a bounded ring per function
//! in memory.
//!
//! A full ring drops its oldest lines. A follower that is too slow misses lines, and receives the
//! number of missed lines. A [`LogSink`] may keep the lines for longer.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use mote_core::InvocationId;
use mote_spec::FunctionName;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::masks::Masks;
use mote_process::clock::unix_us;

/// The maximum number of lines kept per function.
const LINES_MAX: usize = 1_000;
/// The maximum number of bytes of text kept per function.
const BYTES_MAX: usize = 256 << 10;
/// The maximum length of a kept line. The rest is cut off, so that one line cannot push out all
/// others.
const LINE_BYTES_MAX: usize = 8 << 10;
/// The mark at the end of a line that was cut off.
const CUT: &str = "\u{2026}";
/// The maximum number of stopped instances kept per function. Usually this covers the last few
/// minutes.
const STOPS_MAX: usize = 16;
/// The maximum number of lines by which a follower may lag behind.
const FOLLOWER_LAG_MAX: usize = 1_024;

/// The stream from which a line came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogSource {
    Stdout,
    Stderr,
    /// The function's logger.
    Log,
    /// A message of `mote` about the function, for instance that it started, stopped or failed.
    Platform,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Debug = 1,
    Info = 2,
    Warn = 3,
    Error = 4,
}

#[derive(Debug, Clone)]
pub struct LogLine {
    /// The position in the function's log. Positions begin at 1 and have no gaps.
    pub sequence: u64,
    /// Wall-clock time, in microseconds since 1970.
    pub unix_us: u64,
    pub level: LogLevel,
    pub source: LogSource,
    /// The revision that wrote the line; 0 for a message of the platform that belongs to no
    /// revision.
    pub revision: u64,
    /// The instance that wrote the line; 0 if no instance did.
    pub instance: u64,
    pub invocation: Option<InvocationId>,
    /// The text of one line, without its line end.
    pub text: String,
}

/// An instance that has ended, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    pub instance: u64,
    /// The revision that the instance ran.
    pub revision: u64,
    /// Wall-clock time, in milliseconds since 1970.
    pub unix_ms: u64,
    /// A stable word such as `idle`, `evicted` or `crash`; `start` if the instance never became
    /// ready.
    pub reason: &'static str,
    /// More details, if there are any.
    pub text: String,
}

impl Stopped {
    /// Records an instance that ended just now.
    pub(crate) fn now(instance: u64, revision: u64, reason: &'static str, text: &str) -> Self {
        let unix_ms = unix_us() / 1_000;
        Self { instance, revision, unix_ms, reason, text: text.to_owned() }
    }
}

/// Receives the lines of all functions.
pub trait LogSink: Send + Sync + std::fmt::Debug {
    /// Takes a line. Must not block, because the data path calls it.
    fn take(&self, function: &FunctionName, line: &Arc<LogLine>);
}

/// The log of one function, across its revisions. The log of a function without output takes a few
/// bytes.
pub struct FunctionLog {
    function: FunctionName,
    ring: Mutex<Ring>,
    masks: Masks,
    sink: Option<Arc<dyn LogSink>>,
}

#[derive(Default)]
struct Ring {
    lines: VecDeque<Arc<LogLine>>,
    bytes: usize,
    sequence: u64,
    stops: VecDeque<Stopped>,
    /// Whether the function is removed.
    is_ended: bool,
    /// `None` while there is no follower, because the channel allocates its whole length at once.
    followers: Option<broadcast::Sender<Arc<LogLine>>>,
}

impl Ring {
    fn positions(&self) -> Range<u64> {
        let end = self.sequence + 1;
        end - self.lines.len() as u64..end
    }
}

/// The part of a line that is kept.
fn cut(text: &str) -> &str {
    if text.len() <= LINE_BYTES_MAX {
        return text;
    }
    let mut end = text.len().min(LINE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl FunctionLog {
    pub fn new(function: FunctionName, sink: Option<Arc<dyn LogSink>>) -> Self {
        Self { function, ring: Default::default(), masks: Default::default(), sink }
    }

    /// Replaces a secret by `***` in all lines from now on.
    pub(crate) fn mask(&self, value: &str) {
        self.masks.add(value);
    }

    /// The text in the form in which it may be shown: without secrets, and not longer than a line.
    pub(crate) fn masked(&self, text: &str) -> String {
        let kept = cut(text);
        let is_cut = kept.len() < text.len();
        let mut text = self.masks.masked(kept, is_cut).into_owned();
        if is_cut {
            text.push_str(CUT);
        }
        text
    }

    /// The reason for a failure in the form in which it may be shown. The text comes from a
    /// function, and may have been cut off inside a secret.
    pub(crate) fn masked_reason(&self, text: &str) -> String {
        self.masks.masked(cut(text), true).into_owned()
    }

    /// Appends one line. Never waits for followers or the sink.
    pub fn push(
        &self,
        level: LogLevel,
        source: LogSource,
        revision: u64,
        instance: u64,
        invocation: Option<InvocationId>,
        text: &str,
    ) {
        let text = self.masked(text);
        let mut ring = self.ring.lock();
        ring.sequence += 1;
        let line = Arc::new(LogLine {
            sequence: ring.sequence,
            unix_us: unix_us(),
            level,
            source,
            revision,
            instance,
            invocation,
            text,
        });
        if let Some(sink) = &self.sink
            && !ring.is_ended
        {
            sink.take(&self.function, &line);
        }
        ring.bytes += line.text.len();
        ring.lines.push_back(line.clone());
        while ring.lines.len() > LINES_MAX || ring.bytes > BYTES_MAX {
            let Some(dropped) = ring.lines.pop_front() else { break };
            ring.bytes -= dropped.text.len();
        }
        if let Some(followers) = &ring.followers
            && followers.send(line).is_err()
        {
            // No follower is left.
            ring.followers = None;
        }
    }

    /// Records why an instance has ended.
    pub(crate) fn stopped(&self, stopped: Stopped) {
        let stopped = Stopped { text: self.masked(&stopped.text), ..stopped };
        let mut ring = self.ring.lock();
        ring.stops.push_back(stopped);
        while ring.stops.len() > STOPS_MAX {
            ring.stops.pop_front();
        }
    }

    /// The instances that ended last, oldest first.
    pub fn stops(&self) -> Vec<Stopped> {
        self.ring.lock().stops.iter().cloned().collect()
    }

    /// Notes that the function is removed. Lines that instances write while they stop are no longer
    /// passed to the sink.
    pub fn end(&self) {
        self.ring.lock().is_ended = true;
    }

    /// Adds a message of the platform.
    pub fn platform(&self, level: LogLevel, revision: u64, instance: u64, text: &str) {
        self.push(level, LogSource::Platform, revision, instance, None, text);
    }

    /// The positions of the kept lines, and a receiver for the lines after them.
    pub fn follow(&self) -> (Range<u64>, broadcast::Receiver<Arc<LogLine>>) {
        let mut ring = self.ring.lock();
        let followers =
            ring.followers.get_or_insert_with(|| broadcast::channel(FOLLOWER_LAG_MAX).0);
        let following = followers.subscribe();
        (ring.positions(), following)
    }

    /// The positions of the kept lines.
    pub fn kept(&self) -> Range<u64> {
        self.ring.lock().positions()
    }

    /// At most `count` lines from the position `from` on, oldest first. Lines that the ring has
    /// dropped are left out.
    pub fn lines(&self, from: u64, count: usize) -> Vec<Arc<LogLine>> {
        let ring = self.ring.lock();
        let skipped = from.saturating_sub(ring.positions().start);
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        ring.lines.iter().skip(skipped).take(count).cloned().collect()
    }

    /// The last `count` lines, oldest first.
    pub fn tail(&self, count: usize) -> Vec<Arc<LogLine>> {
        let ring = self.ring.lock();
        ring.lines.iter().skip(ring.lines.len().saturating_sub(count)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_is_bounded_in_lines_and_bytes() {
        let log = FunctionLog::new(FunctionName::new("f").unwrap(), None);
        for _ in 0..LINES_MAX + 10 {
            log.platform(LogLevel::Info, 1, 0, "x");
        }
        let lines = log.tail(usize::MAX);
        assert_eq!(lines.len(), LINES_MAX);
        assert_eq!(lines[0].sequence, 11);
        let long = "y".repeat(LINE_BYTES_MAX * 2);
        for _ in 0..100 {
            log.platform(LogLevel::Info, 1, 0, &long);
        }
        let kept: usize = log.tail(usize::MAX).iter().map(|line| line.text.len()).sum();
        assert!(kept <= BYTES_MAX, "{kept}");
    }
}
