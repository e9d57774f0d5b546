//! Names of header fields: how they are compared, and which of them only the node itself may set.

/// How the fields begin that a front or trigger adds to an invocation, apart from those of `mote-`:
/// what an MQTT message says besides its payload, and options of CoAP that HTTP does not have.
const TRIGGER_FIELDS: [&[u8]; 2] = [b"mqtt-", b"coap-"];

/// Whether only the node itself may set a field of this name: what it says about a schedule, about a
/// message or an option of CoAP, about the source of a result, about an attempt, about the caller, or
/// about its route. A caller's field of this name is left out, so a function may believe it. Any other
/// sign is as good as a hyphen, because programs receive all of them as the same variable.
pub fn is_set_by_node(name: &[u8]) -> bool {
    // Each field of each request is asked about, and nearly none begins like these.
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

/// What follows `start`, which is in lower case with hyphens, at the beginning of a name.
pub fn without<'a>(name: &'a [u8], start: &[u8]) -> Option<&'a [u8]> {
    let (first, rest) = name.split_at_checked(start.len())?;
    first.iter().zip(start).all(|(byte, wanted)| dashed(*byte) == *wanted).then_some(rest)
}

/// A byte of a name as programs compare names: in their variables, all but letters and digits are
/// the same.
fn dashed(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' }
}
