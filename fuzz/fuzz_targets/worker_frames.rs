//! The worker protocol: no bytes make the reader panic, and what it reads can be written again.

#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use mote_core::invocation::{Head, headers};
use mote_core::wire::{
    FLAG_END, FrameKind, HEADER_BYTES, Invoke, PAYLOAD_BYTES_MAX, ResultHead, put_frame,
    put_invoke, split_frame,
};

fuzz_target!(|data: &[u8]| {
    let mut buffer = BytesMut::from(data);
    let mut left = data.len();
    while let Ok(Some((header, payload))) = split_frame(&mut buffer) {
        assert_eq!(payload.len(), header.payload_bytes as usize);
        assert!(payload.len() <= PAYLOAD_BYTES_MAX);
        assert_eq!(buffer.len(), left - HEADER_BYTES - payload.len());
        left = buffer.len();
        let mut again = Vec::new();
        put_frame(&mut again, header.kind, header.flags, header.stream, &payload);
        let (second, body) = split_frame(&mut BytesMut::from(&again[..])).unwrap().unwrap();
        assert_eq!((second, &body), (header, &payload));
        match header.kind {
            FrameKind::Invoke => invoke(&payload, header.is_end(), header.stream),
            FrameKind::Result => result(payload, header.is_end(), header.stream),
            _ => {}
        }
    }
});

fn invoke(payload: &Bytes, end: bool, stream: u32) {
    let Ok(read) = Invoke::parse(payload) else { return };
    let mut builder = Head::builder(read.method, read.path, read.query);
    let fields: Vec<_> = headers(read.headers).collect();
    for (name, value) in &fields {
        builder.header(name, value);
    }
    let head = builder.finish();
    let mut out = Vec::new();
    put_invoke(
        &mut out,
        stream,
        read.sent_ns,
        read.id,
        read.remaining_ms,
        read.trigger,
        &head,
        read.body,
        end,
        false,
    );
    let (header, payload) = split_frame(&mut BytesMut::from(&out[..])).unwrap().unwrap();
    assert_eq!((header.stream, header.flags), (stream, if end { FLAG_END } else { 0 }));
    let second = Invoke::parse(&payload).unwrap();
    assert_eq!(
        (second.method, second.path, second.query, second.body, second.id),
        (read.method, read.path, read.query, read.body, read.id)
    );
    assert_eq!(headers(second.headers).count(), fields.len());
}

fn result(payload: Bytes, end: bool, stream: u32) {
    let Ok(read) = ResultHead::parse(payload) else { return };
    assert!((200..=599).contains(&read.status));
    assert!(headers(&read.headers).count() <= read.headers.len());
    let mut out = Vec::new();
    read.put(&mut out, stream, end);
    let (_, payload) = split_frame(&mut BytesMut::from(&out[..])).unwrap().unwrap();
    assert_eq!(ResultHead::parse(payload), Ok(read));
}
