//! Carries bytes between two connections, on a separate thread.
//!
//! The relay buffers nothing. It peeks at the bytes of one socket, hands on as many as the other
//! side takes, and only then removes these bytes from the first socket. If one side does not read,
//! the node uses no memory beyond the kernel's buffers for that side's socket, and the sender is
//! slowed at once.

use std::cell::RefCell;
use std::io;
use std::sync::OnceLock;

use rustix::net::{RecvFlags, SendFlags, Shutdown};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::egress_doors::EgressBytes;
use crate::egress_doors::shares::LOOKUPS_MAX;

/// The maximum number of bytes that are carried in one step. Larger steps would save little, and
/// smaller ones would cost more calls and wake-ups.
const PIECE_BYTES: usize = 128 << 10;

thread_local! {
    /// The bytes that are being carried, between two system calls.
    pub(crate) static PIECE: RefCell<Box<[u8]>> = RefCell::new(vec![0; PIECE_BYTES].into_boxed_slice());
}

/// The thread that carries bytes. Bulk transfers have a separate thread, so that they do not delay
/// requests. The thread starts when it is first needed, because most nodes never need it, and ends
/// when this value is dropped.
#[derive(Default)]
pub struct Carrier(OnceLock<(Handle, oneshot::Sender<()>)>);

impl Carrier {
    /// The runtime for the tasks that carry bytes, or `otherwise` if the thread cannot be started.
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
        // The channel reports an error when the other end is dropped, which is the awaited event.
        let _ = runtime.block_on(end);
        runtime.shutdown_background();
    })?;
    Ok((handle, alive))
}

/// Carries bytes in both directions until both have ended. Passes on an end as an end and a reset
/// as a reset, because a stream that was cut off must not look complete.
pub(crate) async fn carry(inside: TcpStream, outside: TcpStream, bytes: &EgressBytes) {
    let ends = tokio::try_join!(
        pump(&inside, &outside, |count| bytes.count_sent(count)),
        pump(&outside, &inside, |count| bytes.count_received(count))
    );
    if !matches!(ends, Ok((End::Whole, End::Whole))) {
        reset(inside);
        reset(outside);
    }
}

/// Closes a connection so that its peer sees an error instead of an end.
pub(crate) fn reset(stream: TcpStream) {
    let _ = stream.set_zero_linger();
}

/// How one direction ended.
enum End {
    /// All bytes that were sent have been handed on.
    Whole,
    /// The receiver takes no more bytes.
    Refused,
}

/// Carries one direction to its end. An error always comes from reading.
async fn pump(from: &TcpStream, to: &TcpStream, count: impl Fn(usize)) -> io::Result<End> {
    loop {
        from.readable().await?;
        match step(from, to, &count) {
            Ok(Relayed::Carried { is_full: true }) => tokio::task::yield_now().await,
            Ok(Relayed::Carried { is_full: false } | Relayed::NothingThere) => {}
            Ok(Relayed::Held) => to.writable().await?,
            Ok(Relayed::Ended) => {
                // If the call fails, the connection is gone, and the peer does not wait for an end.
                let _ = rustix::net::shutdown(to, Shutdown::Write);
                return Ok(End::Whole);
            }
            // A peer that takes no more bytes may already have sent some, so the other direction
            // continues.
            Ok(Relayed::Refused) => return Ok(End::Refused),
            Err(error) => return Err(error),
        }
    }
}

enum Relayed {
    /// Some bytes were carried. `is_full` says whether they filled a whole piece.
    Carried {
        is_full: bool,
    },
    NothingThere,
    /// The receiver takes no more bytes for now.
    Held,
    /// The sender will send no more bytes.
    Ended,
    /// The receiver will never take more bytes.
    Refused,
}

fn step(from: &TcpStream, to: &TcpStream, count: &impl Fn(usize)) -> io::Result<Relayed> {
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
            // If the socket took fewer bytes than offered, it has no room, and another attempt
            // would only confirm that.
            if taken < there { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        if taken > 0 {
            count(taken);
            // A truncating read removes bytes from a stream without copying them.
            rustix::net::recv(from, &mut piece[..taken], RecvFlags::TRUNC)?;
        }
        match sent {
            Ok(()) => {
                let is_full = there == PIECE_BYTES;
                if !is_full {
                    // All bytes that had arrived are carried. The failed read makes the socket
                    // report further bytes or an end.
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
