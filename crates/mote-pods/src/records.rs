//! The records on the connection between a cell and a pod that it has claimed. Pure.
//!
//! A record is one byte for its kind, four for the length of its payload (little-endian), and the
//! payload. The cell sends CLAIM, an ENTRY for each file with its content in DATA records, and START.
//! From then on WORKER records carry the bytes of the worker protocol both ways, OUTPUT carries what
//! the worker prints, and EXIT says how it ended. Either side ends everything by closing the
//! connection.

use bytes::{Buf as _, Bytes, BytesMut};
use mote_core::backend::Exit;
use serde::{Deserialize, Serialize};

/// The version of these records.
pub const VERSION: u32 = 1;
/// Bytes in front of a payload.
pub const HEAD_BYTES: usize = 5;
/// Longest payload.
pub const PAYLOAD_BYTES_MAX: usize = 256 << 10;
/// Bytes of content in one record.
pub const DATA_BYTES_MAX: usize = 64 << 10;

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// Cell to pod: [`Claim`], the first record.
    Claim,
    /// Cell to pod: [`Entry`].
    Entry,
    /// Cell to pod: content of the file that the last ENTRY announced.
    Data,
    /// Cell to pod: all files are there. Empty.
    Start,
    /// Both ways: bytes of the worker protocol.
    Worker,
    /// Pod to cell: what the worker has printed.
    Output,
    /// Pod to cell: [`Ended`], the last record.
    Exit,
    /// Pod to cell: why the pod cannot run the function, as text; the last record.
    Failed,
}

impl RecordKind {
    const ALL: [RecordKind; 8] = [
        RecordKind::Claim,
        RecordKind::Entry,
        RecordKind::Data,
        RecordKind::Start,
        RecordKind::Worker,
        RecordKind::Output,
        RecordKind::Exit,
        RecordKind::Failed,
    ];
}

/// What a cell wants of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// [`VERSION`].
    pub version: u32,
    /// Function and revision, for the pod's log: `thermo-3`.
    pub label: String,
    /// Files of the instance's own: absolute path, and text. Secrets are among them.
    pub files: Vec<(String, String)>,
}

/// A file, folder or symbolic link of the function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The folder: `/function` or `/packages`.
    pub root: String,
    /// The path below it.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// Permissions.
    #[serde(default)]
    pub mode: u32,
    /// Bytes of a file, which follow.
    #[serde(default)]
    pub bytes: u64,
    /// Where a link leads.
    #[serde(default)]
    pub target: String,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// A file.
    #[default]
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
}

/// How a worker ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Exit status, when it exited.
    pub status: Option<i32>,
    /// Signal, when it was killed.
    pub signal: Option<i32>,
    /// Whether the kernel killed it for memory.
    #[serde(default)]
    pub out_of_memory: bool,
}

impl From<Ended> for Exit {
    fn from(ended: Ended) -> Self {
        let Ended { status, signal, out_of_memory } = ended;
        Exit { status, signal, out_of_memory }
    }
}

/// Why bytes are not records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// An unknown kind.
    #[error("a record has the unknown kind {0}")]
    Kind(u8),
    /// A payload that is too long.
    #[error("a record has {0} bytes, and at most {PAYLOAD_BYTES_MAX} are allowed")]
    TooLong(usize),
}

/// Appends one record. The payload must have at most [`PAYLOAD_BYTES_MAX`] bytes.
pub fn put(out: &mut Vec<u8>, kind: RecordKind, payload: &[u8]) {
    debug_assert!(payload.len() <= PAYLOAD_BYTES_MAX);
    out.push(kind as u8);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
}

/// Takes the first record, if all of it is there.
pub fn split(input: &mut BytesMut) -> Result<Option<(RecordKind, Bytes)>, RecordError> {
    let Some((kind, length)) = input.split_first_chunk::<HEAD_BYTES>().map(|(head, _)| {
        (head[0], u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize)
    }) else {
        return Ok(None);
    };
    let known = RecordKind::ALL.iter().find(|known| **known as u8 == kind);
    let kind = *known.ok_or(RecordError::Kind(kind))?;
    if length > PAYLOAD_BYTES_MAX {
        return Err(RecordError::TooLong(length));
    }
    if input.len() < HEAD_BYTES + length {
        input.reserve(HEAD_BYTES + length - input.len());
        return Ok(None);
    }
    input.advance(HEAD_BYTES);
    Ok(Some((kind, input.split_to(length).freeze())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_every_cut() {
        let mut out = Vec::new();
        put(&mut out, RecordKind::Claim, b"{}");
        put(&mut out, RecordKind::Start, b"");
        put(&mut out, RecordKind::Worker, &[7; 300]);
        for cut in 0..=out.len() {
            let mut input = BytesMut::new();
            let mut found = Vec::new();
            for part in [&out[..cut], &out[cut..]] {
                input.extend_from_slice(part);
                while let Some((kind, payload)) = split(&mut input).unwrap() {
                    found.push((kind, payload.len()));
                }
            }
            let expected =
                [(RecordKind::Claim, 2), (RecordKind::Start, 0), (RecordKind::Worker, 300)];
            assert_eq!(found, expected, "cut at {cut}");
            assert!(input.is_empty());
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let check = |bytes: &[u8], expected| {
            assert_eq!(split(&mut BytesMut::from(bytes)), Err(expected));
        };
        check(b"GET / HTTP/1.1\r\n", RecordError::Kind(b'G'));
        check(&[0, 0xff, 0xff, 0xff, 0xff], RecordError::TooLong(0xffff_ffff));
    }
}
