//! The CoAP front over loopback sockets: the rules of RFC 7252, 7959 and 9175, thousands of
//! malformed datagrams against an oracle of the test's own, and the bound on what an unproven
//! source is sent.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mote_gateway::coap::{Config, serve};
use mote_gateway::http::Stopper;
use support::{Fake, Random, pattern_bytes, seed};

const CON: u8 = 0;
const NON: u8 = 1;
const ACK: u8 = 2;
const RST: u8 = 3;
const GET: u8 = 1;
const POST: u8 = 2;
const PUT: u8 = 3;
const URI_PATH: u16 = 11;
const CONTENT_FORMAT: u16 = 12;
const URI_QUERY: u16 = 15;
const ACCEPT: u16 = 17;
const BLOCK2: u16 = 23;
const BLOCK1: u16 = 27;
const SIZE2: u16 = 28;
const PROXY_URI: u16 = 35;
const SIZE1: u16 = 60;
const ECHO: u16 = 252;

/// `4.04` as a byte.
const fn code(class: u8, detail: u8) -> u8 {
    class << 5 | detail
}

/// A message as this test reads and writes it, sharing nothing with the front.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Message {
    kind: u8,
    code: u8,
    mid: u16,
    token: Vec<u8>,
    options: Vec<(u16, Vec<u8>)>,
    payload: Vec<u8>,
}

impl Message {
    fn request(kind: u8, code: u8, mid: u16, path: &str) -> Self {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let segments = path.split('/').filter(|part| !part.is_empty());
        let mut options: Vec<_> =
            segments.map(|part| (URI_PATH, part.as_bytes().to_vec())).collect();
        let parts = query.split('&').filter(|part| !part.is_empty());
        options.extend(parts.map(|part| (URI_QUERY, part.as_bytes().to_vec())));
        let token = mid.to_be_bytes().to_vec();
        Self { kind, code, mid, token, options, payload: Vec::new() }
    }

    fn option(mut self, number: u16, value: impl AsRef<[u8]>) -> Self {
        self.options.push((number, value.as_ref().to_vec()));
        self
    }

    fn number(self, number: u16, value: u32) -> Self {
        let bytes = value.to_be_bytes();
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        self.option(number, &bytes[zeros..])
    }

    fn block(self, option: u16, number: u32, more: bool, exponent: u32) -> Self {
        self.number(option, number << 4 | u32::from(more) << 3 | exponent)
    }

    fn payload(mut self, payload: impl AsRef<[u8]>) -> Self {
        self.payload = payload.as_ref().to_vec();
        self
    }

    fn get(&self, number: u16) -> Option<&[u8]> {
        self.options.iter().find(|(n, _)| *n == number).map(|(_, value)| value.as_slice())
    }

    fn uint(&self, number: u16) -> Option<u32> {
        Some(self.get(number)?.iter().fold(0, |n, byte| n << 8 | u32::from(*byte)))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }

    fn encode(&self) -> Vec<u8> {
        let token_length = self.token.len() as u8;
        let mut out = vec![0x40 | self.kind << 4 | token_length, self.code];
        out.extend(self.mid.to_be_bytes());
        out.extend(&self.token);
        let mut options = self.options.clone();
        options.sort_by_key(|(number, _)| *number);
        let mut before = 0;
        for (number, value) in options {
            let nibble = |n: usize| match n {
                0..13 => (n as u8, vec![]),
                13..269 => (13, vec![(n - 13) as u8]),
                _ => (14, ((n - 269) as u16).to_be_bytes().to_vec()),
            };
            let (delta, delta_more) = nibble(usize::from(number - before));
            let (length, length_more) = nibble(value.len());
            before = number;
            out.push(delta << 4 | length);
            out.extend(delta_more);
            out.extend(length_more);
            out.extend(value);
        }
        if !self.payload.is_empty() {
            out.push(0xff);
            out.extend(&self.payload);
        }
        out
    }

    /// Strictly: `None` for anything that is not a message (RFC 7252, 3).
    fn parse(bytes: &[u8]) -> Option<Self> {
        let [first, code, high, low, rest @ ..] = bytes else { return None };
        let token_length = usize::from(first & 15);
        if first >> 6 != 1 || token_length > 8 {
            return None;
        }
        let (token, mut rest) = rest.split_at_checked(token_length)?;
        let mut message = Self {
            kind: first >> 4 & 3,
            code: *code,
            mid: u16::from_be_bytes([*high, *low]),
            token: token.to_vec(),
            ..Self::default()
        };
        let mut number = 0u32;
        while let [head, after @ ..] = rest {
            if *head == 0xff {
                message.payload = after.to_vec();
                return (!after.is_empty()).then_some(message);
            }
            rest = after;
            let mut extended = |nibble: u8| -> Option<u32> {
                let (value, length) = match nibble {
                    0..13 => (u32::from(nibble), 0),
                    13 => (u32::from(*rest.first()?) + 13, 1),
                    14 => (u32::from(u16::from_be_bytes([*rest.first()?, *rest.get(1)?])) + 269, 2),
                    _ => return None,
                };
                rest = &rest[length..];
                Some(value)
            };
            number += extended(head >> 4)?;
            let length = extended(head & 15)?;
            let number = u16::try_from(number).ok()?;
            let (value, after) = rest.split_at_checked(length as usize)?;
            message.options.push((number, value.to_vec()));
            rest = after;
        }
        Some(message)
    }
}

struct Server {
    address: SocketAddr,
    fake: Fake,
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    fn start() -> Self {
        Self::on("127.0.0.1:0", Config { ack_delay_ns: 50_000_000, ..Config::default() })
    }

    fn on(address: &str, config: Config) -> Self {
        let (fake, stopper) = (Fake::default(), Stopper::default());
        let (invoker, end) = (fake.clone(), stopper.clone());
        let socket = UdpSocket::bind(address).unwrap();
        let address = socket.local_addr().unwrap();
        socket.set_nonblocking(true).unwrap();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let socket = tokio::net::UdpSocket::from_std(socket).unwrap();
                serve(socket, invoker, config, end).await.unwrap();
            });
        });
        Self { address, fake, stopper, thread: Some(thread) }
    }

    fn client(&self) -> Client {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client { socket, mid: 0 }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().unwrap();
        }
    }
}

struct Client {
    socket: UdpSocket,
    mid: u16,
}

impl Client {
    fn fresh(&mut self) -> u16 {
        self.mid += 1;
        self.mid
    }

    fn send(&self, bytes: &[u8]) {
        self.socket.send(bytes).unwrap();
    }

    fn receive_bytes(&self) -> Vec<u8> {
        let mut buffer = [0; 4_096];
        let length = self.socket.recv(&mut buffer).expect("an answer in time");
        buffer[..length].to_vec()
    }

    fn receive(&self) -> Message {
        Message::parse(&self.receive_bytes()).expect("a well-formed answer")
    }

    /// Sends a request and reads its piggy-backed answer.
    fn call(&self, request: &Message) -> Message {
        self.send(&request.encode());
        let answer = self.receive();
        let kind = if request.kind == CON { ACK } else { NON };
        assert_eq!((answer.kind, &answer.token), (kind, &request.token), "{request:?}");
        if kind == ACK {
            assert_eq!(answer.mid, request.mid);
        }
        answer
    }

    fn ask(&mut self, method: u8, path: &str) -> Message {
        let request = Message::request(CON, method, self.fresh(), path);
        self.call(&request)
    }

    /// What comes before the answer to a ping sent now: whatever was answered at once.
    fn until_ping(&self) -> Vec<Vec<u8>> {
        self.send(&[0x40, 0, 0xff, 0xfe]);
        let mut before = Vec::new();
        loop {
            let bytes = self.receive_bytes();
            if bytes == [0x70, 0, 0xff, 0xfe] {
                return before;
            }
            before.push(bytes);
        }
    }

    fn is_silent_after(&self, bytes: &[u8]) -> bool {
        self.send(bytes);
        self.until_ping().is_empty()
    }
}

#[test]
fn rows_43_to_51() {
    let server = Server::start();
    let mut client = server.client();
    let mut tried = 0;
    let mut silent = |client: &Client, bytes: &[u8], why: &str| {
        tried += 1;
        assert!(client.is_silent_after(bytes), "{why}: {bytes:02x?} is answered");
    };
    silent(&client, &[0x40, 1, 0], "43: under 4 bytes");
    silent(&client, &[], "43: empty");
    silent(&client, &[0x00, 1, 0, 1], "43: version 0");
    silent(&client, &[0x80, 1, 0, 1], "43: version 2");
    silent(&client, &[0xc0, 1, 0, 1], "43: version 3");
    for token_length in 9..16 {
        silent(&client, &[0x50 | token_length, 1, 0, 1, 1, 1], "44: token length, NON");
    }
    let broken: [(&[u8], &str); 7] = [
        (&[0xf0], "delta 15"),
        (&[0x0f], "length 15"),
        (&[0xff], "marker without payload"),
        (&[0xd0], "delta without its byte"),
        (&[0xe0, 1], "delta without its second byte"),
        (&[0x1d], "length without its byte"),
        (&[0xb4, b'e', b'c'], "value cut off"),
    ];
    for (tail, why) in broken {
        silent(&client, &[&[0x50, 1, 0, 2], tail].concat(), why);
    }
    silent(&client, &[&[0x50, 1, 0, 3], &[0x90][..]].concat(), "45: NON, critical option");
    for class in [1, 6, 7] {
        silent(&client, &[0x50, code(class, 1), 0, 4], "46: NON, reserved class");
    }
    silent(&client, &[0x60, 1, 0, 5], "ACK with a request code");
    silent(&client, &[0x70, 0, 0, 5], "RST out of the blue");
    silent(&client, &[0x50, 0, 0, 5], "NON ping");
    silent(&client, &[0x50, code(2, 5), 0, 5], "NON answer nobody asked for");
    let mut reset = |bytes: &[u8], why: &str| {
        tried += 1;
        client.send(bytes);
        assert_eq!(client.receive_bytes(), [&[0x70, 0][..], &bytes[2..4]].concat(), "{why}");
    };
    for token_length in 9..16 {
        reset(&[0x40 | token_length, 1, 1, token_length, 1, 1], "44: token length, CON");
    }
    reset(&[0x44, 1, 2, 1, 1, 1], "44: token cut off");
    for (n, (tail, why)) in broken.into_iter().enumerate() {
        reset(&[&[0x40, 1, 3, n as u8], tail].concat(), why);
    }
    for class in [1, 6, 7] {
        reset(&[0x40, code(class, 1), 4, class], "46: CON, reserved class");
    }
    reset(&[0x40, 0, 5, 1], "ping");
    reset(&[0x41, 0, 5, 2, 1], "empty message with a token");
    reset(&[0x40, code(2, 5), 5, 3], "CON answer nobody asked for");
    client.mid = 0x1000;
    let mut refused = |request: Message, expected: (u8, u8), text: &str| {
        tried += 1;
        let request = Message { mid: client.fresh(), ..request };
        let answer = client.call(&request);
        assert_eq!(
            (answer.code, answer.text()),
            (code(expected.0, expected.1), text.to_owned()),
            "{request:?}"
        );
        answer
    };
    let get = |path: &str| Message::request(CON, GET, 1, path);
    let put = |path: &str| Message::request(CON, PUT, 1, path);
    refused(get("echo").option(9_999, b""), (4, 2), "option 9999");
    refused(get("echo").option(9, b"x"), (4, 2), "option 9");
    refused(get("echo").option(7, b"").option(7, b""), (4, 2), "option 7");
    refused(get("echo").number(ACCEPT, 0).number(ACCEPT, 50), (4, 2), "option 17");
    refused(
        put("echo").block(BLOCK1, 1, true, 0).payload([0; 16]),
        (4, 8),
        "block is out of order",
    );
    refused(
        put("echo").block(BLOCK1, 0, true, 0).payload(b"short"),
        (4, 0),
        "block has a wrong length",
    );
    refused(put("echo").block(BLOCK1, 0, false, 7).payload(b"x"), (4, 0), "SZX 7");
    refused(get("echo").block(BLOCK2, 0, false, 7), (4, 0), "SZX 7");
    let answer = refused(
        put("small").block(BLOCK1, 0, true, 0).payload([0; 16]),
        (4, 13),
        "body limit 10 bytes",
    );
    assert_eq!(answer.uint(SIZE1), Some(10));
    let answer = refused(put("small").payload([0; 11]), (4, 13), "body limit 10 bytes");
    assert_eq!(answer.uint(SIZE1), Some(10));
    refused(get("echo").option(PROXY_URI, b"coap://b/echo"), (5, 5), "not a proxy");
    refused(get("echo").option(39, b"coap"), (5, 5), "not a proxy");
    refused(get("nobody"), (4, 4), "no function named nobody");
    refused(get("nobody").block(BLOCK2, 3, false, 2), (4, 4), "no function named nobody");
    refused(get(""), (4, 4), "no function named ");
    refused(put("get-only"), (4, 5), "GET only");
    refused(Message { code: code(0, 8), ..get("echo") }, (4, 5), "method not supported");
    refused(put(".well-known/core"), (4, 5), "GET only");
    refused(get("echo").option(URI_PATH, b".."), (4, 0), "path is not in normal form");
    refused(get("echo").option(URI_PATH, b"\xc0\xae"), (4, 0), "path is not in normal form");
    refused(get("echo").option(URI_PATH, b"a\0"), (4, 0), "path is not in normal form");
    refused(get("echo").option(URI_QUERY, b"a\0"), (4, 0), "NUL is not allowed");
    assert_eq!(server.fake.calls(), 0, "something reached a function");
    println!("{tried} tried / {tried} as the table says");
}

#[test]
fn row_51_the_same_message_is_answered_the_same_and_served_once() {
    let server = Server::start();
    let mut client = server.client();
    let request = Message::request(CON, POST, client.fresh(), "count");
    client.send(&request.encode());
    let first = client.receive_bytes();
    for payload in ["", "", "another payload"] {
        client.send(&request.clone().payload(payload).encode());
        assert_eq!(client.receive_bytes(), first);
    }
    assert_eq!(server.fake.calls(), 1);
    // A duplicate of a non-confirmable one is not answered again.
    let non = Message::request(NON, POST, client.fresh(), "count");
    assert_eq!(client.call(&non).text(), "2");
    assert!(client.is_silent_after(&non.encode()));
    // The id is the peer's own.
    assert_eq!(server.client().call(&request).text(), "3");
    assert_eq!(server.fake.calls(), 3);
}

#[test]
fn row_50_multicast_is_not_answered() {
    let server = Server::on("0.0.0.0:0", Config::default());
    let mut client = server.client();
    client.socket.connect(("127.0.0.1", server.address.port())).unwrap();
    assert_eq!(client.ask(POST, "count").text(), "1", "the front is up");
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Another program that joined the group must not make the front hear it.
    let group = "224.0.1.187".parse().unwrap();
    if socket.join_multicast_v4(&group, &"127.0.0.1".parse().unwrap()).is_err() {
        eprintln!("SKIPPED: multicast cannot be joined here");
        return;
    }
    let reference = socket2::SockRef::from(&socket);
    reference.set_multicast_if_v4(&"127.0.0.1".parse().unwrap()).unwrap();
    reference.set_multicast_loop_v4(true).unwrap();
    let request = Message::request(NON, POST, 7, "count").encode();
    if socket.send_to(&request, (group, server.address.port())).is_err() {
        eprintln!("SKIPPED: multicast cannot be sent here");
        return;
    }
    assert_eq!(client.ask(POST, "count").text(), "2", "the multicast request ran");
}

#[test]
fn a_slow_answer_is_acknowledged_then_sent_until_it_is_acknowledged() {
    let server = Server::start();
    let mut client = server.client();
    let request = Message::request(CON, GET, client.fresh(), "slow");
    client.send(&request.encode());
    let empty = [0x60, 0, 0, request.mid as u8];
    assert_eq!(client.receive_bytes(), empty);
    client.send(&request.encode());
    assert_eq!(client.receive_bytes(), empty, "a duplicate meanwhile");
    server.fake.permits.add_permits(1);
    let begin = Instant::now();
    let first = client.receive_bytes();
    let answer = Message::parse(&first).unwrap();
    assert_eq!((answer.kind, answer.code, &answer.token), (CON, code(2, 5), &request.token));
    assert_eq!(answer.text(), "slow 1");
    assert_eq!(client.receive_bytes(), first, "sent again");
    let pause = begin.elapsed();
    assert!(pause >= Duration::from_secs(2), "sent again after {pause:?} already");
    let [_, _, high, low, ..] = first[..] else { panic!("an answer") };
    client.send(&[0x60, 0, high, low]);
    // Acknowledged: neither the next pause nor a duplicate of the request brings it again.
    client.send(&request.encode());
    assert_eq!(client.receive_bytes(), empty);
    client.socket.set_read_timeout(Some(Duration::from_secs(6))).unwrap();
    let mut buffer = [0; 64];
    assert!(client.socket.recv(&mut buffer).is_err(), "sent after its acknowledgement");
    assert_eq!(server.fake.calls(), 1);
}

#[test]
fn a_slow_answer_to_a_non_confirmable_request_is_one_too() {
    let server = Server::start();
    let mut client = server.client();
    let request = Message::request(NON, GET, client.fresh(), "slow");
    client.send(&request.encode());
    server.fake.permits.add_permits(1);
    let answer = client.receive();
    assert_eq!((answer.kind, answer.code, answer.token), (NON, code(2, 5), request.token));
}

#[test]
fn functions_that_panic_or_stall_are_answered() {
    let server = Server::start();
    let mut client = server.client();
    let request = Message::request(CON, GET, client.fresh(), "boom");
    client.send(&request.encode());
    // Writing the panic down may take longer than the acknowledgement waits.
    let mut answer = client.receive();
    while answer.code == 0 {
        answer = client.receive();
    }
    client.send(&[0x60, 0, (answer.mid >> 8) as u8, answer.mid as u8]);
    assert_eq!(answer.code, code(5, 0));
    let request = Message::request(CON, GET, client.fresh(), "stall");
    client.send(&request.encode());
    assert_eq!(client.receive().code, 0, "acknowledged first");
    let answer = client.receive();
    assert_eq!((answer.kind, answer.code), (CON, code(5, 4)));
    assert!(answer.text().starts_with("stall: deadline of 200 ms"), "{}", answer.text());
}

#[test]
fn methods_formats_and_fields_reach_the_function() {
    let server = Server::start();
    let mut client = server.client();
    for (method, name, expected) in [
        (1, "GET", (2, 5)),
        (2, "POST", (2, 4)),
        (3, "PUT", (2, 4)),
        (4, "DELETE", (2, 2)),
        (5, "FETCH", (2, 5)),
        (6, "PATCH", (2, 4)),
        (7, "IPATCH", (2, 4)),
    ] {
        for kind in [CON, NON] {
            let request = Message::request(kind, method, client.fresh(), "echo/a b/c?x=1&y=/?")
                .number(CONTENT_FORMAT, 50)
                .payload("{}");
            let answer = client.call(&request);
            assert_eq!(answer.code, code(expected.0, expected.1), "{name}");
            assert_eq!(answer.uint(CONTENT_FORMAT), Some(50), "{name}");
            let text = answer.text();
            assert!(text.starts_with(&format!("{name} /a%20b/c x=1&y=/?\n")), "{text}");
            assert!(text.contains("content-type: application/json\n"), "{text}");
            assert!(text.ends_with("\n\n{}"), "{text}");
        }
    }
    for (number, name) in [
        (0, "text/plain; charset=utf-8"),
        (42, "application/octet-stream"),
        (60, "application/cbor"),
    ] {
        let request = Message::request(CON, POST, client.fresh(), "echo")
            .number(CONTENT_FORMAT, number)
            .number(ACCEPT, number)
            .option(1, b"\x0a")
            .option(1, b"\x0b")
            .option(4, b"\x01\x02");
        let text = client.call(&request).text();
        assert!(text.contains(&format!("content-type: {name}\n")), "{text}");
        assert!(text.contains(&format!("accept: {name}\n")), "{text}");
        assert!(text.contains("if-match: \"0a\", \"0b\"\n"), "{text}");
        assert!(text.contains("if-none-match: \"0102\"\n"), "{text}");
    }
    let accept = |client: &mut Client, format| {
        let request = Message::request(CON, GET, client.fresh(), "number").number(ACCEPT, format);
        client.call(&request)
    };
    assert_eq!(accept(&mut client, 50).code, code(2, 5));
    assert_eq!(accept(&mut client, 60).code, code(4, 6));
    // An observer is answered plainly (RFC 7641, 4.1).
    let request = Message::request(CON, GET, client.fresh(), "number").option(6, b"");
    let answer = client.call(&request);
    assert_eq!((answer.code, answer.get(6)), (code(2, 5), None));
}

#[test]
fn discovery_lists_functions_and_filters_them() {
    let server = Server::start();
    let mut client = server.client();
    let all = client.ask(GET, ".well-known/core");
    assert_eq!((all.code, all.uint(CONTENT_FORMAT)), (code(2, 5), Some(40)));
    let number = "</number>;rt=\"temperature-c core.n\";title=\"a \\\"number\\\"\";ct=50";
    assert!(all.text().contains(number) && all.text().contains("</echo>"), "{}", all.text());
    for (filter, found) in [
        ("rt=temperature-c", true),
        ("rt=temp*", true),
        ("rt=core.n", true),
        ("rt=temp", false),
        ("ct=50", true),
        ("href=/num*", true),
        ("title=a \"number\"", true),
        ("title=a*", true),
        ("nothing=x", false),
    ] {
        let text = client.ask(GET, &format!(".well-known/core?{filter}")).text();
        assert_eq!(text, if found { number } else { "" }, "{filter}");
    }
}

#[test]
fn a_body_of_1_mib_arrives_in_blocks_of_any_size() {
    let server = Server::start();
    let body = pattern_bytes(1 << 20);
    for exponent in [6, 4, 2] {
        let mut client = server.client();
        let size = 16 << exponent;
        server.fake.take_saw();
        let pieces: Vec<_> = body.chunks(size).collect();
        for (number, piece) in pieces.iter().enumerate() {
            let more = number + 1 < pieces.len();
            let request = Message::request(CON, PUT, client.fresh(), "large")
                .block(BLOCK1, number as u32, more, exponent)
                .payload(piece);
            let answer = client.call(&request);
            let expected = if more { code(2, 31) } else { code(2, 4) };
            assert_eq!(answer.code, expected, "block {number}: {}", answer.text());
            let block1 = (number as u32) << 4 | u32::from(more) << 3 | exponent;
            assert_eq!(answer.uint(BLOCK1), Some(block1));
        }
        let saw = server.fake.take_saw();
        assert_eq!(saw.len(), 1);
        assert!(saw[0].body.as_ref().unwrap() == &body, "SZX {exponent}");
    }
    // A block that skips one is refused and spoils nothing.
    let mut client = server.client();
    let block = |client: &mut Client, number, more| {
        let request = Message::request(CON, PUT, client.fresh(), "echo")
            .block(BLOCK1, number, more, 0)
            .payload([b'0' + number as u8; 16]);
        client.call(&request).code
    };
    assert_eq!(block(&mut client, 0, true), code(2, 31));
    assert_eq!(block(&mut client, 2, true), code(4, 8));
    assert_eq!(block(&mut client, 1, true), code(2, 31));
    assert_eq!(block(&mut client, 1, true), code(2, 31), "once more");
    assert_eq!(block(&mut client, 2, false), code(2, 4));
    let saw = server.fake.take_saw();
    assert_eq!(saw[0].body.as_ref().unwrap().len(), 48);
    // More than the function takes: refused at the block that passes the limit.
    let mut client = server.client();
    let mut last = Message::default();
    for number in 0..=6 << 10 {
        let request = Message::request(CON, PUT, client.fresh(), "echo")
            .block(BLOCK1, number, true, 6)
            .payload([0; 1_024]);
        last = client.call(&request);
        if last.code != code(2, 31) {
            assert_eq!(number, 6 << 10);
        }
    }
    assert_eq!((last.code, last.uint(SIZE1)), (code(4, 13), Some(6 << 20)));
}

#[test]
fn all_blocks_of_a_transfer_go_to_one_revision() {
    let server = Server::start();
    let mut client = server.client();
    let upload = |number, more| {
        Message::request(CON, PUT, 0, "echo").block(BLOCK1, number, more, 0).payload([b'x'; 16])
    };
    let download =
        |number| Message::request(CON, GET, 0, "bytes?n=40").block(BLOCK2, number, false, 0);
    for requests in [[upload(0, true), upload(1, true), upload(2, false)], [0, 1, 2].map(download)]
    {
        server.fake.state.keys.lock().clear();
        for mut request in requests {
            request.mid = client.fresh();
            assert_eq!(client.call(&request).code >> 5, 2);
        }
        let keys = server.fake.state.keys.lock().clone();
        assert!(keys[0].is_some() && keys == [keys[0]; 3], "{keys:?}");
    }
    server.fake.state.keys.lock().clear();
    let request = Message::request(CON, GET, client.fresh(), "echo");
    client.call(&request);
    assert_eq!(*server.fake.state.keys.lock(), [None], "others are chosen one by one");
}

#[test]
fn an_answer_of_1_mib_leaves_in_blocks_of_any_size() {
    let server = Server::start();
    let whole = pattern_bytes(1 << 20);
    for (method, exponent) in [(GET, 6), (POST, 6), (GET, 2)] {
        let mut client = server.client();
        let before = server.fake.calls();
        let mut body: Vec<u8> = Vec::new();
        let mut tag = None;
        for number in 0.. {
            let request = Message::request(CON, method, client.fresh(), "big?n=1048576")
                .block(BLOCK2, number, false, exponent);
            let answer = client.call(&request);
            assert_eq!(answer.code.wrapping_shr(5), 2, "block {number}: {}", answer.text());
            let block = answer.uint(BLOCK2).unwrap();
            assert_eq!((block >> 4, block & 7), (number, exponent));
            if number == 0 {
                assert_eq!(answer.uint(SIZE2), Some(1 << 20));
            }
            let etag = answer.get(4).map(<[u8]>::to_vec);
            assert!(etag.is_some() && *tag.get_or_insert(etag.clone()) == etag);
            body.extend(&answer.payload);
            if block & 8 == 0 {
                break;
            }
        }
        assert!(body == whole);
        assert_eq!(server.fake.calls() - before, 1, "each block ran the function");
    }
    let mut client = server.client();
    let answer = client.ask(GET, "big?n=3000");
    assert_eq!((answer.uint(BLOCK2), answer.payload.len()), (Some(0x0e), 1_024), "unasked");
    // A long location would not fit beside a whole block: it is left out, not the answer.
    let answer = client.ask(GET, "big?n=1024&located=1");
    assert_eq!((answer.code, answer.payload.len(), answer.get(8)), (code(2, 5), 1_024, None));
    assert!(answer.encode().len() <= 1_280);
}

#[test]
fn an_answer_above_the_limit_tells_the_limit_and_what_to_do() {
    let config = Config { answer_bytes_max: 4 << 10, ..Config::default() };
    let server = Server::on("127.0.0.1:0", config);
    let mut client = server.client();
    for whole_or_streamed in ["big", "stream"] {
        let answer = client.ask(GET, &format!("{whole_or_streamed}?n=4096"));
        assert_eq!(answer.code, code(2, 5), "{}", answer.text());
        let answer = client.ask(GET, &format!("{whole_or_streamed}?n=4097"));
        assert_eq!(answer.code, code(5, 2));
        let text = answer.text();
        assert!(text.contains("longer than 4 KiB"), "{text}");
        assert!(text.contains("answer in parts, or call the function over HTTP"), "{text}");
    }
}

#[test]
fn a_datagram_longer_than_the_buffer_runs_nothing() {
    let server = Server::start();
    let mut client = server.client();
    let request = Message::request(CON, POST, client.fresh(), "echo").payload([b'x'; 3_000]);
    let answer = client.call(&request);
    assert_eq!((answer.code, answer.uint(SIZE1)), (code(4, 13), Some(1_024)));
    let non = Message::request(NON, POST, client.fresh(), "echo").payload([b'x'; 3_000]);
    assert!(client.is_silent_after(&non.encode()));
    assert_eq!(server.fake.calls(), 0);
    let fits = Message::request(CON, POST, client.fresh(), "echo").payload([b'x'; 2_000]);
    assert_eq!(client.call(&fits).code, code(2, 4));
}

/// What a datagram must be answered with, read off RFC 7252 and the table, not off the front.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Silence,
    Reset,
    /// 4.02
    BadOption,
    /// Any answer of the request layer.
    Answer,
}

fn oracle(bytes: &[u8]) -> Verdict {
    if bytes.len() < 4 || bytes[0] >> 6 != 1 {
        return Verdict::Silence;
    }
    let (kind, class, detail) = (bytes[0] >> 4 & 3, bytes[1] >> 5, bytes[1] & 31);
    if kind >= ACK {
        return Verdict::Silence;
    }
    let refused = if kind == CON { Verdict::Reset } else { Verdict::Silence };
    if class != 0 || detail == 0 {
        // Reserved classes, answers nobody asked for, pings and empty messages that are not.
        return refused;
    }
    let Some(message) = Message::parse(bytes) else { return refused };
    let times = |number: u16| message.options.iter().filter(|(n, _)| *n == number).count();
    let bad = message.options.iter().any(|(number, value)| {
        let (lengths, once) = match number {
            1 => (0..=8, false),
            3 => (1..=255, true),
            5 => (0..=0, true),
            7 => (0..=2, true),
            11 | 15 => (0..=255, false),
            17 => (0..=2, true),
            23 | 27 => (0..=3, true),
            35 => (0..=usize::MAX, false),
            39 => (0..=usize::MAX, false),
            other => return other & 1 == 1,
        };
        !lengths.contains(&value.len()) || (once && times(*number) > 1)
    });
    match (bad, kind) {
        (true, CON) => Verdict::BadOption,
        (true, _) => Verdict::Silence,
        (false, _) => Verdict::Answer,
    }
}

/// A datagram to try: a valid one, mutated, or noise.
fn generated(random: &mut Random, mid: u16) -> Vec<u8> {
    let kind = random.below(2) as u8;
    let method = 1 + random.below(9) as u8;
    let mut message = Message::request(kind, method, mid, "echo");
    message.token = {
        let length = random.below(9);
        random.bytes(length)
    };
    for _ in 0..random.below(4) {
        const NUMBERS: [u16; 22] =
            [1, 3, 4, 5, 6, 7, 8, 11, 12, 14, 15, 17, 20, 23, 27, 28, 35, 39, 60, 252, 292, 2049];
        let number = NUMBERS[random.below(NUMBERS.len())];
        let longest = if random.below(8) == 0 { 300 } else { 4 };
        let length = random.below(longest);
        let value = random.bytes(length);
        message.options.push((number, value));
    }
    let length = random.below(24);
    message.payload = random.bytes(length);
    let mut bytes = message.encode();
    match random.below(6) {
        0 => {
            let length = random.below(40);
            random.bytes(length)
        }
        1 => {
            let length = random.below(bytes.len() + 1);
            bytes.truncate(length);
            bytes
        }
        2 => {
            for _ in 0..1 + random.below(3) {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
            bytes
        }
        3 => {
            let at = 4 + random.below(bytes.len() - 3);
            let length = 1 + random.below(4);
            let noise = random.bytes(length);
            bytes.splice(at..at, noise);
            bytes
        }
        4 => {
            let at = random.below(bytes.len());
            bytes[at] = [0xff, 0xf0, 0x0f, 0xdd, 0xee, 0x00][random.below(6)];
            bytes
        }
        _ => bytes,
    }
}

#[test]
fn five_thousand_malformed_datagrams() {
    let seed = seed();
    println!("seed {seed}");
    let server = Server::start();
    let mut random = Random::new(seed);
    let mut of: HashMap<String, u32> = HashMap::new();
    let mut wrong = Vec::new();
    for n in 0..5_000u32 {
        // A socket of its own, so that no datagram is a duplicate of another.
        let client = server.client();
        let bytes = generated(&mut random, n as u16);
        let verdict = oracle(&bytes);
        let calls = server.fake.calls();
        client.send(&bytes);
        let mut answers = client.until_ping();
        if answers.is_empty() && matches!(verdict, Verdict::Answer | Verdict::BadOption) {
            client.socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            let mut buffer = [0; 4_096];
            answers.extend(client.socket.recv(&mut buffer).ok().map(|n| buffer[..n].to_vec()));
        }
        let good = match (&verdict, answers.as_slice()) {
            (Verdict::Silence, []) => server.fake.calls() == calls,
            (Verdict::Reset, [one]) => *one == [0x70, 0, bytes[2], bytes[3]],
            (Verdict::BadOption | Verdict::Answer, [one]) => Message::parse(one).is_some_and(|m| {
                let token = usize::from(bytes[0] & 15);
                let con = bytes[0] >> 4 & 3 == CON;
                m.token == bytes[4..4 + token]
                    && m.kind == if con { ACK } else { NON }
                    && (!con || m.mid.to_be_bytes() == bytes[2..4])
                    && matches!(m.code >> 5, 2 | 4 | 5)
                    && (verdict == Verdict::Answer || m.code == code(4, 2))
            }),
            _ => false,
        };
        *of.entry(format!("{verdict:?}")).or_default() += 1;
        if !good {
            wrong.push(format!("{bytes:02x?}: {verdict:?}, got {answers:02x?}"));
        }
    }
    println!("5000 tried / {} as the oracle says: {of:?}", 5_000 - wrong.len());
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong[..wrong.len().min(10)].join("\n"));
    let mut client = server.client();
    assert_eq!(client.ask(GET, "echo").code, code(2, 5), "the server answers no more");
}

/// An address of this machine that is not a loopback one, if it has any. Sends nothing.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

#[test]
fn an_unproven_source_is_sent_little() {
    let Some(own) = own_address() else {
        eprintln!("SKIPPED: this machine has no address but loopback; the bound was not tested");
        return;
    };
    let seed = seed();
    println!("seed {seed}");
    let config = Config { ack_delay_ns: 20_000_000, ..Config::default() };
    let server = Server::on(&format!("{own}:0"), config);
    let client = Client { socket: UdpSocket::bind((own, 0)).unwrap(), mid: 0 };
    client.socket.connect(server.address).unwrap();
    client.socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut random = Random::new(seed);
    // Of each message id: datagrams sent with it and the length of the last; of each token its
    // id and length.
    let (mut by_mid, mut by_token) = (HashMap::new(), HashMap::new());
    let mut got_of: HashMap<u16, u32> = HashMap::new();
    let (mut sent, mut got, mut most, mut echo) = (0u32, 0u32, 0.0f64, None);
    let mut receive =
        |by_mid: &HashMap<u16, (u32, usize)>, by_token: &HashMap<Vec<u8>, (u16, usize)>, sent| {
            let mut buffer = [0; 4_096];
            let Ok(length) = client.socket.recv(&mut buffer) else { return None };
            let message = Message::parse(&buffer[..length]).unwrap();
            got += 1;
            let (mid, request) = match message.kind {
                ACK | RST => (message.mid, by_mid[&message.mid].1),
                _ => by_token[&message.token],
            };
            let got_of = got_of.entry(mid).or_insert(0);
            *got_of += 1;
            assert!(*got_of <= by_mid[&mid].0, "{got_of} datagrams for one: {message:?}");
            assert!(length <= 136.max(3 * request), "{length} bytes for {request}: {message:?}");
            assert!(got <= sent, "{got} datagrams for {sent}");
            most = most.max(length as f64 / request as f64);
            if let Some(value) = message.get(ECHO) {
                echo = Some(value.to_vec());
            }
            Some(message.kind == RST && message.mid == 0xfffe)
        };
    for n in 0..20_000u32 {
        let mid = (n % 50_000) as u16;
        let paths = [
            "echo",
            "echo/long/path?and=query",
            "big?n=5000",
            "big?n=100",
            "big?n=200000",
            "nobody",
            ".well-known/core",
            "number",
            "small",
            "status/404",
            "slow",
        ];
        let path = paths[random.below(if n % 20 == 0 { 11 } else { 10 })];
        let mut message =
            Message::request(random.below(2) as u8, 1 + random.below(8) as u8, mid, path);
        message.token = n.to_be_bytes().to_vec();
        let longest = [1, 40, 400, 1_100][random.below(4)];
        let length = random.below(longest);
        message.payload = random.bytes(length);
        match random.below(6) {
            0 => {
                message =
                    message.block(BLOCK2, random.below(4) as u32, false, random.below(7) as u32)
            }
            1 => {
                message =
                    message.block(BLOCK1, random.below(2) as u32, false, random.below(7) as u32)
            }
            2 => message = message.option(ECHO, random.next().to_be_bytes()),
            3 if n > 0 => {
                // The id of an earlier message on a short one.
                message = Message::request(CON, GET, random.below(n as usize) as u16 % 50_000, "");
                message.token = n.to_be_bytes().to_vec();
            }
            _ => {}
        }
        let bytes = message.encode();
        for (mid, length) in [(message.mid, bytes.len()), (0xfffe, 4)] {
            let entry = by_mid.entry(mid).or_insert((0, 0));
            *entry = (entry.0 + 1, length);
        }
        by_token.insert(message.token.clone(), (message.mid, bytes.len()));
        sent += 2;
        client.send(&bytes);
        client.send(&[0x40, 0, 0xff, 0xfe]);
        while let Some(ping) = receive(&by_mid, &by_token, sent) {
            if ping {
                break;
            }
        }
    }
    server.fake.permits.add_permits(10_000);
    while receive(&by_mid, &by_token, sent).is_some() {}
    println!(
        "20000 tried / 20000 within the bound; most {most:.1} times what was asked, {got} of {sent} answered"
    );
    // With the value it was sent, the source gets the whole answer.
    let request = Message::request(CON, GET, 60_000, "big?n=1000");
    let answer = client.call(&request.option(ECHO, echo.expect("an Echo value")));
    assert_eq!((answer.code, answer.payload.len()), (code(2, 5), 1_000));
    let _ = server.fake.state.calls.load(Ordering::SeqCst);
}

/// Requests of others, which may be forged, do not make the node forget that it has served one.
#[test]
fn a_repeated_request_runs_once_whatever_others_send() {
    let Some(own) = own_address() else {
        eprintln!("SKIPPED: this machine has no address but loopback; no source is unproven");
        return;
    };
    let config = Config { exchanges_bytes_max: 64 << 10, ..Config::default() };
    let server = Server::on(&format!("{own}:0"), config);
    let connected = || {
        let socket = UdpSocket::bind((own, 0)).unwrap();
        socket.connect(server.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client { socket, mid: 0 }
    };
    let (mine, others) = (connected(), connected());
    let post = Message::request(CON, POST, 1, "echo/mine");
    assert_eq!(mine.call(&post).code, code(2, 4));
    for mid in 0..1_000 {
        let answer = others.call(&Message::request(CON, GET, mid, "count"));
        assert_eq!(answer.code, code(2, 5));
    }
    let runs = |server: &Server| {
        server.fake.state.saw.lock().iter().filter(|saw| saw.path == "/mine").count()
    };
    // It is not known any more, so it runs only for a source whose repetitions are.
    let answer = mine.call(&post);
    assert_eq!((answer.code, runs(&server)), (code(4, 1), 1));
    let echo = answer.get(ECHO).expect("an Echo value").to_vec();
    let again = Message::request(CON, POST, 2, "echo/mine").option(ECHO, echo);
    assert_eq!((mine.call(&again).code, runs(&server)), (code(2, 4), 2));
    for mid in 1_000..2_000 {
        others.call(&Message::request(CON, GET, mid, "count"));
    }
    assert_eq!(mine.call(&again).code, code(2, 4));
    assert_eq!(runs(&server), 2, "a proven source's request is remembered");
}

/// That a body may go on answers a block of the request, whatever block of the answer was asked for.
#[test]
fn continue_says_nothing_of_the_answers_blocks() {
    let server = Server::start();
    let mut client = server.client();
    let first = Message::request(CON, POST, client.fresh(), "echo")
        .block(BLOCK1, 0, true, 0)
        .block(BLOCK2, 0, false, 2)
        .payload([7; 16]);
    let answer = client.call(&first);
    assert_eq!((answer.code, answer.get(BLOCK2)), (code(2, 31), None));
    assert!(answer.get(BLOCK1).is_some() && answer.payload.is_empty());
}
