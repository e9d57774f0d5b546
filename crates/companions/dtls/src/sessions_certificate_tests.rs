//! Clients with certificates, and what strangers can do with them.

use super::*;
use crate::certificates::BURST;

/// A certificate and its key.
fn certificate(name: &str) -> DtlsCertificate {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().der().to_vec();
    DtlsCertificate { certificate, private_key: key.serialize_der() }
}

fn set_certificate(all: &mut Sessions, asks_clients: bool, ends_sessions: bool, now: Now) {
    let DtlsCertificate { certificate, private_key: key } = certificate("node");
    let own = Some(ServerCertificate { certificate, key, asks_clients });
    all.message(Message::Certificate { own, ends_sessions }, now);
}

#[test]
fn clients_without_a_key_need_the_certificate_of_the_node() {
    let (mut all, now) = sessions();
    let own = certificate("device");
    let mut early = Client::without_key(1, own.clone(), now);
    early.exchange(&mut all, now);
    assert!(!early.is_connected, "the node has no certificate yet");
    set_certificate(&mut all, false, false, now);
    let mut one = Client::without_key(2, own.clone(), now);
    one.exchange(&mut all, now);
    assert!(one.is_connected);
    assert_eq!(told(&mut all), ["1 192.0.2.1:2 shows []"]);
    one.send(b"hello", &mut all, now);
    assert_eq!(told(&mut all), ["1 hello"]);
    all.message(Message::Datagram { session: 1, bytes: b"answer" }, now);
    one.exchange(&mut all, now);
    assert_eq!(one.received, [b"answer"]);
    // Clients with a key work as before.
    let mut with_key = Client::new(3, "one", "key of one", now);
    with_key.exchange(&mut all, now);
    assert_eq!(told(&mut all), ["2 192.0.2.1:3 is one"]);
    // After a certificate with an unusable key, only pre-shared keys work.
    all.message(
        Message::Certificate { own: Some(ServerCertificate::default()), ends_sessions: false },
        now,
    );
    let mut late = Client::without_key(4, own, now);
    late.exchange(&mut all, now);
    assert!(!late.is_connected);
    one.send(b"still here", &mut all, now);
    assert_eq!(told(&mut all), ["1 still here"]);
}

#[test]
fn a_client_shows_its_certificate_and_the_node_decides() {
    let (mut all, now) = sessions();
    set_certificate(&mut all, true, false, now);
    let ours = certificate("ours");
    let theirs = certificate("theirs");
    let mut one = Client::without_key(1, ours.clone(), now);
    let mut two = Client::without_key(2, theirs.clone(), now);
    one.exchange(&mut all, now);
    two.exchange(&mut all, now);
    let shows = |number: u32, port: u16, own: &DtlsCertificate| {
        format!("{number} 192.0.2.1:{port} shows {:?}", &own.certificate[..])
    };
    assert_eq!(told(&mut all), [shows(1, 1, &ours), shows(2, 2, &theirs)]);
    all.message(Message::Accepted { session: 1 }, now);
    all.message(Message::Closed { session: 2 }, now);
    two.exchange(&mut all, now);
    one.exchange(&mut all, now);
    assert!(one.is_connected && !one.is_closed && two.is_closed);
    assert_eq!(told(&mut all), ["2 closed"]);
    // A certificate with the key of another certificate proves nothing.
    let forged = DtlsCertificate { private_key: theirs.private_key, ..ours.clone() };
    let mut forger = Client::without_key(3, forged, now);
    forger.exchange(&mut all, now);
    assert!(!forger.is_connected);
    assert!(told(&mut all).is_empty());
    // A new certificate of the node ends no session. A change of authorities does.
    let mut with_key = Client::new(4, "one", "key of one", now);
    with_key.exchange(&mut all, now);
    told(&mut all);
    set_certificate(&mut all, true, false, now);
    assert!(told(&mut all).is_empty());
    set_certificate(&mut all, true, true, now);
    one.exchange(&mut all, now);
    assert!(one.is_closed);
    assert_eq!(told(&mut all), ["1 closed"]);
    // A session with a certificate does not last for ever, because the certificate may expire.
    let mut again = Client::without_key(5, ours, now);
    again.exchange(&mut all, now);
    all.message(Message::Accepted { session: 4 }, now);
    told(&mut all);
    let evening = later(now, OF_CERTIFICATE / 2);
    again.send(b"evening", &mut all, evening);
    all.time_passed(evening);
    assert_eq!(told(&mut all), ["4 evening"]);
    let next_day = later(now, OF_CERTIFICATE);
    all.time_passed(next_day);
    assert!(told(&mut all).contains(&"4 closed".to_owned()));
}

#[test]
fn strangers_replace_only_strangers() {
    let (mut all, now) = sessions();
    set_certificate(&mut all, true, false, now);
    let own = certificate("device");
    let mut device = Client::without_key(1, own.clone(), now);
    device.exchange(&mut all, now);
    all.message(Message::Accepted { session: 1 }, now);
    let mut with_key = Client::new(2, "one", "key of one", now);
    with_key.exchange(&mut all, now);
    told(&mut all);
    for port in 0..UNPROVED_MAX as u16 + 2 {
        let at = later(now, MINUTE + Duration::from_millis(port.into()));
        let mut stranger = Client::without_key(100 + port, own.clone(), at);
        stranger.exchange(&mut all, at);
        assert!(stranger.is_connected);
    }
    let closed: Vec<String> =
        told(&mut all).into_iter().filter(|line| line.ends_with("closed")).collect();
    assert_eq!(closed, ["3 closed", "4 closed"]);
    assert_eq!(all.counts().0, UNPROVED_MAX + 2);
}

#[test]
fn an_address_begins_few_handshakes_with_certificates() {
    let (mut all, now) = sessions();
    set_certificate(&mut all, false, false, now);
    let own = certificate("device");
    let mut connected = 0;
    for port in 0..BURST as u16 + 3 {
        let mut one = Client::without_key(100 + port, own.clone(), now);
        one.exchange(&mut all, now);
        connected += u32::from(one.is_connected);
    }
    assert_eq!(connected, BURST);
    let mut with_key = Client::new(1, "one", "key of one", now);
    with_key.exchange(&mut all, now);
    assert!(with_key.is_connected, "keys cost little");
}

#[test]
fn a_stranger_at_the_address_of_a_device_does_not_end_its_session() {
    let (mut all, now) = sessions();
    let own = certificate("device");
    let begin = |all: &mut Sessions, stranger: Option<&DtlsCertificate>| {
        let mut client = match stranger {
            Some(own) => Client::without_key(1, own.clone(), now),
            None => Client::new(1, "one", "key of one", now),
        };
        client.exchange(all, now);
        assert!(client.is_connected);
        client
    };
    for asks_clients in [false, true] {
        set_certificate(&mut all, asks_clients, false, now);
        let mut device = begin(&mut all, None);
        let number = all.last_number;
        told(&mut all);
        let mut strangers = [begin(&mut all, Some(&own)), begin(&mut all, Some(&own))];
        if asks_clients {
            let last = all.last_number;
            all.message(Message::Closed { session: last }, now);
            strangers[1].exchange(&mut all, now);
        }
        assert!(strangers[1].is_closed);
        assert!(!told(&mut all).contains(&format!("{number} closed")));
        device.send(b"still here", &mut all, now);
        assert_eq!(told(&mut all), [format!("{number} still here")]);
        all.message(Message::Datagram { session: number, bytes: b"answer" }, now);
        device.exchange(&mut all, now);
        assert_eq!(device.received, [b"answer"]);
        // The device itself starts anew.
        let again = begin(&mut all, None);
        assert!(told(&mut all).contains(&format!("{number} closed")));
        drop(again);
    }
    // The same happens with another certificate that the node accepts.
    let former = all.last_number;
    begin(&mut all, Some(&own));
    assert!(!told(&mut all).contains(&format!("{former} closed")));
    let session = all.last_number;
    all.message(Message::Accepted { session }, now);
    assert_eq!(told(&mut all), [format!("{former} closed")]);
    assert_eq!(all.counts(), (1, 0));
}

#[test]
fn strangers_take_no_place_of_their_address() {
    let (mut all, now) = sessions();
    set_certificate(&mut all, false, false, now);
    let own = certificate("device");
    let count = SESSIONS_OF_ONE_MAX as u16;
    for port in 0..count {
        Client::new(port, "one", "key of one", now).exchange(&mut all, now);
    }
    told(&mut all);
    let mut stranger = Client::without_key(count, own.clone(), now);
    stranger.exchange(&mut all, now);
    assert!(stranger.is_closed, "all places are those of devices");
    assert!(told(&mut all).is_empty());
    // A new device takes a stranger's place before it takes another device's place.
    all.message(Message::Closed { session: 1 }, now);
    let now = later(now, MINUTE);
    Client::without_key(count, own, now).exchange(&mut all, now);
    told(&mut all);
    let stranger = all.last_number;
    Client::new(count + 1, "one", "key of one", now).exchange(&mut all, now);
    assert!(told(&mut all).contains(&format!("{stranger} closed")));
    assert_eq!(all.counts().0, SESSIONS_OF_ONE_MAX);
}

/// A stranger copies a client's second message and its address. The node then sends its part of a
/// handshake, and repeats it only a few times.
#[test]
fn a_copied_hello_brings_few_messages() {
    let own = certificate("device");
    for with_key in [true, false] {
        let (mut all, now) = sessions();
        set_certificate(&mut all, true, false, now);
        let mut client = match with_key {
            true => Client::new(1, "one", "key of one", now),
            false => Client::without_key(1, own.clone(), now),
        };
        all.datagram(client.peer, &client.sends()[0], now);
        let (_, request) = all.out.to_clients.remove(0);
        client.dtls.handle_packet(&request).unwrap();
        let hello = client.sends().remove(0);
        let mut sent = Vec::new();
        for tick in 0..200 {
            let now = later(now, tick * TICK);
            if tick == 0 {
                all.datagram(client.peer, &hello, now);
            }
            all.time_passed(now);
            sent.extend(std::mem::take(&mut all.out.to_clients).into_iter().map(|it| it.1.len()));
        }
        let times = sent.iter().sum::<usize>() as f64 / hello.len() as f64;
        println!("{with_key}: {} bytes bring {sent:?}, {times:.1} times as much", hello.len());
        assert!(times < if with_key { 6.0 } else { 25.0 }, "{times}");
    }
}

#[test]
fn a_long_certificate_ends_nothing_but_its_handshake() {
    let (mut all, now) = sessions();
    set_certificate(&mut all, true, false, now);
    let mut device = Client::new(1, "one", "key of one", now);
    device.exchange(&mut all, now);
    told(&mut all);
    let mut lengths = Vec::new();
    for (port, names) in (10..).zip([10, 55, 60, 64, 70, 90, 110]) {
        let key = rcgen::KeyPair::generate().unwrap();
        let names = (0..names).map(|at| format!("{at:03}.{}.example", "x".repeat(50)));
        let params = rcgen::CertificateParams::new(names.collect::<Vec<_>>()).unwrap();
        let certificate = params.self_signed(&key).unwrap().der().to_vec();
        lengths.push(certificate.len());
        let fits = certificate.len() <= CERTIFICATE_BYTES_MAX;
        let own = DtlsCertificate { certificate, private_key: key.serialize_der() };
        let mut client = Client::without_key(port, own, now);
        client.exchange(&mut all, now);
        assert_eq!(client.is_connected, fits, "{lengths:?}");
    }
    assert!(lengths.iter().any(|length| (4_098..6_000).contains(length)), "{lengths:?}");
    assert!(lengths.iter().any(|length| (6_000..8_000).contains(length)), "{lengths:?}");
    told(&mut all);
    device.send(b"still here", &mut all, now);
    assert_eq!(told(&mut all), ["1 still here"]);
}

#[test]
fn a_device_with_a_certificate_gets_a_place() {
    let (mut all, now) = sessions();
    set_certificate(&mut all, true, false, now);
    for port in 0..SESSIONS_OF_ONE_MAX as u16 {
        let now = later(now, Duration::from_millis(port.into()));
        Client::new(port, "one", "key of one", now).exchange(&mut all, now);
    }
    told(&mut all);
    let now = later(now, MINUTE);
    let mut device = Client::without_key(100, certificate("device"), now);
    device.exchange(&mut all, now);
    assert!(device.is_connected && !device.is_closed);
    let session = all.last_number;
    assert!(!told(&mut all).iter().any(|line| line.ends_with("closed")), "it has proved nothing");
    all.message(Message::Accepted { session }, now);
    assert_eq!(told(&mut all), ["1 closed"], "the one that was used longest ago");
    assert_eq!(all.counts().0, SESSIONS_OF_ONE_MAX);
    device.exchange(&mut all, now);
    device.send(b"here", &mut all, now);
    assert_eq!(told(&mut all), [format!("{session} here")]);
}

#[test]
fn what_waits_for_a_verdict_keeps_nothing() {
    let (mut all, now) = sessions();
    set_certificate(&mut all, true, false, now);
    let own = certificate("device");
    let begin = |all: &mut Sessions, now: Now| {
        let mut client = Client::without_key(1, own.clone(), now);
        client.exchange(all, now);
        client
    };
    let mut device = begin(&mut all, now);
    all.message(Message::Accepted { session: 1 }, now);
    begin(&mut all, now);
    told(&mut all);
    // Simulates that the verdict about the second session is lost.
    let now = later(now, SWEEP);
    all.time_passed(now);
    assert_eq!(told(&mut all), ["2 closed"]);
    device.send(b"still here", &mut all, now);
    assert_eq!(told(&mut all), ["1 still here"]);
    // A change of authorities ends both the waiting session and the session that it would have
    // replaced.
    begin(&mut all, now);
    told(&mut all);
    set_certificate(&mut all, true, true, now);
    let mut closed = told(&mut all);
    closed.sort();
    assert_eq!(closed, ["1 closed", "3 closed"]);
    assert_eq!(all.counts(), (0, 0));
}
