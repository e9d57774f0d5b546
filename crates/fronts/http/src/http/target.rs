//! Request targets: checks the path and splits it into the function's name and the path below it.
//!
//! The path is passed on as the client has encoded it. Functions that speak the worker protocol
//! receive the path in the canonical form of `mote_core::path`. Functions that are servers receive
//! it unchanged.

use mote_core::path;

use crate::refusal::Refusal;

pub const TARGET_BYTES_MAX: usize = 8_192;

/// A target in normal form, split after the function's name.
#[derive(Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// The first segment. It may not be a valid function name.
    pub name: &'a [u8],
    /// The part after the name, with its leading `/`. It is `/` if nothing follows.
    pub path: &'a [u8],
    /// The query without `?`.
    pub query: &'a [u8],
    /// Whether the path is one segment without a trailing `/`.
    pub is_bare: bool,
}

/// Checks an origin-form target (`/name/path?query`) and splits it.
///
/// A path is refused unless it is in normal form ([`path::check`]). The CoAP front refuses the same
/// paths.
pub fn split(target: &[u8]) -> Result<Target<'_>, Refusal> {
    let question = memchr::memchr(b'?', target);
    let (path, query) = match question {
        Some(at) => (&target[..at], &target[at + 1..]),
        None => (target, &target[..0]),
    };
    if path.first() != Some(&b'/') {
        return Err(not_normal());
    }
    if !path.iter().all(|byte| is_plain(*byte)) {
        path::check(path).map_err(|refused| match refused {
            path::Refused::NotNormal => not_normal(),
            path::Refused::Nul => nul(),
        })?;
    } else if path::has_dot_segment(path) {
        return Err(not_normal());
    }
    check_query(query)?;
    let rest = &path[1..];
    let (name, below, is_bare) = match memchr::memchr(b'/', rest) {
        Some(at) => (&rest[..at], &rest[at..], false),
        None => (rest, &b"/"[..], !rest.is_empty()),
    };
    Ok(Target { name, path: below, query, is_bare })
}

/// Bytes that need no further check.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_' | b'.' | b'~')
}

/// Checks a query. The function interprets the query, so only bytes that no target may have and NUL
/// are refused. NUL truncates strings in other programs.
fn check_query(query: &[u8]) -> Result<(), Refusal> {
    if !query.iter().all(|byte| (0x21..=0x7e).contains(byte) && *byte != b'#') {
        return Err(Refusal::new(400, "M1015", "target must be percent-encoded ASCII"));
    }
    let mut rest = query;
    while let Some(at) = memchr::memchr(b'%', rest) {
        rest = &rest[at..];
        if rest.starts_with(b"%00") {
            return Err(nul());
        }
        rest = &rest[1..];
    }
    Ok(())
}

fn not_normal() -> Refusal {
    Refusal::new(400, "M1026", "path is not in normal form")
}

fn nul() -> Refusal {
    Refusal::new(400, "M1027", "NUL is not allowed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(target: &str, expected: Result<(&str, &str, &str), &str>) {
        let got = split(target.as_bytes());
        match (&got, expected) {
            (Ok(got), Ok((name, path, query))) => {
                assert_eq!(
                    (got.name, got.path, got.query),
                    (name.as_bytes(), path.as_bytes(), query.as_bytes()),
                    "{target}"
                );
            }
            (Err(refusal), Err(detail)) => assert_eq!(refusal.detail, detail, "{target}"),
            _ => panic!("{target}: {got:?}"),
        }
    }

    #[test]
    fn targets() {
        check("/fn", Ok(("fn", "/", "")));
        check("/fn/", Ok(("fn", "/", "")));
        check("/fn?a=1&b=%20", Ok(("fn", "/", "a=1&b=%20")));
        check("/fn/a.b/c%20d?x", Ok(("fn", "/a.b/c%20d", "x")));
        check("/fn/%e2%82%ac", Ok(("fn", "/%e2%82%ac", "")));
        check("/", Ok(("", "/", "")));
        check("//fn", Ok(("", "/fn", "")));
        let refused = Err("path is not in normal form");
        for target in [
            "fn",
            "/fn/../admin",
            "/fn/./x",
            "/fn/..",
            "/fn/%2e%2e/x",
            "/fn/.%2E",
            "/fn%2fx",
            "/fn/%2F",
            "/fn/%5c",
            "/fn/a\\b",
            "/fn/%252e%252e",
            "/fn/%25%32%65",
            "/fn/%252%65",
            "/fn/%c0%ae",
            "/fn/%ff",
            "/fn;x",
            "/fn/a;b=c",
            "/fn/%3bx",
            "/fn/%",
            "/fn/%4",
            "/fn/%zz",
            "/fn/%+1",
        ] {
            check(target, refused);
        }
        check("/fn/%00", Err("NUL is not allowed"));
        check("/fn?a=\u{e9}", Err("target must be percent-encoded ASCII"));
        check("/fn?a#b", Err("target must be percent-encoded ASCII"));
        check("/fn?a%00=1", Err("NUL is not allowed"));
    }
}
