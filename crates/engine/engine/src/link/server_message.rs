//! Code that all exchanges with servers share: header fields, and the fault for an invalid answer.

use hyper::HeaderMap;
use hyper::header::HeaderValue;
use mote_core::Fault;
use mote_core::invocation::put_header;
use mote_spec::hop_by_hop::{Named, is_hop_by_hop};

/// The fault for a server whose answer is invalid.
pub(crate) fn bad(what: &str, error: &dyn std::fmt::Display) -> Fault {
    Fault::BadReply { message: format!("{what}: {error}") }
}

/// The valid fields of an answer or of its trailers, as a header block. Fields that the answer's
/// `Connection` field names are left out, because they were meant for the node.
pub(crate) fn block_of(fields: &HeaderMap) -> Vec<u8> {
    let mut block = Vec::new();
    let named = Named::of(fields.get_all("connection").iter().map(HeaderValue::as_bytes));
    for (name, value) in fields {
        let name = name.as_str().as_bytes();
        if !is_framing(name) && !named.contains(name) {
            put_header(&mut block, name, value.as_bytes());
        }
    }
    block
}

/// Whether a field describes one connection, or belongs to the framing of the body, which this end
/// writes itself.
pub(crate) fn is_framing(name: &[u8]) -> bool {
    is_hop_by_hop(name) || matches!(name, b"content-length" | b"expect")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_a_server_loses_what_describes_its_connection() {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("content-length", "2"),
            ("x-mine", "1"),
        ] {
            fields.insert(name, HeaderValue::from_static(value));
        }
        assert_eq!(block_of(&fields), b"x-mine\n1\n");
    }
}
