//! The front over sessions (RFC 7252, 9): another program ends them and passes on their datagrams, with
//! the identity that each client has proved.
//!
//! A session is a peer of the front, under an address that contains the number of the session
//! ([`mote_dtls_frames::address_of`]). So everything that the front keeps for a peer, such as the
//! answers to repeated messages, is for one session, as RFC 7252, 9.1 requires.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use mote_core::Invoker;
use mote_dtls_frames::{
    IDENTITY_BYTES_MAX, MESSAGE_BYTES_MAX, Message, SESSIONS_MAX, address_of, datagram_head,
    session_of,
};
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::watch;

use super::batch::{BATCH_MAX, RECEIVE_BYTES};
use super::cutting::Frame;
use super::exchange_io::{Datagrams, serve_datagrams};
use super::sender::{Clients, Proved};
use super::server::{Config, Server};

/// Serves the sessions of another program until `stop` becomes true. `socket` does not block; it keeps
/// the boundaries of messages and tells when the other side is gone (`SOCK_SEQPACKET`), which is an
/// error.
pub async fn serve_sessions<I: Invoker>(
    socket: OwnedFd,
    invoker: I,
    config: Config,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut server = Server::new(invoker.clone(), config);
    server.frame = Frame::Session;
    server.proofs.are_all_proven = true;
    server.clients = Clients::Sessions(Box::default());
    // The runtime has no type for such sockets, and does nothing with the one for datagrams that they
    // do not do.
    let socket = UnixDatagram::from_std(socket.into())?;
    let link = Link { socket, buffer: vec![0; MESSAGE_BYTES_MAX], message: Vec::new() };
    serve_datagrams(link, server, invoker, stop).await
}

/// The socket to the other program.
struct Link {
    socket: UnixDatagram,
    buffer: Vec<u8>,
    /// The message that is being sent; kept to reuse its memory.
    message: Vec<u8>,
}

impl Datagrams for Link {
    fn poll_receive<I: Invoker>(
        &mut self,
        cx: &mut Context<'_>,
        server: &mut Server<I>,
        now_ns: u64,
    ) -> io::Result<bool> {
        let Self { socket, buffer, .. } = self;
        let mut count = 0;
        while count < BATCH_MAX {
            if socket.poll_recv_ready(cx)?.is_pending() {
                return Ok(false);
            }
            let receive = || {
                let (_, length) =
                    rustix::net::recv(&*socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
                Ok(length)
            };
            match socket.try_io(Interest::READABLE, receive) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    let message = Message::parse(&buffer[..length]).map_err(io::Error::other)?;
                    server.message(message, now_ns);
                }
                // The readiness is used up; another attempt registers the task.
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
            count += 1;
        }
        Ok(true)
    }

    fn poll_send<I: Invoker>(
        &mut self,
        cx: &mut Context<'_>,
        server: &mut Server<I>,
    ) -> Poll<io::Result<()>> {
        let Self { socket, message, .. } = self;
        let out = &mut server.out;
        while !out.is_empty() {
            ready!(socket.poll_send_ready(cx))?;
            let mut send = |peer, bytes: &[u8]| {
                message.clear();
                datagram_head(message, session_of(peer));
                message.extend_from_slice(bytes);
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                rustix::net::send(&*socket, message, flags)?;
                Ok(())
            };
            match socket.try_io(Interest::WRITABLE, || out.flush_one_by_one(&mut send)) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => {
                    return Poll::Ready(Err(error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: Invoker> Server<I> {
    /// What the client with this address has proved.
    pub(crate) fn proved(&self, peer: SocketAddr) -> Proved {
        match &self.clients {
            Clients::Unknown => Proved::Nothing,
            Clients::Certified(names) => Proved::Names(names.clone()),
            Clients::Sessions(sessions) => match sessions.get(&session_of(peer)) {
                Some((_, identity)) => Proved::Identity(identity.clone()),
                None => Proved::Nothing,
            },
        }
    }

    /// Takes a message of the program that ends the sessions.
    pub(crate) fn message(&mut self, message: Message<'_>, now_ns: u64) {
        let Clients::Sessions(sessions) = &mut self.clients else { return };
        match message {
            // The program keeps to these limits. If somebody has taken it over, it must not be able to
            // fill the memory of the node.
            Message::Opened { identity, .. }
                if sessions.len() >= SESSIONS_MAX || identity.len() > IDENTITY_BYTES_MAX => {}
            Message::Opened { session, peer, identity } => {
                let identity = Arc::new(identity.to_owned());
                sessions.insert(session, (address_of(session, peer), identity));
            }
            Message::Closed { session } => {
                let Some((peer, _)) = sessions.remove(&session) else { return };
                if let Some(observers) = &mut self.observers {
                    observers.remove_peer(peer);
                }
            }
            Message::Datagram { session, bytes } => {
                let Some((peer, _)) = sessions.get(&session) else { return };
                match *peer {
                    peer if bytes.len() > RECEIVE_BYTES => {
                        self.datagram_too_long(peer, bytes, now_ns)
                    }
                    peer => self.datagram(peer, bytes, now_ns),
                }
            }
            // Only the node sends them.
            Message::Keys { .. } => {}
        }
    }
}
