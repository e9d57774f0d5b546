//! Reading requests and writing answers (RFC 7252, 3). The crate `coap-message-implementations`
//! encodes and decodes options. This module adds the header and the rules for refusing messages.

use coap_message::{MinimalWritableMessage, MutableWritableMessage};
use coap_message_implementations::inmemory::MessageMut;
use coap_message_implementations::option_iteration::{OptItem, OptPayloadReader};
use coap_numbers::option;
use mote_core::path;

use super::blocks::Block;

/// The largest datagram that is sent: 1,024 bytes of payload plus options and header, which is
/// below any usual MTU.
pub const DATAGRAM_BYTES_MAX: usize = 1_280;
/// The number of the Echo option (RFC 9175).
const ECHO: u16 = 252;
/// The number of the Request-Tag option (RFC 9175).
const REQUEST_TAG: u16 = 292;
/// An elective option from the experimental range (RFC 7252, 12.2). It carries a header field,
/// `name: value`, of an invocation that is accepted for later. It may occur several times.
const FIELD: u16 = 65_000;
/// The most of these options in one request, and the longest of them.
const FIELDS_MAX: usize = 8;
const FIELD_BYTES_MAX: usize = 255;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageType {
    /// Confirmable.
    Con,
    /// Non-confirmable.
    Non,
    /// Acknowledgement.
    Ack,
    /// Reset.
    Rst,
}

/// A code as class and detail, for example `(4, 4)`.
pub type Code = (u8, u8);

pub(crate) fn code_byte((class, detail): Code) -> u8 {
    class << 5 | detail
}

/// The fixed part of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    pub kind: MessageType,
    /// Class and detail.
    pub code: Code,
    /// Message id.
    pub mid: u16,
    /// 0 to 8 bytes.
    pub token: &'a [u8],
    /// Options and payload.
    pub tail: &'a [u8],
}

/// How to react to a datagram that is not a usable message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    Silence,
    /// Reject the confirmable message with this id (RFC 7252, 4.2).
    Reset(u16),
}

/// A copy of a token that outlives its datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    bytes: [u8; 8],
    length: u8,
}

impl Token {
    /// Copies the token of a [`Header`], which has at most 8 bytes.
    pub fn new(token: &[u8]) -> Self {
        let mut bytes = [0; 8];
        bytes[..token.len()].copy_from_slice(token);
        Self { bytes, length: token.len() as u8 }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

fn format_error(kind: MessageType, mid: u16) -> Unusable {
    if kind == MessageType::Con { Unusable::Reset(mid) } else { Unusable::Silence }
}

/// Reads the header by the rules of RFC 7252, 3 and 4.
pub fn header(datagram: &[u8]) -> Result<Header<'_>, Unusable> {
    let [first, code, mid_high, mid_low, rest @ ..] = datagram else {
        return Err(Unusable::Silence);
    };
    if first >> 6 != 1 {
        return Err(Unusable::Silence);
    }
    let kind = match first >> 4 & 3 {
        0 => MessageType::Con,
        1 => MessageType::Non,
        2 => MessageType::Ack,
        _ => MessageType::Rst,
    };
    let mid = u16::from_be_bytes([*mid_high, *mid_low]);
    let token_length = usize::from(first & 15);
    if token_length > 8 || rest.len() < token_length {
        return Err(format_error(kind, mid));
    }
    let (token, tail) = rest.split_at(token_length);
    let code = (code >> 5, code & 31);
    if code == (0, 0) && (token_length > 0 || !tail.is_empty()) {
        return Err(format_error(kind, mid));
    }
    if matches!(code.0, 1 | 6 | 7) {
        return Err(format_error(kind, mid));
    }
    Ok(Header { kind, code, mid, token, tail })
}

/// The options and payload of a request, read once.
#[derive(Debug, Default)]
pub struct Request<'a> {
    /// Uri-Path in its [canonical form](path). Each segment has a leading `/`.
    pub path: Vec<u8>,
    /// Uri-Query. The options are percent-encoded and joined with `&`, so `&` occurs only between
    /// options.
    pub query: Vec<u8>,
    pub content_format: Option<u16>,
    pub accept: Option<u16>,
    /// Block1: the block of the request body that this message carries.
    pub block1: Option<Block>,
    /// Block2: the block of the answer that the client requests.
    pub block2: Option<Block>,
    /// Observe: 0 registers an observer, 1 deregisters it.
    pub observe: Option<u32>,
    pub echo: Option<&'a [u8]>,
    /// Request-Tag: distinguishes concurrent uploads.
    pub request_tag: &'a [u8],
    /// The first ETag.
    pub etag: Option<&'a [u8]>,
    /// If-Match. It may occur several times.
    pub if_match: Vec<&'a [u8]>,
    pub if_none_match: bool,
    /// Uri-Host.
    pub host: Option<&'a [u8]>,
    /// Uri-Port.
    pub port: Option<u32>,
    /// Header fields, `name: value`, for which CoAP has no options.
    pub fields: Vec<&'a [u8]>,
    /// Whether the request has Proxy-Uri or Proxy-Scheme.
    pub wants_proxy: bool,
    pub payload: &'a [u8],
}

/// Why a request cannot be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The message is malformed and must be rejected as a message, before the request is
    /// considered.
    Format,
    /// A critical option is unknown, repeated or of a wrong length (4.02).
    BadOption(u16),
    /// The path or query is not valid for any function (4.00). Holds the text of the answer.
    BadRequest(&'static str),
}

impl<'a> Request<'a> {
    /// Reads options and payload.
    pub fn parse(tail: &'a [u8]) -> Result<Self, Refused> {
        let mut request = Request::default();
        let mut refused = None;
        for item in OptPayloadReader::new(tail) {
            match item {
                OptItem::Error(_) => return Err(Refused::Format),
                OptItem::Payload([]) => return Err(Refused::Format),
                OptItem::Payload(payload) => request.payload = payload,
                OptItem::Option { number, data } => {
                    // The remaining options must still be read, because a format error takes
                    // precedence.
                    match request.option(number, data) {
                        Ok(false) if number & 1 == 1 => {
                            // A bad option also takes precedence over a bad path, because a NON
                            // with a bad option must not be answered.
                            if !matches!(refused, Some(Refused::BadOption(_))) {
                                refused = Some(Refused::BadOption(number));
                            }
                        }
                        Ok(_) => {}
                        Err(error) => {
                            refused.get_or_insert(error);
                        }
                    }
                }
            }
        }
        refused.map_or(Ok(request), Err)
    }

    /// Takes one option. Returns `false` if the option is unknown, repeated or of a wrong length.
    /// The caller then ignores an elective option and refuses a critical one (RFC 7252, 5.4).
    fn option(&mut self, number: u16, data: &'a [u8]) -> Result<bool, Refused> {
        Ok(match number {
            option::IF_MATCH => {
                self.if_match.push(data);
                data.len() <= 8
            }
            option::URI_HOST => {
                (1..=255).contains(&data.len()) && self.host.replace(data).is_none()
            }
            option::ETAG => {
                if (1..=8).contains(&data.len()) {
                    self.etag.get_or_insert(data);
                }
                true
            }
            option::IF_NONE_MATCH => {
                data.is_empty() && !std::mem::replace(&mut self.if_none_match, true)
            }
            option::URI_PORT => set_once(&mut self.port, uint(data, 2)),
            option::URI_PATH => {
                if data.len() > 255 {
                    return Ok(false);
                }
                if data.contains(&0) {
                    return Err(Refused::BadRequest("NUL is not allowed"));
                }
                if !is_segment(data) {
                    return Err(Refused::BadRequest("path is not in normal form"));
                }
                if self.path.is_empty() {
                    // Reserves enough for most paths at once, so that the buffer does not have to
                    // grow repeatedly.
                    self.path.reserve(64);
                }
                self.path.push(b'/');
                percent_encode(&mut self.path, data, path::is_segment_byte);
                true
            }
            option::URI_QUERY => {
                if data.len() > 255 {
                    return Ok(false);
                }
                if data.contains(&0) {
                    return Err(Refused::BadRequest("NUL is not allowed"));
                }
                if !self.query.is_empty() {
                    self.query.push(b'&');
                }
                percent_encode(&mut self.query, data, is_query_byte);
                true
            }
            option::CONTENT_FORMAT => {
                set_once(&mut self.content_format, uint(data, 2).map(|n| n as u16))
            }
            option::ACCEPT => set_once(&mut self.accept, uint(data, 2).map(|n| n as u16)),
            option::BLOCK2 => set_once(&mut self.block2, uint(data, 3).map(Block::from_value)),
            option::BLOCK1 => set_once(&mut self.block1, uint(data, 3).map(Block::from_value)),
            option::OBSERVE => set_once(&mut self.observe, uint(data, 3)),
            option::PROXY_URI | option::PROXY_SCHEME => {
                self.wants_proxy = true;
                true
            }
            ECHO => (1..=40).contains(&data.len()) && self.echo.replace(data).is_none(),
            REQUEST_TAG => {
                if data.len() <= 8 && self.request_tag.is_empty() {
                    self.request_tag = data;
                }
                true
            }
            FIELD => {
                if data.len() > FIELD_BYTES_MAX {
                    return Err(Refused::BadRequest("option 65000 is longer than 255 bytes"));
                }
                if self.fields.len() == FIELDS_MAX {
                    return Err(Refused::BadRequest("more than 8 options 65000"));
                }
                self.fields.push(data);
                true
            }
            _ => false,
        })
    }
}

fn set_once<T>(place: &mut Option<T>, value: Option<T>) -> bool {
    match value {
        Some(value) if place.is_none() => {
            *place = Some(value);
            true
        }
        _ => false,
    }
}

/// Reads a `uint` option value of at most `max` bytes (RFC 7252, 3.2).
fn uint(data: &[u8], max: usize) -> Option<u32> {
    (data.len() <= max).then(|| data.iter().fold(0, |n, byte| n << 8 | u32::from(*byte)))
}

/// Whether every program that reads the path would understand the segment in the same way. The HTTP
/// front refuses the same segments.
fn is_segment(data: &[u8]) -> bool {
    let is_text = std::str::from_utf8(data).is_ok();
    let has_separator = data.iter().any(|byte| matches!(byte, b'/' | b'\\' | b';'));
    is_text && !matches!(data, b"." | b"..") && !has_separator && !path::has_escape(data)
}

/// Whether a byte needs no percent-encoding in a parameter. Programs that read queries take `&`
/// (some also `;`) for the end of a parameter, and `+` for a space. RFC 7252, 6.5, names only `&`.
fn is_query_byte(byte: u8) -> bool {
    (path::is_segment_byte(byte) && !matches!(byte, b'&' | b'+')) || matches!(byte, b'/' | b'?')
}

fn percent_encode(out: &mut Vec<u8>, data: &[u8], plain: fn(u8) -> bool) {
    for byte in data {
        if plain(*byte) {
            out.push(*byte);
        } else {
            path::push_escape(out, *byte);
        }
    }
}

/// An answer that has no message id and token yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Response {
    /// Class and detail.
    pub code: Code,
    pub content_format: Option<u16>,
    /// ETag.
    pub etag: Option<Vec<u8>>,
    /// Observe: the sequence number that orders notifications.
    pub observe: Option<u32>,
    pub max_age_s: Option<u32>,
    /// Location-Path segments.
    pub location: Vec<Vec<u8>>,
    pub location_query: Vec<Vec<u8>>,
    /// Block1.
    pub block1: Option<Block>,
    /// Block2.
    pub block2: Option<Block>,
    /// Size2: the length of the whole answer.
    pub size2: Option<u32>,
    /// Size1: the largest accepted request body.
    pub size1: Option<u32>,
    pub echo: Option<Vec<u8>>,
    pub payload: bytes::Bytes,
}

impl Response {
    /// A response without a payload.
    pub fn code(code: Code) -> Self {
        Self { code, ..Self::default() }
    }

    /// An error with a diagnostic payload (RFC 7252, 5.5.2).
    pub fn diagnostic(code: Code, text: impl Into<String>) -> Self {
        Self { code, payload: text.into().into(), ..Self::default() }
    }

    /// The largest number of bytes that the location options can take.
    pub fn location_bytes(&self) -> usize {
        let parts = self.location.iter().chain(&self.location_query);
        parts.map(|part| part.len() + 3).sum()
    }

    /// An upper bound for the length of the message, with a token of any length.
    pub fn bytes_max(&self) -> usize {
        // The sum of header, token and payload marker, the maximum of every option of fixed length,
        // and the options of variable length.
        let options = self.location_bytes() + self.echo.as_ref().map_or(0, |echo| echo.len() + 3);
        6 + 8 + 68 + options + self.payload.len()
    }

    /// Appends the whole message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>, kind: MessageType, mid: u16, token: &[u8]) {
        put_header(out, kind, self.code, mid, token);
        self.put_tail(out);
    }

    /// Appends options and payload.
    pub(crate) fn put_tail(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.bytes_max(), 0);
        let mut code = 0;
        let end = {
            let mut message = MessageMut::new_in_slice(&mut code, &mut out[start..]);
            // Options must be written in ascending order, because the codec requires it.
            let mut put = |number: u16, value: &[u8]| {
                message.add_option(number, value).expect("room for every option was made above");
            };
            let number = |n: u32| n.to_be_bytes();
            if let Some(etag) = &self.etag {
                put(option::ETAG, etag);
            }
            if let Some(sequence) = self.observe {
                put(option::OBSERVE, shortest(&number(sequence)));
            }
            for segment in &self.location {
                put(option::LOCATION_PATH, segment);
            }
            if let Some(format) = self.content_format {
                put(option::CONTENT_FORMAT, shortest(&number(u32::from(format))));
            }
            if let Some(seconds) = self.max_age_s {
                put(option::MAX_AGE, shortest(&number(seconds)));
            }
            for parameter in &self.location_query {
                put(option::LOCATION_QUERY, parameter);
            }
            if let Some(block) = self.block2 {
                put(option::BLOCK2, shortest(&number(block.value())));
            }
            if let Some(block) = self.block1 {
                put(option::BLOCK1, shortest(&number(block.value())));
            }
            if let Some(size) = self.size2 {
                put(option::SIZE2, shortest(&number(size)));
            }
            if let Some(size) = self.size1 {
                put(option::SIZE1, shortest(&number(size)));
            }
            if let Some(echo) = &self.echo {
                put(ECHO, echo);
            }
            let payload_bytes = self.payload.len();
            if payload_bytes > 0 {
                let payload = message
                    .payload_mut_with_len(payload_bytes)
                    .expect("room for the payload was made above");
                payload.copy_from_slice(&self.payload);
            }
            message.finish().0
        };
        out.truncate(start + end);
    }
}

/// Appends an empty message (a ping, an acknowledgement or a reset) to `out`.
pub fn empty(out: &mut Vec<u8>, kind: MessageType, mid: u16) {
    put_header(out, kind, (0, 0), mid, &[]);
}

fn put_header(out: &mut Vec<u8>, kind: MessageType, code: Code, mid: u16, token: &[u8]) {
    let kind = match kind {
        MessageType::Con => 0,
        MessageType::Non => 1,
        MessageType::Ack => 2,
        MessageType::Rst => 3,
    };
    let [high, low] = mid.to_be_bytes();
    out.extend_from_slice(&[1 << 6 | kind << 4 | token.len() as u8, code_byte(code), high, low]);
    out.extend_from_slice(token);
}

/// The bytes of a number without its leading zero bytes (RFC 7252, 3.2).
fn shortest(bytes: &[u8; 4]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    &bytes[zeros..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        let check = |bytes: &[u8], expected: Result<(MessageType, Code), Unusable>| {
            let got = header(bytes).map(|header| (header.kind, header.code));
            assert_eq!(got, expected, "{bytes:02x?}");
        };
        check(&[0x40, 1, 0, 7], Ok((MessageType::Con, (0, 1))));
        check(&[0x50, 2, 0, 7], Ok((MessageType::Non, (0, 2))));
        check(&[0x40, 0, 0, 7], Ok((MessageType::Con, (0, 0))));
        check(&[], Err(Unusable::Silence));
        check(&[0x40, 1, 0], Err(Unusable::Silence));
        check(&[0x00, 1, 0, 7], Err(Unusable::Silence));
        check(&[0x80, 1, 0, 7], Err(Unusable::Silence));
        check(&[0x49, 1, 0, 7], Err(Unusable::Reset(7)));
        check(&[0x5f, 1, 0, 7], Err(Unusable::Silence));
        check(&[0x42, 1, 0, 7, 1], Err(Unusable::Reset(7)));
        check(&[0x40, 0, 0, 7, 1], Err(Unusable::Reset(7)));
        check(&[0x40, 0x20, 0, 7], Err(Unusable::Reset(7)));
        check(&[0x40, 0xc0, 0, 7], Err(Unusable::Reset(7)));
        check(&[0x50, 0xe0, 0, 7], Err(Unusable::Silence));
    }

    #[test]
    fn options() {
        let refused = |tail: &[u8]| Request::parse(tail).err();
        assert_eq!(refused(&[0xff]), Some(Refused::Format), "marker without payload");
        assert_eq!(refused(&[0xf0]), Some(Refused::Format), "delta 15");
        assert_eq!(refused(&[0x0f]), Some(Refused::Format), "length 15");
        assert_eq!(refused(&[0xd0]), Some(Refused::Format), "extension missing");
        assert_eq!(refused(&[0x15]), Some(Refused::Format), "value cut off");
        assert_eq!(refused(&[0x90]), Some(Refused::BadOption(9)), "unknown critical");
        assert_eq!(refused(&[0x90, 0xff]), Some(Refused::Format), "format counts first");
        assert_eq!(refused(&[0xe0, 0, 1]), None, "unknown elective is ignored");
        assert_eq!(refused(&[0xb1, b'.']), Some(Refused::BadRequest("path is not in normal form")));
        assert_eq!(
            refused(&[0xb2, 0xc0, 0xae]),
            Some(Refused::BadRequest("path is not in normal form")),
            "overlong UTF-8"
        );
        assert_eq!(refused(&[0xb1, b'.', 0x0f]), Some(Refused::Format), "format counts first");
        for segment in [b"a/b", b"a\\b", b"a;b", b"%41"] {
            let tail = [&[0xb3][..], segment].concat();
            let expected = Some(Refused::BadRequest("path is not in normal form"));
            assert_eq!(refused(&tail), expected, "{}", segment.escape_ascii());
        }
        assert_eq!(refused(&[0x70, 0x00]), Some(Refused::BadOption(7)), "repeated Uri-Port");
        let request = Request::parse(b"\x11a\x01b").unwrap();
        assert_eq!(request.if_match, [b"a", b"b"]);
        let request = Request::parse(b"\xb2fn\x03a:%\x02\xc3\xbc\x41q\x03x=y\xffhi").unwrap();
        assert_eq!(request.path, b"/fn/a:%25/%C3%BC");
        assert_eq!(request.query, b"q&x=y");
        assert_eq!(request.payload, b"hi");
    }

    #[test]
    fn every_reader_of_a_query_finds_the_same_options() {
        let check = |options: &[&[u8]], expected: &str| {
            let mut request = Request::default();
            for option in options {
                assert_eq!(request.option(option::URI_QUERY, option), Ok(true));
            }
            assert_eq!(String::from_utf8_lossy(&request.query), expected);
        };
        check(&[b"a=1", b"b"], "a=1&b");
        check(&[b"name=x&role=admin"], "name=x%26role=admin");
        check(&[b"at=2026-01-01T00:00:00+02:00"], "at=2026-01-01T00:00:00%2B02:00");
        check(&[b"a=b=c;d", b"%26"], "a=b=c%3Bd&%2526");
        check(&["q=\u{fc} #\n\"/?".as_bytes()], "q=%C3%BC%20%23%0A%22/?");
        check(&[b"a=1&mote-key=k", b"mote-key=l"], "a=1%26mote-key=k&mote-key=l");
    }

    #[test]
    fn answers_read_back() {
        let response = Response {
            code: (2, 5),
            content_format: Some(50),
            etag: Some(vec![1, 2, 3]),
            max_age_s: Some(0),
            block2: Some(Block { number: 3, more: true, size_exponent: 6 }),
            size2: Some(70_000),
            payload: bytes::Bytes::from_static(b"{}"),
            ..Response::default()
        };
        let mut bytes = Vec::new();
        response.encode(&mut bytes, MessageType::Ack, 0x1234, b"tok");
        assert!(bytes.len() <= response.bytes_max());
        let header = header(&bytes).unwrap();
        assert_eq!((header.kind, header.code, header.mid), (MessageType::Ack, (2, 5), 0x1234));
        assert_eq!(header.token, b"tok");
        let request = Request::parse(header.tail).unwrap();
        assert_eq!(request.content_format, Some(50));
        assert_eq!(request.block2, response.block2);
        assert_eq!(request.payload, b"{}");
        let mut two = Vec::new();
        Response::code((2, 4)).encode(&mut two, MessageType::Non, 1, b"");
        empty(&mut two, MessageType::Rst, 2);
        assert_eq!(two, [0x50, 0x44, 0, 1, 0x70, 0, 0, 2]);
    }
}
