//! Replays `shims/conformance/frames.json`, the byte fixtures that all implementations of the
//! worker protocol share.

#![allow(clippy::unwrap_used, reason = "a test; clippy only knows unit tests as such")]

use bytes::{Bytes, BytesMut};
use mote_core::invocation::{InvocationId, headers};
use mote_core::services::{RESPONSE_FIXED_BYTES, Request};
use mote_core::wire::{
    FrameHeader, FrameKind, Invoke, Load, Ready, ResultHead, WireError, WorkerError, put_frame,
    split_frame,
};
use serde_json::{Value, json};

#[test]
fn frames() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shims/conformance/frames.json");
    let text = std::fs::read_to_string(file).expect("the fixtures are part of the repository");
    let fixtures: Value = serde_json::from_str(&text).unwrap();
    let frames = fixtures["frames"].as_array().unwrap();
    assert!(frames.len() > 30, "the fixtures are not all there");
    for case in frames {
        check(case);
    }
}

fn check(case: &Value) {
    let name = case["name"].as_str().unwrap();
    let bytes = unhex(case["hex"].as_str().unwrap());
    let seen = decode(&bytes);
    if let Some(ok) = case.get("ok") {
        let seen = seen
            .unwrap_or_else(|e| panic!("{name}: {e}"))
            .unwrap_or_else(|| panic!("{name}: incomplete"));
        for (field, value) in ok.as_object().unwrap() {
            assert_eq!(&seen[field], value, "{name}: {field}");
        }
    } else if case.get("incomplete").is_some() {
        assert!(matches!(seen, Ok(None)), "{name}: {seen:?}");
    } else {
        let verdict = match seen {
            Err(WireError::UnknownKind(_)) => "unknown kind",
            Err(WireError::Reserved) => "reserved",
            Err(WireError::TooLong(_)) => "too long",
            Err(WireError::Malformed(..)) => "malformed",
            Ok(frame) => panic!("{name}: read as {frame:?}"),
        };
        assert_eq!(verdict, case["error"], "{name}");
    }
}

/// Converts a frame to the terms of the fixtures.
fn decode(bytes: &[u8]) -> Result<Option<Value>, WireError> {
    let mut buffer = BytesMut::from(bytes);
    let Some((header, payload)) = split_frame(&mut buffer)? else {
        return Ok(None);
    };
    assert!(buffer.is_empty());
    assert_round_trip(&header, &payload, bytes);
    let mut frame = match header.kind {
        FrameKind::Hello => json!({
            "kind": "HELLO",
            "version": u16::from_le_bytes([payload[0], payload[1]]),
            "shim": text(&payload[2..]),
        }),
        FrameKind::Load => {
            json!({"kind": "LOAD", "json": serde_json::from_slice::<Load>(&payload).unwrap()})
        }
        FrameKind::Ready => {
            json!({"kind": "READY", "json": serde_json::from_slice::<Ready>(&payload).unwrap()})
        }
        FrameKind::Error => {
            json!({"kind": "ERROR", "json": serde_json::from_slice::<WorkerError>(&payload).unwrap()})
        }
        FrameKind::Invoke => {
            let invoke = Invoke::parse(&payload)?;
            json!({
                "kind": "INVOKE", "sent_ns": invoke.sent_ns, "id": InvocationId(invoke.id).to_string(),
                "remaining_ms": invoke.remaining_ms, "trigger": invoke.trigger, "method": text(invoke.method),
                "path": text(invoke.path), "query": text(invoke.query), "headers": pairs(invoke.headers),
                "body": hex(invoke.body),
            })
        }
        FrameKind::Result => {
            let head = ResultHead::parse(payload.clone())?;
            let mut again = Vec::new();
            head.put(&mut again, header.stream, header.is_end());
            assert_eq!(again, bytes);
            json!({
                "kind": "RESULT", "entered_ns": head.entered_ns, "returned_ns": head.returned_ns,
                "status": head.status, "headers": pairs(&head.headers), "body": hex(&head.body),
            })
        }
        FrameKind::Credit => {
            json!({"kind": "CREDIT", "credit": u32::from_le_bytes(payload[..4].try_into().unwrap())})
        }
        FrameKind::Log => {
            json!({"kind": "LOG", "source": payload[0], "level": payload[1], "text": text(&payload[2..])})
        }
        FrameKind::Body => json!({"kind": "BODY", "payload": hex(&payload)}),
        FrameKind::Cancel => json!({"kind": "CANCEL", "payload": hex(&payload)}),
        FrameKind::Request => {
            let request = Request::parse(payload.clone())?;
            json!({
                "kind": "REQUEST", "number": request.id, "service": payload[4],
                "operation": payload[5], "payload": hex(&payload),
            })
        }
        FrameKind::Response => {
            if payload.len() < RESPONSE_FIXED_BYTES {
                return Err(WireError::Malformed(header.kind, "too short"));
            }
            json!({
                "kind": "RESPONSE", "number": u32::from_le_bytes(payload[..4].try_into().unwrap()),
                "status": payload[4], "payload": hex(&payload),
            })
        }
        FrameKind::Drain => json!({"kind": "DRAIN", "payload": hex(&payload)}),
    };
    frame["end"] = header.is_end().into();
    frame["stream"] = header.stream.into();
    Ok(Some(frame))
}

fn assert_round_trip(header: &FrameHeader, payload: &Bytes, bytes: &[u8]) {
    let mut again = Vec::new();
    put_frame(&mut again, header.kind, header.flags, header.stream, payload);
    assert_eq!(again, bytes);
}

fn pairs(block: &[u8]) -> Vec<[String; 2]> {
    headers(block).map(|(name, value)| [text(name), text(value)]).collect()
}

/// Shims treat header bytes as Latin-1, but the texts of frames are UTF-8.
fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().map(|b| *b as char).collect(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2));
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}
