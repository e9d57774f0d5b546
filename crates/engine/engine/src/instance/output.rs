//! Turns the bytes that an instance writes to stdout and stderr outside its shim into lines of the
//! function's log.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use mote_core::line_budget::LineBudget;
use mote_core::turn::Turn;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::unix::pipe;

use crate::instance::worker_log::{InstanceLog, tell_dropped, tell_rest};
use crate::revision::logs::{FunctionLog, LogLevel, LogSource};
use mote_process::clock::now_ns;

/// The maximum number of bytes that are taken as one line.
const LINE_BYTES_MAX: u64 = 8 << 10;

/// Reads the output of an instance until the pipe closes. Reading is bounded: one line at a time,
/// at most a turn's worth of lines before the other tasks of the data path run, and a limited
/// number of kept lines per second.
pub(crate) async fn read(to: Arc<FunctionLog>, (revision, instance): (u64, u64), output: OwnedFd) {
    let Ok(receiver) = pipe::Receiver::from_owned_fd(output) else { return };
    let mut reader = BufReader::with_capacity(LINE_BYTES_MAX as usize, receiver);
    let log = InstanceLog { to: &to, revision, instance };
    let mut line = Vec::new();
    let mut turn = Turn::new();
    let mut lines = LineBudget::default();
    loop {
        line.clear();
        match (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        turn.charge(1, line.len());
        if turn.is_over() {
            turn = Turn::new();
            tokio::task::yield_now().await;
        }
        if line.is_empty() || line == b"\n" {
            continue;
        }
        if !tell_dropped(&mut lines, line.len(), now_ns(), log) {
            continue;
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if !text.is_empty() {
            let level = LogLevel::Info;
            let source = LogSource::Stderr;
            to.push(level, source, revision, instance, None, text);
        }
    }
    tell_rest(&lines, log);
}
