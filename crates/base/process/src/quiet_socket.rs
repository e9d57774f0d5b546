//! A socket whose task is woken for reading, and for writing only while a write has to wait.
//!
//! The runtime's own sockets are always registered for both. Each time a peer takes bytes from a
//! Unix socket or a datagram socket, the kernel then reports that the socket can be written, which
//! it could be before. With few requests at a time, the thread sleeps when that happens: it is
//! woken twice for each request instead of once, and takes the processor from the peer, which has
//! only just read the request.

#![allow(unsafe_code, reason = "the runtime takes descriptors on trust")]

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A type that owns one open descriptor and always returns this one.
pub trait Socket: AsFd + AsRawFd + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for UnixStream {}
impl sealed::Sealed for UdpSocket {}
impl sealed::Sealed for OwnedFd {}
impl Socket for UnixStream {}
impl Socket for UdpSocket {}
impl Socket for OwnedFd {}

/// Registers a descriptor with the current runtime.
fn register<T: Socket>(socket: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: only this module implements `Socket`, and for types that own their descriptor, return
    // always the same one, and close it only when they are dropped.
    let registered = unsafe { AsyncFd::register_with_interest(socket, interest) };
    Ok(registered?)
}

/// A nonblocking socket. Only one task may use it.
#[derive(Debug)]
pub struct QuietSocket<T: Socket> {
    read: AsyncFd<T>,
    /// A copy of the descriptor, which is registered for writing while a write waits.
    write: Option<AsyncFd<OwnedFd>>,
}

/// What an operation has read, and whether it has emptied the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read<R> {
    /// The result of the operation.
    pub result: R,
    /// Whether another operation would find nothing. If this is known, it saves that operation.
    pub emptied: bool,
}

impl<T: Socket> QuietSocket<T> {
    /// Registers a nonblocking socket with the current runtime.
    pub fn new(socket: T) -> io::Result<Self> {
        Ok(Self { read: register(socket, Interest::READABLE)?, write: None })
    }

    /// The socket.
    pub fn get_ref(&self) -> &T {
        self.read.get_ref()
    }

    /// Runs an operation that reads, when there may be something to read.
    pub fn poll_read<R>(
        &mut self,
        cx: &mut Context<'_>,
        mut read: impl FnMut(&T) -> io::Result<Read<R>>,
    ) -> Poll<io::Result<R>> {
        loop {
            let mut guard = ready!(self.read.poll_read_ready(cx))?;
            match read(guard.get_inner()) {
                Ok(Read { result, emptied }) => {
                    if emptied {
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(result));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Runs an operation that writes, now or when the socket can be written again.
    pub fn poll_write<R>(
        &mut self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&T) -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        loop {
            if let Some(waiting) = &self.write {
                ready!(waiting.poll_write_ready(cx))?.clear_ready();
            }
            match write(self.read.get_ref()) {
                Ok(result) => {
                    self.write = None;
                    return Poll::Ready(Ok(result));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.write.is_none() {
                        let copy = self.read.get_ref().as_fd().try_clone_to_owned()?;
                        self.write = Some(register(copy, Interest::WRITABLE)?);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::{Read as _, Write as _};

    use super::*;

    fn pair() -> (QuietSocket<UnixStream>, UnixStream) {
        let (one, other) = UnixStream::pair().expect("a pair of sockets");
        one.set_nonblocking(true).expect("nonblocking");
        (QuietSocket::new(one).expect("registered"), other)
    }

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    }

    async fn read(socket: &mut QuietSocket<UnixStream>) -> Vec<u8> {
        let read = |mut socket: &UnixStream| {
            let mut bytes = [0; 16];
            let count = socket.read(&mut bytes)?;
            Ok(Read { result: bytes[..count].to_vec(), emptied: count < bytes.len() })
        };
        poll_fn(|cx| socket.poll_read(cx, read)).await.expect("read")
    }

    #[test]
    fn what_arrives_later_is_read_too() {
        runtime().block_on(async {
            let (mut socket, mut peer) = pair();
            for text in ["first", "second", "exactly 16 bytes", "and more than 16 bytes"] {
                let (sent, from) = (text.to_owned(), peer.try_clone().expect("a copy"));
                let writer =
                    tokio::task::spawn_blocking(move || (&from).write_all(sent.as_bytes()));
                let mut got = Vec::new();
                while got.len() < text.len() {
                    got.extend(read(&mut socket).await);
                }
                assert_eq!(got, text.as_bytes());
                writer.await.expect("no panic").expect("written");
            }
            peer.flush().expect("nothing to do");
            drop(peer);
            assert_eq!(read(&mut socket).await, b"");
        });
    }

    #[test]
    fn a_write_that_does_not_fit_waits_for_the_reader() {
        runtime().block_on(async {
            let (mut socket, mut peer) = pair();
            let bytes = vec![b'x'; 4 << 20];
            let reader = tokio::task::spawn_blocking(move || {
                let mut got = Vec::new();
                peer.read_to_end(&mut got).map(|_| got.len())
            });
            let (mut written, mut waits) = (0, 0);
            while written < bytes.len() {
                written += poll_fn(|cx| {
                    let result = socket.poll_write(cx, |mut s| s.write(&bytes[written..]));
                    waits += usize::from(result.is_pending());
                    result
                })
                .await
                .expect("written");
            }
            assert!(waits > 0, "the socket never was full");
            assert!(socket.write.is_none(), "still registered for writing");
            drop(socket);
            assert_eq!(reader.await.expect("no panic").expect("read"), bytes.len());
        });
    }
}
