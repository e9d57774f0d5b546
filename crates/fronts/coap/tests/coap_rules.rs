//! Tests the rules of RFC 7252 with a CoAP front over loopback sockets.

#![allow(clippy::unwrap_used)]

mod support;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use mote_coap::Config;
use support::coap::*;

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
    refused(get("echo").option(URI_PATH, b"a/b"), (4, 0), "path is not in normal form");
    refused(get("echo").option(URI_PATH, b"a;b"), (4, 0), "path is not in normal form");
    refused(get("echo").option(URI_PATH, b"%2e"), (4, 0), "path is not in normal form");
    refused(get("echo").option(URI_PATH, b"a\0"), (4, 0), "NUL is not allowed");
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
    for _ in 0..2 {
        client.send(&request.encode());
        assert_eq!(client.receive_bytes(), first);
    }
    assert_eq!(server.fake.calls(), 1);
    // A device that has lost its state reuses the id for another message.
    for (payload, answer) in [("another payload", "2"), ("another payload", "2"), ("a third", "3")]
    {
        client.send(&request.clone().payload(payload).encode());
        assert_eq!(Message::parse(&client.receive_bytes()).unwrap().text(), answer);
    }
    client.send(&request.encode());
    assert_eq!(client.receive_bytes(), first, "the first one is still known");
    assert_eq!(server.fake.calls(), 3);
    // A duplicate of a non-confirmable message is not answered again.
    let non = Message::request(NON, POST, client.fresh(), "count");
    assert_eq!(client.call(&non).text(), "4");
    assert!(client.is_silent_after(&non.encode()));
    // Message ids belong to one peer, so the same id from another client is not a duplicate.
    assert_eq!(server.client().call(&request).text(), "5");
    assert_eq!(server.fake.calls(), 5);
}

#[test]
fn row_50_multicast_is_not_answered() {
    let server = Server::on("0.0.0.0:0", Config::default());
    let mut client = server.client();
    client.socket.connect(("127.0.0.1", server.address.port())).unwrap();
    assert_eq!(client.ask(POST, "count").text(), "1", "the front is up");
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Another program has joined the group, but the front must not receive the group's datagrams.
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
    // The answer was acknowledged, so it is not sent again after the next pause or for a duplicate
    // of the request.
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
    // Reporting the panic may take so long that a separate acknowledgement arrives first.
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
    // A client that asks to observe gets a plain answer (RFC 7641, 4.1).
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
