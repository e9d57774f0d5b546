//! The sockets to servers. They limit how many bytes a server may send without progress, and let
//! the other tasks of the data path run.

use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use mote_core::turn::{TURN_BYTES_MAX, Turn};
use mote_core::wire::HEADERS_BYTES_MAX;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The number of bytes that a server may send before the head of its answer is complete, including
/// `1xx` answers.
const HEAD_BYTES_MAX: usize = HEADERS_BYTES_MAX + HEAD_READ_BYTES;
/// The number of bytes of one read while a head is awaited. All of them are parsed at once. They
/// may hold a hundred `1xx` answers, or the size of a chunk after the head, whose parsing takes 0.2
/// ms.
const HEAD_READ_BYTES: usize = 4 << 10;
/// The number of bytes in a row that a server may send without any content of its answer. Such
/// bytes are the sizes and extensions of chunks, and trailers. The limit is larger than what is
/// read ahead for a caller that takes nothing.
const SILENT_BYTES_MAX: usize = 512 << 10;
/// A byte that is parsed uses as much of a turn as this many bytes that are only copied.
const PARSE_WEIGHT: usize = 4;
/// The number of bytes of one read while content arrives in an answer of unknown length, which
/// usually has chunks. All of them are parsed at once, and each byte of a chunk's size takes 50 ns.
const CONTENT_READ_BYTES: usize = 8 << 10;
/// The number of bytes of one read while no content arrives. Parsing then takes at most 0.1 ms.
const SILENT_READ_BYTES: usize = 2 << 10;
/// The weight of a parsed byte in such a read, like [`PARSE_WEIGHT`]. One read uses a whole turn.
const SILENT_WEIGHT: usize = TURN_BYTES_MAX / SILENT_READ_BYTES;

/// Counts the bytes that were read from a server since its answer last made progress.
#[derive(Default)]
pub(crate) struct Meter {
    silent_bytes: AtomicUsize,
    awaits_head: AtomicBool,
    /// Whether the length of the answer is unknown.
    is_open_ended: AtomicBool,
}

impl Meter {
    pub(crate) fn begin(&self) {
        self.progress();
        self.awaits_head.store(true, Ordering::Relaxed);
    }

    pub(crate) fn head_came(&self, is_open_ended: bool) {
        // If the length of the answer is unknown, later bytes do not count as content until some
        // content has been taken.
        self.silent_bytes.store(is_open_ended.into(), Ordering::Relaxed);
        self.is_open_ended.store(is_open_ended, Ordering::Relaxed);
        self.awaits_head.store(false, Ordering::Relaxed);
    }

    pub(crate) fn progress(&self) {
        self.silent_bytes.store(0, Ordering::Relaxed);
    }

    /// Counts the bytes that were read. Fails if there are too many without progress.
    fn charge(&self, bytes: usize) -> io::Result<()> {
        let silent = self.silent_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let (what, bytes_max) = if self.awaits_head.load(Ordering::Relaxed) {
            ("its head", HEAD_BYTES_MAX)
        } else {
            ("any of its body", SILENT_BYTES_MAX)
        };
        if silent <= bytes_max {
            return Ok(());
        }
        Err(io::Error::other(format!("more than {bytes_max} bytes came without {what}")))
    }
}

/// The socket of a connection. It ends a connection on which a server keeps sending without
/// progress, and lets the other tasks of the data path run after a turn's worth of bytes.
pub(crate) struct Metered {
    stream: TcpStream,
    meter: Arc<Meter>,
    turn: Turn,
}

impl Metered {
    pub(crate) fn new(stream: TcpStream, meter: Arc<Meter>) -> Self {
        Self { stream, meter, turn: Turn::new() }
    }

    /// The socket itself, for a protocol that is not HTTP.
    pub(crate) fn into_stream(self) -> TcpStream {
        self.stream
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.turn.is_over() {
            self.turn = Turn::new();
            // The future never resolves at its first poll. The runtime wakes this task after the
            // other tasks have run.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let (bytes_max, weight) = if self.meter.awaits_head.load(Ordering::Relaxed) {
            (HEAD_READ_BYTES, PARSE_WEIGHT)
        } else if !self.meter.is_open_ended.load(Ordering::Relaxed) {
            (usize::MAX, PARSE_WEIGHT)
        } else if self.meter.silent_bytes.load(Ordering::Relaxed) == 0 {
            (CONTENT_READ_BYTES, PARSE_WEIGHT)
        } else {
            (SILENT_READ_BYTES, SILENT_WEIGHT)
        };
        if bytes_max < buffer.remaining() {
            let mut space = [MaybeUninit::uninit(); CONTENT_READ_BYTES];
            let room = bytes_max.min(space.len());
            let mut piece = ReadBuf::uninit(&mut space[..room]);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut piece))?;
            buffer.put_slice(piece.filled());
        } else {
            ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        }
        let bytes = buffer.filled().len() - before;
        self.turn.charge(1, bytes.saturating_mul(weight));
        let charged = self.meter.charge(bytes);
        if charged.is_err() {
            buffer.set_filled(before);
        }
        Poll::Ready(charged)
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A server that sends `bytes` again and again, as its client sees it.
    async fn flood(bytes: &'static [u8]) -> (Metered, Arc<Meter>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        tokio::spawn(async move { while peer.write_all(bytes).await.is_ok() {} });
        let meter = Arc::new(Meter::default());
        (Metered { stream, meter: meter.clone(), turn: Turn::new() }, meter)
    }

    #[tokio::test]
    async fn bytes_without_progress_end_a_connection() {
        for (is_head, bytes_max) in [(true, HEAD_BYTES_MAX), (false, SILENT_BYTES_MAX)] {
            let (mut metered, meter) = flood(&[b'0'; 64 << 10]).await;
            if is_head {
                meter.begin();
            }
            let mut taken = Vec::new();
            let error = metered.read_to_end(&mut taken).await.unwrap_err();
            assert!(error.to_string().contains(&bytes_max.to_string()), "{error}");
            // The bytes of the last read are not passed on.
            assert!(taken.len() <= bytes_max, "{} bytes", taken.len());
        }
        let (mut metered, meter) = flood(&[b'0'; 64 << 10]).await;
        let mut piece = vec![0; 64 << 10];
        for _ in 0..100 {
            metered.read_exact(&mut piece).await.unwrap();
            meter.progress();
        }
    }

    #[tokio::test]
    async fn others_run_between_two_reads() {
        let (mut metered, meter) = flood(&[b'0'; 64 << 10]).await;
        let mut piece = vec![0; 256 << 10];
        let mut in_one_turn = 0;
        for _ in 0..100 {
            meter.progress();
            let mut buffer = ReadBuf::new(&mut piece);
            let polled = std::future::poll_fn(|cx| {
                Poll::Ready(Pin::new(&mut metered).poll_read(cx, &mut buffer))
            });
            match polled.await {
                Poll::Ready(read) => {
                    read.unwrap();
                    in_one_turn += buffer.filled().len();
                    assert!(in_one_turn <= 512 << 10, "{in_one_turn} bytes in one turn");
                }
                Poll::Pending => {
                    in_one_turn = 0;
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}
