//! Ends the process if one expression takes too long. jq allows endless loops, and while an
//! expression runs, nothing else in the process runs. The engine moves the other runs to another
//! worker.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The longest time that one expression may take.
pub(crate) const EXPRESSION_SECONDS_MAX: u64 = 5;
/// How often the watchdog checks the clock while there are runs.
const LOOK: Duration = Duration::from_millis(500);

/// When the running expression began, in milliseconds as [`since`] counts them. 0 if no expression
/// is running.
static BEGAN_MS: AtomicU64 = AtomicU64::new(0);
/// The invocation whose code is running.
static STREAM: AtomicU32 = AtomicU32::new(0);
/// Whether a frame has been written only in part.
static IN_WRITE: AtomicBool = AtomicBool::new(false);
/// Whether there are any runs.
static BUSY: AtomicBool = AtomicBool::new(false);
static THREAD: OnceLock<Thread> = OnceLock::new();

/// The clock of one expression. It runs until this value is dropped.
pub(crate) struct Clock;

impl Drop for Clock {
    fn drop(&mut self) {
        BEGAN_MS.store(0, Ordering::Relaxed);
    }
}

fn since() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    // The result is never 0, because 0 means that no expression is running.
    START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1
}

/// Notes that an expression begins.
pub(crate) fn begin() -> Clock {
    if THREAD.get().is_some() {
        BEGAN_MS.store(since(), Ordering::Relaxed);
    }
    Clock
}

/// Notes which invocation is polled from now on. 0 means none.
pub(crate) fn stream(number: u32) {
    STREAM.store(number, Ordering::Relaxed);
}

/// Notes whether a frame has been written only in part. While it has, no other frame may be
/// written.
pub(crate) fn writing(in_part: bool) {
    IN_WRITE.store(in_part, Ordering::Relaxed);
}

/// Notes whether there are any runs. While there are none, the watchdog sleeps.
pub(crate) fn busy(is_busy: bool) {
    if BUSY.swap(is_busy, Ordering::Relaxed) != is_busy
        && is_busy
        && let Some(thread) = THREAD.get()
    {
        thread.unpark();
    }
}

/// Starts the watchdog. If an expression takes too long, `overdue` is called once and then the
/// process ends. The arguments of `overdue` are the invocation of the expression and whether a
/// frame may be written.
pub(crate) fn start(overdue: impl FnOnce(u32, bool) + Send + 'static) {
    let spawned = std::thread::Builder::new().name("mote-watchdog".to_owned()).spawn(move || {
        loop {
            if !BUSY.load(Ordering::Relaxed) {
                std::thread::park();
                continue;
            }
            std::thread::sleep(LOOK);
            let began = BEGAN_MS.load(Ordering::Relaxed);
            if began > 0 && since().saturating_sub(began) > EXPRESSION_SECONDS_MAX * 1_000 {
                break;
            }
        }
        overdue(STREAM.load(Ordering::Relaxed), !IN_WRITE.load(Ordering::Relaxed));
        std::process::exit(1);
    });
    if let Ok(handle) = spawned {
        let _ = THREAD.set(handle.thread().clone());
    }
}
