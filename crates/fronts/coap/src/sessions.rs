//! The front over DTLS sessions (RFC 7252, 9). Another program terminates the sessions and passes
//! on their datagrams. It also reports what each client has proved: the identity of a pre-shared
//! key, or a certificate, which the node then checks.
//!
//! To the front, each session is a peer whose address contains the session's number
//! ([`crate::dtls_frames::address_of`]). So everything that the front keeps for a peer, such as the
//! answers to repeated messages, belongs to only one session, as RFC 7252, 9.1 requires.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::dtls_frames::{
    IDENTITY_BYTES_MAX, MESSAGE_BYTES_MAX, Message, SESSIONS_OF_NODE_MAX, address_of,
    datagram_head, session_of,
};
use mote_core::Invoker;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::watch;

use super::batch::{BATCH_MAX, RECEIVE_BYTES};
use super::cutting::Frame;
use super::exchange::Exchange;
use super::exchange_io::{Datagrams, serve_datagrams};
use super::sender::{CheckCertificate, Clients, Proved, Sender, Sessions};
use super::server::{Config, Server};

/// Serves the sessions of another program until `stop` becomes true. `socket` must be non-blocking
/// and of the type `SOCK_SEQPACKET`, which preserves message boundaries and reports when the other
/// side has closed; that is an error. `check` decides which client certificates are accepted.
/// Without `check`, no client certificate is accepted.
pub async fn serve_sessions<I: Invoker>(
    socket: OwnedFd,
    invoker: I,
    config: Config,
    check: Option<CheckCertificate>,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut server = Server::new(invoker.clone(), config);
    server.frame = Frame::Session;
    server.proofs.are_all_proven = true;
    server.clients = Clients::Sessions(Box::new(Sessions { check, ..Sessions::default() }));
    // The runtime has no type for such sockets. The type for datagram sockets works, because it
    // uses no operation that these sockets lack.
    let socket = UnixDatagram::from_std(socket.into())?;
    let link = Link { socket, buffer: vec![0; MESSAGE_BYTES_MAX], message: Vec::new() };
    serve_datagrams(link, server, invoker, stop).await
}

/// The socket to the program that terminates the sessions.
struct Link {
    socket: UnixDatagram,
    buffer: Vec<u8>,
    /// The message that is being sent. Kept to reuse its memory.
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
                    if let Some(verdict) = server.message(message, now_ns) {
                        say(socket, &verdict);
                    }
                }
                // The readiness is used up. The next attempt registers the task again.
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

/// Sends the other program a verdict about a session. If the socket has no room for it, the program
/// ends the session after some seconds, and the client begins a new one.
fn say(socket: &UnixDatagram, verdict: &Message<'_>) {
    let mut message = Vec::new();
    verdict.encode(&mut message);
    let _ = rustix::net::send(socket, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

impl<I: Invoker> Server<I> {
    /// The address of a client, and what it has proved.
    pub(crate) fn who(&self, exchange: &Exchange) -> (IpAddr, Proved) {
        (Sender::address(exchange, self.frame), self.proved(exchange.to.peer))
    }

    /// What the client with this address has proved.
    pub(crate) fn proved(&self, peer: SocketAddr) -> Proved {
        match &self.clients {
            Clients::Unknown => Proved::Nothing,
            Clients::Certified(names) => Proved::Names(names.clone()),
            Clients::Sessions(sessions) => match sessions.all.get(&session_of(peer)) {
                Some((_, proved)) => proved.clone(),
                None => Proved::Nothing,
            },
        }
    }

    /// Takes a message from the program that terminates the sessions. Returns the verdict about the
    /// session, if the program needs one.
    pub(crate) fn message(
        &mut self,
        message: Message<'_>,
        now_ns: u64,
    ) -> Option<Message<'static>> {
        let Clients::Sessions(sessions) = &mut self.clients else { return None };
        let Sessions { all: sessions, check } = &mut **sessions;
        match message {
            // The program keeps to these limits. They are checked here because an attacker who has
            // taken over the program must not be able to fill the node's memory.
            Message::Opened { identity, .. }
                if sessions.len() >= SESSIONS_OF_NODE_MAX
                    || identity.len() > IDENTITY_BYTES_MAX => {}
            Message::Opened { session, peer, identity } => {
                let identity = Arc::new(identity.to_owned());
                sessions.insert(session, (address_of(session, peer), Proved::Identity(identity)));
            }
            Message::OpenedByCertificate { session, .. }
                if sessions.len() >= SESSIONS_OF_NODE_MAX =>
            {
                return Some(Message::Closed { session });
            }
            Message::OpenedByCertificate { session, peer, certificate: b"" } => {
                sessions.insert(session, (address_of(session, peer), Proved::Nothing));
            }
            Message::OpenedByCertificate { session, peer, certificate } => {
                let names = check.as_ref().and_then(|check| check(certificate));
                let Some(names) = names else { return Some(Message::Closed { session }) };
                let proved = Proved::Names(Arc::new(names));
                sessions.insert(session, (address_of(session, peer), proved));
                return Some(Message::Accepted { session });
            }
            Message::Closed { session } => {
                let (peer, _) = sessions.remove(&session)?;
                if let Some(observers) = &mut self.observers {
                    observers.remove_peer(peer);
                }
            }
            Message::Datagram { session, bytes } => {
                let (peer, _) = sessions.get(&session)?;
                match *peer {
                    peer if bytes.len() > RECEIVE_BYTES => {
                        self.datagram_too_long(peer, bytes, now_ns)
                    }
                    peer => self.datagram(peer, bytes, now_ns),
                }
            }
            // Only the node sends these messages.
            Message::Keys { .. } | Message::Certificate { .. } | Message::Accepted { .. } => {}
        }
        None
    }
}
