//! Frames of the worker protocol.

use std::time::Duration;

pub(crate) const VERSION: u16 = 1;
pub(crate) const HEADER_BYTES: usize = 12;
pub(crate) const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// The longest inline body, header block and chunk.
pub(crate) const CHUNK_BYTES_MAX: usize = 64 << 10;
/// The bytes of a body that may be sent without credit.
pub(crate) const WINDOW_BYTES: usize = 256 << 10;
pub(crate) const FLAG_END: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    Hello = 1,
    Load,
    Ready,
    Invoke,
    Body,
    Result,
    Error,
    Cancel,
    Credit,
    Log,
    Drain,
    Request,
    Response,
}

const KINDS: [Kind; 13] = [
    Kind::Hello,
    Kind::Load,
    Kind::Ready,
    Kind::Invoke,
    Kind::Body,
    Kind::Result,
    Kind::Error,
    Kind::Cancel,
    Kind::Credit,
    Kind::Log,
    Kind::Drain,
    Kind::Request,
    Kind::Response,
];

pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) is_last: bool,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// Splits the first frame off `data`. `Ok(None)` if it is incomplete, an error if it is malformed.
pub(crate) fn split(data: &[u8]) -> Result<Option<(Frame, usize)>, &'static str> {
    if data.len() < HEADER_BYTES {
        return Ok(None);
    }
    let length = u32_at(data, 0) as usize;
    if length > PAYLOAD_BYTES_MAX {
        return Err("payload too long");
    }
    let kind = usize::from(data[4]).checked_sub(1).and_then(|at| KINDS.get(at));
    let kind = *kind.ok_or("unknown kind")?;
    if data[5] > FLAG_END || data[6] != 0 || data[7] != 0 {
        return Err("reserved bits are set");
    }
    let whole = HEADER_BYTES + length;
    if data.len() < whole {
        return Ok(None);
    }
    let payload = data[HEADER_BYTES..whole].to_vec();
    let frame = Frame { kind, is_last: data[5] == FLAG_END, stream: u32_at(data, 8), payload };
    Ok(Some((frame, whole)))
}

pub(crate) fn put(out: &mut Vec<u8>, kind: Kind, is_last: bool, stream: u32, payload: &[&[u8]]) {
    let length: usize = payload.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&(length as u32).to_le_bytes());
    out.extend_from_slice(&[kind as u8, u8::from(is_last), 0, 0]);
    out.extend_from_slice(&stream.to_le_bytes());
    for part in payload {
        out.extend_from_slice(part);
    }
}

pub(crate) fn frame(kind: Kind, is_last: bool, stream: u32, payload: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, kind, is_last, stream, payload);
    out
}

pub(crate) fn u16_at(data: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([data[at], data[at + 1]])
}

pub(crate) fn u32_at(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

pub(crate) fn u64_at(data: &[u8], at: usize) -> u64 {
    u64::from(u32_at(data, at)) | u64::from(u32_at(data, at + 4)) << 32
}

/// The head of an INVOKE, and where its inline body begins.
pub(crate) struct Invoke {
    pub(crate) deadline_ns: u64,
    pub(crate) id: u128,
    pub(crate) trigger: u8,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body_at: usize,
}

impl Invoke {
    pub(crate) fn parse(data: &[u8]) -> Result<Self, &'static str> {
        const FIXED: usize = 40;
        if data.len() < FIXED {
            return Err("INVOKE is too short");
        }
        let lengths = [
            usize::from(data[29]),
            usize::from(u16_at(data, 30)),
            usize::from(u16_at(data, 32)),
            u32_at(data, 36) as usize,
        ];
        let body_at = lengths.iter().fold(FIXED, |sum, length| sum.saturating_add(*length));
        if body_at > data.len() || data.len() - body_at > CHUNK_BYTES_MAX {
            return Err("INVOKE has wrong lengths");
        }
        let mut at = FIXED;
        let mut next = |length: usize| {
            at += length;
            latin1(&data[at - length..at])
        };
        let [method, path, query, block] = lengths.map(&mut next);
        let remaining = Duration::from_millis(u32_at(data, 24).into()).as_nanos() as u64;
        let id = data[8..24].iter().fold(0, |id, byte| id << 8 | u128::from(*byte));
        Ok(Self {
            deadline_ns: u64_at(data, 0).saturating_add(remaining),
            id,
            trigger: data[28],
            method,
            path,
            query,
            headers: pairs(&block)?,
            body_at,
        })
    }
}

fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// The fields of a header block.
pub(crate) fn pairs(block: &str) -> Result<Vec<(String, String)>, &'static str> {
    let mut lines = block.split('\n');
    let mut pairs = Vec::new();
    while let Some(name) = lines.next() {
        match lines.next() {
            Some(value) => pairs.push((name.to_owned(), value.to_owned())),
            None if name.is_empty() => break,
            None => return Err("a header block is cut off"),
        }
    }
    Ok(pairs)
}

/// Fields that only the node sets.
const FRAMING: [&str; 8] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The header block of an answer, or why there is none.
pub(crate) fn block(headers: &[(String, String)]) -> Result<Vec<u8>, String> {
    let mut block = Vec::new();
    for (name, value) in headers {
        let name = name.to_ascii_lowercase();
        if FRAMING.contains(&name.as_str()) {
            continue;
        }
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(format!("not the name of a header field: {name:?}"));
        }
        block.extend_from_slice(name.as_bytes());
        block.push(b'\n');
        for character in value.chars() {
            match u8::try_from(u32::from(character)) {
                Ok(0 | b'\r' | b'\n') | Err(_) => {
                    return Err(format!("not a value of the header field {name}: {value:?}"));
                }
                Ok(byte) => block.push(byte),
            }
        }
        block.push(b'\n');
    }
    if block.len() > CHUNK_BYTES_MAX {
        return Err("the header fields are longer than 64 KiB".to_owned());
    }
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_split_at_any_place() {
        let mut data = frame(Kind::Body, true, 7, &[b"chunk"]);
        assert!(split(&data[..16]).unwrap().is_none());
        data.extend_from_slice(b"rest");
        let (found, used) = split(&data).unwrap().unwrap();
        assert_eq!((found.kind, found.is_last, found.stream, used), (Kind::Body, true, 7, 17));
        assert_eq!(found.payload, b"chunk");
        for wrong in
            [[0, 0, 0, 0, 14, 0, 0, 0], [0, 0, 0, 0, 5, 2, 0, 0], [1, 0, 16, 0, 5, 0, 0, 0]]
        {
            assert!(split(&[&wrong[..], &[0; 4]].concat()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_fields_of_http_leave() {
        let field = |name: &str, value: &str| block(&[(name.to_owned(), value.to_owned())]);
        assert_eq!(field("X-A", "é").unwrap(), b"x-a\n\xe9\n");
        assert_eq!(field("Content-Length", "1").unwrap(), b"");
        for (name, value) in [("", "a"), ("a b", "c"), ("a", "b\nc"), ("a", "\0"), ("a", "€")] {
            assert!(field(name, value).is_err(), "{name} {value}");
        }
    }
}
