//! Readers of bytes below the APIs of other platforms: no bytes make them panic, what they read can
//! be written again, and what they write they read.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use mote_compat::fuzzing::{accepted_call, base64, grpc, grpc_written, image};
use mote_compat::node::Code;

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
    let text = mote_core::base64::encode(data);
    assert_eq!(base64(text.as_bytes()).as_deref(), Some(data));
    let Some(bytes) = base64(data) else { return };
    let letters = |text: &[u8]| -> Vec<u8> {
        text.iter().copied().filter(|byte| !matches!(byte, b'=' | b'\r' | b'\n')).collect()
    };
    // One text only means these bytes, but for padding and line ends.
    assert_eq!(letters(mote_core::base64::encode(&bytes).as_bytes()), letters(data));
    let text = std::str::from_utf8(data).expect("base64 is ASCII");
    assert_eq!(mote_core::base64::decode(text).as_deref(), Some(&bytes[..]));
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
