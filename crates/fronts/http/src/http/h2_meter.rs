//! The socket under an HTTP/2 connection. It limits the frames that the client may send in one turn
//! and in one second.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use crate::h2_frames::{CALM, FrameMeter};
use bytes::{Buf, Bytes};
use mote_core::turn::Turn;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::socket::Socket;
use crate::ids::now_ns;

/// A socket from which some bytes have already been read. It counts the frames on the socket, lets
/// other tasks run between them, and ends the connection if the client floods it.
pub(super) struct Metered {
    read: Bytes,
    /// `None` after the last frame has been sent to the client.
    stream: Option<Socket>,
    meter: FrameMeter,
    turn: Turn,
    ended: Option<oneshot::Sender<Socket>>,
}

impl Metered {
    /// Makes the socket, and a channel that returns the stream after the last frame has been sent.
    /// The last frame is sent either at an orderly end, or because the client floods the
    /// connection.
    pub(super) fn new(read: Bytes, stream: Socket) -> (Self, oneshot::Receiver<Socket>) {
        let (sender, receiver) = oneshot::channel();
        let meter = FrameMeter::new(now_ns());
        let stream = Some(stream);
        (Self { read, stream, meter, turn: Turn::new(), ended: Some(sender) }, receiver)
    }

    fn stream(&mut self) -> io::Result<Pin<&mut Socket>> {
        self.stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    fn give_back(&mut self) {
        if let (Some(stream), Some(ended)) = (self.stream.take(), self.ended.take()) {
            let _ = ended.send(stream);
        }
    }

    /// Counts frames that were read.
    fn count(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.meter.received(bytes, now_ns) {
            Ok(frames) => {
                self.turn.charge(frames, bytes.len());
                Ok(())
            }
            Err(flood) => {
                if self.meter.may_say_calm()
                    && let Some(stream) = &self.stream
                {
                    // This write does not wait for a client that does not read.
                    let _ = stream.try_write(&CALM);
                }
                self.give_back();
                Err(io::Error::other(flood))
            }
        }
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
            // This future is never ready at its first poll. The runtime wakes this task after other
            // tasks have run.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
            return Poll::Pending;
        }
        let from = buffer.filled().len();
        if self.read.is_empty() {
            std::task::ready!(self.stream()?.poll_read(cx, buffer))?;
        } else {
            let take = self.read.len().min(buffer.remaining());
            buffer.put_slice(&self.read[..take]);
            self.read.advance(take);
        }
        Poll::Ready(self.count(&buffer.filled()[from..]))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = std::task::ready!(self.stream()?.poll_write(cx, bytes))?;
        self.meter.sent(&bytes[..written]);
        Poll::Ready(Ok(written))
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.stream()?.poll_shutdown(cx))?;
        self.give_back();
        Poll::Ready(Ok(()))
    }
}
