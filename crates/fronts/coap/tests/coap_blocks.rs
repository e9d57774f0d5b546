//! Block-wise transfers in both directions (RFC 7959) between the CoAP front and a client over
//! loopback.

#![allow(clippy::unwrap_used)]

mod support;

use mote_coap::Config;
use support::coap::*;
use support::pattern_bytes;

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
    // If a block is left out, the next one is refused, and the transfer stays intact.
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
    // The body is longer than the function accepts. The front refuses the block that exceeds the
    // limit.
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
    // A long location would not fit next to a whole block, so the location is left out and the
    // answer is still sent.
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

/// 2.31 (Continue) answers a block of the request, regardless of which block of the answer was
/// requested.
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
