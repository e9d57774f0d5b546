//! The field `Accept-Encoding` (RFC 9110, 12.5.3).

/// Whether a request with this value of `Accept-Encoding` accepts an answer in `coding`.
pub fn accepts(value: &[u8], coding: &str) -> bool {
    let mut any = false;
    for one in value.split(|byte| *byte == b',') {
        let mut parts = one.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let is_refused = parts.any(|part| {
            let (key, weight) = part.split_at(part.len().min(2));
            key.eq_ignore_ascii_case(b"q=") && weight.iter().all(|byte| matches!(byte, b'0' | b'.'))
        });
        if name.eq_ignore_ascii_case(coding.as_bytes()) {
            return !is_refused;
        }
        any |= name == b"*" && !is_refused;
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codings_are_accepted_by_name_or_star() {
        for (value, is_accepted) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; Q=0.000, *", false),
            ("*", true),
            ("*;q=0", false),
            ("identity", false),
            ("x-gzip", false),
            ("", false),
        ] {
            assert_eq!(accepts(value.as_bytes(), "gzip"), is_accepted, "{value}");
        }
    }
}
