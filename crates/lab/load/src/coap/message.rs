//! Encodes requests and decodes answers for a client (RFC 7252, 3). The option codec is from
//! `coap-message-implementations`, which the node's front uses too.

use coap_message::{MinimalWritableMessage, MutableWritableMessage};
use coap_message_implementations::inmemory::MessageMut;
use coap_message_implementations::option_iteration::{OptItem, OptPayloadReader};
use coap_numbers::option;

use crate::{Request, Target};

/// The number of the Echo option (RFC 9175).
const ECHO: u16 = 252;
/// The number of bytes in the header and token of a request.
pub(super) const FIXED_BYTES: usize = 8;
/// The maximum length of a payload, which must fit into one message without blocks.
const PAYLOAD_BYTES_MAX: usize = 1_024;

/// A request that one confirmable CoAP message cannot carry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnfitRequest {
    /// CoAP has no such method.
    #[error("CoAP supports GET, POST, PUT, DELETE, FETCH, PATCH and iPATCH, not {0}")]
    Method(String),
    /// The field has no equivalent in CoAP.
    #[error(
        "over CoAP, only content-type and accept are supported, as numbers such as 50; found {0}"
    )]
    Header(String),
    /// A segment of the path or a parameter is longer than 255 bytes or badly escaped.
    #[error("a part of the path is longer than 255 bytes or badly escaped")]
    Path,
    /// The body would need blocks, which this client does not send.
    #[error("over CoAP, a body can have at most {PAYLOAD_BYTES_MAX} bytes here")]
    Body,
}

/// The parts that are the same for all requests: the code, and everything after the token.
#[derive(Debug, Clone)]
pub(super) struct Template {
    code: u8,
    /// The number and value of each option, in ascending order of the numbers.
    options: Vec<(u16, Vec<u8>)>,
    payload: Vec<u8>,
}

impl Template {
    pub(super) fn new(target: &Target, request: &Request) -> Result<Self, UnfitRequest> {
        let code = match request.method.to_ascii_uppercase().as_str() {
            "GET" => 1,
            "POST" => 2,
            "PUT" => 3,
            "DELETE" => 4,
            "FETCH" => 5,
            "PATCH" => 6,
            "IPATCH" => 7,
            _ => return Err(UnfitRequest::Method(request.method.clone())),
        };
        if request.body.len() > PAYLOAD_BYTES_MAX {
            return Err(UnfitRequest::Body);
        }
        let (path, query) = target.path.split_once('?').unwrap_or((&target.path, ""));
        let mut options = Vec::new();
        let path = path.trim_start_matches('/');
        for segment in path.split('/').filter(|_| !path.is_empty()) {
            options.push((option::URI_PATH, part(segment)?));
        }
        for parameter in query.split('&').filter(|_| !query.is_empty()) {
            options.push((option::URI_QUERY, part(parameter)?));
        }
        for (name, value) in &request.headers {
            let unfit = || UnfitRequest::Header(format!("{name}: {value}"));
            let number = match name.to_ascii_lowercase().as_str() {
                "content-type" => option::CONTENT_FORMAT,
                "accept" => option::ACCEPT,
                _ => return Err(unfit()),
            };
            let value: u16 = value.parse().map_err(|_| unfit())?;
            options.push((number, shortest(u32::from(value))));
        }
        // The sort is stable, so the segments of the path keep their order.
        options.sort_by_key(|(number, _)| *number);
        Ok(Self { code, options, payload: request.body.clone() })
    }

    /// The whole message, with zeros for the id and token; see [`stamp`].
    pub(super) fn encode(&self, echo: Option<&[u8]>) -> Vec<u8> {
        let options = self.options.iter().map(|(_, value)| value.len() + 5).sum::<usize>();
        let room = options + echo.map_or(0, |echo| echo.len() + 5) + self.payload.len() + 1;
        let mut bytes = vec![0; FIXED_BYTES + room];
        // Version 1, confirmable, with a token of four bytes.
        (bytes[0], bytes[1]) = (0x44, self.code);
        let mut code = 0;
        let length = {
            let mut message = MessageMut::new_in_slice(&mut code, &mut bytes[FIXED_BYTES..]);
            let echo = echo.map(|value| (ECHO, value));
            // Echo has the highest option number, so it comes last.
            let own = self.options.iter().map(|(number, value)| (*number, value.as_slice()));
            for (number, value) in own.chain(echo) {
                message.add_option(number, value).expect("room for every option was made above");
            }
            if !self.payload.is_empty() {
                let payload = message
                    .payload_mut_with_len(self.payload.len())
                    .expect("room for the payload was made above");
                payload.copy_from_slice(&self.payload);
            }
            message.finish().0
        };
        bytes.truncate(FIXED_BYTES + length);
        bytes
    }
}

/// Writes the message id and token into a message that [`Template::encode`] made.
pub(super) fn stamp(message: &mut [u8], mid: u16, token: u32) {
    message[2..4].copy_from_slice(&mid.to_be_bytes());
    message[4..8].copy_from_slice(&token.to_be_bytes());
}

/// An empty acknowledgement or reset.
pub(super) fn empty(kind: MessageType, mid: u16) -> [u8; 4] {
    let [high, low] = mid.to_be_bytes();
    [1 << 6 | (kind as u8) << 4, 0, high, low]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageType {
    Con = 0,
    Non = 1,
    Ack = 2,
    Rst = 3,
}

/// A message from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer<'a> {
    pub(super) kind: MessageType,
    /// The class and detail. (0, 0) is an empty message.
    pub(super) code: (u8, u8),
    pub(super) mid: u16,
    pub(super) token: &'a [u8],
    /// The options and the payload.
    tail: &'a [u8],
}

impl<'a> Answer<'a> {
    /// Parses the fixed part of a message. `None` if the message is not meant for a client.
    pub(super) fn parse(datagram: &'a [u8]) -> Option<Self> {
        let [first, code, high, low, rest @ ..] = datagram else { return None };
        let kind = match first >> 4 & 3 {
            0 => MessageType::Con,
            1 => MessageType::Non,
            2 => MessageType::Ack,
            _ => MessageType::Rst,
        };
        let token_length = usize::from(first & 15);
        if first >> 6 != 1 || token_length > 8 || rest.len() < token_length {
            return None;
        }
        let (token, tail) = rest.split_at(token_length);
        let code = (code >> 5, code & 31);
        if !matches!(code.0, 2 | 4 | 5) && code != (0, 0) {
            return None;
        }
        Some(Self { kind, code, mid: u16::from_be_bytes([*high, *low]), token, tail })
    }

    /// The number of bytes in the payload, and the Echo value. `None` if the options are malformed.
    pub(super) fn content(&self) -> Option<(u64, Option<&'a [u8]>)> {
        let mut content = (0, None);
        for item in OptPayloadReader::new(self.tail) {
            match item {
                OptItem::Error(_) | OptItem::Payload([]) => return None,
                OptItem::Payload(payload) => content.0 = payload.len() as u64,
                OptItem::Option { number: ECHO, data } => content.1 = Some(data),
                OptItem::Option { .. } => {}
            }
        }
        Some(content)
    }
}

/// A segment or parameter, with its percent-escapes decoded.
fn part(text: &str) -> Result<Vec<u8>, UnfitRequest> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| (byte as char).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(UnfitRequest::Path) };
        bytes.push((high << 4 | low) as u8);
    }
    if bytes.len() > 255 { Err(UnfitRequest::Path) } else { Ok(bytes) }
}

/// The bytes of a number, without leading zero bytes (RFC 7252, 3.2).
fn shortest(number: u32) -> Vec<u8> {
    let zeros = (number.leading_zeros() / 8) as usize;
    number.to_be_bytes()[zeros..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, headers: &[(&str, &str)], body: &[u8]) -> Request {
        let headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        Request { method: method.to_owned(), headers, body: body.to_vec() }
    }

    #[test]
    fn requests_as_bytes() {
        let target = Target::parse("coap://h/fn/a%2Fb?q=1").unwrap();
        let request = request("POST", &[("accept", "50"), ("content-type", "0")], b"hi");
        let mut bytes = Template::new(&target, &request).unwrap().encode(Some(b"e"));
        stamp(&mut bytes, 0x0102, 0x0a0b_0c0d);
        let expected: &[u8] =
            b"\x44\x02\x01\x02\x0a\x0b\x0c\x0d\xb2fn\x03a/b\x10\x33q=1\x21\x32\xd1\xde\x65\xffhi";
        // From Accept (17) to Echo (252), the delta is 235, which is written as 13 and one byte of
        // 222.
        assert_eq!(bytes, expected);
        let target = Target::parse("coap://h").unwrap();
        let bytes = Template::new(&target, &self::request("GET", &[], b"")).unwrap().encode(None);
        assert_eq!(bytes, [0x44, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn requests_that_do_not_fit() {
        let target = Target::parse("coap://h/x").unwrap();
        let check = |request: Request| Template::new(&target, &request).unwrap_err();
        assert_eq!(check(request("HEAD", &[], b"")), UnfitRequest::Method("HEAD".to_owned()));
        let header = UnfitRequest::Header("x: 1".to_owned());
        assert_eq!(check(request("GET", &[("x", "1")], b"")), header);
        assert_eq!(check(request("POST", &[], &[0; 1_025])), UnfitRequest::Body);
        let target = Target::parse("coap://h/%zz").unwrap();
        let error = Template::new(&target, &request("GET", &[], b"")).unwrap_err();
        assert_eq!(error, UnfitRequest::Path);
    }

    #[test]
    fn answers() {
        let answer = Answer::parse(b"\x62\x45\x00\x07ab\xc1\x32\xffhey").unwrap();
        assert_eq!((answer.kind, answer.code, answer.mid), (MessageType::Ack, (2, 5), 7));
        assert_eq!((answer.token, answer.content()), (&b"ab"[..], Some((3, None))));
        let echo = Answer::parse(b"\x60\x81\x00\x07\xd2\xefab").unwrap();
        assert_eq!(echo.content(), Some((0, Some(&b"ab"[..]))));
        assert_eq!(
            Answer::parse(&empty(MessageType::Rst, 9)).map(|answer| answer.kind),
            Some(MessageType::Rst)
        );
        for wrong in
            [&b"\x60\x45\x00"[..], b"\x20\x45\x00\x07", b"\x69\x45\x00\x07", b"\x40\x01\x00\x07"]
        {
            assert_eq!(Answer::parse(wrong), None);
        }
        assert_eq!(Answer::parse(b"\x60\x45\x00\x07\xff").unwrap().content(), None);
    }
}
