//! Header fields that describe a connection and not the message (RFC 9110, 7.6.1). Code that passes
//! a message on must leave these fields out. If it must leave out further fields, it lists them
//! itself.

/// The names of these fields in lower case. The last one asks for a change to HTTP/2 without TLS
/// (RFC 7540, 3.2.1).
pub const FIELDS: [&str; 8] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

/// Whether a field with this name describes a connection. The name may be in either case.
pub fn is_hop_by_hop(name: &[u8]) -> bool {
    // This runs for each field of each request. Most fields have a length that none of these names
    // has.
    matches!(name.len(), 2 | 7 | 10 | 14 | 16 | 17)
        && FIELDS.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
}

/// The options in the value of a `Connection` field. Each option is a word such as `close`, or the
/// name of another field that describes the connection.
pub fn connection_options(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|option| !option.is_empty())
}

/// Whether one of the `Connection` values names this field, so that the field describes the
/// connection, too. [`is_of_message`] lists the exceptions.
pub fn is_named<'a>(connection: impl IntoIterator<Item = &'a [u8]>, name: &[u8]) -> bool {
    let names = |option: &[u8]| option.eq_ignore_ascii_case(name);
    let mut values = connection.into_iter();
    values.any(|value| connection_options(value).any(names)) && !is_of_message(name)
}

/// Whether a field always belongs to the message, whatever `Connection` says. Such fields are the
/// host, the length, and the fields that say where the message comes from. Without this rule, a
/// caller could hide its address from the node behind a proxy that passes `Connection` on.
pub fn is_of_message(name: &[u8]) -> bool {
    const ALL: [&str; 8] = [
        "host",
        "content-length",
        "forwarded",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-real-ip",
    ];
    ALL.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_one_connection_are_known_in_either_case() {
        for name in FIELDS {
            assert!(is_hop_by_hop(name.as_bytes()), "{name}");
            assert!(is_hop_by_hop(name.to_ascii_uppercase().as_bytes()), "{name}");
        }
        for name in ["", "host", "content-length", "content-type", "expect", "date", "upgrades"] {
            assert!(!is_hop_by_hop(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn connection_names_further_fields_but_not_those_of_the_message() {
        let values: [&[u8]; 2] = [b"close, X-Trace ,,", b"content-length, HOST, X-Forwarded-For"];
        for (name, expected) in
            [("x-trace", true), ("close", true), ("x", false), ("content-length", false)]
        {
            assert_eq!(is_named(values, name.as_bytes()), expected, "{name}");
        }
        assert!(!is_named(values, b"host") && !is_named(values, b"x-forwarded-for"));
        assert!(!is_named([], b"x-trace"));
    }
}
