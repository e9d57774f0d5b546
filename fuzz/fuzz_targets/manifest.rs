//! Manifests: no text makes the reader panic, every refusal names a line of the text, and what is
//! refused is refused again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mote_spec::Manifest;

fuzz_target!(|text: &str| {
    let first = Manifest::parse("mote.toml", text);
    let second = Manifest::parse("mote.toml", text);
    assert_eq!(first.is_ok(), second.is_ok());
    if let Err(mistakes) = first {
        assert!(!mistakes.to_string().is_empty(), "refused without a word");
    }
});
