//! The credentials with which a request proves who sends it.

use mote_core::base64;
use mote_core::invocation::headers;
use mote_spec::Access;

use crate::ring::{Key, KeyRing};

/// The header fields in which a caller sends its key or its token.
const AUTHORIZATION: &[u8] = b"authorization";
const KEY_FIELD: &[u8] = b"x-api-key";
const BEARER: &[u8] = b"bearer ";
const BASIC: &[u8] = b"basic ";
/// The maximum number of keys that are tried for one request.
const TRIED_MAX: usize = 4;
/// Longest credentials of basic authentication, in bytes: the longest name and a key, in base64.
const BASIC_BYTES_MAX: usize = 512;

/// Something that a request presents as its key.
pub(crate) enum Presented<'a> {
    Key(&'static [u8], &'a [u8]),
    /// The name of a caller and the caller's key, in base64.
    Basic(&'a [u8]),
}

impl Presented<'_> {
    pub(crate) fn field(&self) -> &'static [u8] {
        match self {
            Presented::Key(field, _) => field,
            Presented::Basic(_) => AUTHORIZATION,
        }
    }

    /// Returns the valid key that the request presents, if the presented text is a valid key.
    pub(crate) fn find<'r>(&self, ring: &'r KeyRing, now_unix_ms: u64) -> Option<&'r Key> {
        match self {
            Presented::Key(_, text) => ring.find(text, now_unix_ms),
            Presented::Basic(text) => {
                let text = Some(text).filter(|text| text.len() <= BASIC_BYTES_MAX)?;
                let pair = base64::decode(text)?;
                let at = pair.iter().position(|byte| *byte == b':')?;
                let key = ring.find(&pair[at + 1..], now_unix_ms)?;
                (key.name.as_bytes() == &pair[..at]).then_some(key)
            }
        }
    }
}

/// Everything that a request presents as its key to a function with this access mode.
pub(crate) fn presented(block: &[u8], access: Access) -> impl Iterator<Item = Presented<'_>> {
    let all = headers(block).filter_map(move |(name, value)| match name {
        KEY_FIELD => Some(Presented::Key(KEY_FIELD, value.trim_ascii())),
        AUTHORIZATION => match after(value, BEARER) {
            Some(text) => Some(Presented::Key(AUTHORIZATION, text)),
            None if access == Access::Basic => after(value, BASIC).map(Presented::Basic),
            None => None,
        },
        _ => None,
    });
    all.take(TRIED_MAX)
}

/// The bearer tokens that a request presents (RFC 6750, 2.1).
pub(crate) fn tokens(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    let fields = headers(block).filter(|(name, _)| *name == AUTHORIZATION);
    fields.filter_map(|(_, value)| after(value, BEARER))
}

/// The credentials that follow the name of a scheme.
fn after<'a>(value: &'a [u8], scheme: &[u8]) -> Option<&'a [u8]> {
    let (found, text) = value.split_at_checked(scheme.len())?;
    found.eq_ignore_ascii_case(scheme).then(|| text.trim_ascii())
}
