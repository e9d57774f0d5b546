//! Callers that follow a schedule: closed load, in which each caller waits for its answer, and open
//! load, in which it does not.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::Connection;
use crate::log::unix_us;

/// One call. Its times count from the start of the load.
#[derive(Debug, Clone)]
pub struct Call {
    pub intended: Duration,
    /// The time at which the answer had arrived.
    pub ended: Duration,
    /// The status of the answer, or 0 if the connection broke.
    pub status: u16,
    pub text: String,
}

/// The observations of all callers.
#[derive(Debug)]
pub struct Load {
    /// The time of the start, on the clock of log lines.
    pub unix_us: u64,
    /// Calls in the order in which they ended.
    pub calls: Vec<Call>,
}

/// Makes the caller wait until `until`, the time of its next call.
pub fn pace_until(until: Instant) {
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|d| !d.is_zero()) {
        std::thread::park_timeout(left);
    }
}

fn one(connection: &mut Connection, http: SocketAddr, path: &str) -> (u16, String) {
    match connection.try_call("GET", path, &[], b"") {
        Ok(answer) => (answer.status, answer.text()),
        Err(error) => {
            *connection = Connection::open(http);
            (0, error.to_string())
        }
    }
}

fn gather(unix_us: u64, calls: Mutex<Vec<Call>>) -> Load {
    let mut calls = calls.into_inner().expect("no caller panicked");
    calls.sort_by_key(|call| call.ended);
    Load { unix_us, calls }
}

/// Runs closed load over persistent connections, in steps of (length, callers). Each caller sends
/// at most `rate` calls per second (0: without a pause). The starts of the callers are spread over
/// their pause.
pub fn closed(http: SocketAddr, path: &str, steps: &[(Duration, u32)], rate: f64) -> Load {
    let most = steps.iter().map(|(_, callers)| *callers).max().unwrap_or(0);
    let pause = if rate > 0.0 { Duration::from_secs_f64(1.0 / rate) } else { Duration::ZERO };
    let calls = Mutex::new(Vec::new());
    let begin = Instant::now();
    let unix_us = unix_us();
    // Returns the next time, at or after `from`, at which this caller may call; `None` after its
    // last step.
    let turn = |caller: u32, from: Duration| {
        let mut end = Duration::ZERO;
        steps.iter().find_map(|(length, callers)| {
            let start = end;
            end += *length;
            (from < end && caller < *callers).then(|| from.max(start))
        })
    };
    std::thread::scope(|scope| {
        for caller in 0..most {
            let calls = &calls;
            let turn = &turn;
            scope.spawn(move || {
                let mut connection = Connection::open(http);
                let mut mine = Vec::new();
                let mut next = pause.mul_f64(f64::from(caller) / f64::from(most));
                while let Some(intended) = turn(caller, next) {
                    pace_until(begin + intended);
                    let sent = begin.elapsed();
                    let (status, text) = one(&mut connection, http, path);
                    mine.push(Call { intended, ended: begin.elapsed(), status, text });
                    next = sent.max(intended) + pause;
                    if pause.is_zero() {
                        next = begin.elapsed();
                    }
                }
                calls.lock().expect("no caller panicked").extend(mine);
            });
        }
    });
    gather(unix_us, calls)
}

/// Runs open load: calls at the given times, whatever the answers are, over at most `connections`
/// connections at once.
pub fn open(http: SocketAddr, path: &str, times: &[Duration], connections: usize) -> Load {
    let next = AtomicUsize::new(0);
    let calls = Mutex::new(Vec::new());
    let begin = Instant::now();
    let unix_us = unix_us();
    std::thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(|| {
                let mut connection = Connection::open(http);
                let mut mine = Vec::new();
                while let Some(intended) = times.get(next.fetch_add(1, Ordering::Relaxed)) {
                    pace_until(begin + *intended);
                    let (status, text) = one(&mut connection, http, path);
                    let intended = *intended;
                    let ended = begin.elapsed();
                    mine.push(Call { intended, ended, status, text });
                }
                calls.lock().expect("no caller panicked").extend(mine);
            });
        }
    });
    gather(unix_us, calls)
}

impl Load {
    pub fn count(&self, status: u16) -> usize {
        self.calls.iter().filter(|call| call.status == status).count()
    }

    /// Answers per second between two times.
    pub fn rate(&self, from: Duration, to: Duration) -> f64 {
        let inside = |call: &&Call| call.status == 200 && (from..to).contains(&call.ended);
        self.calls.iter().filter(inside).count() as f64 / (to - from).as_secs_f64()
    }

    /// Median and 99th percentile of the time from when a call was due until its answer arrived.
    pub fn latency(&self) -> (Duration, Duration) {
        let mut times: Vec<_> = self.calls.iter().map(|call| call.ended - call.intended).collect();
        times.sort();
        let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
        (at(50), at(99))
    }
}
