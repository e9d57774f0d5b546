//! Readers of bytes below the APIs of other platforms: no bytes make them panic, what they read can
//! be written again, and what they write they read.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use mote_core::base64;
use mote_platforms::compat::fuzzing::accepted_call;
use mote_platforms::compat::node::Code;
use mote_platforms::openfaas::fuzzing::code as image;
use mote_platforms::tinyfaas::fuzzing::{grpc, grpc_written};

fuzz_target!(|data: &[u8]| {
    let Some((which, data)) = data.split_first() else { return };
    match which % 4 {
        0 => texts(data),
        1 => record(data),
        2 => messages(data),
        _ => images(data),
    }
});

fn texts(data: &[u8]) {
    let text = base64::encode(data);
    assert_eq!(base64::decode(text.as_bytes()).as_deref(), Some(data));
    let Some(bytes) = base64::decode(data) else { return };
    // Texts of the same bytes differ only in padding, whitespace and the bits of the last letter.
    let letters = |text: &[u8]| -> Vec<u8> {
        text.iter().copied().filter(|b| *b != b'=' && !b.is_ascii_whitespace()).collect()
    };
    let written = letters(data);
    let again = letters(base64::encode(&bytes).as_bytes());
    assert_eq!(written.len(), again.len());
    let whole = bytes.len() / 3 * 4;
    assert_eq!(written[..whole], again[..whole]);
}

fn record(data: &[u8]) {
    let Some(written) = accepted_call(data.to_vec()) else { return };
    assert_eq!(accepted_call(written.clone()), Some(written));
}

fn messages(data: &[u8]) {
    if let Some((function, text)) = grpc(Bytes::copy_from_slice(data)) {
        assert_eq!(grpc(grpc_written(&function, &text)), Some((function, text)));
    }
    let own = grpc_written("f", data);
    assert_eq!(grpc(own), Some(("f".to_owned(), Bytes::copy_from_slice(data))));
}

fn images(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for has_process in [false, true] {
        match image(text, has_process, &[]) {
            Ok(code) => assert!(has_process && matches!(code, Code::Files(_)), "{code:?}"),
            Err(why) => assert!(!why.is_empty() && !why.contains(['\n', '\0']), "{why}"),
        }
    }
}
