//! Splits a program's output into lines of the function's log.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use mote_core::wire::{self, FrameKind};

use crate::outbox::OUTBOX_BYTES_MAX;
use crate::sys;

/// The maximum number of bytes in one log line. The rest of a longer line is left out.
const LINE_BYTES_MAX: usize = 16 << 10;

/// One output stream of a program.
pub(crate) struct LogLines {
    /// The source and the level in LOG frames.
    source: [u8; 2],
    line: Vec<u8>,
    last: String,
}

impl LogLines {
    pub(crate) fn new(source: [u8; 2]) -> Self {
        Self { source, line: Vec::new(), last: String::new() }
    }

    /// The last line that was not empty. It is shortened for messages.
    pub(crate) fn last(&self) -> &str {
        &self.last
    }

    /// Reads the available bytes. Returns true if nothing can follow: the pipe is closed, or it is
    /// empty and its program is `over`.
    pub(crate) fn pump(
        &mut self,
        pipe: &mut Option<OwnedFd>,
        outbox: &mut Vec<u8>,
        stream: u32,
        over: bool,
    ) -> bool {
        let mut buffer = [0; 16 << 10];
        let drained = drain(pipe, &mut buffer, over, |bytes| {
            self.add(outbox, stream, bytes);
            outbox.len() < OUTBOX_BYTES_MAX
        });
        if drained {
            self.flush(outbox, stream);
        }
        drained
    }

    /// Adds bytes that did not come from the pipe.
    pub(crate) fn add(&mut self, outbox: &mut Vec<u8>, stream: u32, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = part.strip_suffix(b"\n").unwrap_or(part);
            let room = LINE_BYTES_MAX - self.line.len();
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            if text.len() < part.len() {
                self.put(outbox, stream);
            }
        }
    }

    /// Sends the unfinished line, if there is one.
    pub(crate) fn flush(&mut self, outbox: &mut Vec<u8>, stream: u32) {
        if !self.line.is_empty() {
            self.put(outbox, stream);
        }
    }

    fn put(&mut self, outbox: &mut Vec<u8>, stream: u32) {
        let text = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        if !text.is_empty() {
            put_line(outbox, stream, self.source, text);
            self.last = String::from_utf8_lossy(&text[..text.len().min(512)]).into_owned();
        }
        self.line.clear();
    }
}

/// Sends one line of the log with this source and level.
pub(crate) fn put_line(outbox: &mut Vec<u8>, stream: u32, source: [u8; 2], text: &[u8]) {
    wire::put_header(outbox, FrameKind::Log, 0, stream, text.len() + 2);
    outbox.extend_from_slice(&source);
    outbox.extend_from_slice(text);
}

/// Reads a pipe until it is empty or closed, or until `take` accepts no more. Returns true if
/// nothing can follow: the pipe is closed, or it is empty and its program is `over`.
pub(crate) fn drain(
    pipe: &mut Option<OwnedFd>,
    buffer: &mut [u8],
    over: bool,
    mut take: impl FnMut(&[u8]) -> bool,
) -> bool {
    while let Some(fd) = pipe {
        match sys::read(fd.as_fd(), buffer) {
            Ok(0) => *pipe = None,
            Ok(got) => {
                if !take(&buffer[..got]) {
                    return false;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return over,
            Err(_) => *pipe = None,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use mote_core::wire::HEADER_BYTES;

    use super::*;

    #[test]
    fn the_rest_of_a_long_line_is_left_out() {
        let mut lines = LogLines::new([1, 2]);
        let mut outbox = Vec::new();
        lines.add(&mut outbox, 1, &[b'x'; 20_000]);
        lines.add(&mut outbox, 1, b"yyy\nshort\r\n\nlast");
        assert_eq!(lines.last(), "short");
        lines.flush(&mut outbox, 1);
        let lengths = [LINE_BYTES_MAX, 5, 4].map(|length| HEADER_BYTES + 2 + length);
        assert_eq!(outbox.len(), lengths.iter().sum::<usize>());
        assert!(outbox.ends_with(b"last") && !outbox.contains(&b'y'));
    }
}
