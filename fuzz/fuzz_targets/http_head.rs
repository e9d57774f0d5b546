//! The HTTP/1.1 reader: no bytes make it panic; what it accepts a second parser reads the same
//! way; a chunked body is the same however its bytes arrive.

#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use mote_core::invocation::headers;
use mote_http::http::chunked::{ChunkEvent, Chunked};
use mote_http::http::head::{FIELDS_MAX, Framing, find_end, parse};

fuzz_target!(|data: &[u8]| {
    head(data);
    chunks(data);
});

fn head(data: &[u8]) {
    let Ok(Some(end)) = find_end(data, 0) else { return };
    // Scanning in steps must end at the same place.
    let mut scanned = 0;
    for seen in [end / 3, end / 2, end.saturating_sub(1)] {
        assert!(!matches!(find_end(&data[..seen], scanned), Ok(Some(_))), "found before its end");
        scanned = seen;
    }
    assert_eq!(find_end(&data[..end], scanned).ok().flatten(), Some(end));
    let Ok(request) = parse(&data[..end]) else { return };
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut other = httparse::Request::new(&mut fields);
    let status = other.parse(&data[..end]).expect("accepted here, refused by httparse");
    assert_eq!(status, httparse::Status::Complete(end));
    assert_eq!(request.head.method(), other.method.expect("complete").as_bytes());
    assert_eq!(request.http10, other.version == Some(0));
    let named = |name: &str| {
        other
            .headers
            .iter()
            .filter(|field| field.name.eq_ignore_ascii_case(name))
            .collect::<Vec<_>>()
    };
    match request.framing {
        Framing::Chunked => {
            assert_eq!(named("transfer-encoding").len(), 1);
            assert!(named("content-length").is_empty() && !request.http10);
        }
        Framing::Length(length) => {
            assert!(named("transfer-encoding").is_empty());
            let [one] = named("content-length")[..] else { panic!("one Content-Length") };
            assert_eq!(std::str::from_utf8(one.value).unwrap().trim().parse(), Ok(length));
        }
        Framing::None => {
            assert!(named("transfer-encoding").is_empty());
            assert!(named("content-length").iter().all(|f| f.value.iter().all(|b| *b == b'0')));
        }
    }
    // Every field is passed on unless it speaks of the connection.
    let own = [
        "transfer-encoding",
        "connection",
        "expect",
        "upgrade",
        "te",
        "trailer",
        "keep-alive",
        "http2-settings",
        "proxy-connection",
    ];
    let expected: Vec<_> = other
        .headers
        .iter()
        .filter(|field| !own.contains(&field.name.to_ascii_lowercase().as_str()))
        .map(|field| (field.name.to_ascii_lowercase().into_bytes(), field.value))
        .collect();
    let passed: Vec<_> =
        headers(request.head.headers()).map(|(name, value)| (name.to_vec(), value)).collect();
    assert_eq!(passed, expected);
    assert!(!request.head.wire().contains(&0), "a NUL passed");
}

/// The body, or whether it was refused, or how much of it there was.
fn decode(pieces: &[&[u8]]) -> (Vec<u8>, Result<bool, String>) {
    let mut decoder = Chunked::default();
    let mut input = BytesMut::new();
    let mut body = Vec::new();
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            match decoder.step(&mut input) {
                Err(refusal) => return (body, Err(refusal.detail)),
                Ok(ChunkEvent::Data(data)) => {
                    assert!(!data.is_empty());
                    body.extend_from_slice(&data);
                }
                Ok(ChunkEvent::End) => return (body, Ok(true)),
                Ok(ChunkEvent::NeedMore) => break,
            }
        }
        assert!(input.len() <= 16 << 10, "{} bytes wait for more", input.len());
    }
    (body, Ok(false))
}

fn chunks(data: &[u8]) {
    let whole = decode(&[data]);
    let cut = data.first().map_or(0, |first| usize::from(*first) % data.len());
    let (one, two) = data.split_at(cut);
    assert_eq!(decode(&[one, two]), whole);
    if data.len() <= 256 {
        assert_eq!(decode(&data.chunks(1).collect::<Vec<_>>()), whole);
    }
}
