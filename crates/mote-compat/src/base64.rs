//! Base64 (RFC 4648, section 4), as clients of these platforms write it: with or without padding,
//! and with line breaks, which the common command-line tool adds.

/// The bytes, or `None` where the text is not base64.
pub(crate) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut held, mut bits, mut padding) = (0u32, 0u32, 0u32);
    for byte in text {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'=' => {
                padding += 1;
                continue;
            }
            b'\r' | b'\n' => continue,
            _ => return None,
        };
        if padding > 0 {
            return None;
        }
        held = held << 6 | u32::from(six);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    // What is left must be padding: fewer than 6 bits, all zero.
    (padding <= 2 && bits < 6 && held == 0).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn texts() {
        let ok =
            |text: &str, bytes: &[u8]| assert_eq!(decode(text.as_bytes()).as_deref(), Some(bytes));
        ok("", b"");
        ok("Zg==", b"f");
        ok("Zg", b"f");
        ok("Zm9v\nYmFy\n", b"foobar");
        ok("//79", &[0xff, 0xfe, 0xfd]);
        for text in ["Z", "Zg=a", "Zm9v!", "Zh==", "Zg==="] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }
}
