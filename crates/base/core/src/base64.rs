//! Base64 of RFC 4648, section 4, for bytes inside JSON and header fields. Pure.
//!
//! The node reads every Base64 text by the same rules, which are those of the platforms whose
//! clients write it. The letters are `A`–`Z`, `a`–`z`, `0`–`9`, `+` and `/`. The padding at the end
//! may be complete, too short or absent. Spaces, tabs and line ends are skipped anywhere, because
//! command-line tools wrap long lines. If the last letter has bits that belong to no byte, those
//! bits are ignored. Any other letter, padding before the end, more padding than the last group
//! needs, and a last group of a single letter are refused.

use std::borrow::Cow;

use ::base64::Engine;
use ::base64::alphabet::STANDARD;
use ::base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

const ENGINE: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Encodes these bytes, with padding.
pub fn encode(bytes: &[u8]) -> String {
    ENGINE.encode(bytes)
}

/// Decodes a text by the rules of this module; `None` if the text breaks them. The largest uploads
/// take tens of milliseconds to decode, so a thread that serves requests must not decode them.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    ENGINE.decode(without_whitespace(text)).ok()
}

/// Removes the whitespace. Copies the text only if it contains some.
fn without_whitespace(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(u8::is_ascii_whitespace) {
        return Cow::Borrowed(text);
    }
    let mut kept = Vec::with_capacity(text.len());
    for piece in text.split(u8::is_ascii_whitespace) {
        kept.extend_from_slice(piece);
    }
    Cow::Owned(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg=="),
            (&[0xfb, 0xff, 0xfe], "+//+"),
        ] {
            assert_eq!(encode(bytes), text);
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(bytes));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(encode(&all).as_bytes()), Some(all));
    }

    #[test]
    fn what_clients_write_is_read() {
        for (text, bytes) in [
            ("Zg", "f"),
            ("Zg=", "f"),
            ("Zm8", "fo"),
            ("Zm9v\nYmFy\n", "foobar"),
            ("Zm9v\r\nYmFy\r\n", "foobar"),
            (" Z m\t9v ", "foo"),
            ("Zg=\n=\n", "f"),
            ("Zh==", "f"),
            ("\n", ""),
        ] {
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(bytes.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for text in
            ["Z", "Z===", "Zg=a", "Zg===", "Zm9v=", "Zm9vY", "=", "a*b", "-__-", "Zm9v!", "Zé=="]
        {
            assert_eq!(decode(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(decode(b"Zm9v\xff"), None);
    }
}
