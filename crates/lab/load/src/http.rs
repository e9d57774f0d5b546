//! HTTP/1.1 over persistent connections on one epoll instance. Each operation takes two system
//! calls, a write and a read. Answers are read and discarded; only their length, status and
//! `Server-Timing` are kept.

mod answer;
mod connection;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use self::connection::{Connection, OperationState};
use crate::poller::{Poller, Ready};
use crate::{Done, Failure, Mark, Nanos, Outcome, Request, Target, Wire, clock};

const READ_BYTES: usize = 64 << 10;

/// The clients of one thread.
pub struct HttpWire {
    poller: Poller,
    address: SocketAddr,
    /// The whole request. It is the same for every operation.
    request: Vec<u8>,
    /// Whether a request may be sent again if its persistent connection turns out to be closed (RFC
    /// 9110, 9.2.2).
    is_idempotent: bool,
    is_head: bool,
    connections: Vec<Connection>,
    buffer: Box<[u8]>,
    /// Operations that failed as soon as they began.
    early: VecDeque<Done>,
    reconnects: u64,
}

impl HttpWire {
    /// Creates clients, each of which connects with its first operation.
    ///
    /// # Errors
    /// Fails if the machine has no event queue left.
    pub fn new(
        target: &Target,
        address: SocketAddr,
        request: &Request,
        clients: usize,
    ) -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            address,
            request: encode(target, request),
            is_idempotent: !matches!(request.method.as_str(), "POST" | "PATCH"),
            is_head: request.method == "HEAD",
            connections: (0..clients).map(|_| Connection::default()).collect(),
            buffer: vec![0; READ_BYTES].into(),
            early: VecDeque::new(),
            reconnects: 0,
        })
    }

    fn connect(&mut self, client: usize) -> OperationState {
        let connection = &mut self.connections[client];
        let generation = connection.open(self.address);
        let added = generation.and_then(|(socket, generation)| {
            let token = client as u64 | u64::from(generation) << 32;
            self.poller.add(socket, token, connection::INTEREST)
        });
        match added {
            // The first event of the connection reports that it is established.
            Ok(()) => OperationState::Waits,
            Err(_) => {
                connection.close();
                OperationState::Over(Outcome::Failed(Failure::Connect))
            }
        }
    }

    fn on_ready(&mut self, ready: Ready) -> Option<Done> {
        let client = (ready.token & u64::from(u32::MAX)) as usize;
        let connection = &mut self.connections[client];
        if u64::from(connection.generation()) != ready.token >> 32 {
            return None;
        }
        let step = connection.on_ready(ready.flags, &self.request, &mut self.buffer, self.is_head);
        let step = self.again_if_stale(client, step);
        match step {
            OperationState::Waits => None,
            OperationState::Over(outcome) => Some(Done { client, at: clock::now(), outcome }),
            OperationState::Stale => unreachable!("a stale connection was opened anew"),
        }
    }

    /// Begins an operation again on a new connection if its persistent connection was closed. A
    /// server may close a persistent connection at any time, so this is not a failure of the
    /// operation that detects it.
    fn again_if_stale(&mut self, client: usize, step: OperationState) -> OperationState {
        if !matches!(step, OperationState::Stale) {
            return step;
        }
        self.connections[client].close();
        if !self.is_idempotent {
            return OperationState::Over(Outcome::Failed(Failure::Broken));
        }
        self.reconnects += 1;
        self.connect(client)
    }
}

impl Wire for HttpWire {
    fn now(&mut self) -> Nanos {
        clock::now()
    }

    fn begin(&mut self, client: usize) {
        let step = if self.connections[client].is_open() {
            let step = self.connections[client].send(&self.request, self.is_head);
            self.again_if_stale(client, step)
        } else {
            self.connect(client)
        };
        if let OperationState::Over(outcome) = step {
            self.early.push_back(Done { client, at: clock::now(), outcome });
        }
    }

    fn give_up(&mut self, client: usize) {
        // The answer may still arrive, and the next operation must not read it.
        self.connections[client].close();
        self.early.retain(|done| done.client != client);
    }

    fn next(&mut self, until: Nanos) -> io::Result<Option<Done>> {
        if let Some(done) = self.early.pop_front() {
            return Ok(Some(done));
        }
        while let Some(ready) = self.poller.next(until)? {
            if let Some(done) = self.on_ready(ready) {
                return Ok(Some(done));
            }
        }
        Ok(None)
    }

    fn mark(&mut self) -> Mark {
        Mark { cpu: clock::thread_cpu(), machine: clock::machine_ticks() }
    }

    fn repeats(&self) -> u64 {
        self.reconnects
    }
}

/// The request as it is sent. The user's fields take precedence over fields that are added here.
fn encode(target: &Target, request: &Request) -> Vec<u8> {
    let mut text = format!("{} {} HTTP/1.1\r\n", request.method, target.path);
    let has = |name: &str| request.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
    if !has("host") {
        text.push_str(&format!("host: {}\r\n", target.authority));
    }
    for (name, value) in &request.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    let has_body = !request.body.is_empty() || matches!(request.method.as_str(), "POST" | "PUT");
    if has_body && !has("content-length") {
        text.push_str(&format!("content-length: {}\r\n", request.body.len()));
    }
    text.push_str("\r\n");
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(&request.body);
    bytes
}
