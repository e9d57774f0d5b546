//! The schedules of a node and the state of each one, as a state machine without a clock.
//!
//! A heap holds the next moment of each schedule. So even with ten thousand schedules, a look at
//! the earliest one shows whether any is due.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use mote_core::accept::{AcceptError, Accepted, Deferred, SCHEDULE_KEYS};
use mote_core::invocation::{Head, InvocationId, Trigger};
use mote_spec::{Missed, Overlap, Schedule, When};
use slab::Slab;

use crate::look;
use crate::times::{Times, TimesError, UnixMs, shown};

/// The header field with the expression of the schedule.
pub const FIELD_SCHEDULE: &str = "mote-schedule";
/// The header field with the time at which the run was due, without jitter: RFC 3339 in UTC.
pub const FIELD_DUE: &str = "mote-schedule-due";

/// First wait after the journal could not accept a run. Each further wait is twice as long.
const RETRY_MS_MIN: i64 = 1_000;
const RETRY_MS_MAX: i64 = 60_000;

/// A schedule, with the state that the book keeps for it.
struct Entry {
    function: Arc<str>,
    times: Times,
    /// Identifies the schedule within its function, even after a restart and a redeploy.
    identity: u64,
    jitter_ms: i64,
    handled: UnixMs,
    next: Option<UnixMs>,
    /// The times up to this one passed while the node was off. `None` after the first look.
    off_until: Option<UnixMs>,
    /// The runs that were offered to the journal and have not been answered yet: their oldest time,
    /// and their number.
    unanswered: Option<(UnixMs, u32)>,
    /// Identifies the schedule's newest item in the heap. Items with another number no longer
    /// count.
    turn: u32,
    retry_ms: i64,
    /// The number of runs that have not ended. Counted only if an unfinished run keeps the next one
    /// from running.
    running: u32,
    /// Times that were skipped because an earlier run had not ended.
    left_out: u64,
    last: Option<Box<Last>>,
}

impl Entry {
    fn schedule(&self) -> &Arc<Schedule> {
        self.times.schedule()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Last {
    pub due: UnixMs,
    pub outcome: Outcome,
}

/// What happened to a run that was due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The journal accepted the run.
    Accepted(InvocationId),
    /// The run was skipped, because the previous run had not ended.
    LeftOut,
    /// The journal did not accept the run.
    Failed(String),
}

#[derive(Debug, Clone)]
pub struct Listed {
    pub function: Arc<str>,
    pub schedule: Arc<Schedule>,
    /// When the schedule runs next, including its jitter.
    pub next: Option<UnixMs>,
    /// The schedule's last run since the node started.
    pub last: Option<Last>,
    /// Times that were skipped because an earlier run had not ended.
    pub left_out: u64,
}

/// Names one schedule of the book. The name stays valid after a redeploy of the function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    function: Arc<str>,
    identity: u64,
}

/// The data that the journal still has about a schedule that another node ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The identity of the schedule, as it appears in the keys of its runs.
    pub identity: u64,
    /// The newest time that was accepted.
    pub handled: UnixMs,
    /// The schedule's runs that have not ended.
    pub running: Vec<InvocationId>,
}

/// A run that is due now.
#[derive(Debug)]
pub struct Run {
    pub key: Key,
    pub due: UnixMs,
    /// Whether [`Book::ended`] must be called when the run has ended.
    pub is_counted: bool,
    /// The invocation to hand to the journal.
    pub deferred: Deferred,
}

#[derive(Default)]
pub struct Book {
    /// Boxed, because a slab reserves room for up to twice the number of its entries.
    entries: Slab<Box<Entry>>,
    functions: HashMap<Arc<str>, Vec<usize>>,
    heap: BinaryHeap<Reverse<(UnixMs, usize, u32)>>,
    turns: u32,
}

#[derive(Debug, Clone, Copy)]
pub struct Begin {
    /// Every time up to this one is handled.
    pub handled: UnixMs,
    /// When the node started, if it had these schedules before. Times before this start count as
    /// missed; later times do not.
    pub started: Option<UnixMs>,
}

impl Begin {
    /// For schedules that did not exist before `now`.
    pub fn new(now: UnixMs) -> Self {
        Self { handled: now, started: None }
    }
}

/// A hash that is the same in every build and on every machine (FNV-1a).
pub fn hash(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for byte in part.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    // The low bits of FNV depend on only a few bits of its input, so the high bits are mixed in.
    hash ^ (hash >> 32)
}

/// Identifies a schedule, among those of its function, by its times, because the times decide
/// whether a run has already happened. `number` distinguishes schedules with equal times.
fn identity(when: &When, number: u64) -> u64 {
    let number = number.to_le_bytes();
    match when {
        When::Cron { expression, timezone } => {
            hash(&[b"cron", expression.as_bytes(), timezone.as_bytes(), &number])
        }
        When::Every { ms } => hash(&[b"every", &ms.to_le_bytes(), &number]),
    }
}

impl Book {
    /// Replaces the schedules of a function. Schedules whose times stay the same keep their state.
    /// Schedules in `known` continue where another node ended. New schedules begin at `begin`.
    /// Returns the runs in `known` whose ends must be reported to [`Book::ended`]. `seed` differs
    /// between nodes and functions. If a schedule is invalid, nothing changes.
    pub fn publish(
        &mut self,
        function: &str,
        schedules: &[Arc<Schedule>],
        seed: u64,
        begin: Begin,
        known: &[Known],
    ) -> Result<Vec<(Key, InvocationId)>, TimesError> {
        let function: Arc<str> = function.into();
        let mut running = Vec::new();
        let mut entries: Vec<Box<Entry>> = Vec::with_capacity(schedules.len());
        for schedule in schedules {
            let equal = entries.iter().filter(|one| one.schedule().when == schedule.when).count();
            let identity = identity(&schedule.when, equal as u64);
            let jitter = hash(&[&seed.to_le_bytes(), &identity.to_le_bytes()]);
            let jitter_ms = match schedule.jitter_ms {
                0 => 0,
                most => i64::try_from(jitter % most).unwrap_or(0),
            };
            // A time is not missed if its jitter moves it past the start.
            let off_until = begin.started.map(|started| started.saturating_sub(jitter_ms));
            let handled = match (off_until, schedule.missed) {
                // With `skip`, times before this one would not run in any case.
                (Some(until), Missed::Skip) => {
                    begin.handled.max(until.saturating_sub(look::LATE_MS_MAX))
                }
                _ => begin.handled,
            };
            let (times, next) = Times::read(schedule.clone(), handled)?;
            let function = function.clone();
            entries.push(Box::new(Entry {
                function,
                times,
                identity,
                jitter_ms,
                handled,
                next,
                off_until,
                unanswered: None,
                turn: 0,
                retry_ms: 0,
                running: 0,
                left_out: 0,
                last: None,
            }));
        }
        let before = self.functions.remove(&function).unwrap_or_default();
        let mut before: Vec<Box<Entry>> =
            before.into_iter().map(|index| self.take(index)).collect();
        let mut keys = Vec::with_capacity(entries.len());
        for mut entry in entries {
            if let Some(at) = before.iter().position(|old| old.identity == entry.identity) {
                let old = before.swap_remove(at);
                (entry.handled, entry.next) = (old.handled, old.next);
                (entry.off_until, entry.unanswered) = (old.off_until, old.unanswered);
                (entry.running, entry.left_out, entry.last) = (old.running, old.left_out, old.last);
            } else if let Some(known) = known.iter().find(|it| it.identity == entry.identity) {
                entry.handled = known.handled;
                entry.next = entry.times.next(known.handled);
                if entry.schedule().overlap == Overlap::Skip {
                    entry.running = u32::try_from(known.running.len()).unwrap_or(u32::MAX);
                    let key = Key { function: function.clone(), identity: entry.identity };
                    running.extend(known.running.iter().map(|id| (key.clone(), *id)));
                }
            }
            let index = self.entries.insert(entry);
            keys.push(index);
            self.wait(index, None);
        }
        if !keys.is_empty() {
            self.functions.insert(function, keys);
        }
        self.tidy();
        Ok(running)
    }

    pub fn remove(&mut self, function: &str) {
        for index in self.functions.remove(function).unwrap_or_default() {
            self.take(index);
        }
        self.tidy();
    }

    fn take(&mut self, index: usize) -> Box<Entry> {
        self.entries.remove(index)
    }

    /// Removes the items of the heap that no longer count, once they outnumber the others.
    fn tidy(&mut self) {
        if self.heap.len() > 64 + 2 * self.entries.len() {
            let entries = &self.entries;
            self.heap.retain(|Reverse((_, index, turn))| {
                entries.get(*index).is_some_and(|entry| entry.turn == *turn)
            });
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Puts a schedule into the heap: at `retry` if given, otherwise at its next time.
    fn wait(&mut self, index: usize, retry: Option<UnixMs>) {
        let entry = &mut self.entries[index];
        self.turns = self.turns.wrapping_add(1);
        entry.turn = self.turns;
        let next = entry.next.map(|next| next.saturating_add(entry.jitter_ms));
        if let Some(wake) = retry.or(next) {
            self.heap.push(Reverse((wake, index, entry.turn)));
        }
    }

    /// Returns when the next schedule is due.
    pub fn wake(&mut self) -> Option<UnixMs> {
        while let Some(Reverse((wake, index, turn))) = self.heap.peek() {
            if self.entries.get(*index).is_some_and(|entry| entry.turn == *turn) {
                return Some(*wake);
            }
            self.heap.pop();
        }
        None
    }

    /// Looks at every schedule again, because the clock has been set.
    pub fn clock_was_set(&mut self, now: UnixMs) {
        let all: Vec<usize> = self.entries.iter().map(|(index, _)| index).collect();
        for index in all {
            let entry = &mut self.entries[index];
            let shifted = now.saturating_sub(entry.jitter_ms);
            // A time that is in the future now cannot have been missed.
            entry.off_until = entry.off_until.map(|until| until.min(shifted));
            if entry.handled > shifted.saturating_add(look::STEP_MS_MAX) {
                entry.handled = shifted;
                entry.next = entry.times.next(shifted);
                self.wait(index, None);
            }
        }
    }

    /// Returns the runs of the schedule that has been due longest, if one is due.
    pub fn due(&mut self, now: UnixMs) -> Vec<Run> {
        if self.wake().is_none_or(|wake| wake > now) {
            return Vec::new();
        }
        let Some(Reverse((_, index, _))) = self.heap.pop() else { return Vec::new() };
        let entry = &mut self.entries[index];
        let missed = entry.schedule().missed;
        let off_until = entry.off_until.take();
        let shifted = now.saturating_sub(entry.jitter_ms);
        let seen = look::look(&entry.times, missed, entry.handled, shifted, off_until);
        (entry.handled, entry.next) = (seen.handled, seen.next);
        let mut runs = Vec::new();
        let is_counted = entry.schedule().overlap == Overlap::Skip;
        let is_running = is_counted && entry.running > 0;
        for due in seen.runs {
            if is_running {
                entry.left_out += 1;
                entry.last = Some(Box::new(Last { due, outcome: Outcome::LeftOut }));
                continue;
            }
            entry.running += u32::from(is_counted);
            let (oldest, count) = entry.unanswered.unwrap_or((due, 0));
            entry.unanswered = Some((oldest, count + 1));
            let key = Key { function: entry.function.clone(), identity: entry.identity };
            runs.push(Run { key, due, is_counted, deferred: deferred(entry, due) });
        }
        self.wait(index, None);
        runs
    }

    fn find(&self, key: &Key) -> Option<usize> {
        let all = self.functions.get(&key.function)?;
        all.iter().copied().find(|index| self.entries[*index].identity == key.identity)
    }

    /// Notes the journal's answer to a run. Returns whether the caller must wait for the run's end.
    pub fn answered(
        &mut self,
        run: (&Key, UnixMs, bool),
        answer: Result<Accepted, AcceptError>,
        now: UnixMs,
    ) -> bool {
        let (key, due, is_counted) = run;
        let Some(index) = self.find(key) else { return false };
        let entry = &mut self.entries[index];
        entry.unanswered = match entry.unanswered {
            Some((oldest, count)) if count > 1 => Some((oldest, count - 1)),
            _ => None,
        };
        match answer {
            Ok(Accepted { id, .. }) => {
                entry.retry_ms = 0;
                entry.last = Some(Box::new(Last { due, outcome: Outcome::Accepted(id) }));
                return is_counted;
            }
            Err(error) => {
                entry.running = entry.running.saturating_sub(u32::from(is_counted));
                let text = error.to_string();
                tracing::warn!(function = %entry.function, due = shown(due), "a run by schedule was not accepted: {text}");
                entry.last = Some(Box::new(Last { due, outcome: Outcome::Failed(text) }));
                if !matches!(error, AcceptError::Invalid(_)) {
                    // The time counts as not handled. If later times come due meanwhile, the rule
                    // for late times applies.
                    entry.handled = entry.handled.min(due - 1);
                    entry.next = Some(due);
                    entry.retry_ms = (entry.retry_ms * 2).clamp(RETRY_MS_MIN, RETRY_MS_MAX);
                    let retry = now.saturating_add(entry.retry_ms);
                    self.wait(index, Some(retry));
                }
            }
        }
        false
    }

    pub fn ended(&mut self, key: &Key) {
        if let Some(index) = self.find(key) {
            let entry = &mut self.entries[index];
            entry.running = entry.running.saturating_sub(1);
        }
    }

    /// Returns the time up to which everything is handled. The node keeps it for its next start.
    pub fn mark(&self, now: UnixMs) -> UnixMs {
        let handled = self.entries.iter().map(|(_, entry)| {
            // This time has passed but is not handled yet: it waits for its jitter, or for a
            // journal that was full.
            let next = entry.next.filter(|next| *next <= now);
            let oldest = next.into_iter().chain(entry.unanswered.map(|(oldest, _)| oldest)).min();
            oldest.map_or(now, |oldest| oldest - 1)
        });
        handled.min().unwrap_or(now)
    }

    /// The schedules of one function or of all functions, sorted by function.
    pub fn list(&self, function: Option<&str>) -> Vec<Listed> {
        let mut names: Vec<_> = match function {
            Some(name) => self.functions.get_key_value(name).into_iter().collect(),
            None => self.functions.iter().collect(),
        };
        names.sort_unstable();
        let listed = |index: &usize| {
            let entry = &self.entries[*index];
            Listed {
                function: entry.function.clone(),
                schedule: entry.schedule().clone(),
                next: entry.next.map(|next| next.saturating_add(entry.jitter_ms)),
                last: entry.last.as_deref().cloned(),
                left_out: entry.left_out,
            }
        };
        names.into_iter().flat_map(|(_, keys)| keys.iter().map(listed)).collect()
    }
}

/// Builds the invocation for one run.
fn deferred(entry: &Entry, due: UnixMs) -> Deferred {
    let Schedule { when, overlap, call, .. } = &**entry.schedule();
    let (path, query) = call.path.split_once('?').unwrap_or((&call.path, ""));
    let mut head = Head::builder(call.method.as_bytes(), path.as_bytes(), query.as_bytes());
    for (name, value) in &call.headers {
        head.header(name.as_bytes(), value.as_bytes());
    }
    head.header(FIELD_SCHEDULE.as_bytes(), expression(when).as_bytes());
    head.header(FIELD_DUE.as_bytes(), shown(due).as_bytes());
    let name = format!("{SCHEDULE_KEYS}{:016x}", entry.identity);
    let function = &*entry.function;
    let body = call.body.clone().into();
    Deferred {
        key: Some(format!("{name}/{due}")),
        order: (*overlap != Overlap::Allow).then_some(name),
        ..Deferred::new(function, Trigger::Schedule, head.finish(), body)
    }
}

/// The times of a schedule in the notation that people write.
pub fn expression(when: &When) -> String {
    match when {
        When::Cron { expression, .. } => expression.clone(),
        When::Every { ms } => format!("every {}", duration(*ms)),
    }
}

/// Writes an interval in its largest whole unit.
pub fn duration(ms: u64) -> String {
    let units = [("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let unit = units.into_iter().find(|(_, length)| ms.is_multiple_of(*length) && ms > 0);
    unit.map_or_else(|| format!("{ms}ms"), |(name, length)| format!("{}{name}", ms / length))
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
