//! What the exchanges with servers have in common: header fields, and the fault of an answer that is
//! not valid.

use hyper::HeaderMap;
use mote_core::Fault;
use mote_core::invocation::put_header;

/// The fault of a server that does not answer as it should.
pub(crate) fn bad(what: &str, error: &dyn std::fmt::Display) -> Fault {
    Fault::BadReply { message: format!("{what}: {error}") }
}

/// The valid fields of an answer, or its trailers, as a header block.
pub(crate) fn block_of(fields: &HeaderMap) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        if !is_framing(name.as_str().as_bytes()) {
            put_header(&mut block, name.as_str().as_bytes(), value.as_bytes());
        }
    }
    block
}

/// Fields that describe one connection, not the message (RFC 9110, 7.6.1).
pub(crate) fn is_framing(name: &[u8]) -> bool {
    matches!(
        name,
        b"connection"
            | b"content-length"
            | b"transfer-encoding"
            | b"keep-alive"
            | b"proxy-connection"
            | b"te"
            | b"trailer"
            | b"upgrade"
            | b"expect"
    )
}
