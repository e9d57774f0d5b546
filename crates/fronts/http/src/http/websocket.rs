//! A connection that has become a WebSocket (RFC 6455): it copies bytes in both directions between
//! the client and the bodies of the invocation.
//!
//! The front does not read messages, so extensions work unchanged. The front follows the function's
//! frames only to know where a frame ends: when the node ends the WebSocket, it sends a close frame
//! at such a place. Bytes after the request for a WebSocket are never parsed as HTTP.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mote_core::body::Body;
use mote_core::turn::Turn;

use super::answer;
use super::front::{Config, Stopper};
use super::input::Input;
use super::request_body::Sender;
use super::socket::{Reader, Writer};
use crate::ids::now_ns;

/// A close frame of a server with the code 1001, "going away".
const GOING_AWAY: [u8; 4] = [0x88, 0x02, 0x03, 0xe9];
/// The opcode of a close frame.
const CLOSE: u8 = 0x8;

pub(super) struct Bodies {
    pub(super) from_function: Body,
    pub(super) to_function: Sender,
}

/// Copies bytes until the client, the function or the node ends the WebSocket, or until the
/// WebSocket has been silent for `idle`. Only a few chunks may be on their way in each direction,
/// so a side that does not read stops the other side.
pub(super) async fn relay(
    bodies: Bodies,
    input: &mut Input,
    reader: &mut Reader<'_>,
    writer: &mut Writer<'_>,
    config: &Config,
    stopper: &Stopper,
    idle: Duration,
) {
    let Bodies { mut from_function, to_function } = bodies;
    let last_ns = AtomicU64::new(now_ns());
    let is_writing = AtomicBool::new(false);
    let mut frames = Frames::default();
    let client_is_there = {
        let up = async {
            loop {
                // Only the watch below limits this silence.
                input.set_deadline(Duration::from_secs(24 * 3600));
                match input.fill(reader).await {
                    Ok(()) => {}
                    Err(super::input::ReadEnd::TimedOut) => continue,
                    Err(_) => return false,
                }
                last_ns.store(now_ns(), Ordering::Relaxed);
                let chunk = input.bytes.split().freeze();
                input.charge(1, chunk.len()).await;
                if to_function.send(Some(chunk)).await.is_err() {
                    // The function has stopped reading. The end of its own direction follows after
                    // the bytes that it has written.
                    return std::future::pending().await;
                }
            }
        };
        let down = async {
            let mut turn = Turn::new();
            while let Some(Ok(chunk)) = from_function.chunk().await {
                last_ns.store(now_ns(), Ordering::Relaxed);
                is_writing.store(true, Ordering::Relaxed);
                if answer::write_all(writer, config, &chunk).await.is_err() {
                    return false;
                }
                is_writing.store(false, Ordering::Relaxed);
                frames.pass(&chunk);
                turn.charge(1, chunk.len());
                if turn.is_over() {
                    turn = Turn::new();
                    tokio::task::yield_now().await;
                }
            }
            true
        };
        tokio::select! {
            biased;
            is_there = up => is_there,
            is_there = down => is_there,
            () = over(stopper, idle, &last_ns) => true,
        }
    };
    if client_is_there && !is_writing.into_inner() && frames.may_close() {
        let _ = answer::write_all(writer, config, &GOING_AWAY).await;
    }
}

/// Resolves when the node stops, or when nothing has been sent in either direction for `idle`.
pub(super) async fn over(stopper: &Stopper, idle: Duration, last_ns: &AtomicU64) {
    let mut stopped = stopper.stopped();
    loop {
        let silent = now_ns().saturating_sub(last_ns.load(Ordering::Relaxed));
        let rest = idle.saturating_sub(Duration::from_nanos(silent));
        if stopper.is_stopping() || rest.is_zero() {
            return;
        }
        tokio::select! {
            () = &mut stopped => return,
            () = tokio::time::sleep(rest) => {}
        }
    }
}

/// Follows the frames in one direction.
#[derive(Default)]
struct Frames {
    /// The head of the frame that is arriving.
    head: [u8; 14],
    head_bytes: usize,
    /// The number of content bytes that have not yet arrived.
    left: u64,
    closed: bool,
}

impl Frames {
    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let content = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                self.left -= content as u64;
                bytes = &bytes[content..];
                continue;
            }
            self.head[self.head_bytes] = bytes[0];
            self.head_bytes += 1;
            bytes = &bytes[1..];
            if let Some(length) = self.length() {
                self.closed |= self.head[0] & 0x0f == CLOSE;
                self.left = length;
                self.head_bytes = 0;
            }
        }
    }

    /// The length of the frame's content, if the head is complete.
    fn length(&self) -> Option<u64> {
        if self.head_bytes < 2 {
            return None;
        }
        let mask_bytes = if self.head[1] & 0x80 == 0 { 0 } else { 4 };
        let short = self.head[1] & 0x7f;
        let length_bytes = match short {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        if self.head_bytes < 2 + length_bytes + mask_bytes {
            return None;
        }
        let long = &self.head[2..2 + length_bytes];
        let long = long.iter().fold(0, |length, byte| length << 8 | u64::from(*byte));
        Some(if length_bytes == 0 { u64::from(short) } else { long })
    }

    /// Whether a close frame may be written now: no frame is incomplete, and no close frame has
    /// been written yet.
    fn may_close(&self) -> bool {
        self.head_bytes == 0 && self.left == 0 && !self.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with this opcode and this many content bytes.
    fn frame(opcode: u8, length: usize, is_masked: bool) -> Vec<u8> {
        let mask = if is_masked { 0x80 } else { 0 };
        let mut bytes = vec![0x80 | opcode];
        match length {
            0..=125 => bytes.push(mask | length as u8),
            126..=0xffff => {
                bytes.push(mask | 126);
                bytes.extend((length as u16).to_be_bytes());
            }
            _ => {
                bytes.push(mask | 127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        bytes.extend(vec![0x88; length + if is_masked { 4 } else { 0 }]);
        bytes
    }

    #[test]
    fn a_close_frame_fits_only_between_frames_and_once() {
        for is_masked in [false, true] {
            for length in [0, 1, 125, 126, 127, 0xffff, 0x10000, 70_000] {
                let bytes = frame(2, length, is_masked);
                let mut frames = Frames::default();
                assert!(frames.may_close());
                // The input is cut at the places where parts of the frames begin, and once within
                // the content.
                let cuts = [1, 2, 3, 4, 5, 9, 10, 11, 13, 14, 15, bytes.len() - 1];
                let mut from = 0;
                for cut in cuts.into_iter().filter(|cut| *cut < bytes.len()) {
                    if cut > from {
                        frames.pass(&bytes[from..cut]);
                        assert!(!frames.may_close(), "{length} {is_masked} after {cut}");
                        from = cut;
                    }
                }
                frames.pass(&bytes[from..]);
                assert!(frames.may_close(), "{length} {is_masked}");
                frames.pass(&[bytes.clone(), bytes].concat());
                assert!(frames.may_close());
                frames.pass(&frame(8, 2, is_masked));
                assert!(!frames.may_close());
            }
        }
    }
}
