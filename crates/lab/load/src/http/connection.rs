//! The connection of one client.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::answer::{AnswerReader, Progress};
use crate::{Failure, Outcome};

/// The events are edge-triggered, so that a connection is registered only once.
pub(super) const INTEREST: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

pub(super) enum OperationState {
    /// The operation waits for the socket.
    Waits,
    Over(Outcome),
    /// The persistent connection was closed before any part of the answer arrived.
    Stale,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Connecting,
    /// Sending the request; the number says how many of its bytes were sent.
    Writing(usize),
    Reading,
}

pub(super) struct Connection {
    socket: Option<OwnedFd>,
    /// The generation of the socket. It identifies events of a socket that was closed in the
    /// meantime.
    generation: u32,
    state: State,
    /// Whether an operation has already ended well on this connection.
    is_kept: bool,
    reader: AnswerReader,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            socket: None,
            generation: 0,
            state: State::Idle,
            is_kept: false,
            reader: AnswerReader::default(),
        }
    }
}

impl Connection {
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    pub(super) fn is_open(&self) -> bool {
        self.socket.is_some()
    }

    /// Opens a connection and begins an operation on it.
    pub(super) fn open(&mut self, address: SocketAddr) -> io::Result<(&OwnedFd, u32)> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
        net::sockopt::set_tcp_nodelay(&socket, true)?;
        match net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        self.generation = self.generation.wrapping_add(1);
        self.state = State::Connecting;
        self.is_kept = false;
        Ok((self.socket.insert(socket), self.generation))
    }

    pub(super) fn close(&mut self) {
        self.socket = None;
        self.state = State::Idle;
        self.generation = self.generation.wrapping_add(1);
    }

    /// Begins an operation on a connection that is already open.
    pub(super) fn send(&mut self, request: &[u8], is_head: bool) -> OperationState {
        self.reader.begin(is_head);
        self.state = State::Writing(0);
        self.write(request)
    }

    /// Handles an event of the socket.
    pub(super) fn on_ready(
        &mut self,
        flags: EventFlags,
        request: &[u8],
        buffer: &mut [u8],
        is_head: bool,
    ) -> OperationState {
        let is_ended = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        match self.state {
            State::Idle => {
                // No request is under way, so the server has closed the connection or sent data
                // that no request asked for.
                if is_ended || flags.contains(EventFlags::IN) {
                    self.close();
                }
                return OperationState::Waits;
            }
            State::Connecting => {
                let Some(socket) = &self.socket else { return OperationState::Waits };
                let is_refused = !matches!(net::sockopt::socket_error(socket), Ok(Ok(())));
                if is_refused || flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                    return self.fail(Failure::Connect);
                }
                if !flags.contains(EventFlags::OUT) {
                    return OperationState::Waits;
                }
                if let OperationState::Over(outcome) = self.send(request, is_head) {
                    return OperationState::Over(outcome);
                }
            }
            State::Writing(_) => {
                if flags.contains(EventFlags::OUT)
                    && let step @ (OperationState::Over(_) | OperationState::Stale) =
                        self.write(request)
                {
                    return step;
                }
            }
            State::Reading => {}
        }
        if is_ended || flags.contains(EventFlags::IN) {
            return self.read(buffer, is_ended);
        }
        OperationState::Waits
    }

    fn write(&mut self, request: &[u8]) -> OperationState {
        let (State::Writing(mut sent), Some(socket)) = (self.state, &self.socket) else {
            return OperationState::Waits;
        };
        while sent < request.len() {
            match net::send(socket, &request[sent..], SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::AGAIN) => {
                    self.state = State::Writing(sent);
                    return OperationState::Waits;
                }
                Err(Errno::INTR) => {}
                Err(_) => return self.lost(),
            }
        }
        self.state = State::Reading;
        OperationState::Waits
    }

    fn read(&mut self, buffer: &mut [u8], is_ended: bool) -> OperationState {
        loop {
            let Some(socket) = &self.socket else { return OperationState::Waits };
            let count = match net::recv(socket, &mut *buffer, RecvFlags::empty()) {
                Ok((count, _)) => count,
                Err(Errno::AGAIN) => return OperationState::Waits,
                Err(Errno::INTR) => continue,
                Err(_) => return self.lost(),
            };
            if count == 0 {
                return match self.reader.end() {
                    Some(outcome) => {
                        self.close();
                        OperationState::Over(outcome)
                    }
                    None => self.lost(),
                };
            }
            match self.reader.push(&buffer[..count]) {
                Progress::More if count < buffer.len() && !is_ended => {
                    return OperationState::Waits;
                }
                Progress::More => {}
                Progress::Malformed => return self.fail(Failure::Malformed),
                Progress::Whole { outcome, closes } => {
                    // If a request was not sent completely, the next one cannot use its connection.
                    if closes || is_ended || self.state != State::Reading {
                        self.close();
                    } else {
                        self.state = State::Idle;
                        self.is_kept = true;
                    }
                    return OperationState::Over(outcome);
                }
            }
        }
    }

    fn lost(&mut self) -> OperationState {
        if self.is_kept && self.reader.is_untouched() {
            return OperationState::Stale;
        }
        self.fail(Failure::Broken)
    }

    fn fail(&mut self, failure: Failure) -> OperationState {
        self.close();
        OperationState::Over(Outcome::Failed(failure))
    }
}
