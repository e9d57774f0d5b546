//! The header fields in which Fission's router describes the matched route to a function.

use mote_core::invocation::{Head, PARAMETERS_FIELD, headers};
use percent_encoding::percent_decode;

/// Adds a field for each parameter of the route, with its decoded value, and fields for the whole
/// path and query. Fields with the same names that the client has sent are removed.
#[cold]
pub(super) fn describe_route(head: &mut Head) {
    let found = headers(head.headers()).find(|(name, _)| *name == PARAMETERS_FIELD);
    let parameters = found.map(|(_, value)| value.to_vec()).unwrap_or_default();
    for parameter in parameters.split(|byte| *byte == b'&') {
        let Some(at) = parameter.iter().position(|byte| *byte == b'=') else { continue };
        let name = [b"x-fission-params-", &parameter[..at]].concat();
        let value: Vec<u8> = percent_decode(&parameter[at + 1..]).collect();
        let hyphens: Vec<u8> =
            name.iter().map(|byte| if *byte == b'_' { b'-' } else { *byte }).collect();
        head.remove_header(&hyphens);
        // A header field cannot contain a line end or NUL.
        if !value.iter().any(u8::is_ascii_control) {
            head.replace_header(&name, &value);
        }
    }
    let mut url = head.path().to_vec();
    if !head.query().is_empty() {
        url.push(b'?');
        url.extend_from_slice(head.query());
    }
    head.replace_header(b"x-fission-full-url", &url);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_become_fields_that_a_client_cannot_set() {
        let mut head = Head::builder(b"GET", b"/7", b"q=1");
        head.header(b"x-fission-params-user-id", b"forged");
        head.header(b"x-fission-params-line", b"forged");
        head.header(b"x-other", b"kept");
        let mut head = head.finish();
        head.set_route(b"o", b"user_id=a%20b%2B&line=a%0Ab&none=");
        describe_route(&mut head);
        let fields: Vec<String> = headers(head.headers())
            .filter(|(name, _)| *name != PARAMETERS_FIELD)
            .map(|(name, value)| [name, value].map(String::from_utf8_lossy).join(": "))
            .collect();
        let expected = [
            "x-other: kept",
            "x-fission-params-user_id: a b+",
            "x-fission-params-none: ",
            "x-fission-full-url: /o/7?q=1",
        ];
        assert_eq!(fields, expected);
    }
}
