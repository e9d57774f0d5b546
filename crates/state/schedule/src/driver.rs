//! The task that drives all schedules: it waits for the next time, and hands due runs to the
//! journal.
//!
//! The task starts with the node's first schedule. It uses one kernel timer, which follows the wall
//! clock. The timer fires when the clock shows the time, even if the clock has been set or the
//! machine was suspended. It also reports every step of the clock.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use mote_core::accept::{Accept, AcceptError, Accepted};
use mote_core::invocation::InvocationId;
use mote_spec::Schedule;
use parking_lot::Mutex;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::net::unix::pipe::Receiver;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::book::{Begin, Book, Key, Known, Listed};
use crate::times::{TimesError, UnixMs};

/// The most runs that wait for the journal's answer at once. The limit is high, because the journal
/// writes many runs with one sync.
const OFFERED_MAX: usize = 256;
/// While schedules run, the mark is stored at most this often, because storing it is a write to
/// flash memory. After a power cut, times later than the mark are offered again, and the journal
/// recognizes those that have already run.
const MARK_EVERY_MS: i64 = 3_600_000;
/// After this many runs, the mark is stored earlier, because the journal recognizes only a bounded
/// number of keys. The extra write matters little, because each of these runs was itself a write.
const MARK_EVERY_RUNS: u64 = 10_000;

/// How long a stop waits for the journal. Runs without an answer by then are offered again at the
/// next start.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Stores the mark: the time up to which everything is handled.
pub trait Marks: Send + Sync + 'static {
    /// Stores the mark. Blocks until it is on disk.
    fn keep(&self, mark: UnixMs);
}

#[derive(Clone)]
pub struct Schedules(Arc<Inner>);

struct Inner {
    book: Mutex<Book>,
    changed: Notify,
    accept: Arc<dyn Accept>,
    marks: Arc<dyn Marks>,
    /// The runtime on which the task runs.
    runtime: Handle,
    life: Mutex<Life>,
    /// The mark that an earlier run of the node stored.
    mark: Option<UnixMs>,
    started: UnixMs,
    task: Mutex<Option<JoinHandle<()>>>,
    kept: Mutex<Option<UnixMs>>,
    /// Runs since the mark was stored.
    runs: AtomicU64,
    /// Runs that another node has begun. They stay here until the task waits for their ends.
    begun: Mutex<Vec<(Key, InvocationId)>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    /// No schedule has existed yet, so the task has not started.
    Idle,
    Running,
    Stopped,
}

/// The wall clock in milliseconds since 1970.
pub fn now() -> UnixMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Schedules {
    /// Starts without schedules. `mark` is the value that [`Marks::keep`] received last.
    pub fn new(
        accept: Arc<dyn Accept>,
        marks: Arc<dyn Marks>,
        mark: Option<UnixMs>,
        runtime: Handle,
    ) -> Self {
        let book = Mutex::default();
        let changed = Notify::new();
        let life = Mutex::new(Life::Idle);
        let kept = Mutex::new(mark);
        let runs = AtomicU64::new(0);
        let begun = Mutex::default();
        let started = now();
        let task = Mutex::default();
        Self(Arc::new(Inner {
            book,
            changed,
            accept,
            marks,
            runtime,
            life,
            mark,
            started,
            task,
            kept,
            runs,
            begun,
        }))
    }

    /// Adds the schedules of a function that the node already had before this start.
    pub fn bring_back(
        &self,
        function: &str,
        schedules: &[Arc<Schedule>],
        seed: u64,
    ) -> Result<(), TimesError> {
        // The clock may have been set back since the start.
        let started = self.0.started.min(now());
        let handled = self.0.mark.map_or(started, |mark| mark.min(started));
        let begin = Begin { handled, started: Some(started) };
        self.publish_since(function, schedules, seed, begin, &[])
    }

    /// Replaces the schedules of a function after a deploy or a change of traffic.
    pub fn publish(
        &self,
        function: &str,
        schedules: &[Arc<Schedule>],
        seed: u64,
    ) -> Result<(), TimesError> {
        self.publish_since(function, schedules, seed, Begin::new(now()), &[])?;
        // After a restart, the node must not look for times of these schedules that are before this
        // moment.
        if !schedules.is_empty() {
            self.0.keep_mark(now());
        }
        Ok(())
    }

    /// Replaces the schedules on a node that continues in place of another one. `known` is the data
    /// that the other node left in the journal. Times that have passed since then follow the rule
    /// for a busy node.
    pub fn publish_after(
        &self,
        function: &str,
        schedules: &[Arc<Schedule>],
        seed: u64,
        known: &[Known],
    ) -> Result<(), TimesError> {
        self.publish_since(function, schedules, seed, Begin::new(now()), known)
    }

    fn publish_since(
        &self,
        function: &str,
        schedules: &[Arc<Schedule>],
        seed: u64,
        begin: Begin,
        known: &[Known],
    ) -> Result<(), TimesError> {
        let mut book = self.0.book.lock();
        if schedules.is_empty() {
            book.remove(function);
        } else {
            let begun = book.publish(function, schedules, seed, begin, known)?;
            self.0.begun.lock().extend(begun);
        }
        let is_empty = book.is_empty();
        drop(book);
        let mut life = self.0.life.lock();
        if *life == Life::Idle && !is_empty {
            *life = Life::Running;
            let task = self.0.runtime.spawn(drive(self.0.clone()));
            *self.0.task.lock() = Some(task);
        }
        self.0.changed.notify_one();
        Ok(())
    }

    pub fn remove(&self, function: &str) {
        self.0.book.lock().remove(function);
        self.0.changed.notify_one();
    }

    /// Returns the schedules of one function or of all functions.
    pub fn list(&self, function: Option<&str>) -> Vec<Listed> {
        self.0.book.lock().list(function)
    }

    /// Ends the task once the journal has answered for all due runs, or after [`STOP_MAX`]. Then
    /// stores the mark for the next start.
    pub async fn stop(&self) {
        let before = std::mem::replace(&mut *self.0.life.lock(), Life::Stopped);
        self.0.changed.notify_one();
        if before != Life::Running {
            return;
        }
        let task = self.0.task.lock().take();
        if let Some(task) = task {
            let _ = tokio::time::timeout(STOP_MAX, task).await;
        }
        let inner = self.0.clone();
        let _ = tokio::task::spawn_blocking(move || inner.keep_mark(now())).await;
    }
}

impl Inner {
    fn keep_mark(&self, now: UnixMs) {
        let mark = self.book.lock().mark(now);
        *self.kept.lock() = Some(mark);
        self.runs.store(0, Ordering::Relaxed);
        self.marks.keep(mark);
    }

    fn is_stopped(&self) -> bool {
        *self.life.lock() == Life::Stopped
    }

    /// Whether the stored mark is old enough to be replaced after a run.
    fn mark_is_old(&self, now: UnixMs) -> bool {
        let age = self.kept.lock().map_or(i64::MAX, |kept| now.saturating_sub(kept));
        let many = self.runs.fetch_add(1, Ordering::Relaxed) >= MARK_EVERY_RUNS;
        // A negative age means that the clock was set back.
        many || !(0..MARK_EVERY_MS).contains(&age)
    }
}

type Answer = (Key, UnixMs, bool, Result<Accepted, AcceptError>);
type Soon<T> = Pin<Box<dyn Future<Output = T> + Send>>;

async fn drive(inner: Arc<Inner>) {
    let mut timer = match WallTimer::new() {
        Ok(timer) => timer,
        Err(error) => {
            tracing::error!(%error, "schedules do not run: the system gives no timer");
            return;
        }
    };
    let mut offered: FuturesUnordered<Soon<Answer>> = FuturesUnordered::new();
    let mut running: FuturesUnordered<Soon<Key>> = FuturesUnordered::new();
    loop {
        if inner.is_stopped() {
            while let Some((key, due, is_counted, answer)) = offered.next().await {
                inner.book.lock().answered((&key, due, is_counted), answer, now());
            }
            return;
        }
        for (key, id) in std::mem::take(&mut *inner.begun.lock()) {
            let ended = inner.accept.ended(id);
            running.push(Box::pin(async move {
                ended.await;
                key
            }));
        }
        let mut wake = None;
        while offered.len() < OFFERED_MAX {
            let now = now();
            // The lock is released after each schedule, so that a call of `list` does not wait for
            // thousands.
            let mut book = inner.book.lock();
            wake = book.wake();
            if wake.is_none_or(|wake| wake > now) {
                break;
            }
            let runs = book.due(now);
            drop(book);
            for run in runs {
                let accepted = inner.accept.accept(run.deferred);
                let key = run.key;
                let due = run.due;
                let is_counted = run.is_counted;
                offered.push(Box::pin(async move { (key, due, is_counted, accepted.await) }));
            }
        }
        // If the limit of offered runs is reached, only an answer of the journal wakes the task.
        let wake = wake.filter(|_| offered.len() < OFFERED_MAX);
        tokio::select! {
            () = inner.changed.notified() => {}
            was_set = timer.wait(wake) => if was_set {
                inner.book.lock().clock_was_set(now());
            },
            Some((key, due, is_counted, answer)) = offered.next() => {
                let now = now();
                let id = answer.as_ref().ok().map(|accepted| accepted.id);
                let waits = inner.book.lock().answered((&key, due, is_counted), answer, now);
                if let Some(id) = id.filter(|_| waits) {
                    let ended = inner.accept.ended(id);
                    running.push(Box::pin(async move { ended.await; key }));
                }
                if inner.mark_is_old(now) && offered.is_empty() {
                    let inner = inner.clone();
                    let _ = tokio::task::spawn_blocking(move || inner.keep_mark(now)).await;
                }
            }
            Some(key) = running.next() => inner.book.lock().ended(&key),
        }
    }
}

/// A timer that follows the wall clock.
struct WallTimer {
    /// A timer's file is read like a pipe: it gives eight bytes once the time has come.
    timer: Receiver,
    set: Option<Option<UnixMs>>,
}

impl WallTimer {
    fn new() -> std::io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Realtime, flags)?;
        let timer = Receiver::from_owned_fd_unchecked(timer)?;
        Ok(Self { timer, set: None })
    }

    /// Waits until the clock shows `wake` or has been set. Returns true if it has been set.
    async fn wait(&mut self, wake: Option<UnixMs>) -> bool {
        if self.set != Some(wake) {
            // Without a next time, a timer in the far future still reports that the clock was set.
            let at = wake.unwrap_or(UnixMs::MAX / 1_000_000).max(1);
            let at = Duration::from_millis(u64::try_from(at).unwrap_or(1));
            let it_value = Timespec {
                tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(at.subsec_nanos()),
            };
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
            let spec = Itimerspec { it_interval, it_value };
            let armed = timerfd_settime(&self.timer, flags, &spec);
            self.set = Some(wake);
            match armed {
                Ok(_) => {}
                // The clock was set since the last look. The timer is armed nevertheless.
                Err(rustix::io::Errno::CANCELED) => return true,
                Err(error) => tracing::error!(%error, "the timer of the schedules"),
            }
        }
        loop {
            if self.timer.readable().await.is_err() {
                // This error means that the runtime is shutting down.
                return std::future::pending().await;
            }
            match self.timer.try_read(&mut [0; 8]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                result => {
                    self.set = None;
                    let canceled = Some(rustix::io::Errno::CANCELED.raw_os_error());
                    return result.is_err_and(|error| error.raw_os_error() == canceled);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
