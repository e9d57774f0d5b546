//! Messages and signals of CoAP over TCP (RFC 8323, 3 and 5). Pure.
//!
//! A message over TCP has a length but neither a type nor an id, because TCP loses and repeats
//! nothing. Options and payload have the same form as in a datagram, so `message.rs` reads them.

use coap_message_implementations::option_iteration::{OptItem, OptPayloadReader};

use super::message::{Code, Response, code_byte};

/// The largest message that the node reads, with its header.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// The largest message that every peer must read before it has announced another size (RFC 8323,
/// 5.3.1).
pub const BASE_MESSAGE_BYTES: usize = 1_152;

const CSM: u8 = 7 << 5 | 1;
const PING: u8 = 7 << 5 | 2;
const PONG: u8 = 7 << 5 | 3;
const RELEASE: u8 = 7 << 5 | 4;
const ABORT: u8 = 7 << 5 | 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamMessage<'a> {
    /// Class and detail.
    pub code: Code,
    /// 0 to 8 bytes.
    pub token: &'a [u8],
    /// Options and payload.
    pub tail: &'a [u8],
}

/// Why a connection cannot continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// A token length is between 9 and 15.
    TokenLength,
    /// A message is longer than [`MESSAGE_BYTES_MAX`].
    TooLong,
    /// The options of a signal are malformed, or the signal has an unknown critical option with
    /// this number.
    Signal(Option<u16>),
    /// The first message is not the CSM, which says what the peer can do.
    NoCapabilities,
    /// The class of a code is reserved.
    Class,
    /// The options of a request cannot be read.
    Request,
    /// The connections of the peer's address, or all connections together, hold as much memory as
    /// they may.
    Full,
}

impl Broken {
    /// The text that is sent to the peer.
    pub fn text(self) -> &'static str {
        match self {
            Broken::TokenLength => "token length",
            Broken::TooLong => "message too long",
            Broken::Signal(None) | Broken::Request => "malformed options",
            Broken::Signal(Some(_)) => "unknown critical option",
            Broken::NoCapabilities => "the first message must be a CSM",
            Broken::Class => "reserved code",
            Broken::Full => "the connection holds too much memory",
        }
    }

    /// The number of the option that the peer must not send, if there is one.
    pub fn option(self) -> Option<u16> {
        match self {
            Broken::Signal(option) => option,
            _ => None,
        }
    }
}

/// Reads the first message of `bytes`. Returns the message and its length, or `None` if it has not
/// arrived completely.
pub fn parse(bytes: &[u8]) -> Result<Option<(StreamMessage<'_>, usize)>, Broken> {
    let [first, rest @ ..] = bytes else { return Ok(None) };
    let token_length = usize::from(first & 15);
    if token_length > 8 {
        return Err(Broken::TokenLength);
    }
    let (extension, base) = match first >> 4 {
        13 => (1, 13),
        14 => (2, 269),
        15 => (4, 65_805),
        length => (0, usize::from(length)),
    };
    let Some((length, rest)) = rest.split_at_checked(extension) else { return Ok(None) };
    let extended = length.iter().fold(0, |n, byte| n << 8 | usize::from(*byte));
    let header = 1 + extension + 1 + token_length;
    // The sum may exceed 32 bits.
    let tail_length = extended.saturating_add(base);
    if tail_length.saturating_add(header) > MESSAGE_BYTES_MAX {
        return Err(Broken::TooLong);
    }
    let [code, rest @ ..] = rest else { return Ok(None) };
    let Some((token, rest)) = rest.split_at_checked(token_length) else { return Ok(None) };
    let Some(tail) = rest.get(..tail_length) else { return Ok(None) };
    let message = StreamMessage { code: (code >> 5, code & 31), token, tail };
    Ok(Some((message, header + tail_length)))
}

/// Appends everything of a message except its options and payload, which have `tail_length` bytes.
pub fn put_header(out: &mut Vec<u8>, code: u8, token: &[u8], tail_length: usize) {
    let (nibble, extension, count) = match tail_length {
        0..13 => (tail_length, 0, 0),
        13..269 => (13, tail_length - 13, 1),
        269..65_805 => (14, tail_length - 269, 2),
        _ => (15, tail_length - 65_805, 4),
    };
    out.push((nibble << 4 | token.len()) as u8);
    out.extend_from_slice(&(extension as u32).to_be_bytes()[4 - count..]);
    out.push(code);
    out.extend_from_slice(token);
}

/// Appends a response as a message of a connection.
pub(crate) fn encode(response: &Response, out: &mut Vec<u8>, token: &[u8]) {
    let start = out.len();
    response.put_tail(out);
    let tail_length = out.len() - start;
    let mut header = Vec::with_capacity(16);
    put_header(&mut header, code_byte(response.code), token, tail_length);
    out.splice(start..start, header);
}

/// A signal: a message that concerns the connection (RFC 8323, 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// What the peer can do.
    Capabilities {
        /// The largest message that the peer reads, if the peer says so.
        message_bytes_max: Option<u32>,
        /// Whether the peer supports block-wise transfers with several blocks in one message.
        blocks: bool,
    },
    /// The peer asks whether the node is there.
    Ping,
    /// The answer to a ping.
    Pong,
    /// The peer will send no further requests.
    Release,
    /// The peer aborts the connection.
    Abort,
    /// A signal that the node does not know and therefore ignores.
    Unknown,
}

/// Reads a message of code class 7.
pub fn signal(message: &StreamMessage<'_>) -> Result<Signal, Broken> {
    let mut message_bytes_max = None;
    let mut blocks = false;
    let known: &[u16] = match message.code.1 {
        1 | 4 => &[2, 4],
        2 | 3 | 5 => &[2],
        _ => return Ok(Signal::Unknown),
    };
    for item in OptPayloadReader::new(message.tail) {
        match item {
            OptItem::Error(_) | OptItem::Payload([]) => return Err(Broken::Signal(None)),
            OptItem::Payload(_) => {}
            OptItem::Option { number, .. } if !known.contains(&number) => {
                if number & 1 == 1 {
                    return Err(Broken::Signal(Some(number)));
                }
            }
            OptItem::Option { number: 2, data } if message.code.1 == 1 => {
                if data.len() > 4 {
                    return Err(Broken::Signal(Some(2)));
                }
                message_bytes_max = Some(data.iter().fold(0, |n, byte| n << 8 | u32::from(*byte)));
            }
            OptItem::Option { number: 4, .. } if message.code.1 == 1 => blocks = true,
            OptItem::Option { .. } => {}
        }
    }
    Ok(match message.code.1 {
        1 => Signal::Capabilities { message_bytes_max, blocks },
        2 => Signal::Ping,
        3 => Signal::Pong,
        4 => Signal::Release,
        _ => Signal::Abort,
    })
}

/// Appends the CSM, which says what the node can do: the largest message that it reads, and
/// block-wise transfers.
pub fn put_capabilities(out: &mut Vec<u8>) {
    let size = (MESSAGE_BYTES_MAX as u32).to_be_bytes();
    put_header(out, CSM, b"", 1 + 3 + 1);
    out.extend_from_slice(&[2 << 4 | 3, size[1], size[2], size[3], 2 << 4]);
}

pub fn put_ping(out: &mut Vec<u8>) {
    put_header(out, PING, b"", 0);
}

/// Appends the answer to a ping.
pub fn put_pong(out: &mut Vec<u8>, token: &[u8]) {
    put_header(out, PONG, token, 0);
}

/// Appends the notice that the node is going to close the connection.
pub fn put_release(out: &mut Vec<u8>) {
    put_header(out, RELEASE, b"", 0);
}

/// Appends an abort with the reason why the node ends the connection.
pub fn put_abort(out: &mut Vec<u8>, bad_option: Option<u16>, text: &str) {
    let option = bad_option.map(u16::to_be_bytes);
    put_header(out, ABORT, b"", option.map_or(0, |_| 3) + 1 + text.len());
    if let Some([high, low]) = option {
        out.extend_from_slice(&[2 << 4 | 2, high, low]);
    }
    out.push(0xff);
    out.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(code: Code, token: &'static [u8], tail: &'static [u8]) -> StreamMessage<'static> {
        StreamMessage { code, token, tail }
    }

    #[test]
    fn the_example_of_the_specification() {
        // The examples are from RFC 8323, appendix A.
        let bytes = [0x01, 0x43, 0x7f];
        assert_eq!(parse(&bytes), Ok(Some((message((2, 3), b"\x7f", b""), 3))));
    }

    #[test]
    fn messages_of_every_length_read_back() {
        for length in [0, 1, 12, 13, 14, 268, 269, 270, 5_000, 65_500] {
            let tail = vec![7; length];
            let mut bytes = Vec::new();
            put_header(&mut bytes, 0x45, b"tok", length);
            bytes.extend_from_slice(&tail);
            let whole = bytes.len();
            bytes.extend_from_slice(b"next");
            let (read, used) = parse(&bytes).unwrap().unwrap();
            assert_eq!((read.code, read.token, read.tail), ((2, 5), &b"tok"[..], &tail[..]));
            assert_eq!(used, whole, "{length}");
            for cut in (0..whole).step_by(1 + whole / 50) {
                assert_eq!(parse(&bytes[..cut]), Ok(None), "{length} cut at {cut}");
            }
        }
    }

    #[test]
    fn what_is_too_long_is_refused_before_it_arrives() {
        for token_length in 9..16 {
            assert_eq!(parse(&[token_length]), Err(Broken::TokenLength));
        }
        assert_eq!(parse(&[0xf0, 0, 0, 0, 0]), Err(Broken::TooLong), "65,805 bytes");
        assert_eq!(parse(&[0xf0, 0xff, 0xff, 0xff, 0xff]), Err(Broken::TooLong));
        assert_eq!(parse(&[0xe8, 0xfe, 0xe8]), Err(Broken::TooLong), "with its header");
        assert_eq!(parse(&[0xe0, 0xfe, 0xe7]), Ok(None));
    }

    #[test]
    fn signals() {
        let read = |detail, tail| signal(&message((7, detail), b"", tail));
        let nothing = Signal::Capabilities { message_bytes_max: None, blocks: false };
        assert_eq!(read(1, b""), Ok(nothing));
        let all = Signal::Capabilities { message_bytes_max: Some(0x1_0000), blocks: true };
        assert_eq!(read(1, b"\x23\x01\x00\x00\x20"), Ok(all));
        assert_eq!(read(1, b"\x60"), Ok(nothing), "an unknown elective option");
        assert_eq!(read(1, b"\x30"), Err(Broken::Signal(Some(3))));
        assert_eq!(read(1, b"\x25\x01\x00\x00\x00\x00"), Err(Broken::Signal(Some(2))));
        assert_eq!(read(1, b"\xff"), Err(Broken::Signal(None)));
        assert_eq!(read(2, b"\x20"), Ok(Signal::Ping), "with custody");
        assert_eq!(read(3, b""), Ok(Signal::Pong));
        assert_eq!(read(4, b"\x21a\xffbye"), Ok(Signal::Release));
        assert_eq!(read(5, b"\xffno"), Ok(Signal::Abort));
        assert_eq!(read(9, b"\x30"), Ok(Signal::Unknown));
    }

    #[test]
    fn own_signals_read_back() {
        let mut out = Vec::new();
        put_capabilities(&mut out);
        put_ping(&mut out);
        put_pong(&mut out, b"t");
        put_release(&mut out);
        put_abort(&mut out, Some(3), "option");
        put_abort(&mut out, None, "a text that needs a longer length");
        let mut rest = &out[..];
        let mut read = Vec::new();
        while let Some((message, used)) = parse(rest).unwrap() {
            read.push((signal(&message).unwrap(), message.token.len()));
            rest = &rest[used..];
        }
        let size = Some(MESSAGE_BYTES_MAX as u32);
        let capabilities = Signal::Capabilities { message_bytes_max: size, blocks: true };
        let expected = [
            (capabilities, 0),
            (Signal::Ping, 0),
            (Signal::Pong, 1),
            (Signal::Release, 0),
            (Signal::Abort, 0),
            (Signal::Abort, 0),
        ];
        assert_eq!(read, expected);
    }
}
