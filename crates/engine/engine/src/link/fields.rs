//! Checks header fields that come from a worker.

use mote_core::invocation::headers;
use mote_spec::hop_by_hop::is_hop_by_hop;

/// The maximum number of fields in a request, which is the same as in the fronts.
const FIELDS_MAX: usize = 128;
/// The maximum length of a request's header block.
const FIELDS_BYTES_MAX: usize = 64 << 10;

/// Checks the fields of a header block from a worker, and passes on the fields that are not
/// reserved for a front.
pub fn for_each_field(
    block: &[u8],
    mut take: impl FnMut(&[u8], &[u8]),
) -> Result<(), &'static str> {
    const WRONG: &str = "a header field is a token and a value without line breaks";
    if block.len() > FIELDS_BYTES_MAX {
        return Err("the header fields of a request have at most 64 KiB");
    }
    let breaks = block.iter().filter(|byte| **byte == b'\n').count();
    if breaks % 2 != 0 || breaks / 2 > FIELDS_MAX || block.last().is_some_and(|b| *b != b'\n') {
        return Err(WRONG);
    }
    for (name, value) in headers(block) {
        let token =
            |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(b);
        let plain = |b: &u8| *b == b'\t' || (*b >= b' ' && *b != 0x7f);
        if name.is_empty() || !name.iter().all(token) || !value.iter().all(plain) {
            return Err(WRONG);
        }
        // A program that receives fields as variables would take `proxy` for its own `HTTP_PROXY`.
        let of_front = is_hop_by_hop(name) || matches!(name, b"content-length" | b"proxy");
        if !of_front {
            take(name, value);
        }
    }
    Ok(())
}
