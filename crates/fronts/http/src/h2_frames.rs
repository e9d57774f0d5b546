//! Counts the HTTP/2 frames of a connection and detects a peer that sends too many frames without
//! content.
//!
//! The frames PING, SETTINGS, PRIORITY, WINDOW_UPDATE and RST_STREAM cause work for the node but
//! cost the peer nothing, and HTTP/2 does not limit them (CVE-2019-9512, 9513, 9515,
//! CVE-2023-44487). A [`FrameMeter`] reads only the nine-byte header of each frame, in both
//! directions. Requests, bodies and answers add to the peer's credit, other frames use the credit
//! up, and some credit returns with time.

use std::fmt;

/// The length of the client's connection preface (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;
const HEADER_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;

/// The number of frames without content that a peer may send before any progress. The number is
/// larger than what clients send when they begin, and small enough that serving the frames takes
/// less than a millisecond.
pub const CONTROL_FRAMES_MAX: u32 = 1_000;
/// The number of frames without content that a peer may send per second in addition to those that
/// progress allows.
pub const CONTROL_FRAMES_PER_S: u32 = 100;
/// The credit for a request: enough for acknowledgements, a reset, and updates of the request's
/// windows.
const HEADERS_CREDIT: u32 = 4;
/// The credit for one frame of a body or of an answer, in either direction: enough for one window
/// update for the stream and one for the connection.
const DATA_CREDIT: u32 = 2;
/// A longer frame gives one more credit for each step of this size, because some clients update
/// windows that often.
const DATA_CREDIT_BYTES: u32 = 1 << 10;

/// GOAWAY with ENHANCE_YOUR_CALM, for a peer that sends too many frames without content. The frame
/// names the highest possible stream as the last one, because it must not affect requests that are
/// being served.
pub const CALM: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 11];

/// A peer sends too many frames without content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flood;

impl fmt::Display for Flood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {CONTROL_FRAMES_MAX} HTTP/2 frames without content or progress")
    }
}

impl std::error::Error for Flood {}

/// The position in the bytes of one direction: inside a frame's payload or inside a header.
#[derive(Debug, Clone, Copy)]
struct Way {
    /// Bytes to skip before the next header.
    skip: usize,
    header: [u8; HEADER_BYTES],
    have: usize,
}

impl Way {
    const fn new(skip: usize) -> Self {
        Self { skip, header: [0; HEADER_BYTES], have: 0 }
    }

    /// Calls `frame` with the kind and payload length of each frame whose header is completed in
    /// `bytes`.
    fn pass(&mut self, mut bytes: &[u8], mut frame: impl FnMut(u8, u32)) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let take = (HEADER_BYTES - self.have).min(bytes.len());
            self.header[self.have..self.have + take].copy_from_slice(&bytes[..take]);
            self.have += take;
            bytes = &bytes[take..];
            if self.have == HEADER_BYTES {
                let [a, b, c, kind, ..] = self.header;
                let length = u32::from_be_bytes([0, a, b, c]);
                self.have = 0;
                self.skip = length as usize;
                frame(kind, length);
            }
        }
    }

    fn is_between_frames(&self) -> bool {
        self.skip == 0 && self.have == 0
    }
}

/// Counts the frames of one connection, on the server's side.
#[derive(Debug, Clone)]
pub struct FrameMeter {
    received: Way,
    sent: Way,
    credit: u32,
    /// The last time at which credit was restored.
    refilled_ns: u64,
}

impl FrameMeter {
    /// The meter of a connection that has not yet received the client preface. `now_ns` is a
    /// monotonic time.
    pub const fn new(now_ns: u64) -> Self {
        Self {
            received: Way::new(PREFACE_BYTES),
            sent: Way::new(0),
            credit: CONTROL_FRAMES_MAX,
            refilled_ns: now_ns,
        }
    }

    /// Counts the frames that the client sent. Returns the number of frames whose header was
    /// completed in `bytes`. Calls `now_ns` only if the credit is used up.
    pub fn received(&mut self, bytes: &[u8], now_ns: impl Fn() -> u64) -> Result<u32, Flood> {
        let Self { received, credit, refilled_ns, .. } = self;
        let mut frames = 0;
        let mut flood = false;
        received.pass(bytes, |kind, length| {
            frames += 1;
            match kind {
                HEADERS => earn(credit, HEADERS_CREDIT),
                DATA if length > 0 => earn(credit, DATA_CREDIT),
                _ => {
                    if *credit == 0 {
                        refill(credit, refilled_ns, now_ns());
                    }
                    flood |= *credit == 0;
                    *credit = credit.saturating_sub(1);
                }
            }
        });
        if flood { Err(Flood) } else { Ok(frames) }
    }

    /// Counts the frames that were sent to the client.
    pub fn sent(&mut self, bytes: &[u8]) {
        let Self { sent, credit, .. } = self;
        sent.pass(bytes, |kind, length| {
            if matches!(kind, DATA | HEADERS) {
                earn(credit, DATA_CREDIT + length / DATA_CREDIT_BYTES);
            }
        });
    }

    /// Whether the sent bytes end at the end of a frame, so that [`CALM`] may follow.
    pub fn may_say_calm(&self) -> bool {
        self.sent.is_between_frames()
    }
}

fn earn(credit: &mut u32, frames: u32) {
    *credit = (*credit + frames).min(CONTROL_FRAMES_MAX);
}

fn refill(credit: &mut u32, refilled_ns: &mut u64, now_ns: u64) {
    let elapsed_ms = now_ns.saturating_sub(*refilled_ns) / 1_000_000;
    let frames = elapsed_ms.saturating_mul(u64::from(CONTROL_FRAMES_PER_S)) / 1_000;
    if frames > 0 {
        *refilled_ns = now_ns;
        earn(credit, u32::try_from(frames).unwrap_or(u32::MAX).min(CONTROL_FRAMES_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const PING: u8 = 6;
    const WINDOW_UPDATE: u8 = 8;

    fn frame(kind: u8, length: usize) -> Vec<u8> {
        let [_, a, b, c] = (length as u32).to_be_bytes();
        [&[a, b, c, kind, 0, 0, 0, 0, 1], &vec![0xff; length][..]].concat()
    }

    /// A meter that has already received the preface.
    fn meter() -> FrameMeter {
        let mut meter = FrameMeter::new(0);
        assert_eq!(meter.received(&[0xff; PREFACE_BYTES], || 0), Ok(0));
        meter
    }

    #[test]
    fn frames_are_found_however_the_bytes_are_cut() {
        let all = [frame(4, 18), frame(HEADERS, 300), frame(DATA, 0), frame(PING, 8)].concat();
        for cut in 1..all.len() {
            let mut meter = meter();
            let found: u32 = all.chunks(cut).map(|part| meter.received(part, || 0).unwrap()).sum();
            assert_eq!(found, 4, "in pieces of {cut} bytes");
            assert_eq!(meter.credit, CONTROL_FRAMES_MAX - 2, "only the requests earn");
        }
    }

    #[test]
    fn frames_without_progress_end_and_time_gives_some_back() {
        for kind in [2, 3, 4, PING, WINDOW_UPDATE, 0x2a] {
            let mut meter = meter();
            for n in 0..CONTROL_FRAMES_MAX {
                assert_eq!(meter.received(&frame(kind, 8), || 0), Ok(1), "frame {n}");
            }
            assert_eq!(meter.received(&frame(kind, 8), || 0), Err(Flood));
            // One second allows exactly the stated number of frames.
            for _ in 0..CONTROL_FRAMES_PER_S {
                assert_eq!(meter.received(&frame(kind, 8), || S), Ok(1));
            }
            assert_eq!(meter.received(&frame(kind, 8), || S), Err(Flood));
        }
        let mut meter = meter();
        let empty = frame(DATA, 0).repeat(CONTROL_FRAMES_MAX as usize + 1);
        assert_eq!(meter.received(&empty, || 0), Err(Flood), "empty DATA is no progress");
    }

    #[test]
    fn progress_pays_for_what_comes_with_it() {
        let mut meter = meter();
        for _ in 0..100_000 {
            // A long answer whose client updates two windows after every 1 KiB.
            meter.sent(&frame(DATA, 16 << 10));
            let updates = frame(WINDOW_UPDATE, 4).repeat(16);
            assert!(meter.received(&updates, || 0).is_ok());
            // A request that the client cancels right away.
            let request = [frame(HEADERS, 50), frame(3, 4)].concat();
            assert!(meter.received(&request, || 0).is_ok());
        }
    }

    #[test]
    fn calm_is_said_between_frames_only() {
        let mut meter = meter();
        assert!(meter.may_say_calm());
        let sent = frame(DATA, 3);
        meter.sent(&sent[..4]);
        assert!(!meter.may_say_calm());
        meter.sent(&sent[4..10]);
        assert!(!meter.may_say_calm());
        meter.sent(&sent[10..]);
        assert!(meter.may_say_calm());
    }
}
