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

/// The maximum number of fields that `Connection` may name in one message. An HTTP request may not
/// have more fields than this either.
pub const NAMED_MAX: usize = 100;

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

/// The fields that the `Connection` fields of a message name in addition to [`FIELDS`], without those
/// that belong to the message in any case ([`is_of_message`]).
///
/// Made once for each message, so that a message with a long `Connection` field costs little.
#[derive(Debug, Default)]
pub struct Named<'a>(Vec<&'a [u8]>);

impl<'a> Named<'a> {
    /// Reads the values of `Connection`. Names after the first [`NAMED_MAX`] are not read.
    pub fn of(connection: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut named = Self::default();
        let mut options = connection.into_iter().flat_map(connection_options);
        let _ = options.try_for_each(|option| named.add(option).then_some(()));
        named
    }

    /// Adds an option of `Connection`; an option that names no further field changes nothing.
    /// Returns `false` if there are already [`NAMED_MAX`] names.
    #[must_use]
    pub fn add(&mut self, option: &'a [u8]) -> bool {
        let is_known =
            option.eq_ignore_ascii_case(b"close") || is_hop_by_hop(option) || is_of_message(option);
        if is_known {
            return true;
        }
        let has_room = self.0.len() < NAMED_MAX;
        if has_room {
            self.0.push(option);
        }
        has_room
    }

    /// Whether no further field is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this field is named, in either case.
    pub fn contains(&self, name: &[u8]) -> bool {
        self.0.iter().any(|one| one.eq_ignore_ascii_case(name))
    }
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
        let named = Named::of(values);
        for (name, expected) in
            [("x-trace", true), ("X-TRACE", true), ("x", false), ("content-length", false)]
        {
            assert_eq!(named.contains(name.as_bytes()), expected, "{name}");
        }
        assert!(!named.contains(b"host") && !named.contains(b"x-forwarded-for"));
        assert!(Named::of([&b"close, Keep-Alive, te"[..]]).is_empty());
    }

    #[test]
    fn the_names_of_connection_are_bounded() {
        let many: Vec<String> = (0..=NAMED_MAX).map(|at| format!("x-{at}")).collect();
        let value = many.join(",");
        let named = Named::of([value.as_bytes()]);
        assert!(named.contains(b"x-99") && !named.contains(b"x-100"));
        let mut named = named;
        assert!(named.add(b"close") && !named.add(b"x-101"));
    }
}
