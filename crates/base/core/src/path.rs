//! The normal form of paths: a path is refused unless it has the same meaning for every reader. So no
//! function and no proxy can be led to another route than the one that was checked. Pure.

/// Why a path is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It has dot segments, encoded slashes or backslashes, double encoding, path parameters, bytes that
    /// no path may have, or is not UTF-8 once it is decoded.
    #[error("path is not in normal form")]
    NotNormal,
    /// It has a NUL, which truncates strings in other programs.
    #[error("NUL is not allowed")]
    Nul,
}

/// Checks a path as it was sent.
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
        match percent(&path[at..]).ok_or(Refused::NotNormal)? {
            0 => return Err(Refused::Nul),
            b'/' | b'\\' | b';' => return Err(Refused::NotNormal),
            other => decoded.push(other),
        }
        at += 3;
    }
    // An escape in the decoded bytes was encoded twice, completely or in its digits.
    let escapes = (0..decoded.len()).filter(|at| decoded[*at] == b'%');
    let twice = escapes.into_iter().any(|at| percent(&decoded[at..]).is_some());
    if twice || std::str::from_utf8(&decoded).is_err() || has_dot_segment(&decoded) {
        return Err(Refused::NotNormal);
    }
    Ok(())
}

/// Whether a segment is `.` or `..`.
pub fn has_dot_segment(path: &[u8]) -> bool {
    // The cheap check comes first: most paths have no dot at all.
    path.contains(&b'.')
        && path.split(|byte| *byte == b'/').any(|segment| matches!(segment, b"." | b".."))
}

fn percent(bytes: &[u8]) -> Option<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    Some(digit(bytes.get(1)?)? << 4 | digit(bytes.get(2)?)?)
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
}
