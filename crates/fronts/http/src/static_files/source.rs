//! Streams a long file as the body of an answer.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use mote_core::body::{Body, BodyError, BodySource};

/// The number of bytes that are read at once.
const CHUNK_BYTES: u64 = 64 << 10;

/// The body with the `length` bytes of `file` that begin at `start`.
pub(crate) fn body(file: File, start: u64, length: u64) -> Body {
    if length == 0 {
        return Body::Empty;
    }
    let source = FileSource { file: Arc::new(file), at: start, left: length, reading: None };
    Body::Stream { source: Box::new(source), length: Some(length) }
}

type Reading = Pin<Box<dyn Future<Output = io::Result<Vec<u8>>> + Send>>;

struct FileSource {
    file: Arc<File>,
    at: u64,
    left: u64,
    reading: Option<Reading>,
}

impl FileSource {
    /// Reads the next piece on a thread that may block.
    fn read(&self) -> Reading {
        let file = self.file.clone();
        let at = self.at;
        let count = self.left.min(CHUNK_BYTES);
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; count as usize];
            file.read_exact_at(&mut piece, at).map(|()| piece)
        });
        Box::pin(async move { read.await.map_err(io::Error::other)? })
    }
}

impl BodySource for FileSource {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if self.reading.is_none() {
            self.reading = Some(self.read());
        }
        let Some(reading) = &mut self.reading else { return Poll::Pending };
        let read = ready!(reading.as_mut().poll(cx));
        self.reading = None;
        // The disk failed, or the file has been shortened meanwhile.
        let Ok(piece) = read else { return Poll::Ready(Some(Err(BodyError::Incomplete))) };
        self.at += piece.len() as u64;
        self.left -= piece.len() as u64;
        Poll::Ready(Some(Ok(piece.into())))
    }
}
