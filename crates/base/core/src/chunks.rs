//! Pieces of a body that wait to be read.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::wire::CHUNK_BYTES_MAX;

/// When the reader is behind, pieces shorter than this are copied together. A piece is a slice of a
/// buffer that was filled from a socket, so a piece of a single byte would keep the whole buffer in
/// memory. Each piece also needs an entry in the queue.
const COPY_BELOW_BYTES: usize = CHUNK_BYTES_MAX / 2;

/// The pieces, in their order.
#[derive(Debug, Default)]
pub struct Chunks {
    whole: VecDeque<Bytes>,
    /// The bytes after `whole`, which arrived in small pieces.
    tail: BytesMut,
}

impl Chunks {
    /// Adds a piece. If `reader_waits`, the reader takes the piece at once, so nothing is copied.
    pub fn push(&mut self, chunk: Bytes, reader_waits: bool) {
        let is_behind = !reader_waits || !self.whole.is_empty() || !self.tail.is_empty();
        if is_behind && chunk.len() < COPY_BELOW_BYTES {
            self.tail.extend_from_slice(&chunk);
        } else if !chunk.is_empty() {
            if !self.tail.is_empty() {
                let tail = self.tail.split().freeze();
                self.whole.push_back(tail);
            }
            self.whole.push_back(chunk);
        }
    }

    /// Takes the oldest piece.
    pub fn pop(&mut self) -> Option<Bytes> {
        let tail = || (!self.tail.is_empty()).then(|| std::mem::take(&mut self.tail).freeze());
        self.whole.pop_front().or_else(tail)
    }

    /// Bytes of memory that the pieces keep. A piece that was not copied keeps the buffer into
    /// which it was read, which is up to twice as long as the piece.
    pub fn held_bytes(&self) -> usize {
        2 * self.whole.iter().map(Bytes::len).sum::<usize>() + self.tail.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_are_kept_together_and_in_order() {
        let mut chunks = Chunks::default();
        let large = Bytes::from(vec![b'x'; COPY_BELOW_BYTES]);
        for _ in 0..10_000 {
            chunks.push(Bytes::from_static(b"a"), false);
        }
        chunks.push(large.clone(), false);
        chunks.push(Bytes::from_static(b"b"), false);
        assert_eq!(chunks.whole.len(), 2);
        assert!(chunks.held_bytes() < 3 * (10_001 + large.len()));
        let read: Vec<u8> = std::iter::from_fn(|| chunks.pop()).flatten().collect();
        assert_eq!(read.len(), 10_001 + large.len());
        assert!(read.starts_with(b"aa") && read.ends_with(b"xb"));
        chunks.push(Bytes::from_static(b"c"), true);
        assert_eq!((chunks.whole.len(), chunks.tail.len()), (1, 0));
    }
}
