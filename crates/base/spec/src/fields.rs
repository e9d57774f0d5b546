//! Names of header fields: how they are compared, which fields only the node itself may set, and
//! which contents no function may see.

use std::borrow::Cow;

/// The beginning of the name of the cookie with which a browser manages the node. The port of the
/// node follows.
pub const SESSION_COOKIE: &str = "mote-session-";

/// The beginnings of fields that a front or a trigger adds to an invocation, in addition to
/// `mote-`. They hold properties of an MQTT message, and options of CoAP that HTTP does not have.
const TRIGGER_FIELDS: [&[u8]; 2] = [b"mqtt-", b"coap-"];

/// Whether only the node itself may set a field with this name. Such fields tell the function about
/// a schedule, an MQTT message, an option of CoAP, the source of a result, an attempt, the caller,
/// or the parameters of its route. A field with such a name is removed from a caller's request, so
/// the function can trust it. A sign other than a letter or digit counts as a hyphen, because
/// programs receive both spellings as the same variable.
pub fn is_set_by_node(name: &[u8]) -> bool {
    // This runs for each field of each request, and very few fields begin with these letters.
    if !matches!(name.first(), Some(b'm' | b'M' | b'c' | b'C')) {
        return false;
    }
    if TRIGGER_FIELDS.iter().any(|start| without(name, start).is_some()) {
        return true;
    }
    let Some(rest) = without(name, b"mote-") else { return false };
    let begins = |with: &[u8]| without(rest, with).is_some();
    let is = |other: &[u8]| rest.len() == other.len() && begins(other);
    begins(b"source")
        || begins(b"schedule")
        || is(b"attempt")
        || is(b"step")
        || is(b"caller")
        || is(b"params")
}

/// Removes `start` from the beginning of a name and returns the rest. `start` is in lower case with
/// hyphens. Returns `None` if the name does not begin with `start`.
pub fn without<'a>(name: &'a [u8], start: &[u8]) -> Option<&'a [u8]> {
    let (first, rest) = name.split_at_checked(start.len())?;
    first.iter().zip(start).all(|(byte, wanted)| dashed(*byte) == *wanted).then_some(rest)
}

/// Converts a byte of a name into the form in which names are compared: in the environment
/// variables of programs, all signs except letters and digits become the same.
fn dashed(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' }
}

/// Removes the cookies of sessions from the value of `Cookie`. A browser sends a host's cookies to
/// all ports of the host, so it would send the session of the node's dashboard to functions, too.
pub fn without_sessions(cookies: &[u8]) -> Cow<'_, [u8]> {
    let name = SESSION_COOKIE.as_bytes();
    if !cookies.windows(name.len()).any(|part| part == name) {
        return Cow::Borrowed(cookies);
    }
    let all = cookies.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let kept: Vec<&[u8]> = all.filter(|cookie| !cookie.starts_with(name)).collect();
    Cow::Owned(kept.join(&b"; "[..]))
}

/// Whether a field of an answer sets the cookie of a session. A function that set it could put a
/// user of the dashboard into somebody else's session.
pub fn sets_session(name: &[u8], value: &[u8]) -> bool {
    // Some browsers take `=NAME=VALUE`, a cookie without a name, for NAME.
    let starts = |byte: &u8| !byte.is_ascii_whitespace() && *byte != b'=';
    let value = value.iter().position(starts).map_or(value, |at| &value[at..]);
    name.eq_ignore_ascii_case(b"set-cookie") && value.starts_with(SESSION_COOKIE.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_set_no_session() {
        for value in ["mote-session-6684=x", "  mote-session-1=x; Path=/", "=mote-session-1=x"] {
            assert!(sets_session(b"Set-Cookie", value.as_bytes()), "{value}");
        }
        assert!(!sets_session(b"set-cookie", b"own=mote-session-1"));
        assert!(!sets_session(b"cookie", b"mote-session-1=x"));
    }

    #[test]
    fn functions_see_no_session() {
        for (sent, kept) in [
            ("a=1; b=2", "a=1; b=2"),
            ("mote-session-6684=x", ""),
            ("a=1; mote-session-6684=x; b=2", "a=1; b=2"),
            ("mote-session-6684=x;mote-session-1=y;  a=1", "a=1"),
            ("a=mote-session-6684", "a=mote-session-6684"),
            ("my-mote-session-1=2", "my-mote-session-1=2"),
        ] {
            assert_eq!(&*without_sessions(sent.as_bytes()), kept.as_bytes(), "{sent}");
        }
    }
}
