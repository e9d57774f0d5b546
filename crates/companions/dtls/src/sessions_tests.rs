//! Tests with clients of the same library, without sockets. Both sides are state machines, and the
//! tests carry the datagrams between them.

use dimpl::{DtlsCertificate, PskResolver};

use super::*;

#[path = "sessions_certificate_tests.rs"]
mod with_certificates;

const MINUTE: Duration = Duration::from_secs(60);

struct Own(&'static str);

impl PskResolver for Own {
    fn resolve(&self, _: &[u8]) -> Option<Vec<u8>> {
        Some(self.0.as_bytes().to_vec())
    }
}

struct Client {
    dtls: Dtls,
    peer: SocketAddr,
    is_connected: bool,
    is_closed: bool,
    received: Vec<Vec<u8>>,
}

impl Client {
    fn new(port: u16, identity: &str, key: &'static str, now: Now) -> Self {
        let config = Config::builder()
            .with_crypto_provider(dimpl::crypto::rust_crypto::default_provider())
            .with_psk_client(identity.as_bytes().to_vec(), Arc::new(Own(key)))
            .dtls13_cipher_suites(&[])
            .build()
            .unwrap();
        let mut dtls = Dtls::new_12_psk(Arc::new(config), now.instant);
        dtls.set_active(true);
        dtls.handle_timeout(now.instant).unwrap();
        let peer = SocketAddr::from(([192, 0, 2, 1], port));
        Self { dtls, peer, is_connected: false, is_closed: false, received: Vec::new() }
    }

    /// A client without a pre-shared key. It shows its certificate if the node asks for it.
    fn without_key(port: u16, certificate: DtlsCertificate, now: Now) -> Self {
        let config = Config::builder()
            .with_crypto_provider(dimpl::crypto::rust_crypto::default_provider())
            .dtls13_cipher_suites(&[])
            .build()
            .unwrap();
        let mut dtls = Dtls::new_12(Arc::new(config), certificate, now.instant);
        dtls.set_active(true);
        dtls.handle_timeout(now.instant).unwrap();
        let peer = SocketAddr::from(([192, 0, 2, 1], port));
        Self { dtls, peer, is_connected: false, is_closed: false, received: Vec::new() }
    }

    /// Returns the datagrams that the client wants to send.
    fn sends(&mut self) -> Vec<Vec<u8>> {
        let mut buffer = [0; 4_096];
        let mut all = Vec::new();
        loop {
            match self.dtls.poll_output(&mut buffer) {
                Output::Packet(bytes) => all.push(bytes.to_vec()),
                Output::ApplicationData(bytes) => self.received.push(bytes.to_vec()),
                Output::Connected => self.is_connected = true,
                Output::CloseNotify => self.is_closed = true,
                Output::Timeout(_) => return all,
                _ => {}
            }
        }
    }

    /// Carries datagrams both ways until none is left.
    fn exchange(&mut self, all: &mut Sessions, now: Now) {
        loop {
            let sent = self.sends();
            let is_over = sent.is_empty() && all.out.to_clients.is_empty();
            for bytes in sent {
                all.datagram(self.peer, &bytes, now);
            }
            for (peer, bytes) in std::mem::take(&mut all.out.to_clients) {
                // The client may have given up.
                if peer == self.peer && self.dtls.handle_timeout(now.instant).is_ok() {
                    let _ = self.dtls.handle_packet(&bytes);
                }
            }
            if is_over {
                return;
            }
        }
    }

    fn send(&mut self, bytes: &[u8], all: &mut Sessions, now: Now) {
        self.dtls.send_application_data(bytes).unwrap();
        self.exchange(all, now);
    }
}

/// Returns sessions without any clients, with the keys `one` and `two`, and the time.
fn sessions() -> (Sessions, Now) {
    let now = Now { instant: Instant::now(), unix_ms: 1_000 };
    let mut all = Sessions::new([7; 32], now.instant).unwrap();
    set_keys(&mut all, &["one", "two"], now);
    (all, now)
}

fn set_keys(all: &mut Sessions, names: &[&str], now: Now) {
    let key = |name: &&str| Psk {
        identity: (*name).to_owned(),
        key: format!("key of {name}").into_bytes(),
        expires_unix_ms: (*name == "two").then_some(100_000),
    };
    let keys = names.iter().map(key).collect();
    all.message(Message::Keys { is_first: true, is_last: true, keys }, now);
}

/// Returns the messages that the node has received.
fn told(all: &mut Sessions) -> Vec<String> {
    let show = |bytes: Vec<u8>| match Message::parse(&bytes).unwrap() {
        Message::Opened { session, peer, identity } => format!("{session} {peer} is {identity}"),
        Message::Closed { session } => format!("{session} closed"),
        Message::Datagram { session, bytes } => {
            format!("{session} {}", String::from_utf8_lossy(bytes))
        }
        Message::OpenedByCertificate { session, peer, certificate } => {
            format!("{session} {peer} shows {certificate:?}")
        }
        other => format!("{other:?}"),
    };
    std::mem::take(&mut all.out.to_node).into_iter().map(show).collect()
}

fn later(now: Now, time: Duration) -> Now {
    let ms = u64::try_from(time.as_millis()).unwrap();
    Now { instant: now.instant + time, unix_ms: now.unix_ms + ms }
}

#[test]
fn clients_with_a_key_have_sessions() {
    let (mut all, now) = sessions();
    let mut one = Client::new(1, "one", "key of one", now);
    let mut two = Client::new(2, "two", "key of two", now);
    one.exchange(&mut all, now);
    two.exchange(&mut all, now);
    assert!(one.is_connected && two.is_connected);
    assert_eq!(told(&mut all), ["1 192.0.2.1:1 is one", "2 192.0.2.1:2 is two"]);
    one.send(b"hello", &mut all, now);
    two.send(b"world", &mut all, now);
    assert_eq!(told(&mut all), ["1 hello", "2 world"]);
    all.message(Message::Datagram { session: 2, bytes: &[b'x'; 1_300] }, now);
    two.exchange(&mut all, now);
    assert_eq!((&one.received[..], &two.received[..]), (&[][..], &[vec![b'x'; 1_300]][..]));
    one.dtls.close().unwrap();
    one.exchange(&mut all, now);
    assert_eq!(told(&mut all), ["1 closed"]);
    assert_eq!(all.counts(), (1, 0));
    all.message(Message::Datagram { session: 1, bytes: b"late" }, now);
    assert!(all.out.to_clients.is_empty());
}

#[test]
fn a_wrong_key_and_an_unknown_name_get_no_session() {
    let (mut all, now) = sessions();
    for (at, (identity, key)) in
        [("one", "key of two"), ("three", "key of one"), ("", ""), ("One", "key of one")]
            .into_iter()
            .enumerate()
    {
        let mut client = Client::new(at as u16, identity, key, now);
        client.exchange(&mut all, now);
        assert!(!client.is_connected, "{identity}");
    }
    assert_eq!(all.counts().0, 0);
    all.time_passed(later(now, MINUTE));
    assert_eq!(all.counts(), (0, 0));
    assert!(told(&mut all).is_empty());
}

#[test]
fn a_session_ends_with_its_key() {
    let (mut all, now) = sessions();
    let mut one = Client::new(1, "one", "key of one", now);
    let mut two = Client::new(2, "two", "key of two", now);
    one.exchange(&mut all, now);
    two.exchange(&mut all, now);
    told(&mut all);
    set_keys(&mut all, &["two"], now);
    one.exchange(&mut all, now);
    assert!(one.is_closed);
    assert_eq!(told(&mut all), ["1 closed"]);
    all.time_passed(later(now, 98 * Duration::from_secs(1)));
    assert!(told(&mut all).is_empty());
    all.time_passed(later(now, 2 * MINUTE));
    assert_eq!(told(&mut all), ["2 closed"], "the key has expired");
    let mut again = Client::new(3, "two", "key of two", now);
    again.exchange(&mut all, later(now, 2 * MINUTE));
    assert!(!again.is_connected);
}

#[test]
fn a_session_ends_after_a_day_without_use() {
    let (mut all, now) = sessions();
    let mut one = Client::new(1, "one", "key of one", now);
    one.exchange(&mut all, now);
    told(&mut all);
    let evening = later(now, IDLE / 2);
    all.time_passed(evening);
    one.send(b"still here", &mut all, evening);
    assert_eq!(told(&mut all), ["1 still here"]);
    all.time_passed(later(now, IDLE));
    assert!(told(&mut all).is_empty());
    all.time_passed(later(evening, IDLE));
    assert_eq!(told(&mut all), ["1 closed"]);
}

#[test]
fn a_client_that_begins_anew_replaces_its_session_only_with_its_key() {
    let (mut all, now) = sessions();
    let mut one = Client::new(1, "one", "key of one", now);
    one.exchange(&mut all, now);
    let mut wrong = Client::new(1, "one", "key of two", now);
    wrong.exchange(&mut all, now);
    assert!(!wrong.is_connected);
    all.time_passed(later(now, MINUTE));
    one.send(b"hello", &mut all, later(now, MINUTE));
    assert_eq!(told(&mut all), ["1 192.0.2.1:1 is one", "1 hello"]);
    let mut again = Client::new(1, "two", "key of two", now);
    again.exchange(&mut all, now);
    again.send(b"new", &mut all, now);
    assert_eq!(told(&mut all), ["1 closed", "2 192.0.2.1:1 is two", "2 new"]);
    assert_eq!(all.counts(), (1, 0));
}

#[test]
fn lost_datagrams_are_sent_again() {
    // In turn, each of the first datagrams is lost once, whichever side sent it.
    for lost in 0..6 {
        let (mut all, mut now) = sessions();
        let mut one = Client::new(1, "one", "key of one", now);
        let mut carried = 0;
        let mut carry = || {
            carried += 1;
            carried != lost + 1
        };
        for _ in 0..60 {
            for bytes in one.sends() {
                if carry() {
                    all.datagram(one.peer, &bytes, now);
                }
            }
            for (_, bytes) in std::mem::take(&mut all.out.to_clients) {
                if carry() {
                    one.dtls.handle_packet(&bytes).unwrap();
                }
            }
            now = later(now, TICK);
            one.dtls.handle_timeout(now.instant).unwrap();
            all.time_passed(now);
        }
        one.sends();
        assert!(one.is_connected, "{lost}");
        one.send(b"hello", &mut all, now);
        assert_eq!(told(&mut all), ["1 192.0.2.1:1 is one", "1 hello"], "{lost}");
    }
}

#[test]
fn forged_first_messages_leave_nothing() {
    let (mut all, now) = sessions();
    let mut client = Client::new(1, "one", "key of one", now);
    let hello = client.sends().remove(0);
    for number in 0..10_000u32 {
        let peer = SocketAddr::from((number.to_be_bytes(), 5_683));
        all.datagram(peer, &hello, now);
        assert_eq!(all.counts(), (0, 0));
    }
    let answers = std::mem::take(&mut all.out.to_clients);
    assert_eq!(answers.len(), 10_000);
    assert!(answers.iter().all(|(_, bytes)| bytes.len() <= hello.len()));
    // A cookie that was made for another address is not accepted.
    client.dtls.handle_packet(&answers[7].1).unwrap();
    for bytes in client.sends() {
        all.datagram(client.peer, &bytes, now);
    }
    assert_eq!(all.counts(), (0, 0));
}

#[test]
fn sessions_and_handshakes_are_bounded_for_each_address() {
    let (mut all, now) = sessions();
    let mut clients = Vec::new();
    for port in 0..(HANDSHAKES_OF_ONE_MAX as u16 + 10) {
        let mut client = Client::new(port, "one", "key of one", now);
        // Sends the hello and the hello with the cookie. The rest of the handshake does not arrive.
        for _ in 0..2 {
            for bytes in client.sends() {
                all.datagram(client.peer, &bytes, now);
            }
            for (_, bytes) in std::mem::take(&mut all.out.to_clients) {
                client.dtls.handle_packet(&bytes).unwrap();
            }
        }
        clients.push(client);
    }
    assert_eq!(all.counts(), (0, HANDSHAKES_OF_ONE_MAX));
    let late = later(now, config::HANDSHAKE + TICK);
    all.time_passed(late);
    assert_eq!(all.counts(), (0, 0));
    for port in 0..SESSIONS_OF_ONE_MAX as u16 + 1 {
        let at = later(late, Duration::from_millis(port.into()));
        let mut client = Client::new(port, "one", "key of one", at);
        client.exchange(&mut all, at);
        assert!(client.is_connected, "{port}");
    }
    assert_eq!(all.counts(), (SESSIONS_OF_ONE_MAX, 0));
    let told = told(&mut all);
    assert!(told.contains(&"1 closed".to_owned()), "the one that was used longest ago has ended");
    assert_eq!(told.iter().filter(|text| text.ends_with("closed")).count(), 1);
}

#[test]
fn the_oldest_handshake_of_the_busiest_address_makes_room() {
    let (mut all, now) = sessions();
    let begin = |all: &mut Sessions, ip: [u8; 4], port: u16, now: Now| {
        let mut client = Client::new(port, "one", "key of one", now);
        client.peer = SocketAddr::from((ip, port));
        for _ in 0..2 {
            for bytes in client.sends() {
                all.datagram(client.peer, &bytes, now);
            }
            for (_, bytes) in std::mem::take(&mut all.out.to_clients) {
                client.dtls.handle_packet(&bytes).unwrap();
            }
        }
        client
    };
    let owners = (HANDSHAKES_MAX / HANDSHAKES_OF_ONE_MAX) as u8;
    for number in 0..HANDSHAKES_MAX as u16 {
        let at = later(now, Duration::from_millis(number.into()));
        begin(&mut all, [192, 0, 2, 10 + (number % u16::from(owners)) as u8], number, at);
    }
    assert_eq!(all.counts(), (0, HANDSHAKES_MAX));
    // Everybody who answers in time gets a session, even though all places are taken.
    let at = later(now, Duration::from_secs(1));
    let mut client = begin(&mut all, [192, 0, 2, 1], 1, at);
    client.exchange(&mut all, at);
    assert!(client.is_connected);
    // A busy address uses up only its own places.
    let mut second = begin(&mut all, [192, 0, 2, 1], 2, at);
    for port in 0..500 {
        begin(&mut all, [192, 0, 2, 10], 1_000 + port, at);
    }
    second.exchange(&mut all, at);
    assert!(second.is_connected);
}

#[test]
fn a_stranger_stores_little_in_a_handshake() {
    let (mut all, now) = sessions();
    let mut client = Client::new(1, "one", "key of one", now);
    for _ in 0..2 {
        for bytes in client.sends() {
            all.datagram(client.peer, &bytes, now);
        }
        for (_, bytes) in std::mem::take(&mut all.out.to_clients) {
            client.dtls.handle_packet(&bytes).unwrap();
        }
    }
    // Empty parts of later messages. The library would store 29 such datagrams.
    let mut part = vec![22, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 9, 0, 0, 12];
    part.extend_from_slice(&[11, 0, 0, 5, 0, 100, 0, 0, 0, 0, 0, 0]);
    for _ in 0..100 {
        all.datagram(client.peer, &part.repeat(8), now);
    }
    // A datagram that looks like the encrypted end of a handshake is stored, but only a bounded
    // number.
    let mut last = vec![22, 0xfe, 0xfd, 0, 1, 0, 0, 0, 0, 0, 0, 0, 40];
    last.extend_from_slice(&[7; 40]);
    for number in 0..100 {
        last[10] = number;
        all.datagram(client.peer, &last, now);
    }
    assert_eq!(all.handshakes[&client.peer].keepable, 0);
}

/// A small random generator with a seed, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

#[test]
fn damaged_datagrams_end_nothing() {
    let (mut all, now) = sessions();
    let mut client = Client::new(1, "one", "key of one", now);
    // Real datagrams. A damaged copy of each arrives before the real one.
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut seen: Vec<Vec<u8>> = Vec::new();
    loop {
        let sent = client.sends();
        if sent.is_empty() && all.out.to_clients.is_empty() {
            break;
        }
        for bytes in sent {
            seen.push(bytes.clone());
            all.datagram(client.peer, &bytes, now);
        }
        for (_, bytes) in std::mem::take(&mut all.out.to_clients) {
            client.dtls.handle_packet(&bytes).unwrap();
        }
    }
    assert!(client.is_connected);
    client.dtls.send_application_data(b"text").unwrap();
    seen.extend(client.sends());
    let mut forge = |all: &mut Sessions, at: SocketAddr| {
        let mut bytes = seen[random.next(seen.len())].clone();
        for _ in 0..=random.next(4) {
            let place = random.next(bytes.len());
            match random.next(4) {
                0 => bytes.truncate(place.max(1)),
                1 => bytes.insert(place, random.next(256) as u8),
                2 => bytes[place] = 0xff,
                _ => bytes[place] = random.next(256) as u8,
            }
        }
        all.datagram(at, &bytes, now);
    };
    for number in 0..20_000u16 {
        forge(&mut all, client.peer);
        forge(&mut all, SocketAddr::from(([192, 0, 2, 2], number % 50)));
        all.out.to_clients.clear();
    }
    let mut alert = vec![21, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, 9, 0, 2, 2, 80];
    all.datagram(client.peer, &alert, now);
    alert[4] = 1;
    all.datagram(client.peer, &alert, now);
    let ended: Vec<String> = told(&mut all);
    assert!(!ended.iter().any(|text| text.ends_with("closed")), "{ended:?}");
    client.dtls.send_application_data(b"afterwards").unwrap();
    client.exchange(&mut all, now);
    assert_eq!(told(&mut all), ["1 afterwards"]);
}

#[test]
fn forged_datagrams_do_not_end_a_handshake() {
    let (mut all, now) = sessions();
    let mut client = Client::new(1, "one", "key of one", now);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut rounds = 0;
    loop {
        let sent = client.sends();
        if sent.is_empty() && all.out.to_clients.is_empty() {
            break;
        }
        for bytes in sent {
            // Sends everything that a stranger without the key could send before the real datagram.
            for kind in [20, 21, 22, 23, 99] {
                for epoch in [0, 1] {
                    // A forged end of a handshake looks the same as a real one with a wrong key.
                    if (kind, epoch) == (22, 1) || (kind, epoch) == (20, 0) {
                        continue;
                    }
                    let mut forged = vec![kind, 0xfe, 0xfd, 0, epoch, 0, 0, 0, 0, 9, rounds];
                    let length = random.next(60);
                    forged.extend_from_slice(&(length as u16).to_be_bytes());
                    forged.extend((0..length).map(|_| random.next(256) as u8));
                    all.datagram(client.peer, &forged, now);
                }
            }
            all.datagram(client.peer, &bytes, now);
        }
        for (_, bytes) in std::mem::take(&mut all.out.to_clients) {
            let _ = client.dtls.handle_packet(&bytes);
        }
        rounds += 1;
    }
    assert!(client.is_connected);
    assert_eq!(told(&mut all), ["1 192.0.2.1:1 is one"]);
}
