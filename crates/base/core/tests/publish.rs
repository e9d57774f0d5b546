//! Tests messages for MQTT brokers, and the workers' requests that carry such messages.

use bytes::Bytes;
use mote_core::publish::{Message, PAYLOAD_BYTES_MAX, PROPERTIES_MAX, PROPERTY_BYTES_MAX};
use mote_spec::mqtt::Connection;

fn message(topic: &str) -> Message {
    Message::new("f", Connection::default(), topic, Bytes::new())
}

fn request(head: &[u8], rest: &str) -> Bytes {
    [head, rest.as_bytes()].concat().into()
}

#[test]
fn requests_of_workers_are_read() {
    let head = [2, 1, 1, 0, 2, 0, 1, 0, 2, 0, 8, 0, 0, 0, 0, 0];
    let rest = "tctrcck\nv\nl\nw\nbody";
    let found = Message::parse(1, request(&head, rest)).expect("complete").expect("usable");
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    let expected = Message {
        qos: 2,
        retain: true,
        content_type: Some("ct".to_owned()),
        response_topic: Some("r".to_owned()),
        correlation: Some(Bytes::from_static(b"cc")),
        user: vec![pair("k", "v"), pair("l", "w")],
        payload: Bytes::from_static(b"body"),
        owner: String::new(),
        ..message("t")
    };
    assert_eq!(found, expected);
    for short in [&head[..15], &[0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
        assert_eq!(Message::parse(1, Bytes::copy_from_slice(short)), None);
    }
    let plain = |qos: u8, user: u8| [qos, 0, 1, 0, 0, 0, 0, 0, 0, 0, user, 0, 0, 0, 0, 0];
    for (operation, head, rest) in [
        (2, plain(0, 0), "t"),
        (1, plain(3, 0), "t"),
        (1, plain(0, 0), "#"),
        (1, plain(0, 0), "$"),
        (1, plain(0, 2), "tk\n"),
    ] {
        let found = Message::parse(operation, request(&head, rest));
        assert!(found.expect("complete").is_err(), "{operation} {rest:?}");
    }
    let not_utf8 = [&plain(0, 0)[..], b"\xff"].concat();
    assert!(Message::parse(1, not_utf8.into()).expect("complete").is_err());
}

#[test]
fn messages_are_checked() {
    assert_eq!(message("a").mistake(), None);
    assert!(message("$SYS").mistake().is_some());
    assert!(Message { qos: 3, ..message("a") }.mistake().is_some());
    let payload = Bytes::from(vec![0; PAYLOAD_BYTES_MAX + 1]);
    assert!(Message { payload, ..message("a") }.mistake().is_some());
    let response_topic = Some("a/#".to_owned());
    assert!(Message { response_topic, ..message("a") }.mistake().is_some());
    let user = vec![("a".to_owned(), "b\nc".to_owned())];
    assert!(Message { user, ..message("a") }.mistake().is_some());
    let user = vec![("a".to_owned(), "b".repeat(PROPERTY_BYTES_MAX))];
    assert!(Message { user, ..message("a") }.mistake().is_some());
    let user = vec![("a".to_owned(), "b".to_owned()); PROPERTIES_MAX + 1];
    assert!(Message { user, ..message("a") }.mistake().is_some());
}
