//! CoAP over TCP and TLS (RFC 8323). Each connection has its own task and its own [`Server`].
//!
//! The server is the same as for datagrams, because the requests and answers are the same. This
//! file adds the features of connections: messages with a length, signals, and peers that may stop
//! reading. Nothing is read from a connection while many of its requests or answers are in
//! progress.

use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use mote_core::Invoker;
use mote_core::seats::{Seat, Seats, Standing};
use mote_core::shares::{Share, Shares, address_owner};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cutting::Frame;
use super::exchange_io::{Alarm, STOP_GRACE, finished, run};
use super::ids::now_ns;
use super::runs::Runs;
use super::sender::Clients;
use super::server::{Config, Server};
use super::stream::{self, BASE_MESSAGE_BYTES, Broken, Signal};
use super::stream_tls::{self, Socket, StreamTls};

/// Limits of the connections.
#[derive(Debug, Clone)]
pub struct StreamConfig {
    /// The most open connections. A further connection takes the place of an idle one, from the
    /// address with the most idle connections.
    pub connections_max: usize,
    /// The most open connections of one address. A further one takes the place of another one from
    /// this address.
    pub connections_per_address_max: usize,
    /// The most bytes that all connections together hold in messages, bodies in blocks and answers.
    /// One address may use half of them.
    pub bytes_max: usize,
    /// The time limit in nanoseconds for the first message, which says what the peer can do. A TLS
    /// handshake before it has the same limit.
    pub first_ns: u64,
    /// The time limit in nanoseconds for completing a message that has begun to arrive, and for the
    /// peer to read something of what was sent to it.
    pub progress_ns: u64,
    /// After this many nanoseconds without a message, the node pings the peer.
    pub silence_ns: u64,
    /// Set if the connections use TLS.
    pub tls: Option<StreamTls>,
}

impl Default for StreamConfig {
    fn default() -> Self {
        Self {
            connections_max: 512,
            connections_per_address_max: 256,
            bytes_max: 64 << 20,
            first_ns: 10_000_000_000,
            progress_ns: 30_000_000_000,
            // Shorter than the time after which most routers forget an idle connection.
            silence_ns: 240_000_000_000,
            tls: None,
        }
    }
}

/// How long a stopping node continues to read a connection after it has sent Release. The peer may
/// have sent requests before it received the Release, and it closes the connection once they are
/// answered (RFC 8323, 5.5).
const RELEASE_GRACE: Duration = Duration::from_secs(1);
/// The number of requests of one connection that may run at once. The next request is read when one
/// has ended.
const RUNNING_MAX: usize = 16;
/// The number of connections that may still be open after others have received their seats.
const LEAVING_MAX: usize = 16;
/// While this many bytes wait to be written, nothing is read and no notification is sent.
const UNSENT_MAX: usize = 64 << 10;
/// The largest message that is sent, even if the peer reads larger ones.
const SENT_MESSAGE_MAX: usize = 256 << 10;
const READ_BYTES: usize = 16 << 10;
const MESSAGES_PER_TURN: u32 = mote_core::turn::TURN_ITEMS_MAX;
/// The unit in which the bytes of connections are counted.
pub(crate) const UNIT_BYTES: usize = 16 << 10;
/// The most bytes of answers and bodies in blocks that one connection keeps.
const ANSWERS_BYTES_MAX: usize = 4 << 20;

/// Accepts connections until `stop` becomes true. Returns when the last connection has ended.
pub async fn serve_stream<I: Invoker>(
    listener: TcpListener,
    invoker: I,
    (config, streams): (Config, StreamConfig),
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(streams.connections_max + LEAVING_MAX));
    let all = streams.connections_max;
    let each = streams.connections_per_address_max;
    // An eighth of the seats is reserved for callers who have proved their identity.
    let seats: Seats<IpAddr> = Seats::with_reserve(all, each, all / 8);
    let bytes = Shares::new(streams.bytes_max / UNIT_BYTES, streams.bytes_max / UNIT_BYTES / 2);
    // A connection is not read while it has [`RUNNING_MAX`] running requests. The server's limit is
    // higher, so its shares for functions and addresses never apply.
    let running_max = 4 * RUNNING_MAX;
    let answers_bytes_max = ANSWERS_BYTES_MAX;
    let config = Config { running_max, answers_bytes_max, ..config };
    let mut connections = JoinSet::new();
    let stopping = stop.clone();
    let mut stopped = pin!(stop.wait_for(|stop| *stop));
    loop {
        // While no place is free, further connections wait in the kernel.
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            biased;
            _ = &mut stopped => break,
            accepted = accepted => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let (Ok((socket, peer)), Ok(place)) = (accepted, place) else {
            // Either the process has no free file descriptors, or the client has already
            // disconnected. Measurements show that a pause keeps this loop from becoming a busy
            // loop.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        // If no seat is free, because all connections are in use, the new connection is closed.
        let Ok(seat) = seats.take(address_owner(peer.ip())) else { continue };
        let _ = socket.set_nodelay(true);
        let config = config.clone();
        let streams = streams.clone();
        let bytes = bytes.clone();
        let invoker = invoker.clone();
        let stop = stopping.clone();
        let seat = Arc::new(seat);
        let ended = seat.ended();
        let serving = async move {
            let time_max = Duration::from_nanos(streams.first_ns);
            let tls = streams.tls.clone();
            let opened = stream_tls::open(socket, peer, tls, &bytes, time_max, &stop);
            if let Some((socket, clients)) = opened.await {
                if matches!(clients, Clients::Certified(_)) {
                    let _ = seat.prove(Standing::Proven);
                }
                let answer_bytes_max = config.answer_bytes_max;
                let mut server = Server::new(invoker.clone(), config);
                server.clients = clients;
                let connection = Connection {
                    server,
                    socket,
                    peer,
                    seat,
                    is_used: false,
                    config: streams,
                    bytes,
                    held: None,
                    input: Vec::new(),
                    output: Vec::new(),
                    written: 0,
                    is_flushed: true,
                    times: Times::at(now_ns()),
                    state: State::Greeting,
                };
                connection.serve(invoker, answer_bytes_max, stop).await;
            }
        };
        connections.spawn(async move {
            tokio::select! {
                biased;
                () = serving => {}
                () = ended => tracing::debug!(%peer, "CoAP connection ended: others needed its place"),
            }
            drop(place);
        });
    }
    while connections.join_next().await.is_some() {}
    Ok(())
}

/// The stage of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The peer has not yet said what it can do.
    Greeting,
    Open,
    /// Nothing more is read, but running answers are still sent.
    Ending,
    /// The remaining bytes are written, and then the connection is closed.
    Broken,
}

/// When each event last happened, in monotonic nanoseconds.
struct Times {
    begun: u64,
    /// The last complete message.
    message: u64,
    /// When the message that is still incomplete began to arrive.
    partial: Option<u64>,
    /// When the peer last read something. `None` while nothing waits to be written.
    unsent: Option<u64>,
    /// When the peer was pinged, if it has not answered yet.
    pinged: Option<u64>,
}

impl Times {
    fn at(now: u64) -> Self {
        Self { begun: now, message: now, partial: None, unsent: None, pinged: None }
    }
}

struct Connection<I: Invoker> {
    server: Server<I>,
    socket: Socket,
    peer: SocketAddr,
    seat: Arc<Seat<IpAddr>>,
    /// Whether requests are running, so that the seat counts as used.
    is_used: bool,
    config: StreamConfig,
    bytes: Shares<IpAddr>,
    held: Option<Share<IpAddr>>,
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
    /// Whether the kernel has taken all written bytes. TLS may still hold some back.
    is_flushed: bool,
    times: Times,
    state: State,
}

impl<I: Invoker> Connection<I> {
    async fn serve(mut self, invoker: I, answer_bytes_max: u64, mut stop: watch::Receiver<bool>) {
        self.server.frame = Frame::Stream { bytes_max: BASE_MESSAGE_BYTES, bert: false };
        stream::put_capabilities(&mut self.output);
        let mut runs = Runs::new();
        let mut alarm = Alarm::default();
        let mut stopped = pin!(stop.wait_for(|stop| *stop));
        let mut stopping = false;
        let mut grace = pin!(tokio::time::sleep(Duration::ZERO));
        let mut release = pin!(tokio::time::sleep(Duration::ZERO));
        let turn = poll_fn(|cx| {
            if !stopping && stopped.as_mut().poll(cx).is_ready() {
                stopping = true;
                let now = Instant::now();
                grace.as_mut().reset(now + STOP_GRACE);
                release.as_mut().reset(now + RELEASE_GRACE);
                stream::put_release(&mut self.output);
            }
            if stopping && self.state.is_read() && release.as_mut().poll(cx).is_ready() {
                self.state = State::Ending;
            }
            let now = now_ns();
            runs.poll(cx, |id, result| self.server.finish(id, finished(result), now));
            let more = self.read(cx, now);
            let was_blocked = !self.has_room();
            if !self.use_seat() {
                return Poll::Ready(());
            }
            let mut works = std::mem::take(&mut self.server.work);
            for work in works.drain(..) {
                let id = work.id;
                let begun = runs.begin(id, run(&invoker, work, answer_bytes_max));
                if let Poll::Ready(result) = begun {
                    self.server.finish(id, finished(result), now_ns());
                }
            }
            self.server.work = works;
            self.server.time_passed(now);
            self.server.out.take_bytes(&mut self.output);
            let mut more_notices = false;
            if self.server.observers.is_some() && self.unsent() < UNSENT_MAX {
                more_notices = self.server.notify_changed(cx, now);
                self.server.out.take_bytes(&mut self.output);
            }
            self.count_bytes();
            if self.write(cx, now).is_err() {
                return Poll::Ready(());
            }
            if stopping && grace.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            while alarm.poll_ring(cx, Some(self.due())).is_ready() {
                let now = now_ns();
                if self.due() <= now && self.late(now) || self.write(cx, now).is_err() {
                    return Poll::Ready(());
                }
            }
            let written = self.unsent() == 0 && self.is_flushed;
            let is_over = match self.state {
                State::Broken => written,
                State::Ending => written && self.server.running() == 0,
                State::Greeting | State::Open => false,
            };
            if is_over {
                return Poll::Ready(());
            }
            // Work that has ended in this turn, or bytes that were written in it, may have made
            // room to read and to notify.
            if more || more_notices || (was_blocked && self.has_room()) {
                let _ = pin!(tokio::task::yield_now()).poll(cx);
            }
            Poll::Pending
        });
        tokio::task::coop::unconstrained(turn).await;
        // With TLS, this tells the client that the connection ends. The call does not wait for the
        // client.
        let closing = poll_fn(|cx| Poll::Ready(Pin::new(&mut self.socket).poll_shutdown(cx)));
        let _ = closing.await;
        tracing::debug!(peer = %self.peer, counters = ?self.server.counters(), "CoAP connection ended");
    }

    /// Tells the seat whether requests are running and what their senders have proved. Returns
    /// `false` if the seat has ended, so that nothing may begin.
    fn use_seat(&mut self) -> bool {
        if std::mem::take(&mut self.server.has_proof) {
            let _ = self.seat.prove(Standing::Proven);
        }
        let is_used = self.server.running() > 0;
        if is_used && self.seat.prove(Standing::Anonymous).is_err() {
            stream::put_abort(&mut self.output, None, "too many connections, and all are used");
            self.state = State::Broken;
            self.server.work.clear();
        }
        match (std::mem::replace(&mut self.is_used, is_used), is_used) {
            (false, true) => self.seat.begin_work(),
            (true, false) => {
                self.seat.end_work();
                true
            }
            _ => true,
        }
    }

    fn unsent(&self) -> usize {
        self.output.len() - self.written
    }

    /// Whether there is room for a further message.
    fn has_room(&self) -> bool {
        self.state.is_read()
            && self.server.running() < RUNNING_MAX
            && self.unsent() + self.server.out.len() < UNSENT_MAX
    }

    /// Takes messages that have arrived. Returns `true` if it stopped only to let other tasks run.
    fn read(&mut self, cx: &mut Context<'_>, now_ns: u64) -> bool {
        let mut taken = 0;
        while self.has_room() {
            if taken == MESSAGES_PER_TURN {
                return true;
            }
            match self.take_message(now_ns) {
                Ok(true) => {
                    taken += 1;
                    continue;
                }
                Ok(false) => {}
                Err(broken) => {
                    self.abort(broken);
                    return false;
                }
            }
            let start = self.input.len();
            self.input.resize(start + READ_BYTES, 0);
            let mut buffer = ReadBuf::new(&mut self.input[start..]);
            let result = Pin::new(&mut self.socket).poll_read(cx, &mut buffer);
            let length = buffer.filled().len();
            self.input.truncate(start + length);
            match result {
                Poll::Pending => break,
                Poll::Ready(Ok(())) if length > 0 => {}
                // The peer has disconnected, so the answers in progress have no reader.
                Poll::Ready(_) => {
                    self.state = State::Broken;
                    (self.written, self.output) = (0, Vec::new());
                    return false;
                }
            }
        }
        // An idle connection keeps no buffer.
        if self.input.is_empty() {
            self.input = Vec::new();
        }
        match self.input.is_empty() || !self.has_room() {
            true => self.times.partial = None,
            false => _ = self.times.partial.get_or_insert(now_ns),
        }
        false
    }

    /// Takes the first message of the input. Returns `false` if the message is not complete.
    fn take_message(&mut self, now_ns: u64) -> Result<bool, Broken> {
        let input = std::mem::take(&mut self.input);
        let result = self.message(&input, now_ns);
        self.input = input;
        let Some(used) = result? else { return Ok(false) };
        self.input.drain(..used);
        self.times.message = now_ns;
        self.times.partial = None;
        self.times.pinged = None;
        Ok(true)
    }

    fn message(&mut self, input: &[u8], now_ns: u64) -> Result<Option<usize>, Broken> {
        let Some((message, used)) = stream::parse(input)? else { return Ok(None) };
        match message.code {
            (7, _) => self.signal(stream::signal(&message)?, message.token),
            // The first message must say what the peer can do (RFC 8323, 5.3).
            _ if self.state == State::Greeting => return Err(Broken::NoCapabilities),
            // An empty message only keeps the connection open. An answer was not requested and is
            // ignored.
            (0, 0) | (2..=5, _) => {}
            (0, _) => self
                .server
                .stream_request(self.peer, &message, now_ns)
                .map_err(|_| Broken::Request)?,
            _ => return Err(Broken::Class),
        }
        Ok(Some(used))
    }

    fn signal(&mut self, signal: Signal, token: &[u8]) {
        match signal {
            Signal::Capabilities { message_bytes_max, blocks } => {
                let Frame::Stream { bytes_max, bert } = self.server.frame else { return };
                let announced = message_bytes_max.map(|bytes| bytes as usize);
                let bytes_max = announced.unwrap_or(bytes_max).min(SENT_MESSAGE_MAX);
                let bert = (bert || blocks) && bytes_max > BASE_MESSAGE_BYTES;
                self.server.frame = Frame::Stream { bytes_max, bert };
                self.state = State::Open;
            }
            Signal::Ping => stream::put_pong(&mut self.output, token),
            Signal::Pong | Signal::Unknown => {}
            Signal::Release => self.state = State::Ending,
            Signal::Abort => self.state = State::Broken,
        }
    }

    fn abort(&mut self, broken: Broken) {
        stream::put_abort(&mut self.output, broken.option(), broken.text());
        self.state = State::Broken;
    }

    /// Counts the bytes that the connection holds. If there is no room for them, the connection
    /// ends.
    fn count_bytes(&mut self) {
        let bytes = self.input.capacity() + self.output.capacity() + self.server.held_bytes();
        let units = bytes / UNIT_BYTES;
        let have = self.held.as_ref().map_or(0, Share::pieces);
        if units == have {
            return;
        }
        let owner = address_owner(self.peer.ip());
        // The old share is given back first, so that the connection never needs both shares at
        // once.
        self.held = None;
        match self.bytes.take(owner, units) {
            Ok(share) => self.held = Some(share),
            Err(_) if self.state != State::Broken => self.abort(Broken::Full),
            Err(_) => {}
        }
    }

    fn write(&mut self, cx: &mut Context<'_>, now_ns: u64) -> io::Result<()> {
        while self.written < self.output.len() {
            let bytes = &self.output[self.written..];
            match Pin::new(&mut self.socket).poll_write(cx, bytes) {
                Poll::Pending => {
                    self.times.unsent.get_or_insert(now_ns);
                    return Ok(());
                }
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(written)) => {
                    self.written += written;
                    self.is_flushed = false;
                    self.times.unsent = None;
                }
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        if !self.is_flushed {
            match Pin::new(&mut self.socket).poll_flush(cx)? {
                Poll::Ready(()) => (self.is_flushed, self.times.unsent) = (true, None),
                Poll::Pending => _ = self.times.unsent.get_or_insert(now_ns),
            }
        }
        self.written = 0;
        match self.output.capacity() > READ_BYTES {
            true => self.output = Vec::new(),
            false => self.output.clear(),
        }
        Ok(())
    }

    /// When [`Connection::late`] is next due.
    fn due(&self) -> u64 {
        let config = &self.config;
        let greeting = (self.state == State::Greeting).then(|| self.times.begun + config.first_ns);
        let partial = self.times.partial.map(|since| since + config.progress_ns);
        let unsent = self.times.unsent.map(|since| since + config.progress_ns);
        let silence = match self.times.pinged {
            Some(pinged) => pinged + config.progress_ns,
            None => self.times.message + config.silence_ns,
        };
        [greeting, partial, unsent].into_iter().flatten().fold(silence, u64::min)
    }

    /// Pings a silent peer. Returns `true` if the connection has to end because the peer is late.
    fn late(&mut self, now_ns: u64) -> bool {
        let is_silent = self.times.pinged.is_none()
            && self.state == State::Open
            && self.times.message + self.config.silence_ns <= now_ns;
        if !is_silent {
            return true;
        }
        stream::put_ping(&mut self.output);
        self.times.pinged = Some(now_ns);
        false
    }
}

impl State {
    /// Whether messages from the peer are still read.
    fn is_read(self) -> bool {
        matches!(self, State::Greeting | State::Open)
    }
}
