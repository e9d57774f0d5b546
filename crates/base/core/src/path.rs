//! The canonical form of a path, which functions and observers see whichever front the request
//! used.
//!
//! RFC 3986 permits several spellings of a path. Over CoAP, a path arrives as plain segments, and
//! the node encodes them. Over HTTP, the client has encoded the path, and each library does so in
//! its own way. A function that keeps state by path, or tells the observers of a path that it
//! changed, needs a single spelling. In the canonical form, everything that RFC 3986 permits in a
//! segment (`pchar`) except `;` is left unencoded, and all other bytes are percent-encoded with
//! digits in upper case. `/AA%3ABB` thus becomes `/AA:BB`, `/%c3%bc` becomes `/%C3%BC`, and `%2F`,
//! `%25` and `%3B` stay encoded.
//!
//! Functions that speak the worker protocol receive the canonical form, and observed resources are
//! known by it. A server (`runtime = "server"`) receives the path of an HTTP request as the client
//! sent it, because the server may sign or check the path byte by byte, or treat a raw `+`
//! differently from `%2B`.

//!
//! A path is refused ([`check`]) unless it has the same meaning for every reader. Otherwise, a path
//! that was checked as one route could lead a function or a proxy to another. Pure.

use std::borrow::Cow;

/// Why a path is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The path contains dot segments, encoded slashes or backslashes, double encoding, path
    /// parameters, or bytes that no path may have, or it is not UTF-8 after decoding.
    #[error("path is not in normal form")]
    NotNormal,
    /// The path contains a NUL, at which other programs would cut the string.
    #[error("NUL is not allowed")]
    Nul,
}

/// Whether a byte may stand unencoded in a segment: RFC 3986's unreserved characters and
/// sub-delimiters, `:` and `@`. `;` is encoded, because some programs cut a path at it.
pub fn is_segment_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:@".contains(&byte)
}

/// Appends a byte percent-encoded.
pub fn push_escape(out: &mut Vec<u8>, byte: u8) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
}

/// Decodes the escape (`%41`) at the beginning of a text; `None` if there is none.
pub fn escape(text: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = text else { return None };
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    Some(digit(high)? << 4 | digit(low)?)
}

/// Whether a decoded text still contains an escape. If so, it was encoded twice.
pub fn has_escape(decoded: &[u8]) -> bool {
    (0..decoded.len()).any(|at| escape(&decoded[at..]).is_some())
}

/// The canonical form of a path. A `%` that does not begin an escape is itself encoded.
pub fn canonical(path: &[u8]) -> Cow<'_, [u8]> {
    let is_plain = |byte: &u8| is_segment_byte(*byte) || *byte == b'/';
    let Some(first) = path.iter().position(|byte| !is_plain(byte)) else {
        return Cow::Borrowed(path);
    };
    let mut canonical = Vec::with_capacity(path.len() + 16);
    canonical.extend_from_slice(&path[..first]);
    let mut rest = &path[first..];
    while let [byte, after @ ..] = rest {
        match escape(rest) {
            Some(encoded) => {
                if is_segment_byte(encoded) {
                    canonical.push(encoded);
                } else {
                    push_escape(&mut canonical, encoded);
                }
                rest = &rest[3..];
                continue;
            }
            None if is_plain(byte) => canonical.push(*byte),
            None => push_escape(&mut canonical, *byte),
        }
        rest = after;
    }
    Cow::Owned(canonical)
}

/// A path without its percent-encoding.
pub fn decoded(path: &[u8]) -> Cow<'_, [u8]> {
    if !path.contains(&b'%') {
        return Cow::Borrowed(path);
    }
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [byte, after @ ..] = rest {
        let found = escape(rest);
        decoded.push(found.unwrap_or(*byte));
        rest = if found.is_some() { &rest[3..] } else { after };
    }
    Cow::Owned(decoded)
}

/// Checks a path in the form in which it was sent.
pub fn check(path: &[u8]) -> Result<(), Refused> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut at = 0;
    while at < path.len() {
        let byte = path[at];
        if byte != b'%' {
            if matches!(byte, b'\\' | b';' | b'#') || !byte.is_ascii_graphic() {
                return Err(Refused::NotNormal);
            }
            decoded.push(byte);
            at += 1;
            continue;
        }
        match escape(&path[at..]).ok_or(Refused::NotNormal)? {
            0 => return Err(Refused::Nul),
            b'/' | b'\\' | b';' => return Err(Refused::NotNormal),
            other => decoded.push(other),
        }
        at += 3;
    }
    // An escape that remains after decoding was encoded twice, either as a whole or in its digits.
    if has_escape(&decoded) || std::str::from_utf8(&decoded).is_err() || has_dot_segment(&decoded) {
        return Err(Refused::NotNormal);
    }
    Ok(())
}

/// Whether any segment is `.` or `..`.
pub fn has_dot_segment(path: &[u8]) -> bool {
    // The cheap check comes first: most paths have no dot at all.
    path.contains(&b'.')
        && path.split(|byte| *byte == b'/').any(|segment| matches!(segment, b"." | b".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_meaning() {
        for path in ["/", "/a.b/..c", "/%C3%A4/x", "/a%20b", "//a", "/100%25"] {
            assert_eq!(check(path.as_bytes()), Ok(()), "{path}");
        }
        for path in [
            "/..",
            "/../../call/victim/",
            "/a/./b",
            "/%2e%2E/x",
            "/a%2fb",
            "/a%5cb",
            "/a\\b",
            "/a;b",
            "/a%3Bb",
            "/%252e",
            "/%",
            "/%4",
            "/a b",
            "/\u{e4}",
            "/%ff",
            "/a#b",
        ] {
            assert_eq!(check(path.as_bytes()), Err(Refused::NotNormal), "{path}");
        }
        assert_eq!(check(b"/a%00"), Err(Refused::Nul));
    }

    #[test]
    fn equal_paths_have_one_form() {
        for (path, expected) in [
            ("/", "/"),
            ("/a/b.c~d_e-f", "/a/b.c~d_e-f"),
            ("/AA%3ABB", "/AA:BB"),
            ("/%c3%bc", "/%C3%BC"),
            ("/\u{fc}", "/%C3%BC"),
            ("/%61%7e", "/a~"),
            ("/!$&'()*+,=:@", "/!$&'()*+,=:@"),
            ("/%21%24%26%27%28%29%2a%2b%2c%3d%3a%40", "/!$&'()*+,=:@"),
            ("/a%2fb/%25/%3b/%5c", "/a%2Fb/%25/%3B/%5C"),
            ("/a;b", "/a%3Bb"),
            ("/{a}|\"b\"", "/%7Ba%7D%7C%22b%22"),
            ("/50%/%4", "/50%25/%254"),
        ] {
            let once = canonical(path.as_bytes());
            assert_eq!(once, expected.as_bytes(), "{path}");
            assert_eq!(canonical(&once), once, "{path}");
        }
    }

    #[test]
    fn escapes_are_found() {
        assert_eq!(&*decoded(b"/a%26b/c%20d/50%"), b"/a&b/c d/50%");
        assert_eq!(&*decoded(b"/a"), b"/a");
        assert_eq!(escape(b"%4a"), Some(b'J'));
        assert_eq!(escape(b"%4"), None);
        assert_eq!(escape(b"%+1"), None);
        assert!(has_escape(b"a%41") && !has_escape(b"50%") && !has_escape(b"%zz"));
    }
}
