//! The thread that writes lines to the files.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use mote_engine::revision::logs::{LogLevel, LogSource};
use mote_process::clock::unix_ms;
use mote_spec::FunctionName;
use mote_store::log_files::{LogLimits, LogWriter, SHARED};

use super::queue::{Batch, Queue, Waiting};
use crate::log_line::{REMOVED, log_line};

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// How long lines wait, so that one write takes many of them. If the process is killed, the lines
/// of the last such period are lost.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// How often old files are removed while no line arrives.
const REST: Duration = Duration::from_secs(6 * 60 * 60);
/// The maximum number of bytes of one write.
const WRITE_BYTES_MAX: usize = 256 << 10;
/// The part of a day's bytes that is reserved for warnings, errors and messages of the platform, as
/// a divisor.
const FOR_IMPORTANT: u64 = 5;
/// How much of all bytes a function may write to the shared files in a day, as a divisor.
/// Everything that it writes beyond that goes to its own files.
const SHARED_PART: u64 = 64;
/// The pause between two messages about the same trouble in the node's own log.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Writes until the queue is closed.
pub(super) fn run(queue: &Queue, files: LogWriter, limits: LogLimits) {
    let mut writer = Writer {
        files,
        per_day: limits.bytes_per_day,
        shared_bytes: limits.bytes / SHARED_PART,
        of_functions: HashMap::new(),
        day: 0,
        lost: 0,
        told: None,
        is_spent: false,
    };
    loop {
        let batch = queue.next(PAUSE, REST);
        let is_last = batch.is_last;
        writer.write(batch);
        queue.wrote();
        if is_last {
            return;
        }
    }
}

struct Writer {
    files: LogWriter,
    per_day: u64,
    shared_bytes: u64,
    /// What each function has written today.
    of_functions: HashMap<FunctionName, u64>,
    day: u64,
    /// The number of lines that could not be written and have not been reported yet.
    lost: u64,
    told: Option<Instant>,
    /// Whether a report of today says that a function's share is used up.
    is_spent: bool,
}

/// Lines that are written together.
#[derive(Default)]
struct Text {
    json: Vec<u8>,
    lines: u64,
}

impl Writer {
    fn write(&mut self, batch: Batch) {
        if batch.lines.is_empty() && !batch.is_last {
            let _ = self.files.remove_old();
        }
        self.lost += batch.left_out;
        let now_ms = unix_ms();
        let mut left = self.files.left_today(now_ms);
        if std::mem::replace(&mut self.day, now_ms / DAY_MS) != now_ms / DAY_MS {
            self.of_functions.clear();
        }
        let reserve = self.per_day / FOR_IMPORTANT;
        // The shared lines come first, because their files are older.
        let mut texts: BTreeMap<&str, Text> = BTreeMap::new();
        for waiting in &batch.lines {
            let json = json(waiting);
            let room = if is_important(waiting) { left } else { left.saturating_sub(reserve) };
            let used = self.of_functions.entry(waiting.0.clone()).or_default();
            // No function may write more than all others together still may.
            if *used + json.len() as u64 > room && !is_end(waiting) {
                self.tell_spent(&waiting.0);
                continue;
            }
            *used += json.len() as u64;
            left = left.saturating_sub(json.len() as u64);
            let is_shared =
                *used <= self.shared_bytes || !LogWriter::can_own_files(waiting.0.as_str());
            let owner = if is_shared { SHARED } else { waiting.0.as_str() };
            let text = texts.entry(owner).or_default();
            if text.json.len() + json.len() > WRITE_BYTES_MAX {
                self.append(owner, &std::mem::take(text), now_ms);
            }
            text.json.extend_from_slice(&json);
            text.lines += 1;
        }
        self.files.set_sharers(self.of_functions.len());
        for (owner, text) in texts {
            self.append(owner, &text, now_ms);
        }
        self.is_spent &= !self.of_functions.is_empty();
        self.tell_lost(None);
    }

    fn append(&mut self, owner: &str, text: &Text, now_ms: u64) {
        if let Err(error) = self.files.append(owner, &text.json, now_ms) {
            self.lost += text.lines;
            self.tell_lost(Some(error));
        }
    }

    /// Reports, at most once a minute, that lines are only in memory.
    fn tell_lost(&mut self, error: Option<std::io::Error>) {
        let is_due = self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY);
        if self.lost == 0 || !is_due {
            return;
        }
        let lines = self.lost;
        let why = match error {
            Some(error) => error.to_string(),
            None => "they arrived faster than the disk writes".to_owned(),
        };
        tracing::warn!(lines, "lines of functions' logs could not be written: {why}");
        self.told = Some(Instant::now());
        self.lost = 0;
    }

    fn tell_spent(&mut self, function: &FunctionName) {
        if !std::mem::replace(&mut self.is_spent, true) {
            tracing::warn!(
                %function,
                "the function has written its share of the bytes that logs may take on this day \
                 (log_writes): until tomorrow, its lines are only in memory"
            );
        }
    }
}

/// Whether a line is written even if the bytes for the day are nearly used up.
fn is_important((_, line): &Waiting) -> bool {
    line.level >= LogLevel::Warn || line.source == LogSource::Platform
}

/// Whether the line says that the function was removed, which must be kept in any case.
fn is_end((_, line): &Waiting) -> bool {
    line.source == LogSource::Platform && line.revision == 0 && line.text == REMOVED
}

fn json((function, line): &Waiting) -> Vec<u8> {
    let mut json = serde_json::to_vec(&log_line(function.as_str(), line)).unwrap_or_default();
    json.push(b'\n');
    json
}
