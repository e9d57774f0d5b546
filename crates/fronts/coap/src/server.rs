//! The logic of the CoAP front: it handles datagrams, answers and the passing of time. It has no
//! socket. Datagrams to send and invocations to run are collected in it, and `exchange_io` takes
//! them.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::SocketAddr;

use crate::notices::Notices;
use bytes::Bytes;
use mote_core::body::Body;
use mote_core::{Fault, Invocation, Invoker, Routed, Trigger};
use mote_spec::FunctionName;
use slab::Slab;

use super::batch::Outbox;
use super::blocks::{Arrival, Block, Bounded, OVERHEAD_BYTES, SIZE_EXPONENT_MAX, Uploads};
use super::cutting::{BERT, Frame};
use super::exchange::{Exchange, Recipient, TransferKey};
use super::exchanges::{Exchanges, Key, Noted, Owner, Seen};
use super::message::{self, Header, MessageType, Refused, Request, Response, Token, Unusable};
use super::observers::Observers;
use super::proof::Proofs;
use super::room::{Room, Running};
use super::sender::{Clients, Sender};
use super::stream::{self, StreamMessage};
use super::{links, translate};
use crate::ids::invocation_id;

/// Limits of the front.
#[derive(Debug, Clone)]
pub struct Config {
    /// The most bytes of remembered exchanges (deduplication).
    pub exchanges_bytes_max: usize,
    /// The most bytes of request bodies that arrive in blocks.
    pub uploads_bytes_max: usize,
    /// The most bytes of answers that are sent in blocks.
    pub answers_bytes_max: usize,
    /// The most invocations that may run at once. Further requests are refused with 5.03.
    pub running_max: usize,
    /// After this many nanoseconds without an answer, a confirmable request gets a separate
    /// acknowledgement.
    pub ack_delay_ns: u64,
    /// The longest answer of a function, in bytes.
    pub answer_bytes_max: u64,
    /// Whether every success is 2.05 (Content), whatever the method, as clients of tinyFaaS expect.
    /// Otherwise the success of a POST is 2.04 (Changed; RFC 7252, 5.8.2).
    pub always_content: bool,
    /// Where functions publish the states of their resources. `None` if clients cannot observe
    /// resources.
    pub notices: Option<Notices>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            exchanges_bytes_max: 8 << 20,
            uploads_bytes_max: 16 << 20,
            answers_bytes_max: 16 << 20,
            running_max: 8_192,
            // A quarter of ACK_TIMEOUT (2 s). This is early enough for a slow link, and late enough
            // that most answers can be sent together with the acknowledgement.
            ack_delay_ns: 500_000_000,
            answer_bytes_max: 8 << 20,
            always_content: false,
            notices: None,
        }
    }
}

/// How long a block-wise transfer may pause.
const BLOCK_KEEP_NS: u64 = 120_000_000_000;
/// The front's retransmission of its confirmable messages (RFC 7252, 4.8): the first pause, and the
/// number of repetitions.
const ACK_TIMEOUT_NS: u64 = 2_500_000_000;
const RETRANSMIT_MAX: u32 = 4;
/// The longest diagnostic payload. It is text for people and must fit into one datagram on any
/// link.
const DIAGNOSTIC_BYTES_MAX: usize = 512;
/// The longest Location-Path and Location-Query together. With this limit, a location fits into the
/// largest datagram together with a full block and all other options.
const LOCATION_BYTES_MAX: usize = 160;
/// The number of attempts before the first one, and the pause after the first one.
pub(crate) const FIRST_ATTEMPT: (u32, u64) = (0, ACK_TIMEOUT_NS);
/// The most confirmable messages of the front that may wait for an acknowledgement at once.
const OUTSTANDING_MAX: usize = 8_192;

/// An invocation to run. [`Server::finish`] takes its result. Ids are small, and an id is reused
/// after its result was taken.
pub(crate) struct Work<R> {
    pub(crate) id: usize,
    pub(crate) route: R,
    pub(crate) invocation: Invocation,
}

/// A function's answer (status, header block and whole body), or the reason why there is none.
pub(crate) type Finished = Result<(u16, Bytes, Bytes), Fault>;

/// A message of the front that waits for its acknowledgement.
struct Outstanding {
    datagram: Bytes,
    attempts: u32,
    pause_ns: u64,
    due_ns: u64,
}

/// A message whose options or payload cannot be read.
#[derive(Debug)]
pub(crate) struct Malformed;

/// Whether a request with this code may run twice.
fn is_safe(code: (u8, u8)) -> bool {
    translate::method(code).is_none_or(|method| matches!(method, b"GET" | b"FETCH"))
}

/// Counters for operators, without labels.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub(crate) requests: u64,
    pub(crate) duplicates: u64,
    pub(crate) unusable: u64,
    pub(crate) retransmissions: u64,
}

/// The front's state.
pub(crate) struct Server<I: Invoker> {
    invoker: I,
    pub(crate) config: Config,
    exchanges: Exchanges,
    uploads: Uploads<TransferKey>,
    answers: Bounded<TransferKey, Response>,
    pub(crate) proofs: Proofs,
    /// What is known about the clients.
    pub(crate) clients: Clients,
    /// Whether a sender has shown a valid key since this flag was last taken.
    pub(crate) has_proof: bool,
    hasher: RandomState,
    running: Slab<Exchange>,
    shares: Running,
    next_serial: u64,
    /// For each acknowledgement that may become due: the time, and the exchange's id and serial
    /// number.
    ack_due: VecDeque<(u64, usize, u64)>,
    outstanding: HashMap<Key, Outstanding>,
    retransmit_due: BTreeSet<(u64, SocketAddr, u16)>,
    next_mid: u16,
    counters: Counters,
    /// The kind of message that the peers exchange with the front, which limits its length.
    pub(crate) frame: Frame,
    /// Created with the first observer.
    pub(crate) observers: Option<Box<Observers>>,
    /// The messages to send.
    pub(crate) out: Outbox,
    /// The invocations to run.
    pub(crate) work: Vec<Work<I::Route>>,
}

impl<I: Invoker> Server<I> {
    pub(crate) fn new(invoker: I, config: Config) -> Self {
        let hasher = RandomState::new();
        Self {
            invoker,
            exchanges: Exchanges::new(config.exchanges_bytes_max),
            uploads: Uploads::new(config.uploads_bytes_max, BLOCK_KEEP_NS),
            answers: Bounded::new(config.answers_bytes_max, BLOCK_KEEP_NS),
            proofs: Proofs::default(),
            clients: Clients::Unknown,
            has_proof: false,
            running: Slab::new(),
            shares: Running::default(),
            next_serial: 0,
            ack_due: VecDeque::new(),
            outstanding: HashMap::new(),
            retransmit_due: BTreeSet::new(),
            // The start is random, so that a restarted node does not reuse the ids of its previous
            // run.
            next_mid: hasher.hash_one(0) as u16,
            hasher,
            config,
            counters: Counters::default(),
            frame: Frame::Datagram,
            observers: None,
            out: Outbox::default(),
            work: Vec::new(),
        }
    }

    /// Sends an empty acknowledgement or a reset.
    fn empty(&mut self, kind: MessageType, mid: u16, peer: SocketAddr) {
        self.out.write(peer, |out| message::empty(out, kind, mid));
    }

    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn datagram(&mut self, peer: SocketAddr, bytes: &[u8], now_ns: u64) {
        let header = match message::header(bytes) {
            Ok(header) => header,
            Err(unusable) => {
                self.counters.unusable += 1;
                if let Unusable::Reset(mid) = unusable {
                    self.empty(MessageType::Rst, mid, peer);
                }
                return;
            }
        };
        match (header.kind, header.code) {
            (MessageType::Ack, _) => self.settled(peer, header.mid, true, now_ns),
            (MessageType::Rst, _) => self.settled(peer, header.mid, false, now_ns),
            // This is a ping (RFC 7252, 4.3), or an answer that the front has not requested.
            (MessageType::Con, (0, 0)) | (MessageType::Con, (2..=5, _)) => {
                self.empty(MessageType::Rst, header.mid, peer);
            }
            (MessageType::Non, (0, 0) | (2..=5, _)) => {}
            (MessageType::Con | MessageType::Non, _) => self.request(peer, header, bytes, now_ns),
        }
    }

    /// Handles a datagram that exceeds the largest length. Only its header is used (RFC 7252, 4.6).
    pub(crate) fn datagram_too_long(&mut self, peer: SocketAddr, bytes: &[u8], now_ns: u64) {
        self.counters.unusable += 1;
        let Ok(header) = message::header(bytes) else { return };
        if header.kind != MessageType::Con || header.code.0 != 0 || header.code.1 == 0 {
            return;
        }
        if self.exchanges.get(&(peer, header.mid), bytes, now_ns).is_err() {
            let response = Response {
                size1: Some(1 << (SIZE_EXPONENT_MAX + 4)),
                ..Response::diagnostic((4, 13), "datagram too long; send the body in blocks")
            };
            self.out.write(peer, |out| {
                response.encode(out, MessageType::Ack, header.mid, header.token)
            });
        }
    }

    /// Handles the peer's acknowledgement or rejection of a message. The message is not sent again.
    fn settled(&mut self, peer: SocketAddr, mid: u16, acknowledged: bool, now_ns: u64) {
        if let Some(outstanding) = self.outstanding.remove(&(peer, mid)) {
            self.retransmit_due.remove(&(outstanding.due_ns, peer, mid));
        }
        if self.observers.is_some() {
            self.notification_settled((peer, mid), acknowledged, now_ns);
        }
    }

    fn request(&mut self, peer: SocketAddr, header: Header<'_>, datagram: &[u8], now_ns: u64) {
        let key = (peer, header.mid);
        let absent = match self.exchanges.get(&key, datagram, now_ns) {
            Err(absent) => absent,
            Ok(seen) => {
                self.counters.duplicates += 1;
                match seen {
                    Seen::Running { acked: true } if header.kind == MessageType::Con => {
                        self.empty(MessageType::Ack, header.mid, peer);
                    }
                    Seen::Answered(answer) if header.kind == MessageType::Con => {
                        // The source may have been proven when the answer was made, but the proof
                        // may have expired.
                        let limit = self.proofs.answer_bytes_max(peer, datagram.len(), now_ns);
                        if limit.is_none_or(|limit| answer.len() <= limit) {
                            self.out.push(peer, answer);
                        }
                    }
                    Seen::Running { .. } | Seen::Answered(_) => {}
                }
                return;
            }
        };
        self.counters.requests += 1;
        let request = match Request::parse(header.tail) {
            Ok(request) => Ok(request),
            Err(Refused::Format) => {
                self.counters.unusable += 1;
                if header.kind == MessageType::Con {
                    self.empty(MessageType::Rst, header.mid, peer);
                }
                return;
            }
            Err(Refused::BadOption(_)) if header.kind == MessageType::Non => return,
            Err(refused) => Err(refusal(refused)),
        };
        if let Ok(Request { echo: Some(echo), .. }) = &request {
            self.proofs.prove(peer, echo, now_ns);
        }
        let limit = self.proofs.answer_bytes_max(peer, datagram.len(), now_ns);
        // Forged requests may have used up the memory for unproven sources. In that case, a request
        // that must not run twice runs only if its source is proven, because only then does the
        // node recognise repetitions.
        if limit.is_some() && !is_safe(header.code) && self.exchanges.is_crowded(now_ns) {
            let challenge = self.challenge(peer, now_ns);
            let kind =
                if header.kind == MessageType::Con { MessageType::Ack } else { MessageType::Non };
            self.out.write(peer, |out| challenge.encode(out, kind, header.mid, header.token));
            return;
        }
        let owner = Owner::of(peer, limit.is_none());
        let noted = Some(self.exchanges.begin(key, owner, absent, now_ns));
        let kind = header.kind;
        let mid = header.mid;
        let to = Recipient::of(peer, header.code.1, Token::new(header.token), limit);
        self.proceed(noted, (kind, mid), to, request, now_ns);
    }

    /// Takes a request that arrived as a message of a connection. Fails if the message is
    /// malformed.
    pub(crate) fn stream_request(
        &mut self,
        peer: SocketAddr,
        message: &StreamMessage<'_>,
        now_ns: u64,
    ) -> Result<(), Malformed> {
        self.counters.requests += 1;
        let request = match Request::parse(message.tail) {
            Ok(request) => Ok(request),
            Err(Refused::Format) => {
                self.counters.unusable += 1;
                return Err(Malformed);
            }
            Err(refused) => Err(refusal(refused)),
        };
        let to = Recipient::of(peer, message.code.1, Token::new(message.token), None);
        self.proceed(None, (MessageType::Non, 0), to, request, now_ns);
        Ok(())
    }

    /// Serves a request that has not been served before.
    fn proceed(
        &mut self,
        noted: Option<Noted>,
        (kind, mid): (MessageType, u16),
        to: Recipient,
        request: Result<Request<'_>, Response>,
        now_ns: u64,
    ) {
        self.next_serial += 1;
        let mut exchange = Exchange {
            noted,
            serial: self.next_serial,
            kind,
            mid,
            method: b"",
            function: None,
            accept: None,
            block1: None,
            acked: false,
            watch: None,
            to,
        };
        let response = match request {
            Ok(request) => self.serve(&mut exchange, request, now_ns),
            Err(response) => Some(response),
        };
        match response {
            Some(response) => self.answer(exchange, response, now_ns),
            None => {
                // `serve` has pushed the work under this id.
                let id = self.running.vacant_key();
                // An unproven source gets at most one datagram for each datagram that it sends. So
                // the answer is sent with the acknowledgement, however late, and repetitions of the
                // request wait for it.
                if exchange.kind == MessageType::Con && exchange.to.limit.is_none() {
                    let due = now_ns + self.config.ack_delay_ns;
                    self.ack_due.push_back((due, id, exchange.serial));
                }
                self.shares.begin(&exchange);
                self.running.insert(exchange);
            }
        }
    }

    /// Answers at once, or pushes work under the next id and returns `None`.
    fn serve(
        &mut self,
        exchange: &mut Exchange,
        mut request: Request<'_>,
        now_ns: u64,
    ) -> Option<Response> {
        if request.wants_proxy {
            return Some(Response::diagnostic((5, 5), "not a proxy"));
        }
        let Some(method) = translate::method((0, exchange.to.code)) else {
            return Some(Response::diagnostic((4, 5), "method not supported"));
        };
        exchange.method = method;
        exchange.accept = request.accept;
        exchange.to.block2 = request.block2;
        let blocks = [request.block1, request.block2];
        if !matches!(self.frame, Frame::Stream { .. })
            && blocks.iter().flatten().any(|block| block.size_exponent == BERT)
        {
            return Some(Response::diagnostic((4, 0), "SZX 7"));
        }
        if request.path == b"/.well-known/core" {
            return Some(self.discover(method, &request, exchange));
        }
        exchange.to.path = std::mem::take(&mut request.path);
        exchange.to.query = std::mem::take(&mut request.query);
        let name = exchange.to.path.split(|byte| *byte == b'/').nth(1).unwrap_or_default();
        let below_at = (1 + name.len()).min(exchange.to.path.len());
        let in_blocks = request.block1.is_some() || request.block2.is_some();
        // All blocks of a transfer must go to the same revision.
        let key = || {
            let key =
                || self.hasher.hash_one((exchange.to.peer, &exchange.to.path, &exchange.to.query));
            in_blocks.then(key)
        };
        let route = std::str::from_utf8(name).ok().and_then(|name| self.invoker.route(name, key));
        let Some(route) = route else {
            let text = format!("no function named {}", translate::shown(name));
            return Some(Response::diagnostic((4, 4), text));
        };
        exchange.function = Some(route.info().name.clone());
        let proved = self.proved(exchange.to.peer);
        let admitted = Sender::admit(exchange, (self.frame, proved), &self.invoker, &route);
        let mut sender = match admitted {
            Ok(sender) => sender,
            Err(fault) => return Some(self.fault(exchange, &fault)),
        };
        self.has_proof |= sender.head.caller().is_some();
        // Checked after admission, because only callers who may call the function may learn which
        // methods it accepts.
        let methods = route.info().methods;
        if !methods.is_empty() && !methods.iter().any(|allowed| allowed.as_bytes() == method) {
            return Some(Response::diagnostic((4, 5), format!("{} only", methods.join(", "))));
        }
        let discriminator = match (request.block1, method) {
            (Some(_), _) => self.hasher.hash_one(request.request_tag),
            (None, b"FETCH") => self.hasher.hash_one(request.payload),
            _ => 0,
        };
        if let Some(block) = request.block2.filter(|block| block.number > 0) {
            exchange.to.discriminator = discriminator;
            if let Some(held) = self.answers.get(&exchange.to.transfer(discriminator), now_ns) {
                return Some(held.clone());
            }
            if !matches!(method, b"GET" | b"FETCH") {
                let text = format!("the answer is no longer stored, block {}", block.number);
                return Some(Response::diagnostic((4, 8), text));
            }
        }
        let limit = route.info().body_bytes_max;
        let body = match self.body(exchange, &request, discriminator, limit, now_ns) {
            Ok(body) => body,
            Err(response) => return Some(response),
        };
        exchange.to.discriminator = if method == b"FETCH" { discriminator } else { 0 };
        match self.shares.room(exchange, self.running.len(), self.config.running_max) {
            Room::Free => {}
            Room::Unproven => return Some(self.challenge(exchange.to.peer, now_ns)),
            Room::Full => return Some(self.fault(exchange, &Fault::NodeFull)),
        }
        if sender.must_prove(exchange, &route) {
            return Some(self.challenge(exchange.to.peer, now_ns));
        }
        // An invocation counts once against the rates, however many blocks its transfer has.
        if let Err(fault) = self.invoker.count(&route, &mut sender.head, Some(sender.from)) {
            return Some(self.fault(exchange, &fault));
        }
        if method == b"GET"
            && let Some(observe) = request.observe
            && let Some(challenge) = self.observe(exchange, &route, (observe, below_at), now_ns)
        {
            return Some(challenge);
        }
        let below = match &exchange.to.path[below_at..] {
            [] => b"/",
            below => below,
        };
        let mut head = translate::head(method, below, &exchange.to.query, &request);
        sender.mark(&mut head);
        self.work.push(Work {
            id: self.running.vacant_key(),
            invocation: Invocation {
                id: invocation_id(),
                trigger: Trigger::Coap,
                head,
                body,
                received_ns: now_ns,
                deadline_ns: now_ns + route.info().timeout_ms * 1_000_000,
                chain: None,
            },
            route,
        });
        None
    }

    /// Returns the request's body once it is complete, or the answer to one of its blocks.
    fn body(
        &mut self,
        exchange: &mut Exchange,
        request: &Request<'_>,
        discriminator: u64,
        limit: u64,
        now_ns: u64,
    ) -> Result<Body, Response> {
        let too_large = || Response {
            size1: Some(u32::try_from(limit).unwrap_or(u32::MAX)),
            ..Response::diagnostic((4, 13), format!("body limit {limit} bytes"))
        };
        let Some(block) = request.block1 else {
            if request.payload.len() as u64 > limit {
                return Err(too_large());
            }
            return Ok(Body::whole(request.payload.to_vec()));
        };
        exchange.block1 = Some(block);
        let key = exchange.to.transfer(discriminator);
        match self.uploads.block(key, block, request.payload, limit, now_ns) {
            Arrival::Complete(body) => Ok(Body::whole(body)),
            Arrival::Continue => Err(Response::code((2, 31))),
            Arrival::OutOfOrder => Err(Response::diagnostic((4, 8), "block is out of order")),
            Arrival::WrongLength => Err(Response::diagnostic((4, 0), "block has a wrong length")),
            Arrival::TooLarge => Err(too_large()),
        }
    }

    /// Asks a source to prove that its address is real (RFC 9175, 2.3). The source repeats its
    /// request with this Echo value.
    pub(crate) fn challenge(&self, peer: SocketAddr, now_ns: u64) -> Response {
        Response { code: (4, 1), echo: Some(self.proofs.echo(peer, now_ns)), ..Response::default() }
    }

    fn discover(&self, method: &[u8], request: &Request<'_>, exchange: &Exchange) -> Response {
        if method != b"GET" {
            return Response::diagnostic((4, 5), "GET only");
        }
        Response {
            code: (2, 5),
            content_format: Some(40),
            payload: links::document(&self.invoker, &request.query, self.who(exchange)).into(),
            ..Response::default()
        }
    }

    fn fault(&self, exchange: &Exchange, fault: &Fault) -> Response {
        let row = fault.answer();
        Response {
            max_age_s: row.retry_after_s,
            ..Response::diagnostic(
                row.coap,
                fault.public_text(exchange.function.as_ref().map_or("", FunctionName::as_str)),
            )
        }
    }

    /// Takes the result of an invocation.
    pub(crate) fn finish(&mut self, id: usize, finished: Finished, now_ns: u64) {
        let Some(mut exchange) = self.running.try_remove(id) else { return };
        self.shares.end(&exchange);
        let mut response = match finished {
            Ok((status, headers, body)) => {
                let method = if self.config.always_content { b"GET" } else { exchange.method };
                let response = translate::response(method, status, &headers, body);
                let unwanted = exchange.accept.is_some_and(|accept| {
                    response.code.0 == 2
                        && response.content_format.is_some_and(|format| format != accept)
                });
                if unwanted {
                    Response::diagnostic((4, 6), "the function answers in another format")
                } else {
                    response
                }
            }
            Err(fault) => self.fault(&exchange, &fault),
        };
        if let Some(watch) = exchange.watch.take() {
            self.register(&exchange, watch, &mut response, now_ns);
        }
        self.answer(exchange, response, now_ns);
    }

    /// Cuts an answer to the allowed length, and sends it.
    fn answer(&mut self, exchange: Exchange, mut response: Response, now_ns: u64) {
        let Exchange { noted, kind, mid, acked, to, block1, .. } = exchange;
        if let Some(block1) = block1 {
            // The answer to a block repeats the number of the block. `more` shows whether the
            // transfer continues.
            response.block1 = Some(Block { more: response.code == (2, 31), ..block1 });
        }
        let response = match self.cut(&to, response, now_ns) {
            Ok(response) => response,
            Err(_) if to.is_safe() && to.limit.is_some() => self.challenge(to.peer, now_ns),
            Err(smallest) => smallest,
        };
        let peer = to.peer;
        let token = to.token.as_bytes();
        match (kind, acked, noted) {
            (MessageType::Con, false, Some(noted)) => {
                let datagram =
                    self.out.write(peer, |out| response.encode(out, MessageType::Ack, mid, token));
                let owner = Owner::of(peer, to.limit.is_none());
                self.exchanges.answer(noted, (peer, mid), owner, datagram, now_ns);
            }
            (MessageType::Con, ..) => {
                self.confirmable(&to, &response, FIRST_ATTEMPT, now_ns);
            }
            _ => {
                self.unconfirmed(&to, &response);
            }
        }
    }

    /// Sends a message that needs no acknowledgement. Returns its id.
    pub(crate) fn unconfirmed(&mut self, to: &Recipient, response: &Response) -> u16 {
        let mid = self.fresh_mid();
        let frame = self.frame;
        let token = to.token.as_bytes();
        self.out.write(to.peer, |out| match frame {
            Frame::Stream { .. } => stream::encode(response, out, token),
            _ => response.encode(out, MessageType::Non, mid, token),
        });
        mid
    }

    /// Sends a confirmable message, which is repeated until the peer has acknowledged it. Returns
    /// its id.
    pub(crate) fn confirmable(
        &mut self,
        to: &Recipient,
        response: &Response,
        (attempts, pause_ns): (u32, u64),
        now_ns: u64,
    ) -> u16 {
        let mid = self.fresh_mid();
        let peer = to.peer;
        let token = to.token.as_bytes();
        let datagram =
            self.out.write(peer, |out| response.encode(out, MessageType::Con, mid, token));
        // For an unproven source, the message is not repeated, because the repetitions would be
        // many times the bytes that the source has sent.
        if to.limit.is_none() && self.outstanding.len() < OUTSTANDING_MAX {
            let due_ns = now_ns + pause_ns;
            self.retransmit_due.insert((due_ns, peer, mid));
            let datagram = Bytes::copy_from_slice(datagram);
            let outstanding = Outstanding { datagram, attempts, pause_ns, due_ns };
            self.outstanding.insert((peer, mid), outstanding);
        }
        mid
    }

    /// Sends an empty confirmable message, which the peer answers with a reset. Returns its id.
    pub(crate) fn ping(&mut self, peer: SocketAddr, now_ns: u64) -> u16 {
        let mid = self.fresh_mid();
        let (attempts, pause_ns) = FIRST_ATTEMPT;
        let due_ns = now_ns + pause_ns;
        let write = |out: &mut Vec<u8>| message::empty(out, MessageType::Con, mid);
        let datagram = Bytes::copy_from_slice(self.out.write(peer, write));
        self.retransmit_due.insert((due_ns, peer, mid));
        self.outstanding.insert((peer, mid), Outstanding { datagram, attempts, pause_ns, due_ns });
        mid
    }

    /// Whether a message still waits for its acknowledgement.
    pub(crate) fn is_outstanding(&self, key: &Key) -> bool {
        self.outstanding.contains_key(key)
    }

    /// Returns the requested block of the answer, and keeps a longer answer for the other blocks.
    /// `Err` holds the shortest possible answer, for a source to which the full answer may not be
    /// sent.
    pub(crate) fn cut(
        &mut self,
        to: &Recipient,
        mut response: Response,
        now_ns: u64,
    ) -> Result<Response, Response> {
        let frame = self.frame;
        let token = to.token.as_bytes();
        let limit = to.limit;
        if response.code.0 > 2 {
            response.payload.truncate(DIAGNOSTIC_BYTES_MAX);
        }
        if response.location_bytes() > LOCATION_BYTES_MAX {
            response.location.clear();
            response.location_query.clear();
        }
        if frame.is_whole(&response, (to.block2, limit), token) {
            return Ok(response);
        }
        let size_exponent = frame.exponent_max();
        let wanted = to.block2.unwrap_or(Block { number: 0, more: false, size_exponent });
        let mut exponent = wanted.size_exponent.min(size_exponent);
        let needs_proof = to.is_safe() && limit.is_some();
        loop {
            let piece = frame.block_of(&response, wanted, exponent);
            if frame.fits(&piece, limit, token) {
                let more = piece.block2.is_some_and(|block| block.more || block.number > 0);
                if more && response.code.0 == 2 {
                    let bytes = response.payload.len() + OVERHEAD_BYTES;
                    if response.etag.is_none() {
                        // The ETag lets a client recognise that all blocks belong to the same
                        // answer (RFC 7959, 2.4).
                        let hash = self.hasher.hash_one(&response.payload);
                        response.etag = Some(hash.to_be_bytes()[..4].to_vec());
                    }
                    let piece = frame.block_of(&response, wanted, exponent);
                    // Only the first block is a notification. The client fetches the other blocks.
                    response.observe = None;
                    self.answers.put(to.transfer(to.discriminator), response, bytes, now_ns);
                    if frame.fits(&piece, limit, token) {
                        return Ok(piece);
                    }
                    return Err(Response::code(piece.code));
                }
                return Ok(piece);
            }
            // A safe request gets its full answer once its source is proven. Other requests must
            // not run twice, so they are answered in blocks within the limit.
            if exponent == 0 || needs_proof || response.code.0 > 2 {
                let mut short = Response { code: response.code, ..Response::default() };
                short.block1 = response.block1;
                short.size1 = response.size1;
                if response.code.0 > 2 {
                    short.payload = response.payload.slice(..response.payload.len().min(64));
                    return Ok(short);
                }
                return Err(short);
            }
            exponent -= 1;
        }
    }

    fn fresh_mid(&mut self) -> u16 {
        self.next_mid = self.next_mid.wrapping_add(1);
        self.next_mid
    }

    /// When [`Server::time_passed`] is next due.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let ack = self.ack_due.front().map(|(due, ..)| *due);
        let retransmit = self.retransmit_due.first().map(|(due, ..)| *due);
        let sweep = self.observers.as_ref().and_then(|observers| observers.sweep_ns());
        [ack, retransmit, sweep].into_iter().flatten().min()
    }

    /// Acknowledges requests that take long, and repeats messages that were not acknowledged.
    pub(crate) fn time_passed(&mut self, now_ns: u64) {
        while let Some((due, id, serial)) = self.ack_due.front().copied() {
            let running = self.running.get_mut(id);
            match running.filter(|exchange| exchange.serial == serial) {
                // The exchange has been answered meanwhile. Its entry is dropped, so that the task
                // is not woken for it.
                None => {}
                Some(_) if due > now_ns => break,
                Some(exchange) => {
                    exchange.acked = true;
                    let noted = exchange.noted;
                    let peer = exchange.to.peer;
                    let mid = exchange.mid;
                    // Only requests from proven sources are acknowledged separately.
                    if let Some(noted) = noted {
                        self.exchanges.acked(noted, (peer, mid), Owner::proven(peer), now_ns);
                    }
                    self.empty(MessageType::Ack, mid, peer);
                }
            }
            self.ack_due.pop_front();
        }
        while let Some((due, peer, mid)) = self.retransmit_due.first().copied() {
            if due > now_ns {
                break;
            }
            self.retransmit_due.pop_first();
            let Some(outstanding) = self.outstanding.get_mut(&(peer, mid)) else { continue };
            if outstanding.attempts == RETRANSMIT_MAX {
                self.outstanding.remove(&(peer, mid));
                self.notification_lost((peer, mid));
                continue;
            }
            let attempt = (outstanding.attempts + 1, outstanding.pause_ns * 2);
            if self.observers.is_some() && self.notify_newer((peer, mid), attempt, now_ns) {
                self.outstanding.remove(&(peer, mid));
                continue;
            }
            let Some(outstanding) = self.outstanding.get_mut(&(peer, mid)) else { continue };
            outstanding.attempts += 1;
            outstanding.pause_ns *= 2;
            outstanding.due_ns = now_ns + outstanding.pause_ns;
            self.retransmit_due.insert((outstanding.due_ns, peer, mid));
            self.out.push(peer, &outstanding.datagram);
            self.counters.retransmissions += 1;
        }
        if self.observers.is_some() && !matches!(self.frame, Frame::Stream { .. }) {
            self.ping_silent(now_ns);
        }
        self.uploads.shrink(now_ns);
        self.answers.shrink(now_ns);
    }

    /// The bytes of everything that is remembered, and the number of marks that order it.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn held(&self) -> (usize, usize) {
        let bytes = self.exchanges.bytes() + self.uploads.bytes() + self.answers.bytes();
        let marks = self.exchanges.marks() + self.uploads.marks() + self.answers.marks();
        let observers = self.observers.as_ref().map_or(0, |observers| observers.marks());
        (bytes, marks + self.ack_due.len() + self.retransmit_due.len() + observers)
    }

    /// The bytes of bodies and answers in blocks.
    pub(crate) fn held_bytes(&self) -> usize {
        self.uploads.bytes() + self.answers.bytes()
    }

    /// The number of exchanges that are being served.
    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }
}

/// The answer to a request that cannot be served.
fn refusal(refused: Refused) -> Response {
    match refused {
        Refused::BadOption(number) => Response::diagnostic((4, 2), format!("option {number}")),
        Refused::BadRequest(text) => Response::diagnostic((4, 0), text),
        Refused::Format => Response::diagnostic((4, 0), "malformed"),
    }
}
