//! Tests CoAP over TCP (RFC 8323) on loopback sockets.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mote_coap::notices::{Notices, State};
use mote_coap::{Config, StreamConfig, serve_stream};
use mote_spec::FunctionName;
use support::coap::*;
use support::{Fake, pattern_bytes};

const CSM: u8 = code(7, 1);
const PING: u8 = code(7, 2);
const PONG: u8 = code(7, 3);
const RELEASE: u8 = code(7, 4);
const ABORT: u8 = code(7, 5);
const OBSERVE: u16 = 6;

struct Node {
    address: SocketAddr,
    fake: Fake,
    notices: Notices,
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Node {
    fn start(streams: StreamConfig) -> Self {
        let (fake, (stopper, end)) = (Fake::default(), Stopper::new());
        let notices = Notices::default();
        let invoker = fake.clone();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let config = Config { notices: Some(notices.clone()), ..Config::default() };
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                serve_stream(listener, invoker, (config, streams), end).await.unwrap();
            });
        });
        Self { address, fake, notices, stopper, thread: Some(thread) }
    }

    fn connect(&self) -> Peer {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.set_nodelay(true).unwrap();
        Peer { socket, buffer: Vec::new() }
    }

    /// A connection that has exchanged CSMs. The client's CSM has these options.
    fn greeted(&self, options: &[(u16, &[u8])]) -> Peer {
        let mut peer = self.connect();
        let mut csm = Message { code: CSM, ..Message::default() };
        csm.options.extend(options.iter().map(|(number, value)| (*number, value.to_vec())));
        peer.send(&csm);
        assert_eq!(peer.receive().code, CSM);
        peer
    }

    fn publish(&self, function: &str, body: Bytes) {
        let state = State { status: 200, headers: Bytes::new(), body };
        let name = FunctionName::new(function).unwrap();
        self.notices.publish(&name, b"/", None, state).unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().unwrap();
        }
    }
}

struct Peer {
    socket: TcpStream,
    buffer: Vec<u8>,
}

/// Turns a datagram's message into the form of RFC 8323, 3.2.
fn framed(message: &Message) -> Vec<u8> {
    let datagram = message.encode();
    let tail = &datagram[4 + message.token.len()..];
    let token_length = message.token.len() as u8;
    let mut out = match tail.len() {
        length @ 0..13 => vec![(length as u8) << 4 | token_length],
        length @ 13..269 => vec![13 << 4 | token_length, (length - 13) as u8],
        length @ 269..65_805 => {
            [&[14 << 4 | token_length][..], &((length - 269) as u16).to_be_bytes()].concat()
        }
        length => {
            [&[15 << 4 | token_length][..], &((length - 65_805) as u32).to_be_bytes()].concat()
        }
    };
    out.push(message.code);
    out.extend(&message.token);
    out.extend(tail);
    out
}

impl Peer {
    fn send_bytes(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    fn send(&mut self, message: &Message) {
        self.send_bytes(&framed(message));
    }

    /// Reads the next message. Returns `None` when the connection has been closed.
    fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = self.buffered() {
                return Some(message);
            }
            let mut bytes = [0; 65_536];
            match self.socket.read(&mut bytes) {
                Ok(0) => return None,
                Ok(length) => self.buffer.extend(&bytes[..length]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no message in time: {error}"),
            }
        }
    }

    fn buffered(&mut self) -> Option<Message> {
        let first = *self.buffer.first()?;
        let (extension, base) = match first >> 4 {
            13 => (1, 13),
            14 => (2, 269),
            15 => (4, 65_805),
            length => (0, usize::from(length)),
        };
        let length = self.buffer.get(1..1 + extension)?;
        let length = length.iter().fold(0, |n, byte| n << 8 | usize::from(*byte)) + base;
        let token = usize::from(first & 15);
        let end = 1 + extension + 1 + token + length;
        let whole: Vec<u8> = self.buffer.get(..end)?.to_vec();
        self.buffer.drain(..end);
        let rest = &whole[1 + extension..];
        let datagram = [&[0x40 | first & 15, rest[0], 0, 0], &rest[1..]].concat();
        Some(Message::parse(&datagram).expect("a well-formed message"))
    }

    fn receive(&mut self) -> Message {
        self.next().expect("a message before the end")
    }

    fn call(&mut self, request: &Message) -> Message {
        self.send(request);
        let answer = self.receive();
        assert_eq!(answer.token, request.token, "{request:?}");
        answer
    }

    /// Asserts that the node aborts the connection with this text.
    fn is_aborted(&mut self, text: &str) {
        let mut message = self.receive();
        if message.code == CSM {
            message = self.receive();
        }
        assert_eq!((message.code, message.text()), (ABORT, text.to_owned()));
        assert_eq!(self.next(), None, "and closes it");
    }
}

fn request(method: u8, token: u16, path: &str) -> Message {
    Message::request(CON, method, token, path)
}

#[test]
fn requests_are_answered_in_any_order() {
    let node = Node::start(StreamConfig::default());
    let mut peer = node.greeted(&[]);
    let answer = peer.call(&request(POST, 1, "echo/a?x=1").payload(b"hello"));
    assert_eq!(answer.code, code(2, 4));
    assert!(answer.text().starts_with("POST /a x=1\n") && answer.text().ends_with("\n\nhello"));
    peer.send(&request(GET, 2, "slow"));
    peer.send(&request(GET, 3, "number"));
    let first = peer.receive();
    assert_eq!((&first.token[..], first.text()), (&[0, 3][..], "7".to_owned()));
    node.fake.permits.add_permits(1);
    assert_eq!(peer.receive().token, [0, 2]);
    assert_eq!(peer.call(&request(GET, 4, "nobody")).code, code(4, 4));
    // Options follow the same rules as in datagrams.
    assert_eq!(peer.call(&request(GET, 5, "echo").option(9_999, b"")).code, code(4, 2));
    assert_eq!(
        peer.call(&request(GET, 6, "echo").option(PROXY_URI, b"coap://b/x")).code,
        code(5, 5)
    );
    let answer = peer.call(&request(GET, 7, ".well-known/core"));
    assert_eq!((answer.code, answer.uint(CONTENT_FORMAT)), (code(2, 5), Some(40)));
}

#[test]
fn messages_arrive_in_any_pieces() {
    let node = Node::start(StreamConfig::default());
    let mut peer = node.greeted(&[]);
    let both = [framed(&request(GET, 1, "number")), framed(&request(GET, 2, "number"))].concat();
    for byte in &both {
        peer.send_bytes(&[*byte]);
    }
    assert_eq!((peer.receive().token, peer.receive().token), (vec![0, 1], vec![0, 2]));
    let many: Vec<u8> = (0..200).flat_map(|n| framed(&request(GET, n, "number"))).collect();
    peer.send_bytes(&many);
    let mut tokens: Vec<Vec<u8>> = (0..200).map(|_| peer.receive().token).collect();
    tokens.sort();
    assert!(tokens.into_iter().eq((0..200u16).map(|n| n.to_be_bytes().to_vec())));
}

#[test]
fn signals() {
    let node = Node::start(StreamConfig::default());
    let mut peer = node.connect();
    let csm = peer.receive();
    assert_eq!((csm.code, csm.uint(2), csm.get(4)), (CSM, Some(65_536), Some(&b""[..])));
    peer.send(&Message { code: CSM, ..Message::default() });
    let ping = Message { code: PING, token: vec![5], ..Message::default() };
    assert_eq!(peer.call(&ping.clone().option(2, b"")).code, PONG);
    // The node ignores an empty message, a pong, an unknown signal and an answer that was not
    // requested.
    for ignored in [0, PONG, code(7, 9), code(2, 5)] {
        peer.send(&Message { code: ignored, ..Message::default() });
    }
    assert_eq!(peer.call(&ping).code, PONG);
    peer.send(&request(GET, 1, "slow"));
    peer.send(&Message { code: RELEASE, ..Message::default() });
    node.fake.wait("the call", |state| state.calls.load(Ordering::SeqCst) > 0);
    node.fake.permits.add_permits(1);
    assert_eq!(peer.receive().token, [0, 1], "what is under way is still answered");
    assert_eq!(peer.next(), None);
    let mut peer = node.greeted(&[]);
    peer.send(&Message { code: ABORT, ..Message::default() });
    assert_eq!(peer.next(), None);
}

#[test]
fn what_breaks_the_protocol_ends_the_connection() {
    let node = Node::start(StreamConfig::default());
    let mut peer = node.connect();
    peer.send(&request(GET, 1, "number"));
    peer.is_aborted("the first message must be a CSM");
    for (bytes, text) in [
        (&[0x09, 1][..], "token length"),
        (&[0xf0, 0xff, 0xff, 0xff, 0xff], "message too long"),
        (&[0x00, code(1, 1)], "reserved code"),
        (&[0x00, code(6, 1)], "reserved code"),
        (&[0x10, 1, 0xff], "malformed options"),
        (&[0x10, 1, 0x0f], "malformed options"),
        (&[0x10, CSM, 0x30], "unknown critical option"),
        (&[0x10, PING, 0x10], "unknown critical option"),
    ] {
        let mut peer = node.greeted(&[]);
        peer.send_bytes(bytes);
        peer.is_aborted(text);
    }
    assert_eq!(node.fake.calls(), 0);
}

#[test]
fn bodies_and_answers_in_blocks() {
    let node = Node::start(StreamConfig::default());
    let whole = pattern_bytes(100 << 10);
    // A peer that reads only messages of the base size receives blocks of 1,024 bytes. A peer that
    // reads several blocks in one message receives several. A peer that reads large messages
    // receives the whole answer.
    let large = 200_000_u32.to_be_bytes();
    for (options, blocks) in
        [(vec![], 100), (vec![(2, &[0x20, 0][..]), (4, &b""[..])], 15), (vec![(2, &large[1..])], 1)]
    {
        let mut peer = node.greeted(&options);
        let mut body = Vec::<u8>::new();
        let mut number = 0;
        let mut count = 0;
        loop {
            let mut get = request(GET, 1, &format!("big?n={}", 100 << 10));
            if number > 0 {
                get = get.block(BLOCK2, number, false, if blocks == 100 { 6 } else { 7 });
            }
            let answer = peer.call(&get);
            count += 1;
            body.extend(&answer.payload);
            let Some(block) = answer.uint(BLOCK2) else { break };
            assert_eq!(block & 7, if blocks == 100 { 6 } else { 7 });
            if block & 8 == 0 {
                break;
            }
            number = body.len() as u32 / 1_024;
        }
        assert!(body == whole, "{} bytes", body.len());
        assert_eq!(count, blocks);
    }
    // One body is sent in messages of several blocks, and another one in a single message.
    let mut peer = node.greeted(&[(4, b"")]);
    node.fake.take_saw();
    for (at, piece) in whole.chunks(30 << 10).enumerate() {
        let number = at as u32 * 30;
        let more = (number as usize) * 1_024 + piece.len() < whole.len();
        let put = request(PUT, 2, "large").block(BLOCK1, number, more, 7).payload(piece);
        let answer = peer.call(&put);
        assert_eq!(answer.code, if more { code(2, 31) } else { code(2, 4) }, "{at}");
    }
    assert_eq!(peer.call(&request(PUT, 3, "large").payload(&whole[..60_000])).code, code(2, 4));
    let saw = node.fake.take_saw();
    assert_eq!(saw.len(), 2);
    assert!(saw[0].body.as_ref().is_ok_and(|body| *body == whole));
    assert!(saw[1].body.as_ref().is_ok_and(|body| *body == whole[..60_000]));
}

#[test]
fn a_resource_is_observed() {
    let node = Node::start(StreamConfig::default());
    let mut peer = node.greeted(&[]);
    let first = peer.call(&request(GET, 1, "number").option(OBSERVE, b""));
    assert!(first.uint(OBSERVE).is_some());
    for text in ["1", "2", "3"] {
        node.publish("number", text.into());
        let notification = peer.receive();
        assert_eq!((&notification.token[..], notification.text()), (&[0, 1][..], text.to_owned()));
        assert!(notification.uint(OBSERVE).is_some());
    }
    let answer = peer.call(&request(GET, 1, "number").number(OBSERVE, 1));
    assert_eq!(answer.get(OBSERVE), None);
    assert_eq!(node.notices.figures().observers, 0);
    peer.call(&request(GET, 1, "number").option(OBSERVE, b""));
    assert_eq!(node.notices.figures().observers, 1);
    node.notices.end(&FunctionName::new("number").unwrap());
    assert_eq!(peer.receive().code, code(4, 4));
    peer.call(&request(GET, 1, "number").option(OBSERVE, b""));
    drop(peer);
    node.fake.wait("the end of the observation", |_| node.notices.is_idle());
}

#[test]
fn an_observer_that_does_not_read_is_closed_and_costs_little() {
    let progress_ns = 300_000_000;
    let node = Node::start(StreamConfig { progress_ns, ..StreamConfig::default() });
    let large = 200_000_u32.to_be_bytes();
    let mut peer = node.greeted(&[(2, &large[1..])]);
    assert!(peer.call(&request(GET, 1, "number").option(OBSERVE, b"")).uint(OBSERVE).is_some());
    let begin = Instant::now();
    let mut published = 0;
    while !node.notices.is_idle() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it is still there");
        node.publish("number", vec![7; 100_000].into());
        published += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    let sent = node.notices.figures().sent;
    assert!(sent < 100, "{sent} of {published} states were sent to a peer that does not read");
}

#[test]
fn an_address_at_its_limit_keeps_its_newest_connections() {
    let streams =
        StreamConfig { connections_max: 8, connections_per_address_max: 2, ..Default::default() };
    let node = Node::start(streams);
    let mut first = node.greeted(&[]);
    let mut second = node.greeted(&[]);
    assert_eq!(second.call(&request(GET, 1, "number")).text(), "7");
    let mut third = node.greeted(&[]);
    assert_eq!(third.call(&request(GET, 1, "number")).text(), "7");
    assert_eq!(first.next(), None, "the oldest one made room");
    assert_eq!(second.call(&request(GET, 2, "number")).text(), "7");
}

#[test]
fn slow_calls_without_a_proof_leave_connections_to_others() {
    let streams =
        StreamConfig { connections_max: 8, connections_per_address_max: 8, ..Default::default() };
    let node = Node::start(streams);
    let mut slow: Vec<_> = (0..7).map(|_| node.greeted(&[])).collect();
    for peer in &mut slow {
        peer.send(&request(GET, 1, "slow"));
    }
    node.fake.wait("the calls", |state| state.calls.load(Ordering::SeqCst) == 7);
    for _ in 0..3 {
        let mut further = node.greeted(&[]);
        further.send(&request(GET, 1, "number"));
        further.is_aborted("too many connections, and all are used");
    }
    node.fake.permits.add_permits(7);
    for peer in &mut slow {
        assert_eq!(peer.receive().code, code(2, 5));
    }
    // The idle connection makes room for a new one.
    assert_eq!(node.greeted(&[]).call(&request(GET, 1, "number")).text(), "7");
}

#[test]
fn silent_peers_are_asked_and_closed() {
    let streams = StreamConfig {
        first_ns: 200_000_000,
        progress_ns: 200_000_000,
        silence_ns: 300_000_000,
        ..StreamConfig::default()
    };
    let node = Node::start(streams);
    let mut silent = node.connect();
    assert_eq!(silent.receive().code, CSM);
    assert_eq!(silent.next(), None, "it never said what it can do");
    let mut slow = node.greeted(&[]);
    slow.send_bytes(&framed(&request(GET, 1, "number"))[..3]);
    assert_eq!(slow.next(), None, "a message that does not end");
    let mut peer = node.greeted(&[]);
    for _ in 0..3 {
        assert_eq!(peer.receive().code, PING);
        peer.send(&Message { code: PONG, ..Message::default() });
    }
    assert_eq!(peer.call(&request(GET, 1, "number")).text(), "7");
    assert_eq!(peer.receive().code, PING);
    assert_eq!(peer.next(), None, "no pong");
}

#[test]
fn bytes_of_one_address_are_bounded() {
    let node = Node::start(StreamConfig { bytes_max: 256 << 10, ..StreamConfig::default() });
    let mut peer = node.greeted(&[]);
    let piece = vec![7; 32 << 10];
    let mut number = 0;
    let aborted = loop {
        let put = request(PUT, 1, "large").block(BLOCK1, number, true, 7).payload(&piece);
        peer.send(&put);
        let answer = peer.receive();
        if answer.code == ABORT {
            break answer;
        }
        assert_eq!(answer.code, code(2, 31));
        number += 32;
    };
    assert!((32..=160).contains(&number), "{number}");
    assert_eq!(aborted.text(), "the connection holds too much memory");
    assert_eq!(peer.next(), None);
    assert_eq!(node.greeted(&[]).call(&request(GET, 1, "number")).text(), "7");
}

#[test]
fn a_node_that_stops_releases_its_connections() {
    let node = Node::start(StreamConfig::default());
    let mut peer = node.greeted(&[]);
    peer.send(&request(GET, 1, "slow"));
    node.fake.wait("the call", |state| state.calls.load(Ordering::SeqCst) > 0);
    node.stopper.stop();
    assert_eq!(peer.receive().code, RELEASE);
    // A peer may send this request before it has read that the node stops.
    peer.send(&request(GET, 2, "number"));
    assert_eq!(peer.receive().text(), "7");
    node.fake.permits.add_permits(1);
    assert_eq!(peer.receive().token, [0, 1]);
    assert_eq!(peer.next(), None);
}
