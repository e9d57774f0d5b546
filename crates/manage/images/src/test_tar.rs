//! Builds layers and archives byte by byte, valid and invalid.

use mote_store::tar::{BLOCK, header, pax};

#[derive(Default, Clone)]
pub(crate) struct Tar(pub(crate) Vec<u8>);

impl Tar {
    pub(crate) fn raw(mut self, head: [u8; BLOCK], content: &[u8]) -> Self {
        self.0.extend_from_slice(&head);
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
        self
    }

    pub(crate) fn entry(self, kind: u8, path: &[u8], link: &[u8], content: &[u8]) -> Self {
        let mode = if kind == b'5' { 0o755 } else { 0o644 };
        self.raw(header(kind, path, link, content.len() as u64, mode), content)
    }

    pub(crate) fn mode(self, kind: u8, path: &str, mode: u32) -> Self {
        self.raw(header(kind, path.as_bytes(), b"", 0, mode), b"")
    }

    pub(crate) fn file(self, path: &str, content: &str) -> Self {
        self.entry(b'0', path.as_bytes(), b"", content.as_bytes())
    }

    pub(crate) fn bytes(self, path: &str, content: &[u8]) -> Self {
        self.entry(b'0', path.as_bytes(), b"", content)
    }

    pub(crate) fn dir(self, path: &str) -> Self {
        self.entry(b'5', path.as_bytes(), b"", b"")
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(b'2', path.as_bytes(), target.as_bytes(), b"")
    }

    pub(crate) fn hardlink(self, path: &str, target: &str) -> Self {
        self.entry(b'1', path.as_bytes(), target.as_bytes(), b"")
    }

    pub(crate) fn device(self, kind: u8, path: &str) -> Self {
        self.entry(kind, path.as_bytes(), b"", b"")
    }

    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let content: Vec<u8> = records.iter().flat_map(|(key, value)| pax(key, value)).collect();
        self.entry(b'x', b"pax", b"", &content)
    }

    /// Adds a GNU long name (`L`) or long link (`K`).
    pub(crate) fn long(self, kind: u8, name: &[u8]) -> Self {
        self.entry(kind, b"././@LongLink", b"", &[name, b"\0"].concat())
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 2 * BLOCK]);
        self.0
    }
}

pub(crate) fn tar() -> Tar {
    Tar::default()
}

/// A header whose fields were changed, with a correct checksum.
pub(crate) fn changed(mut head: [u8; BLOCK], changes: &[(usize, &[u8])]) -> [u8; BLOCK] {
    for (at, bytes) in changes {
        head[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    head[148..156].copy_from_slice(b"        ");
    let sum: u64 = head.iter().map(|byte| u64::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    head
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}
