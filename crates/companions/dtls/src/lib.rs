//! DTLS for the CoAP front of a node. It is a separate process without rights, because it decrypts
//! datagrams that strangers send.
//!
//! The library `dimpl` provides the protocol. This program has one thread. It reads datagrams of
//! clients from its standard output, which is the socket that the node has bound, and messages of
//! the node from its standard input (`mote_coap::dtls_frames`). The program ends when its input
//! ends. It must not know CoAP, functions, or where keys are stored. Start at [`sessions`].

#![forbid(unsafe_code)]

mod certificates;
mod config;
mod gate;
mod hello;
mod keys;
mod sessions;

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use mote_coap::dtls_frames::{MESSAGE_BYTES_MAX, Message};
use mote_process::companion::confinement::{self, Files, Network, Rights};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};
use tracing::level_filters::LevelFilter;

use sessions::{DATAGRAM_BYTES_MAX, Now, Sessions};

/// The most datagrams and the most messages that are taken in one turn.
const TURN_MAX: usize = 64;
/// The most messages that wait because the node does not read. Above this, datagrams are dropped,
/// which is normal for datagrams. Messages that open and end sessions are never dropped.
const UNREAD_MAX: usize = 4_096;

/// Runs the command line of this process as this companion.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let uid = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["run", "--uid", uid] => uid.parse().ok(),
        _ => None,
    };
    let Some(uid) = uid else {
        eprintln!("mote-dtls is started by a node of mote: mote up --coap-dtls on");
        return ExitCode::from(2);
    };
    confinement::log_to_node("mote_dtls", LevelFilter::ERROR);
    match run(uid) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(uid: u32) -> io::Result<()> {
    let mut secret = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut secret)?;
    let clients = UdpSocket::from(rustix::stdio::stdout().try_clone_to_owned()?);
    clients.set_nonblocking(true)?;
    let node = rustix::stdio::stdin().try_clone_to_owned()?;
    confinement::confine(Rights {
        uid,
        // Enough for all sessions, even if their clients make the library keep as much as it can,
        // which is five times the usual amount.
        memory_bytes: 384 << 20,
        open_files: 16,
        // No files are needed, because the node has opened the sockets.
        files: Files::Nothing,
        network: Network::Nothing,
    })?;
    let sessions = Sessions::new(secret, Instant::now()).map_err(io::Error::other)?;
    let buffer = vec![0; MESSAGE_BYTES_MAX.max(DATAGRAM_BYTES_MAX + 1)];
    Program { clients, node, sessions, unread: VecDeque::new(), buffer }.serve()
}

fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { instant: Instant::now(), unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX) }
}

struct Program {
    clients: UdpSocket,
    node: OwnedFd,
    sessions: Sessions,
    /// Messages for the node that it has not read yet.
    unread: VecDeque<Vec<u8>>,
    buffer: Vec<u8>,
}

impl Program {
    /// Serves until the node closes its end of the input.
    fn serve(mut self) -> io::Result<()> {
        loop {
            let patience = Timespec::try_from(self.sessions.patience()).ok();
            let node_flags = match self.unread.is_empty() {
                true => PollFlags::IN,
                false => PollFlags::IN | PollFlags::OUT,
            };
            let mut sockets =
                [PollFd::new(&self.clients, PollFlags::IN), PollFd::new(&self.node, node_flags)];
            match poll(&mut sockets, patience.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if !self.take_messages()? {
                return Ok(());
            }
            self.take_datagrams()?;
            self.sessions.time_passed(now());
            self.send()?;
        }
    }

    /// Takes messages of the node. Returns `false` if no more will come.
    fn take_messages(&mut self) -> io::Result<bool> {
        for _ in 0..TURN_MAX {
            let flags = RecvFlags::DONTWAIT;
            match rustix::net::recv(&self.node, &mut self.buffer[..], flags) {
                Ok((_, 0)) => return Ok(false),
                Ok((_, length)) => match Message::parse(&self.buffer[..length]) {
                    Ok(message) => self.sessions.message(message, now()),
                    Err(error) => tracing::error!("cannot read a message of the node: {error}"),
                },
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => break,
                // The node has ended.
                Err(rustix::io::Errno::CONNRESET) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn take_datagrams(&mut self) -> io::Result<()> {
        for _ in 0..TURN_MAX {
            match self.clients.recv_from(&mut self.buffer[..=DATAGRAM_BYTES_MAX]) {
                // A longer datagram was cut, so it is ignored.
                Ok((length, _)) if length > DATAGRAM_BYTES_MAX => {}
                Ok((length, peer)) => {
                    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
                    self.sessions.datagram(peer, &self.buffer[..length], now());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // A closed port of a peer is reported as an error of a later call.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::ConnectionRefused | ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        let is_ipv6 = self.clients.local_addr()?.is_ipv6();
        for (peer, bytes) in self.sessions.out.to_clients.drain(..) {
            // An IPv6 socket needs the mapped form of an IPv4 address.
            let peer = match peer {
                SocketAddr::V4(at) if is_ipv6 => {
                    SocketAddr::new(at.ip().to_ipv6_mapped().into(), at.port())
                }
                peer => peer,
            };
            // If the kernel does not take the datagram, it is lost, which is normal for datagrams.
            let _ = self.clients.send_to(&bytes, peer);
        }
        for message in self.sessions.out.to_node.drain(..) {
            let is_datagram = matches!(Message::parse(&message), Ok(Message::Datagram { .. }));
            if !is_datagram || self.unread.len() < UNREAD_MAX {
                self.unread.push_back(message);
            }
        }
        while let Some(message) = self.unread.front() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.node, message, flags) {
                Ok(_) => _ = self.unread.pop_front(),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => break,
                // The node has ended. The next turn will find the end of its messages.
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {
                    self.unread.clear();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
