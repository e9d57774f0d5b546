//! What an instance writes to stdout and stderr past its shim: lines into the function's log.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::unix::pipe;

use crate::logs::{LogLevel, LogSource};
use crate::revision::Revision;

/// Longest run of bytes taken as one line.
const LINE_BYTES_MAX: u64 = 8 << 10;

/// Reads until the pipe closes. Bounded: one line at a time.
pub(crate) async fn read(revision: Arc<Revision>, instance: u64, output: OwnedFd) {
    let Ok(receiver) = pipe::Receiver::from_owned_fd(output) else { return };
    let mut reader = BufReader::with_capacity(LINE_BYTES_MAX as usize, receiver);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if !text.is_empty() {
            let (level, source) = (LogLevel::Info, LogSource::Stderr);
            revision.log.push(level, source, revision.number, instance, None, text);
        }
    }
}
