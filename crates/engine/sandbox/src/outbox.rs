//! The frames that a worker for programs has not sent yet, and the limit on them.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use mote_core::wire::{self, FLAG_END, FrameKind, WorkerError};

/// While more than this many bytes are unsent, programs are not read.
pub(crate) const OUTBOX_BYTES_MAX: usize = 1 << 20;

/// Appends an ERROR that ends its stream.
pub(crate) fn put_error(outbox: &mut Vec<u8>, stream: u32, error: &WorkerError) {
    let payload = serde_json::to_vec(error).unwrap_or_default();
    wire::put_frame(outbox, FrameKind::Error, FLAG_END, stream, &payload);
}

/// Reports that body bytes of a stream have been consumed.
pub(crate) fn put_credit(outbox: &mut Vec<u8>, stream: u32, bytes: usize) {
    if bytes > 0 {
        let bytes = (bytes as u32).to_le_bytes();
        wire::put_frame(outbox, FrameKind::Credit, 0, stream, &bytes);
    }
}

/// The raw number of an optional descriptor, for a poll entry.
pub(crate) fn raw(fd: &Option<OwnedFd>) -> RawFd {
    fd.as_ref().map_or(-1, |fd| fd.as_raw_fd())
}
