//! Turns the bytes that an instance writes to stdout and stderr outside its shim into lines of the
//! function's log.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use mote_core::InvocationId;
use mote_core::line_budget::LineBudget;
use mote_core::turn::Turn;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::unix::pipe;

use crate::instance::worker_log::{InstanceLog, tell_dropped, tell_rest};
use crate::revision::Revision;
use crate::revision::logs::{LogLevel, LogSource};
use mote_process::clock::now_ns;

/// The maximum number of bytes that are taken as one line: more than the log keeps of a line, so
/// that the log notices that it cut the line off. The rest is skipped.
const LINE_BYTES_MAX: u64 = (8 << 10) + 256;
const BUFFER_BYTES: usize = 8 << 10;
/// How long an invocation must have been alone in its instance, so that a line cannot come from an
/// earlier one. The node usually reads a line within a millisecond.
const ALONE_NS: u64 = 100_000_000;

/// Reads the output of an instance until the pipe closes. Reading is bounded: one line at a time,
/// at most a turn's worth of lines before the other tasks of the data path run, and a limited
/// number of kept lines per second.
pub(crate) async fn read(revision: Arc<Revision>, instance: u64, output: OwnedFd) {
    let Ok(receiver) = pipe::Receiver::from_owned_fd(output) else { return };
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, receiver);
    let (to, number) = (revision.log.clone(), revision.number);
    // A process that nobody ends must not keep the revision alive.
    let revision = Arc::downgrade(&{ revision });
    let log = InstanceLog { to: &to, revision: number, instance };
    let mut line = Vec::new();
    let mut turn = Turn::new();
    let mut lines = LineBudget::default();
    let mut is_rest = false;
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
        let is_skipped = is_rest || line == b"\n";
        is_rest = !line.ends_with(b"\n");
        if is_skipped {
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
            let invocation = only_invocation(&revision, instance);
            to.push(level, source, number, instance, invocation, text);
        }
    }
    tell_rest(&lines, log);
}

/// The invocation whose processes wrote a line: the only one that runs in the instance. `None` if it
/// cannot be known.
fn only_invocation(revision: &Weak<Revision>, instance: u64) -> Option<InvocationId> {
    let revision = revision.upgrade()?;
    let pool = revision.pool.lock();
    let mut workers = pool.workers().map(|(_, worker)| worker);
    let worker = workers.find(|worker| worker.number() == instance)?;
    let is_alone = worker.calls().len() == 1
        && (worker.given() == 1 || now_ns().saturating_sub(worker.idle_since_ns()) >= ALONE_NS);
    let (_, call) = worker.calls().iter().next().filter(|_| is_alone)?;
    Some(call.id)
}
