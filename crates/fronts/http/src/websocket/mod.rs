//! WebSocket messages (RFC 6455) for functions whose worker does not read frames.
//!
//! The client and the node exchange frames. The node and the worker exchange *records* in the
//! bodies of the invocation:
//!
//! ```text
//! 0 kind u8 (1 text, 2 binary, 8 close) | 1 flags u8 (1: more of this message follows) | 2 zero u16
//! 4 length u32 | 8 content
//! ```
//!
//! A close record has the same content as a close frame: the code, in network order, and the
//! reason. [`FromClient`] turns frames into records, and [`ToClient`] turns records into frames.
//! Both pass content on as it arrives, so neither holds a whole message. The part of a message that
//! arrives in one read becomes one record, regardless of how many frames the client uses for it.
//! Pings and pongs do not reach the function. No extension is negotiated. The module is pure: it
//! knows no sockets, no clocks and no functions.

mod from_client;
mod to_client;

pub use from_client::{Ended, FromClient};
pub use to_client::ToClient;

use mote_core::base64;
use sha1::{Digest as _, Sha1};

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;
/// The flag of the last frame of a message.
const FIN: u8 = 0x80;
/// The flag of a record whose message continues in the next record.
const MORE: u8 = 1;
const RECORD_HEAD_BYTES: usize = 8;
/// The largest permitted content of a control frame.
const CONTROL_BYTES_MAX: usize = 125;

/// The peer or the function is going away.
pub const GOING_AWAY: u16 = 1001;
/// The peer broke the protocol.
pub const PROTOCOL_ERROR: u16 = 1002;
/// A close frame without a code; never sent.
pub const NO_CODE: u16 = 1005;
/// A connection that ended without a close frame; never sent.
pub const ABNORMAL: u16 = 1006;
/// A text that is not UTF-8.
pub const NOT_TEXT: u16 = 1007;
/// A message that is too long.
pub const TOO_LONG: u16 = 1009;
/// The function failed.
pub const FAILED: u16 = 1011;

/// The `Sec-WebSocket-Accept` value for this `Sec-WebSocket-Key`. `None` if the key is not valid.
pub fn accept(key: &[u8]) -> Option<String> {
    if base64::decode(key)?.len() != 16 {
        return None;
    }
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    Some(base64::encode(&hash.finalize()))
}

/// A close frame sent by a server. A code that must never be sent is left out of the frame.
pub fn close_frame(code: u16) -> Vec<u8> {
    if matches!(code, NO_CODE | ABNORMAL) {
        return vec![FIN | CLOSE, 0];
    }
    let [high, low] = code.to_be_bytes();
    vec![FIN | CLOSE, 2, high, low]
}

/// A record that tells the function that the WebSocket has ended.
pub fn close_record(code: u16) -> Vec<u8> {
    let mut record = Vec::new();
    put_record(&mut record, CLOSE, false, &code.to_be_bytes());
    record
}

fn put_record(out: &mut Vec<u8>, kind: u8, more: bool, content: &[u8]) {
    out.extend_from_slice(&[kind, if more { MORE } else { 0 }, 0, 0]);
    out.extend_from_slice(&(content.len() as u32).to_le_bytes());
    out.extend_from_slice(content);
}

/// Appends content to the last record, which begins at `at`.
fn extend_record(out: &mut Vec<u8>, at: usize, more: bool, content: &[u8]) {
    out.extend_from_slice(content);
    let length = (out.len() - at - RECORD_HEAD_BYTES) as u32;
    out[at + 1] = if more { MORE } else { 0 };
    out[at + 4..at + 8].copy_from_slice(&length.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_answered_as_the_standard_shows() {
        let key = b"dGhlIHNhbXBsZSBub25jZQ==";
        assert_eq!(accept(key).as_deref(), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        for wrong in [&b"c2hvcnQ="[..], b"", b"!", b"dGhlIHNhbXBsZSBub25jZQ"] {
            assert!(accept(wrong).is_none() || wrong.len() == 22, "{wrong:?}");
        }
    }
}
