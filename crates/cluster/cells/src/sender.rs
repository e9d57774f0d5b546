//! The cell that forwards: its connection to another cell, and an invocation on that connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use mote_core::body::Body;
use mote_core::elsewhere::{Later, Place, RevisionKey, Sent};
use mote_core::{Fault, Invocation, Reply};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

use crate::board::CellId;
use crate::frames::{self, Frame, Kind, Malformed, Refused, VERSION};
use crate::link::{Arriving, End, Link, News, Side};
use crate::{CellAddress, Shared, now_ns, socket};

/// First and longest pause between two attempts to connect.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A connection that ends sooner than this counts as a failed attempt.
const LASTING: Duration = Duration::from_secs(1);
/// How long connecting and the TLS handshake may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long after its deadline an invocation is given up here. The cell that runs the invocation
/// answers at the deadline, and that answer says more about what happened.
const GRACE: Duration = Duration::from_millis(50);

/// Why there is no connection to a cell.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("cannot connect: {0}")]
    Connect(std::io::Error),
    #[error("it does not answer")]
    TimedOut,
    #[error("it has another cell_key, or is not a cell")]
    OtherKey,
    #[error("cannot agree on keys: {0}")]
    Handshake(std::io::Error),
    #[error("it speaks version {0} of the protocol, and this cell version {VERSION}")]
    Version(u16),
    #[error("another cell, {0}, answers at this address")]
    Name(String),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error(transparent)]
    Ended(#[from] End),
}

/// Another cell, and the connection to it.
pub(crate) struct Peer {
    pub(crate) id: CellId,
    pub(crate) cell: CellAddress,
    state: Mutex<State>,
    retired: Notify,
}

#[derive(Default)]
struct State {
    link: Option<Arc<Link>>,
    last_error: Option<String>,
    is_retired: bool,
}

impl Peer {
    /// Connects to the cell, and connects again whenever the connection is lost.
    pub(crate) fn start(shared: &Arc<Shared>, id: CellId, cell: CellAddress) -> Arc<Self> {
        let peer = Arc::new(Self { id, cell, state: Mutex::default(), retired: Notify::new() });
        shared.runtime.spawn(keep(shared.clone(), peer.clone()));
        peer
    }

    /// Retires a cell that was removed from the list. The connection ends with the last invocation
    /// on it.
    pub(crate) fn retire(&self) {
        let mut state = self.state.lock();
        state.is_retired = true;
        if let Some(link) = &state.link {
            link.close();
        }
        drop(state);
        self.retired.notify_one();
    }

    #[cfg(test)]
    pub(crate) fn current(&self) -> Option<Arc<Link>> {
        self.state.lock().link.clone()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.state.lock().link.as_ref().map_or(0, |link| link.in_flight())
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.state.lock().last_error.clone()
    }

    fn title(&self) -> String {
        match self.cell.name.as_str() {
            "" => self.cell.address.to_string(),
            name => format!("{name} ({})", self.cell.address),
        }
    }

    /// Stores the reason why there is no connection, and logs a new reason.
    fn failed(&self, problem: &Problem) {
        let text = problem.to_string();
        let mut state = self.state.lock();
        if state.is_retired || state.last_error.as_ref() == Some(&text) {
            return;
        }
        state.last_error = Some(text.clone());
        drop(state);
        let cell = self.title();
        match problem {
            Problem::Ended(_) | Problem::Connect(_) | Problem::TimedOut => {
                tracing::warn!(%cell, "no connection to the cell: {text}");
            }
            _ => tracing::error!(%cell, "cannot forward to the cell: {text}"),
        }
    }
}

async fn keep(shared: Arc<Shared>, peer: Arc<Peer>) {
    let mut pause = PAUSE_MIN;
    loop {
        if peer.state.lock().is_retired {
            return;
        }
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connect(&shared, &peer.cell));
        let began = Instant::now();
        let problem = match connected.await {
            Ok(Ok((io, input))) => {
                let end = serve(&shared, &peer, io, input).await;
                if began.elapsed() >= LASTING {
                    pause = PAUSE_MIN;
                }
                end.into()
            }
            Ok(Err(problem)) => problem,
            Err(_) => Problem::TimedOut,
        };
        peer.failed(&problem);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = peer.retired.notified() => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn connect(
    shared: &Shared,
    cell: &CellAddress,
) -> Result<(TlsStream<TcpStream>, BytesMut), Problem> {
    let tcp = TcpStream::connect(cell.address).await.map_err(Problem::Connect)?;
    socket::prepare(&tcp);
    let handshake = |error: std::io::Error| match crate::raw_keys::is_other_key(&error) {
        true => Problem::OtherKey,
        false => Problem::Handshake(error),
    };
    let connecting = shared.key.connector().connect(crate::raw_keys::no_name(), tcp);
    let mut io = connecting.await.map_err(handshake)?;
    let mut hello = Vec::new();
    frames::put_hello(&mut hello, &shared.name.lock().clone());
    io.write_all(&hello).await.map_err(handshake)?;
    io.flush().await.map_err(handshake)?;
    let mut input = BytesMut::new();
    let frame = loop {
        if let Some(frame) = frames::split(&mut input)? {
            break frame;
        }
        if io.read_buf(&mut input).await.map_err(handshake)? == 0 {
            return Err(End::Closed.into());
        }
    };
    let (version, name) = frames::read_hello(&frame)?;
    if version != VERSION {
        return Err(Problem::Version(version));
    }
    if !name.is_empty() && !cell.name.is_empty() && name != cell.name {
        return Err(Problem::Name(name));
    }
    Ok((io, input))
}

/// Handles a connection until it ends.
async fn serve(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    io: TlsStream<TcpStream>,
    input: BytesMut,
) -> End {
    let link = Arc::new(Link::default());
    {
        let mut state = peer.state.lock();
        if state.is_retired {
            return End::Unlisted;
        }
        state.link = Some(link.clone());
        state.last_error = None;
    }
    tracing::info!(cell = %peer.title(), "connected to the cell");
    shared.board.lock().up(peer.id);
    let receive = |frame: Frame| {
        let Some(frame) = link.receive(frame)? else { return Ok(()) };
        match frame.kind {
            Kind::Load => {
                let (load, is_draining) = frames::read_load(frame.payload)?;
                let now_ns = now_ns();
                shared.board.lock().report(peer.id, load, is_draining, now_ns);
                shared.waiters.wake_each(|key| shared.board.lock().places(key, now_ns));
            }
            Kind::Refused => {
                let why = frames::read_refused(&frame.payload)?;
                link.tell(frame.stream, News::Refused(why), true);
            }
            Kind::Fault => {
                let fault = frames::read_fault(frame.payload)?;
                link.tell(frame.stream, News::Fault(fault), true);
            }
            Kind::Result => {
                // The frame contains what a function wrote. If the frame is malformed, only its own
                // invocation fails. The connection stays open, because invocations of other
                // functions use it too.
                match frames::read_result(&frame) {
                    Ok(answer) => link.tell(frame.stream, News::Answer(answer), frame.end),
                    Err(Malformed(why)) => {
                        let fault = Fault::BadReply { message: why.to_owned() };
                        link.tell(frame.stream, News::Fault(fault), true);
                    }
                }
            }
            _ => return Err(Malformed("not a frame of a cell that runs invocations")),
        }
        Ok(())
    };
    let end = link.drive(io, input, receive).await;
    shared.board.lock().down(peer.id);
    peer.state.lock().link = None;
    end
}

/// A claimed place at another cell.
pub(crate) struct Claim {
    shared: Arc<Shared>,
    cell: CellId,
    key: RevisionKey,
    /// If true, dropping the claim frees the place.
    is_held: bool,
}

impl Claim {
    pub(crate) fn new(shared: Arc<Shared>, cell: CellId, key: RevisionKey) -> Self {
        Self { shared, cell, key, is_held: true }
    }

    fn link(&self) -> Option<Arc<Link>> {
        let peers = self.shared.peers.lock();
        let peer = peers.iter().find(|peer| peer.id == self.cell)?;
        peer.state.lock().link.clone()
    }

    /// Records that the cell refused the invocation.
    fn refused(mut self, why: Refused) {
        self.is_held = false;
        self.shared.board.lock().refused(self.cell, &self.key, why, now_ns());
    }

    /// Sends a body in a separate task, because the body may take longer than the wait for the
    /// answer.
    fn pump(&self, stream: &Open, body: Body) {
        let link = stream.link.clone();
        let id = stream.id;
        self.shared.runtime.spawn(async move { link.pump(id, body).await });
    }

    async fn carry(self, mut invocation: Invocation) -> Sent {
        let Some(link) = self.link().filter(|_| frames::fits(&invocation)) else {
            self.refused(Refused::Busy);
            return Sent::Back(invocation);
        };
        let left = |now_ns| Duration::from_nanos(invocation.deadline_ns.saturating_sub(now_ns));
        // If the deadline passes during this wait, the engine answers.
        let _ = tokio::time::timeout(left(now_ns()), link.room()).await;
        let now_ns = now_ns();
        let mut is_inline = false;
        let invoked = link.invoke(|out, id| {
            is_inline = frames::put_invoke(out, id, &self.key, &invocation, now_ns);
        });
        let Some(id) = invoked else {
            self.refused(Refused::Busy);
            return Sent::Back(invocation);
        };
        let mut stream = Open { link, id, is_open: true };
        let until = Instant::now() + left(now_ns) + GRACE;
        let mut taken = false;
        loop {
            let Ok(news) = tokio::time::timeout_at(until, stream.link.news(id)).await else {
                let ns = invocation.deadline_ns.saturating_sub(invocation.received_ns);
                let fault = Fault::DeadlineRunning { timeout_ms: ns / 1_000_000 };
                return Sent::Answered(Err(fault));
            };
            let counters = &self.shared.counters;
            match news {
                News::ReadsBody if !is_inline && !taken => {
                    taken = true;
                    self.pump(&stream, std::mem::take(&mut invocation.body));
                }
                News::ReadsBody => {}
                News::Refused(why) if !taken => {
                    stream.close();
                    counters.returned.fetch_add(1, Ordering::Relaxed);
                    self.refused(why);
                    return Sent::Back(invocation);
                }
                News::Lost { unsent: true } if !taken => return Sent::Back(invocation),
                News::Lost { .. } | News::Refused(_) => {
                    let repeats = !taken && invocation.is_idempotent();
                    let counter = if repeats { &counters.repeated } else { &counters.lost };
                    counter.fetch_add(1, Ordering::Relaxed);
                    // The caller sees the same fault as for a killed worker. As far as this cell
                    // knows, the other cell was killed.
                    let fault = Fault::WorkerKilled { signal: SIGKILL, attempt: 1 };
                    return Sent::Lost((!taken).then_some(invocation), fault);
                }
                News::Fault(fault) => {
                    stream.close();
                    counters.spilled_out.fetch_add(1, Ordering::Relaxed);
                    return Sent::Answered(Err(fault));
                }
                News::Answer(answer) => {
                    counters.spilled_out.fetch_add(1, Ordering::Relaxed);
                    let phases = answer.phases(invocation.received_ns, crate::now_ns());
                    let body = match answer.streams {
                        None => {
                            stream.close();
                            Body::whole(answer.body)
                        }
                        Some(length) => {
                            if !is_inline && !taken {
                                // The other cell reads the body, if at all, while it sends the
                                // answer.
                                self.pump(&stream, std::mem::take(&mut invocation.body));
                            }
                            stream.is_open = false;
                            Arriving::body(stream.link.clone(), id, Side::Caller, length, self)
                        }
                    };
                    let status = answer.status;
                    let headers = answer.headers;
                    return Sent::Answered(Ok(Reply { status, headers, body, phases }));
                }
            }
        }
    }
}

/// The signal that the fault names when the cell that ran an invocation was lost.
const SIGKILL: i32 = 9;

impl Place for Claim {
    fn send(self: Box<Self>, invocation: Invocation) -> Later<Sent> {
        Box::pin(self.carry(invocation))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_held {
            self.shared.board.lock().release(self.cell, &self.key);
            self.shared.waiters.wake(&self.key, 1);
        }
    }
}

/// A stream whose answer has not begun. Dropping it cancels the invocation.
struct Open {
    link: Arc<Link>,
    id: u32,
    is_open: bool,
}

impl Open {
    /// Marks the stream as ended by the other cell, so that dropping it does not cancel the
    /// invocation.
    fn close(&mut self) {
        self.is_open = false;
        self.link.forget(self.id, false);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.is_open {
            self.link.forget(self.id, true);
        }
    }
}
