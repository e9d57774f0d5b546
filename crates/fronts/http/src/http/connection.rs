//! One HTTP/1.1 connection: it reads a head, runs the invocation, writes the answer, and repeats.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::gathering::NotGathered;
use bytes::{Buf, BytesMut};
use mote_core::body::Body;
use mote_core::invocation::Head;
use mote_core::seats::{Seat, Standing};
use mote_core::shares::address_owner;
use mote_core::wire::INLINE_BODY_BYTES_MAX;
use mote_core::{Fault, Invocation, Invoker, Reply, Routed, Trigger};
use tokio::io::AsyncWriteExt;

use super::answer::{self, After, RefusalForm};
use super::chunked::{ChunkEvent, Chunked};
use super::client::TlsClient;
use super::compress::Choice;
use super::front::HttpFront;
use super::head::{self, Framing, RequestHead};
use super::input::{Input, ReadEnd, Until, gone, or_ended, or_gone};
use super::logged::Logged;
use super::proxies::Proxies;
use super::request_body::Fed;
use super::route::{Asked, REFUSALS_IN_A_ROW_MAX, find_route};
use super::socket::{Reader, Socket, Writer};
use super::{files, h2, request_body, silence, websocket, websocket_messages};
use crate::added::Added;
use crate::ids::{invocation_id, now_ns};
use crate::refusal::Refusal;

/// The number of turn items that a request uses. Parsing and answering a request takes about twice
/// as long as handling a frame.
const REQUEST_ITEMS: u32 = 2;
/// How many bytes of an unread request are read and dropped after its answer, and how long this may
/// take.
const DROPPED_BYTES_MAX: usize = 16 << 20;
const DROP_PATIENCE: Duration = Duration::from_secs(10);
/// The longest pause of the client while its bytes are dropped. While the node stops, this is the
/// limit for the whole time.
const STOPPING_PATIENCE: Duration = Duration::from_secs(1);
/// How long closing the connection properly may wait for the client.
const END_TIMEOUT: Duration = Duration::from_secs(1);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Serves one connection of a client at `address` to its end. If the connection belongs to a
/// trusted proxy, `via` says how the proxy names the client of each request.
pub(crate) async fn serve<I: Invoker>(
    mut stream: Socket,
    address: IpAddr,
    via: Option<&Arc<Proxies>>,
    seat: &Arc<Seat<IpAddr>>,
    front: &HttpFront<I>,
) {
    let mut input = Input::new(&front.config, front.stopper.stopped());
    let is_h2 = {
        let (mut reader, _) = stream.split();
        // Connection pools and browsers open connections before they have a request.
        input.set_deadline(front.config.keep_alive_timeout);
        loop {
            let seen = input.bytes.len().min(PREFACE.len());
            if input.bytes[..seen] != PREFACE[..seen] {
                break false;
            }
            if seen == PREFACE.len() {
                break true;
            }
            let is_first = input.bytes.is_empty();
            if input.fill(&mut reader).await.is_err() {
                if is_first {
                    return;
                }
                break false;
            }
            if is_first {
                input.set_deadline(front.config.head_timeout);
            }
        }
    };
    if is_h2 {
        h2::serve(stream, input.bytes.freeze(), address, via.cloned(), seat, front).await;
        return;
    }
    let client = stream.client().cloned();
    let (mut reader, mut writer) = stream.split();
    let peer = Peer { address, via, client, seat };
    let linger = loop {
        let after = serve_one(&mut input, &mut reader, &mut writer, &peer, front).await;
        writer.logged = Logged::default();
        match after {
            After::KeepAlive => {
                input.charge(REQUEST_ITEMS, 0).await;
                if input.bytes.is_empty() {
                    // An idle connection keeps no buffer.
                    input.bytes = BytesMut::new();
                }
            }
            After::Close => break false,
            After::CloseUnread => break true,
            After::Broken if writer.buffers() => return,
            After::Broken => break false,
        }
    };
    // With TLS, this call blocks if the client does not read.
    let _ = tokio::time::timeout(END_TIMEOUT, writer.shutdown()).await;
    if linger {
        drop_the_rest(&mut input, &mut reader, front).await;
    }
}

/// Reads and drops what the client still sends, until the client ends its side. If the node left
/// bytes unread, the kernel would reset the connection and the client would lose the answer (RFC
/// 9112, 9.6). A stopping node waits for a shorter time.
async fn drop_the_rest<I: Invoker>(
    input: &mut Input,
    reader: &mut Reader<'_>,
    front: &HttpFront<I>,
) {
    input.arriving = false;
    let begun = Instant::now();
    let mut seen = 0;
    while seen < DROPPED_BYTES_MAX {
        let patience = if front.stopper.is_stopping() { STOPPING_PATIENCE } else { DROP_PATIENCE };
        let left = patience.saturating_sub(begun.elapsed());
        input.set_deadline(left.min(STOPPING_PATIENCE));
        if left.is_zero() || input.fill(reader).await.is_err() {
            return;
        }
        let length = input.bytes.len();
        input.bytes.clear();
        input.charge(1, length).await;
        seen += length;
    }
}

/// The other end of a connection.
struct Peer<'a> {
    address: IpAddr,
    /// How the peer, as a trusted proxy, names its clients.
    via: Option<&'a Arc<Proxies>>,
    /// What TLS reveals about the peer.
    client: Option<TlsClient>,
    /// The peer's place among the connections.
    seat: &'a Seat<IpAddr>,
}

async fn serve_one<I: Invoker>(
    input: &mut Input,
    reader: &mut Reader<'_>,
    writer: &mut Writer<'_>,
    peer: &Peer<'_>,
    front: &HttpFront<I>,
) -> After {
    input.arriving = true;
    let mut request = match read_head(input, reader, front).await {
        Ok(Some(mut request)) => {
            if let Some(client) = &peer.client {
                client.mark(&mut request.head);
            }
            request
        }
        Ok(None) => return After::Close,
        Err(refusal) => {
            let log = front.config.access_log.as_ref();
            writer.logged = Logged::unreadable(log, peer.address, "HTTP/1.1", &input.bytes);
            let _ = answer::refuse(writer, &front.config, &refusal, RefusalForm::default()).await;
            return After::CloseUnread;
        }
    };
    let received_ns = now_ns();
    let client = peer.via.and_then(|proxies| proxies.client(&request.head));
    let address = client.unwrap_or(peer.address);
    if let Some(log) = &front.config.access_log {
        let protocol = if request.http10 { "HTTP/1.0" } else { "HTTP/1.1" };
        writer.logged = Logged::new(
            Some(log),
            address,
            protocol,
            (&request.name, request.is_bare),
            &request.head,
        );
    }
    let owner = address_owner(address);
    if request.wants_upgrade && request.framing == Framing::None && !input.bytes.is_empty() {
        let refusal = early_data();
        let _ = answer::refuse(writer, &front.config, &refusal, RefusalForm::default()).await;
        return After::CloseUnread;
    }
    let is_head = request.head.method() == b"HEAD";
    let length = match request.framing {
        Framing::Length(length) => Some(length),
        Framing::None | Framing::Chunked => None,
    };
    let wants_websocket = request.wants_websocket;
    let is_bare = request.is_bare;
    let asked = Asked { from: owner, length, wants_websocket, is_bare };
    let well_known = front.config.well_known.as_ref();
    let found = find_route(&front.invoker, &mut request.name, &mut request.head, asked, well_known);
    let (route, added) = match found {
        Ok(found) => found,
        Err(refusal) => {
            if front.config.access_log.is_some()
                && front.invoker.route(&request.name, || None).is_some()
            {
                writer.logged.found(&request.name, &request.head);
            }
            input.refusals += 1;
            let keep = request.keep_alive
                && request.framing == Framing::None
                && input.refusals < REFUSALS_IN_A_ROW_MAX
                && !front.stopper.is_stopping();
            let written = answer::refuse(
                writer,
                &front.config,
                &refusal,
                RefusalForm { is_head, keep_alive: keep, ..Default::default() },
            )
            .await;
            return after(written, keep);
        }
    };
    writer.logged.found(route.info().name.as_str(), &request.head);
    let is_proven = request.head.is_admitted() && request.head.caller().is_some();
    let standing = if is_proven { Standing::Proven } else { Standing::Anonymous };
    if peer.seat.prove(standing).is_err() {
        let refusal = Refusal::no_place();
        let _ = answer::refuse(
            writer,
            &front.config,
            &refusal,
            RefusalForm { is_head, ..Default::default() },
        )
        .await;
        return After::CloseUnread;
    }
    let mut file = None;
    if request.framing == Framing::None && !request.wants_websocket {
        file = files::answer(&route, &request.head, request.is_bare).await;
    }
    let limit = route.info().body_bytes_max;
    if request.framing != Framing::None {
        request.head.give_place_back();
    }
    if request.expects_continue
        && request.framing != Framing::None
        && answer::write_all(writer, &front.config, b"HTTP/1.1 100 Continue\r\n\r\n").await.is_err()
    {
        return After::Close;
    }
    input.refusals = 0;
    let choice = Choice::of(route.info().http, &request.head);
    let seat = peer.seat;
    let mut exchange =
        Exchange { front, seat, route, request, received_ns, is_head, owner, added, choice };
    if let Some(file) = file {
        let Some(_work) = seat.begin() else { return After::Close };
        let keep_alive = exchange.request.keep_alive;
        return exchange.answer(Ok(file), invocation_id(), writer, keep_alive).await;
    }
    if exchange.request.wants_websocket && exchange.route.info().takes_websockets {
        if !exchange.route.info().takes_websocket_messages {
            return exchange.run_websocket(None, input, reader, writer).await;
        }
        // A request without a valid handshake is served like any other request.
        if let Some(accept) = websocket_messages::accept(&exchange.request.head) {
            return exchange.run_websocket(Some(accept), input, reader, writer).await;
        }
    }
    match exchange.whole_body(input, reader, limit).await {
        Ok(Some(body)) => {
            if !matches!(body, Body::Empty) {
                // The time that a slow client takes to send the request does not count against the
                // function's time limit.
                exchange.received_ns = now_ns();
            }
            exchange.run_whole(body, input, reader, writer).await
        }
        Ok(None) => {
            input.arriving = false;
            exchange.run_streaming(input, reader, writer, limit).await
        }
        Err(refusal) => {
            let refusal = refusal.with(&exchange.added);
            let _ = answer::refuse(
                writer,
                &front.config,
                &refusal,
                RefusalForm { is_head, ..Default::default() },
            )
            .await;
            After::CloseUnread
        }
    }
}

fn early_data() -> Refusal {
    Refusal::new(400, "M1020", "data before the upgrade was accepted")
}

/// Reads one head. Returns `None` if the connection ended between requests.
async fn read_head<I: Invoker>(
    input: &mut Input,
    reader: &mut Reader<'_>,
    front: &HttpFront<I>,
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
        // One empty line before a request is allowed (RFC 9112, 2.2), even if its two bytes arrive
        // separately.
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
        match input.fill(reader).await {
            Ok(()) => {}
            Err(ReadEnd::TimedOut) => {
                return Err(Refusal::new(408, "M1025", "request not received in time"));
            }
            Err(ReadEnd::Stopping) => return Err(Refusal::of_fault(&Fault::Stopping, "")),
            Err(_) => return Ok(None),
        }
    }
}

fn after(written: std::io::Result<()>, keep: bool) -> After {
    match written {
        Ok(()) if keep => After::KeepAlive,
        Ok(()) => After::CloseUnread,
        Err(_) => After::Broken,
    }
}

/// A request together with its function.
struct Exchange<'a, I: Invoker> {
    front: &'a HttpFront<I>,
    seat: &'a Seat<IpAddr>,
    route: I::Route,
    request: RequestHead,
    received_ns: u64,
    is_head: bool,
    /// The sender's address.
    owner: IpAddr,
    /// Fields that the front adds to the answers.
    added: Added,
    /// Whether the answer is compressed.
    choice: Choice,
}

impl<I: Invoker> Exchange<'_, I> {
    /// The body if it is empty, short or has already arrived completely. `None` if it must be
    /// streamed.
    async fn whole_body(
        &self,
        input: &mut Input,
        reader: &mut Reader<'_>,
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
                // Only bytes that have already arrived are decoded, and only on a copy, because an
                // incomplete body is streamed from its start.
                if input.bytes.len() > INLINE_BODY_BYTES_MAX {
                    return Ok(None);
                }
                let mut ahead = input.bytes.clone();
                let mut decoder = Chunked::default();
                let mut body = BytesMut::new();
                loop {
                    match decoder.step(&mut ahead)? {
                        ChunkEvent::NeedMore => return Ok(None),
                        ChunkEvent::Data(data) => {
                            body.extend_from_slice(&data);
                            input.charge(1, data.len()).await;
                        }
                        ChunkEvent::End => break,
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

    /// Takes a place again for a request that gave its place back while its body was arriving.
    /// Called once the body is complete, or once the function may read it.
    #[inline]
    fn count_again(&self, head: &mut Head) -> Result<(), Fault> {
        match head.is_paid() {
            true => self.front.invoker.count(&self.route, head, Some(self.owner)),
            false => Ok(()),
        }
    }

    /// Makes the invocation. Moves the request's head into it.
    fn invocation(&mut self, body: Body) -> Invocation {
        Invocation {
            id: invocation_id(),
            trigger: Trigger::Http,
            head: std::mem::take(&mut self.request.head),
            body,
            received_ns: self.received_ns,
            deadline_ns: self.received_ns + self.route.info().timeout_ms * 1_000_000,
            chain: None,
        }
    }

    /// Runs an invocation whose body is complete. It is cancelled if the client closes the
    /// connection.
    async fn run_whole(
        &mut self,
        body: Body,
        input: &mut Input,
        reader: &mut Reader<'_>,
        writer: &mut Writer<'_>,
    ) -> After {
        // From here on, the connection cannot be ended to make room for another one.
        let Some(_work) = self.seat.begin() else { return After::Close };
        let mut invocation = self.invocation(body);
        let id = invocation.id;
        let result = match self.count_again(&mut invocation.head) {
            Ok(()) => {
                let work = pin!(self.front.invoker.invoke(&self.route, invocation));
                let until = Until::Answered { http10: self.request.http10 };
                let Some(result) = or_gone(work, input, reader, until).await else {
                    return After::Close;
                };
                result
            }
            Err(fault) => Err(fault),
        };
        let work = pin!(self.answer(result, id, writer, self.request.keep_alive));
        or_gone(work, input, reader, Until::Written).await.unwrap_or(After::Close)
    }

    /// Runs an invocation that asks the function for a WebSocket. With `accept`, the front answers
    /// the handshake with this value and passes messages to the worker. This is always the last
    /// request of the connection, because a proxy might take the bytes after it for WebSocket
    /// frames.
    async fn run_websocket(
        &mut self,
        accept: Option<String>,
        input: &mut Input,
        reader: &mut Reader<'_>,
        writer: &mut Writer<'_>,
    ) -> After {
        let config = &self.front.config;
        let info = self.route.info();
        let open = match self.front.websockets.take(self.owner, info.name, info.places()) {
            Ok(share) => share,
            Err(refusal) => {
                let _ = answer::refuse(writer, config, &refusal, RefusalForm::default()).await;
                return After::CloseUnread;
            }
        };
        let Some(_work) = self.seat.begin() else { return After::Close };
        input.arriving = false;
        let (to_function, body) = request_body::channel(None);
        self.request.head.ask_for_websocket();
        let invocation = self.invocation(body);
        let id = invocation.id;
        let work = pin!(self.front.invoker.invoke(&self.route, invocation));
        let Some(result) = or_ended(work, input, reader).await else { return After::Close };
        let reply = match result {
            Ok(reply) if accept.is_none() && reply.status == 101 => reply,
            Ok(reply) if accept.is_some() && websocket_messages::is_accepted(&reply) => reply,
            result => return self.answer_and_close(result, id, writer).await,
        };
        if !input.bytes.is_empty() {
            let refusal = early_data();
            let _ = answer::refuse(
                writer,
                config,
                &refusal,
                RefusalForm { id: Some(id), ..Default::default() },
            )
            .await;
            return After::CloseUnread;
        }
        let mote_core::Reply { mut headers, body: from_function, .. } = reply;
        if let Some(accept) = &accept {
            headers = websocket_messages::fields(&headers, accept);
        }
        match answer::switch(writer, config, &headers, id).await {
            Ok(()) => {}
            Err(answer::SendError::Socket) => return After::Close,
            Err(answer::SendError::BadReply(message)) => {
                let fault = Err(Fault::BadReply { message });
                return self.answer_and_close(fault, id, writer).await;
            }
        }
        let (stopper, idle) =
            (&self.front.stopper, Duration::from_millis(self.route.info().stream_idle_ms));
        let bodies = websocket::Bodies { from_function, to_function };
        if accept.is_some() {
            let sides = websocket_messages::Sides { input, reader, writer };
            let message_bytes_max = self.route.info().body_bytes_max;
            let is_replaced = &|| self.route.info().is_replaced();
            let limits = websocket_messages::Limits { idle, message_bytes_max, is_replaced };
            let relay = websocket_messages::relay(bodies, sides, config, stopper, limits);
            tokio::select! {
                biased;
                _ = relay => {}
                () = open.ended() => {}
            }
        } else {
            let relay = websocket::relay(bodies, input, reader, writer, config, stopper, idle);
            tokio::select! {
                biased;
                _ = relay => {}
                () = open.ended() => {}
            }
        }
        After::CloseUnread
    }

    /// Runs an invocation whose body is still arriving. The invocation starts at once, or, if the
    /// function takes whole bodies, when the body is complete. The invocation is cancelled if the
    /// client closes the connection or breaks the framing of the body.
    async fn run_streaming(
        &mut self,
        input: &mut Input,
        reader: &mut Reader<'_>,
        writer: &mut Writer<'_>,
        limit: u64,
    ) -> After {
        let (sender, body) = request_body::channel(match self.request.framing {
            Framing::Length(length) => Some(length),
            _ => None,
        });
        let mut invocation = self.invocation(body);
        let id = invocation.id;
        let complete = AtomicBool::new(false);
        let has_begun = AtomicBool::new(false);
        // Resolves early only if the invocation must end, with `None` if the client has
        // disconnected.
        let mut intake = pin!(async {
            let framing = self.request.framing;
            let config = &self.front.config;
            let until = Until::Either { http10: self.request.http10, has_begun: &has_begun };
            let fed = request_body::feed(sender, framing, limit, input, reader, config, until);
            match fed.await {
                Ok(fed) => complete.store(fed == Fed::Complete, Ordering::Relaxed),
                Err(refusal) => return Some(refusal),
            }
            gone(input, reader, until).await;
            None
        });
        let seat = self.seat;
        let work = async {
            if self.route.info().takes_whole_bodies {
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
                    // The intake reports what is wrong with the body, so this branch waits for it.
                    Err(NotGathered::Broken(_)) => std::future::pending().await,
                }
                let now = now_ns();
                invocation.deadline_ns += now - invocation.received_ns;
                invocation.received_ns = now;
            }
            // Up to this point, the connection only waits for its client, and can be ended to make
            // room for another one.
            let working = seat.begin().ok_or(Fault::Stopping)?;
            self.count_again(&mut invocation.head)?;
            let reply = self.front.invoker.invoke(&self.route, invocation).await?;
            Ok((reply, working))
        };
        let ended = tokio::select! {
            biased;
            result = work => Ok(result),
            refusal = &mut intake => Err(refusal),
        };
        let (result, _working) = match ended {
            Ok(Ok((reply, working))) => (Ok(reply), Some(working)),
            Ok(Err(fault)) => (Err(fault), None),
            Err(Some(refusal)) => {
                let refusal = refusal.with(&self.added);
                let config = &self.front.config;
                let _ = answer::refuse(writer, config, &refusal, self.refusal_form(id)).await;
                return After::CloseUnread;
            }
            Err(None) => return After::Close,
        };
        has_begun.store(true, Ordering::Relaxed);
        // If the body was not read to its end, the bytes of the next request cannot be
        // distinguished from it.
        let keep_alive = self.request.keep_alive && complete.load(Ordering::Relaxed);
        let after = tokio::select! {
            biased;
            after = self.answer(result, id, writer, keep_alive) => after,
            // The answer has begun, so it is too late to report the reason.
            _ = &mut intake => After::Broken,
        };
        match after {
            After::Close if !complete.load(Ordering::Relaxed) => After::CloseUnread,
            After::Broken if !complete.load(Ordering::Relaxed) && !writer.buffers() => {
                After::CloseUnread
            }
            other => other,
        }
    }

    /// A refusal after which the connection is closed.
    fn refusal_form(&self, id: mote_core::InvocationId) -> RefusalForm {
        RefusalForm { id: Some(id), is_head: self.is_head, keep_alive: false }
    }

    async fn answer_and_close(
        &self,
        result: Result<Reply, Fault>,
        id: mote_core::InvocationId,
        writer: &mut Writer<'_>,
    ) -> After {
        let keep_alive = false;
        self.answer(result, id, writer, keep_alive).await
    }

    async fn answer(
        &self,
        result: Result<Reply, Fault>,
        id: mote_core::InvocationId,
        writer: &mut Writer<'_>,
        keep_alive: bool,
    ) -> After {
        let keep_alive = keep_alive && !self.front.stopper.is_stopping();
        let config = &self.front.config;
        let refusal = match result {
            Ok(mut reply) => {
                reply.headers = self.added.to(reply.headers);
                let idle = Duration::from_millis(self.route.info().stream_idle_ms);
                let reply = self.choice.apply(silence::limited(reply, idle));
                let form =
                    answer::Form { is_head: self.is_head, http10: self.request.http10, keep_alive };
                match answer::send(writer, config, reply, id, form).await {
                    // The client may have sent its next request already, so the connection must not
                    // be reset.
                    Ok(After::Close) if self.front.stopper.is_stopping() => {
                        return After::CloseUnread;
                    }
                    Ok(after) => return after,
                    Err(answer::SendError::Socket) => return After::Broken,
                    Err(answer::SendError::BadReply(message)) => {
                        tracing::warn!(function = %self.request.name, %id, "answer refused: {message}");
                        Refusal::of_fault(&Fault::BadReply { message }, &self.request.name)
                    }
                }
            }
            Err(fault) => {
                Refusal::of_fault_for(&fault, &self.request.name, self.route.info().compat)
            }
        };
        let refusal = refusal.with(&self.added);
        let written = answer::refuse(
            writer,
            config,
            &refusal,
            RefusalForm { keep_alive, ..self.refusal_form(id) },
        )
        .await;
        after(written, keep_alive)
    }
}
