//! Carries bytes between two connections, on a thread of its own.
//!
//! Nothing is kept here: bytes are peeked at, handed on as far as the other side takes them, and
//! only then removed from the socket they came from. If a side does not read, it uses no memory of
//! the node beyond the kernel's buffers for its socket, and the sender is slowed at once.

use std::cell::RefCell;
use std::io;
use std::sync::OnceLock;

use rustix::net::{RecvFlags, SendFlags, Shutdown};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::egress_doors::shares::LOOKUPS_MAX;

/// Most bytes carried in one go. Larger ones save little more; smaller ones cost calls and wake-ups.
const PIECE_BYTES: usize = 128 << 10;

thread_local! {
    /// The bytes that are being carried, between two system calls.
    pub(crate) static PIECE: RefCell<Box<[u8]>> = RefCell::new(vec![0; PIECE_BYTES].into_boxed_slice());
}

/// The thread that carries bytes. It is started when it is first needed and ends when this is
/// dropped: bulk transfers must not run between two requests, and most nodes have none.
#[derive(Default)]
pub struct Carrier(OnceLock<(Handle, oneshot::Sender<()>)>);

impl Carrier {
    /// The runtime for its tasks; `otherwise` if the thread cannot be started.
    pub fn runtime<'a>(&'a self, otherwise: &'a Handle) -> &'a Handle {
        if let Some((runtime, _)) = self.0.get() {
            return runtime;
        }
        match start() {
            Ok(started) => &self.0.get_or_init(|| started).0,
            Err(_) => otherwise,
        }
    }
}

fn start() -> io::Result<(Handle, oneshot::Sender<()>)> {
    let runtime =
        Builder::new_current_thread().enable_all().max_blocking_threads(LOOKUPS_MAX).build()?;
    let handle = runtime.handle().clone();
    let (alive, end) = oneshot::channel::<()>();
    std::thread::Builder::new().name("mote-egress".into()).spawn(move || {
        // An error means that the other end was dropped, which is the event waited for.
        let _ = runtime.block_on(end);
        runtime.shutdown_background();
    })?;
    Ok((handle, alive))
}

/// Carries both ways until both have ended. An end is passed on as an end, and a reset as a reset:
/// a stream that was cut off must not look complete.
pub(crate) async fn carry(one: TcpStream, other: TcpStream) {
    let ends = tokio::try_join!(pump(&one, &other), pump(&other, &one));
    if !matches!(ends, Ok((End::Whole, End::Whole))) {
        reset(one);
        reset(other);
    }
}

/// Closes a connection so that its peer sees an error and not an end.
pub(crate) fn reset(stream: TcpStream) {
    let _ = stream.set_zero_linger();
}

/// How one way ended.
enum End {
    /// All bytes that were sent have been handed on.
    Whole,
    /// The receiver takes no more.
    Refused,
}

/// Carries one way to its end. An error is always an error of reading.
async fn pump(from: &TcpStream, to: &TcpStream) -> io::Result<End> {
    loop {
        from.readable().await?;
        match step(from, to) {
            Ok(Relayed::Carried { is_full: true }) => tokio::task::yield_now().await,
            Ok(Relayed::Carried { is_full: false } | Relayed::NothingThere) => {}
            Ok(Relayed::Held) => to.writable().await?,
            Ok(Relayed::Ended) => {
                // The call fails if the connection is gone, and then the peer does not wait for an
                // end.
                let _ = rustix::net::shutdown(to, Shutdown::Write);
                return Ok(End::Whole);
            }
            // A peer that takes no more bytes may have sent some before, so the other way
            // continues.
            Ok(Relayed::Refused) => return Ok(End::Refused),
            Err(error) => return Err(error),
        }
    }
}

enum Relayed {
    /// Some bytes were carried; `is_full` says whether as many as fit in one piece.
    Carried {
        is_full: bool,
    },
    NothingThere,
    /// The receiver takes no more for now.
    Held,
    /// The sender will send no more.
    Ended,
    /// The receiver will never take more.
    Refused,
}

fn step(from: &TcpStream, to: &TcpStream) -> io::Result<Relayed> {
    PIECE.with_borrow_mut(|piece| {
        let looked = from.try_io(Interest::READABLE, || {
            Ok(rustix::net::recv(from, &mut piece[..], RecvFlags::PEEK)?.0)
        });
        let there = match looked {
            Ok(0) => return Ok(Relayed::Ended),
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Relayed::NothingThere);
            }
            Err(error) => return Err(error),
        };
        let mut taken = 0;
        let sent = to.try_io(Interest::WRITABLE, || {
            taken = rustix::net::send(to, &piece[..there], SendFlags::NOSIGNAL)?;
            // If fewer were taken than offered, there is no room, and asking again would only
            // confirm that.
            if taken < there { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        if taken > 0 {
            // Truncating takes bytes out of a stream without copying them.
            rustix::net::recv(from, &mut piece[..taken], RecvFlags::TRUNC)?;
        }
        match sent {
            Ok(()) => {
                let is_full = there == PIECE_BYTES;
                if !is_full {
                    // All bytes that had arrived are carried; the socket reports further bytes, or
                    // an end.
                    let empty = || -> io::Result<()> { Err(io::ErrorKind::WouldBlock.into()) };
                    let _ = from.try_io(Interest::READABLE, empty);
                }
                Ok(Relayed::Carried { is_full })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Relayed::Held),
            Err(_) => Ok(Relayed::Refused),
        }
    })
}
