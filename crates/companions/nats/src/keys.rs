//! Names of streams and subjects for namespaces and keys. Pure.
//!
//! A namespace is a stream, and a key is a subject of that stream. Bytes that a subject cannot
//! contain, and the percent sign, are written as `%` and two digits.

use mote_core::state::Namespace;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// The characters that are written as `%` and two digits.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'/').remove(b':');
/// The prefix of the names of all streams that hold state.
pub(crate) const STREAMS: &str = "mote-kv-";
const FUNCTION: &str = "function-";
const SHARED: &str = "shared-";

/// The part of a name that stands for a namespace. A slash is encoded as well, because a stream's
/// name cannot contain one.
fn part(namespace: &Namespace) -> String {
    let (kind, name) = match namespace {
        Namespace::Function(name) => (FUNCTION, name),
        Namespace::Shared(name) => (SHARED, name),
    };
    format!("{kind}{}", utf8_percent_encode(name, ENCODED)).replace('/', "%2F")
}

pub(crate) fn stream(namespace: &Namespace) -> String {
    format!("{STREAMS}{}", part(namespace))
}

pub(crate) fn namespace(stream: &str) -> Option<Namespace> {
    let part = percent_decode_str(stream.strip_prefix(STREAMS)?).decode_utf8().ok()?;
    match part.strip_prefix(FUNCTION) {
        Some(name) => Some(Namespace::Function(name.to_owned())),
        None => Some(Namespace::Shared(part.strip_prefix(SHARED)?.to_owned())),
    }
}

pub(crate) fn subjects(namespace: &Namespace) -> String {
    format!("mote.kv.{}.>", part(namespace))
}

/// The prefix of the subjects of keys.
pub(crate) fn keys(namespace: &Namespace) -> String {
    format!("mote.kv.{}.k.", part(namespace))
}

/// The subject of the message that marks everything before it as removed.
pub(crate) fn cleared(namespace: &Namespace) -> String {
    format!("mote.kv.{}.cleared", part(namespace))
}

/// The subject of a key. `keys` is the prefix from [`keys`].
pub(crate) fn subject(keys: &str, key: &str) -> String {
    format!("{keys}{}", utf8_percent_encode(key, ENCODED))
}

pub(crate) fn key(keys: &str, subject: &str) -> Option<String> {
    let encoded = subject.strip_prefix(keys)?;
    Some(percent_decode_str(encoded).decode_utf8().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_a_subject_of_one_token_and_back() {
        let own = Namespace::Function("counter-2".into());
        let keys = keys(&own);
        for key in ["a", "a.b", "a b", "*", ">", "%41", "ü/\u{1f600}", "\r\n\t", "a/b:c", "\u{7f}"]
        {
            let subject = subject(&keys, key);
            let token = subject.strip_prefix(&keys).expect("its beginning");
            assert!(!token.contains(['.', '*', '>', ' ', '\r', '\n', '\t']), "{subject}");
            assert!(token.is_ascii() && !token.is_empty(), "{subject}");
            assert_eq!(self::key(&keys, &subject).as_deref(), Some(key));
        }
        assert_eq!(key(&keys, &cleared(&own)), None);
    }

    #[test]
    fn every_namespace_is_a_stream_and_back() {
        for name in ["f", "a-b_c", "x.y", "with space", "shared-x", "sl/ash"] {
            for namespace in [Namespace::Function(name.into()), Namespace::Shared(name.into())] {
                let stream = stream(&namespace);
                assert!(!stream.contains(['.', '*', '>', ' ', '/', '\\']), "{stream}");
                assert_eq!(self::namespace(&stream), Some(namespace));
            }
        }
        assert_eq!(namespace("mote-journal"), None);
    }
}
