//! One HTTP/1.1 connection: reads a head, runs the invocation, writes the answer, again.
//!
//! An idle connection holds no buffer: bytes are read into one scratch buffer per thread and only
//! copied. There is one timer per connection; moving its deadline costs nothing until it fires.

use std::cell::RefCell;
use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use mote_core::body::Body;
use mote_core::gathering::NotGathered;
use mote_core::invocation::{Head, headers};
use mote_core::rollout::sticky_key;
use mote_core::turn::Turn;
use mote_core::wire::INLINE_BODY_BYTES_MAX;
use mote_core::{Fault, Invocation, Invoker, Reply, RouteInfo, Trigger};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, Sleep};

use super::answer::{self, After};
use super::chunked::{Chunked, Step};
use super::head::{self, Framing, RequestHead, no_such_function};
use super::listener::Front;
use super::request_body::Fed;
use super::{h2, request_body};
use crate::ids::{invocation_id, now_ns};
use crate::refusal::Refusal;

/// Bytes read at once.
const SCRATCH_BYTES: usize = 64 << 10;
/// Bytes of following requests kept while one is served.
const AHEAD_BYTES_MAX: usize = 64 << 10;
/// Requests with equal values go to the same revision while traffic is split.
/// Items of a turn that a request costs: parsing it and answering it take about twice as long as a
/// frame does.
const REQUEST_ITEMS: u32 = 2;
const SPLIT_KEY: &[u8] = b"mote-split-key";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of an unread body that are read and dropped to keep the connection, and no more.
pub(crate) const LINGER_BYTES_MAX: usize = 64 << 10;
/// Requests in a row that one connection may send without a single invocation: unknown functions,
/// methods that a function does not take. The answer to the last of them closes the connection. A
/// client that mixes them with invocations never gets there, and one that does connects again.
pub const REFUSALS_IN_A_ROW_MAX: u32 = 100;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_BYTES].into_boxed_slice());
}

/// Why reading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadEnd {
    /// The client closed, or the socket failed.
    Gone,
    /// The phase took too long.
    TimedOut,
    /// The node is stopping, and the connection is idle or has had its grace.
    Stopping,
}

/// The reading side: bytes not yet served, and the timer of the current phase.
pub(crate) struct Input {
    pub(crate) bytes: BytesMut,
    timer: Pin<Box<Sleep>>,
    deadline: Instant,
    stopped: Pin<Box<OwnedNotified>>,
    /// A request is on its way and no invocation has begun for it, so a node that stops gives it up
    /// `arrival_grace` later, at `arrive_by`.
    arriving: bool,
    arrival_grace: Duration,
    arrive_by: Option<Instant>,
    /// What this connection may still do before it lets others run.
    turn: Turn,
    /// Requests since the last invocation; see [`REFUSALS_IN_A_ROW_MAX`].
    refusals: u32,
}

impl Input {
    /// Charges what was handled, and lets others run when the turn is over. A client that sends
    /// faster than it is served would keep the thread otherwise: none of the awaits on its path
    /// has to wait.
    pub(crate) async fn charge(&mut self, items: u32, bytes: usize) {
        self.turn.charge(items, bytes);
        if self.turn.is_over() {
            self.turn = Turn::new();
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn set_deadline(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let by = self.arrive_by.filter(|_| self.arriving);
        self.deadline = by.map_or(deadline, |by| by.min(deadline));
    }

    /// Reads more. Ends early when the phase is over or, with `idle`, when the node stops.
    pub(crate) async fn fill(
        &mut self,
        socket: &mut ReadHalf<'_>,
        idle: bool,
    ) -> Result<(), ReadEnd> {
        std::future::poll_fn(|cx| self.poll_fill(socket, idle, cx)).await
    }

    fn poll_fill(
        &mut self,
        socket: &mut ReadHalf<'_>,
        idle: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ReadEnd>> {
        if let Poll::Ready(result) = poll_read(&mut self.bytes, socket, cx) {
            return Poll::Ready(result);
        }
        self.poll_waiting(idle, cx).map(Err)
    }

    /// The first bytes of a request. A head that arrives whole, as nearly all do, is parsed where
    /// it was read and never copied; otherwise what came is kept and `None` returned.
    async fn first(
        &mut self,
        socket: &mut ReadHalf<'_>,
    ) -> Result<Option<Result<RequestHead, Refusal>>, ReadEnd> {
        std::future::poll_fn(|cx| {
            let bytes = &mut self.bytes;
            let read = poll_read_with(socket, cx, |read| {
                if let Ok(Some(end)) = head::find_end(read, 0)
                    && !read.starts_with(b"\r\n")
                {
                    bytes.extend_from_slice(&read[end..]);
                    return Some(head::parse(&read[..end]));
                }
                bytes.extend_from_slice(read);
                None
            });
            if let Poll::Ready(result) = read {
                return Poll::Ready(result);
            }
            self.poll_waiting(true, cx).map(Err)
        })
        .await
    }

    /// Ready when waiting for bytes must end.
    fn poll_waiting(&mut self, idle: bool, cx: &mut Context<'_>) -> Poll<ReadEnd> {
        while self.timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= self.deadline {
                let late = self.arriving && self.arrive_by.is_some_and(|by| by <= self.deadline);
                return Poll::Ready(if late { ReadEnd::Stopping } else { ReadEnd::TimedOut });
            }
            let deadline = self.deadline;
            self.timer.as_mut().reset(deadline);
        }
        if idle && self.stopped.as_mut().poll(cx).is_ready() {
            return Poll::Ready(ReadEnd::Stopping);
        }
        if self.arriving && self.arrive_by.is_none() && self.stopped.as_mut().poll(cx).is_ready() {
            let by = Instant::now() + self.arrival_grace;
            self.arrive_by = Some(by);
            self.deadline = self.deadline.min(by);
        }
        // The timer fires at its old, earlier time at the worst, and is moved then; a deadline
        // before it must move it now.
        if self.deadline < self.timer.deadline() {
            let deadline = self.deadline;
            self.timer.as_mut().reset(deadline);
            let _ = self.timer.as_mut().poll(cx);
        }
        Poll::Pending
    }
}

fn poll_read(
    bytes: &mut BytesMut,
    socket: &mut ReadHalf<'_>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), ReadEnd>> {
    poll_read_with(socket, cx, |read| bytes.extend_from_slice(read))
}

/// Reads into the thread's scratch buffer and lets `take` have what came.
fn poll_read_with<T>(
    socket: &mut ReadHalf<'_>,
    cx: &mut Context<'_>,
    take: impl FnOnce(&[u8]) -> T,
) -> Poll<Result<T, ReadEnd>> {
    SCRATCH.with_borrow_mut(|scratch| {
        let mut buffer = ReadBuf::new(scratch);
        match Pin::new(socket).poll_read(cx, &mut buffer) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                Poll::Ready(Ok(take(buffer.filled())))
            }
            Poll::Ready(_) => Poll::Ready(Err(ReadEnd::Gone)),
        }
    })
}

/// Serves one connection of `owner` to its end.
pub(crate) async fn serve<I: Invoker>(mut stream: TcpStream, owner: IpAddr, front: &Front<I>) {
    let mut input = Input {
        bytes: BytesMut::new(),
        timer: Box::pin(tokio::time::sleep(front.config.head_timeout)),
        deadline: Instant::now(),
        stopped: Box::pin(front.stopper.notified()),
        arriving: true,
        arrival_grace: front.config.arrival_grace,
        arrive_by: None,
        turn: Turn::new(),
        refusals: 0,
    };
    let is_h2 = {
        let (mut reader, _) = stream.split();
        input.set_deadline(front.config.head_timeout);
        loop {
            let seen = input.bytes.len().min(PREFACE.len());
            if input.bytes[..seen] != PREFACE[..seen] {
                break false;
            }
            if seen == PREFACE.len() {
                break true;
            }
            if input.fill(&mut reader, true).await.is_err() {
                if input.bytes.is_empty() {
                    return;
                }
                break false;
            }
        }
    };
    if is_h2 {
        h2::serve(stream, input.bytes.freeze(), owner, front).await;
        return;
    }
    let (mut reader, mut writer) = stream.split();
    let linger = loop {
        match serve_one(&mut input, &mut reader, &mut writer, owner, front).await {
            After::KeepAlive => {
                input.charge(REQUEST_ITEMS, 0).await;
                if input.bytes.is_empty() {
                    // An idle connection holds no buffer.
                    input.bytes = BytesMut::new();
                }
            }
            After::Close => break false,
            After::CloseUnread => break true,
        }
    };
    let _ = writer.shutdown().await;
    if linger {
        // Bytes the client has sent and we have not read would make the kernel reset the
        // connection and the client lose our answer; read some of them first, also in a stop.
        input.arriving = false;
        input.set_deadline(Duration::from_secs(1));
        let mut seen = 0;
        while seen < LINGER_BYTES_MAX && input.fill(&mut reader, false).await.is_ok() {
            seen += input.bytes.len();
            input.bytes.clear();
        }
    }
}

/// Serves one request.
async fn serve_one<I: Invoker>(
    input: &mut Input,
    reader: &mut ReadHalf<'_>,
    writer: &mut WriteHalf<'_>,
    owner: IpAddr,
    front: &Front<I>,
) -> After {
    input.arriving = true;
    let request = match read_head(input, reader, front).await {
        Ok(Some(request)) => request,
        Ok(None) => return After::Close,
        Err(refusal) => {
            let _ = answer::refuse(writer, &front.config, &refusal, None, false, false).await;
            return After::CloseUnread;
        }
    };
    let received_ns = now_ns();
    if request.wants_upgrade && request.framing == Framing::None && !input.bytes.is_empty() {
        let refusal = Refusal::new(400, "M1020", "data before the upgrade was accepted");
        let _ = answer::refuse(writer, &front.config, &refusal, None, false, false).await;
        return After::CloseUnread;
    }
    let is_head = request.head.method() == b"HEAD";
    let route = match find_route(&front.invoker, &request.name, &request.head) {
        Ok(route) => route,
        Err(refusal) => {
            input.refusals += 1;
            let keep = request.keep_alive
                && request.framing == Framing::None
                && input.refusals < REFUSALS_IN_A_ROW_MAX;
            let written =
                answer::refuse(writer, &front.config, &refusal, None, is_head, keep).await;
            return after(written, keep);
        }
    };
    let limit = route.body_bytes_max();
    if let Framing::Length(length) = request.framing
        && length > limit
    {
        let fault = Fault::BodyTooLarge { limit_bytes: limit };
        let refusal = Refusal::of_fault(&fault, &request.name);
        let _ = answer::refuse(writer, &front.config, &refusal, None, is_head, false).await;
        return After::CloseUnread;
    }
    if request.expects_continue
        && request.framing != Framing::None
        && answer::write_all(writer, &front.config, b"HTTP/1.1 100 Continue\r\n\r\n").await.is_err()
    {
        return After::Close;
    }
    input.refusals = 0;
    let mut exchange = Exchange { front, route, request, received_ns, is_head, owner };
    match exchange.whole_body(input, reader, limit).await {
        Ok(Some(body)) => {
            if !matches!(body, Body::Empty) {
                // A slow client does not use up the function's time.
                exchange.received_ns = now_ns();
            }
            exchange.run_whole(body, input, reader, writer).await
        }
        Ok(None) => {
            input.arriving = false;
            exchange.run_streaming(input, reader, writer, limit).await
        }
        Err(refusal) => {
            let _ = answer::refuse(writer, &front.config, &refusal, None, is_head, false).await;
            After::CloseUnread
        }
    }
}

/// Reads one head; `None` when the connection ended between requests.
async fn read_head<I: Invoker>(
    input: &mut Input,
    reader: &mut ReadHalf<'_>,
    front: &Front<I>,
) -> Result<Option<RequestHead>, Refusal> {
    let mut scanned = 0;
    let mut empty_lines = 0;
    if input.bytes.is_empty() {
        input.set_deadline(front.config.keep_alive_timeout);
        match input.first(reader).await {
            Ok(Some(request)) => return request.map(Some),
            Ok(None) => {}
            Err(_) => return Ok(None),
        }
    }
    input.set_deadline(front.config.head_timeout);
    loop {
        // One empty line before a request is allowed (RFC 9112, 2.2), however its bytes arrive.
        while input.bytes.starts_with(b"\r\n") {
            input.bytes.advance(2);
            scanned = 0;
            empty_lines += 1;
            if empty_lines > 1 {
                return Err(Refusal::new(400, "M1007", "request line is empty"));
            }
        }
        if let Some(end) = head::find_end(&input.bytes, scanned)? {
            let request = head::parse(&input.bytes[..end])?;
            input.bytes.advance(end);
            return Ok(Some(request));
        }
        scanned = input.bytes.len();
        match input.fill(reader, false).await {
            Ok(()) => {}
            Err(ReadEnd::TimedOut) => {
                return Err(Refusal::new(408, "M1025", "request not received in time"));
            }
            Err(ReadEnd::Stopping) => return Err(Refusal::of_fault(&Fault::Stopping, "")),
            Err(_) => return Ok(None),
        }
    }
}

/// The function of a request, or why there is none.
pub(crate) fn find_route<I: Invoker>(
    invoker: &I,
    name: &str,
    head: &Head,
) -> Result<I::Route, Refusal> {
    let route = invoker.route(name, || split_key(head)).ok_or_else(|| no_such_function(name))?;
    let methods = route.methods();
    if methods.is_empty() || methods.iter().any(|allowed| allowed.as_bytes() == head.method()) {
        return Ok(route);
    }
    let allow = methods.join(", ");
    let mut refusal = Refusal::new(405, "M1030", format!("{allow} only"));
    refusal.allow = Some(allow);
    Err(refusal)
}

/// What keeps a caller with one of several revisions, where it gave something.
fn split_key(head: &Head) -> Option<u64> {
    let (_, value) = headers(head.headers()).find(|(name, _)| *name == SPLIT_KEY)?;
    Some(sticky_key(value))
}

fn after(written: std::io::Result<()>, keep: bool) -> After {
    match written {
        Ok(()) if keep => After::KeepAlive,
        Ok(()) => After::CloseUnread,
        Err(_) => After::Close,
    }
}

/// A request with its function.
struct Exchange<'a, I: Invoker> {
    front: &'a Front<I>,
    route: I::Route,
    request: RequestHead,
    received_ns: u64,
    is_head: bool,
    /// Who sends it.
    owner: IpAddr,
}

impl<I: Invoker> Exchange<'_, I> {
    /// The body, when it is short or already here; `None` when it must be streamed.
    async fn whole_body(
        &self,
        input: &mut Input,
        reader: &mut ReadHalf<'_>,
        limit: u64,
    ) -> Result<Option<Body>, Refusal> {
        match self.request.framing {
            Framing::None => Ok(Some(Body::Empty)),
            Framing::Length(length) if length <= INLINE_BODY_BYTES_MAX as u64 => {
                let length = length as usize;
                while input.bytes.len() < length {
                    request_body::more(input, reader, &self.front.config).await?;
                }
                let body = input.bytes.split_to(length).freeze();
                input.charge(0, length).await;
                Ok(Some(Body::whole(body)))
            }
            Framing::Length(_) => Ok(None),
            Framing::Chunked => {
                // Only what is already here, on a copy: a body that is not complete is streamed.
                if input.bytes.len() > INLINE_BODY_BYTES_MAX {
                    return Ok(None);
                }
                let mut ahead = input.bytes.clone();
                let mut decoder = Chunked::default();
                let mut body = BytesMut::new();
                loop {
                    match decoder.step(&mut ahead)? {
                        Step::NeedMore => return Ok(None),
                        Step::Data(data) => {
                            body.extend_from_slice(&data);
                            input.charge(1, data.len()).await;
                        }
                        Step::End => break,
                    }
                }
                if body.len() as u64 > limit {
                    let fault = Fault::BodyTooLarge { limit_bytes: limit };
                    return Err(Refusal::of_fault(&fault, &self.request.name));
                }
                input.bytes = ahead;
                Ok(Some(Body::whole(body.freeze())))
            }
        }
    }

    /// The invocation; takes the request's head with it.
    fn invocation(&mut self, body: Body) -> Invocation {
        Invocation {
            id: invocation_id(),
            trigger: Trigger::Http,
            head: std::mem::take(&mut self.request.head),
            body,
            received_ns: self.received_ns,
            deadline_ns: self.received_ns + self.route.timeout_ms() * 1_000_000,
        }
    }

    /// Runs an invocation whose body is complete. A client that goes away cancels it.
    async fn run_whole(
        &mut self,
        body: Body,
        input: &mut Input,
        reader: &mut ReadHalf<'_>,
        writer: &mut WriteHalf<'_>,
    ) -> After {
        let invocation = self.invocation(body);
        let id = invocation.id;
        let work = pin!(self.front.invoker.invoke(&self.route, invocation));
        let Some(result) = or_gone(work, input, reader).await else { return After::Close };
        let work = pin!(self.answer(result, id, writer, self.request.keep_alive));
        or_gone(work, input, reader).await.unwrap_or(After::Close)
    }

    /// Runs an invocation whose body is still arriving: from now on, or once it is complete where
    /// the function takes bodies whole. A client that goes away or breaks its framing cancels it.
    async fn run_streaming(
        &mut self,
        input: &mut Input,
        reader: &mut ReadHalf<'_>,
        writer: &mut WriteHalf<'_>,
        limit: u64,
    ) -> After {
        let (sender, body) = request_body::channel(match self.request.framing {
            Framing::Length(length) => Some(length),
            _ => None,
        });
        let mut invocation = self.invocation(body);
        let id = invocation.id;
        let complete = AtomicBool::new(false);
        // Ends early only when the invocation must: with `None` when the client is gone.
        let mut intake = pin!(async {
            let framing = self.request.framing;
            let config = &self.front.config;
            match request_body::feed(sender, framing, limit, input, reader, config).await {
                Ok(fed) => complete.store(fed == Fed::Complete, Ordering::Relaxed),
                Err(refusal) => return Some(refusal),
            }
            std::future::poll_fn(|cx| poll_gone(input, reader, cx)).await;
            None
        });
        let work = async {
            if self.route.takes_whole_bodies() {
                let body = std::mem::take(&mut invocation.body);
                let head_bytes = invocation.head.bytes();
                let gathered = tokio::select! {
                    biased;
                    gathered = self.front.gathering.whole(self.owner, head_bytes, body) => gathered,
                    () = self.front.stopper.given_up(self.front.config.arrival_grace) => {
                        return Err(Fault::Stopping);
                    }
                };
                match gathered {
                    Ok(body) => invocation.body = body,
                    Err(crowded @ NotGathered::Crowded) => return Err(crowded.into()),
                    // What is wrong with it is the intake's to say.
                    Err(NotGathered::Broken(_)) => std::future::pending().await,
                }
                let now = now_ns();
                invocation.deadline_ns += now - invocation.received_ns;
                invocation.received_ns = now;
            }
            self.front.invoker.invoke(&self.route, invocation).await
        };
        let ended = tokio::select! {
            biased;
            result = work => Ok(result),
            refusal = &mut intake => Err(refusal),
        };
        let result = match ended {
            Ok(result) => result,
            Err(Some(refusal)) => {
                let config = &self.front.config;
                let _ =
                    answer::refuse(writer, config, &refusal, Some(id), self.is_head, false).await;
                return After::CloseUnread;
            }
            Err(None) => return After::Close,
        };
        // What follows a body that is not read to its end cannot be told from it.
        let keep_alive = self.request.keep_alive && complete.load(Ordering::Relaxed);
        let after = tokio::select! {
            biased;
            after = self.answer(result, id, writer, keep_alive) => after,
            // Too late to say why: the answer has begun.
            _ = &mut intake => After::Close,
        };
        match after {
            After::Close if !complete.load(Ordering::Relaxed) => After::CloseUnread,
            other => other,
        }
    }

    async fn answer(
        &self,
        result: Result<Reply, Fault>,
        id: mote_core::InvocationId,
        writer: &mut WriteHalf<'_>,
        keep_alive: bool,
    ) -> After {
        let keep_alive = keep_alive && !self.front.stopper.is_stopping();
        let config = &self.front.config;
        let refusal = match result {
            Ok(reply) => {
                let form =
                    answer::Form { is_head: self.is_head, http10: self.request.http10, keep_alive };
                match answer::send(writer, config, reply, id, form).await {
                    Ok(after) => return after,
                    Err(answer::SendError::Socket) => return After::Close,
                    Err(answer::SendError::BadReply(message)) => {
                        tracing::warn!(function = %self.request.name, %id, "reply refused: {message}");
                        Refusal::of_fault(&Fault::BadReply { message }, &self.request.name)
                    }
                }
            }
            Err(fault) => Refusal::of_fault_for(&fault, &self.request.name, self.route.compat()),
        };
        let written =
            answer::refuse(writer, config, &refusal, Some(id), self.is_head, keep_alive).await;
        after(written, keep_alive)
    }
}

/// Waits for `work`; `None` when the client goes away first.
pub(crate) async fn or_gone<T>(
    mut work: Pin<&mut impl Future<Output = T>>,
    input: &mut Input,
    reader: &mut ReadHalf<'_>,
) -> Option<T> {
    std::future::poll_fn(|cx| {
        if let Poll::Ready(result) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(result));
        }
        poll_gone(input, reader, cx).map(|()| None)
    })
    .await
}

/// Ready when the client has gone away. Bytes of following requests are kept, up to a bound.
fn poll_gone(input: &mut Input, reader: &mut ReadHalf<'_>, cx: &mut Context<'_>) -> Poll<()> {
    while input.bytes.len() < AHEAD_BYTES_MAX {
        match poll_read(&mut input.bytes, reader, cx) {
            Poll::Pending => break,
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => return Poll::Ready(()),
        }
    }
    Poll::Pending
}
