//! Fields of headers and records of tar.

/// An archive consists of blocks of this size.
pub const BLOCK: usize = 512;

pub(crate) fn until_nul(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    &field[..end]
}

/// Reads a number field: octal digits, with spaces around them, ended by a space or NUL. Base-256
/// is refused, because no entry within the limits needs it.
pub(crate) fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(until_nul(field)).ok()?.trim_matches(' ');
    if text.is_empty() {
        return Some(0);
    }
    text.bytes().all(|b| (b'0'..=b'7').contains(&b)).then(|| u64::from_str_radix(text, 8).ok())?
}

/// Reads a number field of a layer: octal, or binary if its first bit is set. A negative number is
/// refused.
pub(crate) fn number(field: &[u8]) -> Option<u64> {
    let (first, rest) = field.split_first()?;
    match first {
        0x80 => {
            let (high, low) = rest.split_at(rest.len().checked_sub(8)?);
            if high.iter().any(|byte| *byte != 0) {
                return None;
            }
            low.try_into().ok().map(u64::from_be_bytes)
        }
        0x81.. => None,
        _ if until_nul(field).is_empty() => Some(0),
        _ => octal(field),
    }
}

/// Reads a time in seconds, with an optional fraction. A time before 1970 cannot be the time of a
/// file in an image.
pub(crate) fn time(text: &[u8]) -> Option<(u64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if seconds.is_empty() || !is_digits(seconds) || !is_digits(fraction) {
        return None;
    }
    let nanoseconds = format!("{:0<9.9}", fraction).parse().ok()?;
    Some((seconds.parse().ok()?, nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(number(b"0000755\0"), Some(0o755));
        assert_eq!(number(b"       \0"), Some(0));
        assert_eq!(number(b"\x80\0\0\0\0\0\0\x02\0\0\0\0"), Some(2 << 32));
        assert_eq!(number(b"\x80\x01\0\0\0\0\0\0\0\0\0\0"), None, "above 64 bits");
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None, "negative");
        assert_eq!(number(b"0000999\0"), None);
    }

    #[test]
    fn times() {
        assert_eq!(time(b"1700000000.25"), Some((1_700_000_000, 250_000_000)));
        assert_eq!(time(b"17"), Some((17, 0)));
        assert_eq!(time(b"1.1234567891"), Some((1, 123_456_789)));
        for text in [&b"-1"[..], b"", b".5", b"1.x", b"99999999999999999999999"] {
            assert_eq!(time(text), None, "{text:?}");
        }
    }
}
