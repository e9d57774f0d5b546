//! Ends the process if one expression takes too long: jq has endless loops, and nothing else of the
//! process runs meanwhile. The engine gives the other runs to another worker.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The longest time that one expression may take.
pub(crate) const EXPRESSION_SECONDS_MAX: u64 = 5;
/// How often the clock is looked at while something runs.
const LOOK: Duration = Duration::from_millis(500);

/// Milliseconds of [`since`] at which the expression began that runs now; 0 if none runs.
static BEGAN_MS: AtomicU64 = AtomicU64::new(0);
/// The invocation whose code runs now.
static STREAM: AtomicU32 = AtomicU32::new(0);
/// Whether a frame was written in part.
static IN_WRITE: AtomicBool = AtomicBool::new(false);
/// Whether any run is under way.
static BUSY: AtomicBool = AtomicBool::new(false);
static THREAD: OnceLock<Thread> = OnceLock::new();

/// An expression that runs until this is dropped.
pub(crate) struct Clock;

impl Drop for Clock {
    fn drop(&mut self) {
        BEGAN_MS.store(0, Ordering::Relaxed);
    }
}

fn since() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    // Never 0, which means that nothing runs.
    START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1
}

/// Notes that an expression begins.
pub(crate) fn begin() -> Clock {
    if THREAD.get().is_some() {
        BEGAN_MS.store(since(), Ordering::Relaxed);
    }
    Clock
}

/// Notes which invocation is polled from now on; 0 for none.
pub(crate) fn stream(number: u32) {
    STREAM.store(number, Ordering::Relaxed);
}

/// Notes whether a frame is written in part, so that no other may be written.
pub(crate) fn writing(in_part: bool) {
    IN_WRITE.store(in_part, Ordering::Relaxed);
}

/// Notes whether there are runs. Without any, the watchdog sleeps.
pub(crate) fn busy(is_busy: bool) {
    if BUSY.swap(is_busy, Ordering::Relaxed) != is_busy
        && is_busy
        && let Some(thread) = THREAD.get()
    {
        thread.unpark();
    }
}

/// Starts the watchdog. `overdue` is called once with the invocation whose expression takes too long
/// and whether a frame may be written; the process ends afterwards.
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
