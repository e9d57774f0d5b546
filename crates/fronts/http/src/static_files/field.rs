//! Reads a header field of a request.

use mote_core::invocation::{Head, headers};

pub(super) fn field<'a>(head: &'a Head, wanted: &[u8]) -> Option<&'a [u8]> {
    headers(head.headers()).find(|(name, _)| *name == wanted).map(|(_, value)| value)
}
