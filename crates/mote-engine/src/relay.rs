//! Carries bytes between two connections, on a thread of its own.
//!
//! Nothing is kept here: bytes are looked at, handed on as far as the other side takes them, and only
//! then taken out of the socket they came from. A side that does not read costs no memory of the node
//! beyond what the kernel holds for its socket, and the sender feels it at once.

use std::cell::RefCell;
use std::io;
use std::sync::OnceLock;

use rustix::net::{RecvFlags, SendFlags, Shutdown};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::egress_shares::LOOKUPS_MAX;

/// Most bytes carried in one go. Larger ones save little more; smaller ones cost calls and wake-ups.
const PIECE_BYTES: usize = 128 << 10;

thread_local! {
    /// What is being carried, between two system calls.
    static PIECE: RefCell<Box<[u8]>> = RefCell::new(vec![0; PIECE_BYTES].into_boxed_slice());
}

/// The thread that carries. Started when it is first needed, ends when this is dropped: bulk
/// transfers must not sit between two requests, and most nodes have none.
#[derive(Default)]
pub(crate) struct Carrier(OnceLock<(Handle, oneshot::Sender<()>)>);

impl Carrier {
    /// Where its tasks run; `otherwise` if the thread cannot be had.
    pub(crate) fn runtime<'a>(&'a self, otherwise: &'a Handle) -> &'a Handle {
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
        // An error says that the other end is gone, which is what is waited for.
        let _ = runtime.block_on(end);
        runtime.shutdown_background();
    })?;
    Ok((handle, alive))
}

/// Carries both ways until both have ended. An end is passed on as such, and so is a reset: what
/// was cut off must not look complete.
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
    /// All that was sent has been handed on.
    Whole,
    /// The receiver takes no more.
    Refused,
}

/// Carries one way to its end; an error is one of reading.
async fn pump(from: &TcpStream, to: &TcpStream) -> io::Result<End> {
    loop {
        from.readable().await?;
        match step(from, to) {
            Ok(Relayed::Carried { is_full: true }) => tokio::task::yield_now().await,
            Ok(Relayed::Carried { is_full: false } | Relayed::NothingThere) => {}
            Ok(Relayed::Held) => to.writable().await?,
            Ok(Relayed::Ended) => {
                // Refused where the connection is gone, and then nobody waits for an end.
                let _ = rustix::net::shutdown(to, Shutdown::Write);
                return Ok(End::Whole);
            }
            // Who takes no bytes any more may have sent some before: the other way goes on.
            Ok(Relayed::Refused) => return Ok(End::Refused),
            Err(error) => return Err(error),
        }
    }
}

enum Relayed {
    /// Some bytes went over; whether as many as go at once.
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
            // Less than all was taken: there is no room, and asking again would say so.
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
                    // All that had come is carried; what comes from now on, or an end, is told.
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
