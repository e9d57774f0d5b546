//! Tests the CoAP front against hostile datagrams. The test sends thousands of malformed datagrams
//! and compares the answers with its own oracle, repeats requests among floods, and checks the
//! bound on what is sent to an unproven source (RFC 9175).

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::net::UdpSocket;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mote_coap::Config;
use support::coap::*;
use support::{Random, seed};

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

/// The expected answer to a datagram. It is derived from RFC 7252 and the table, and not from the
/// front's code.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Silence,
    Reset,
    /// 4.02
    BadOption,
    /// Any answer to the request as such.
    Answer,
}

fn oracle(bytes: &[u8]) -> Verdict {
    if bytes.len() < 4 || bytes[0] >> 6 != 1 {
        return Verdict::Silence;
    }
    let kind = bytes[0] >> 4 & 3;
    let class = bytes[1] >> 5;
    let detail = bytes[1] & 31;
    if kind >= ACK {
        return Verdict::Silence;
    }
    let refused = if kind == CON { Verdict::Reset } else { Verdict::Silence };
    if class != 0 || detail == 0 {
        // These are messages with reserved classes, answers that were not requested, pings, and
        // messages with an empty code that still have content.
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

/// Generates a datagram to try: a valid one, a mutated one, or noise.
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
        // Each case has its own socket, so that no datagram is a duplicate of another.
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

/// An address of this machine that is not a loopback address, if there is one. Sends nothing.
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
    // For each message id: the number of datagrams sent with it, and the length of the last one.
    // For each token: its id and length.
    let mut by_mid = HashMap::new();
    let mut by_token = HashMap::new();
    let mut got_of: HashMap<u16, u32> = HashMap::new();
    let mut sent = 0u32;
    let mut got = 0u32;
    let mut most = 0.0f64;
    let mut echo = None;
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
                // A short message that reuses the id of an earlier message.
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
    // With the Echo value that it received, the source gets the whole answer.
    let request = Message::request(CON, GET, 60_000, "big?n=1000");
    let answer = client.call(&request.option(ECHO, echo.expect("an Echo value")));
    assert_eq!((answer.code, answer.payload.len()), (code(2, 5), 1_000));
    let _ = server.fake.state.calls.load(Ordering::SeqCst);
}

/// Requests from other sources, which may be forged, do not make the node forget that it has
/// already served a request.
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
    let mine = connected();
    let others = connected();
    let post = Message::request(CON, POST, 1, "echo/mine");
    assert_eq!(mine.call(&post).code, code(2, 4));
    for mid in 0..1_000 {
        let answer = others.call(&Message::request(CON, GET, mid, "count"));
        assert_eq!(answer.code, code(2, 5));
    }
    let runs = |server: &Server| {
        server.fake.state.saw.lock().iter().filter(|saw| saw.path == "/mine").count()
    };
    // The node no longer knows the message, so the request runs only if its source is proven and
    // its repetitions are recognised.
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
