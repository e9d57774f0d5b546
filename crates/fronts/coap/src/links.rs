//! Discovery: the document `/.well-known/core` in link format (RFC 6690), with its query filter.

use std::net::IpAddr;

use mote_core::invocation::Head;
use mote_core::{Invoker, Routed};
use mote_spec::Access;

use super::sender::Proved;

/// The links to all functions that the client may know about, filtered by `query` if there is one
/// (`rt=temp*`, percent-encoded).
pub(crate) fn document<I: Invoker>(
    invoker: &I,
    query: &[u8],
    (from, proved): (IpAddr, Proved),
) -> String {
    let first = query.split(|byte| *byte == b'&').next().and_then(decoded);
    let filter = first.as_deref().and_then(|query| query.split_once('='));
    let mut text = String::new();
    for route in invoker.routes() {
        // Functions that only this machine or clients with certificates may call are hidden from
        // other clients. Functions that need a token or a signature are hidden from everybody,
        // because no CoAP option can carry either.
        let is_refused = |certificate| {
            let mut head = Head::builder(b"GET", b"/", b"").finish();
            head.set_certificate(certificate);
            invoker.admit(&route, &mut head, Some(from)).is_err()
        };
        let info = route.info();
        let is_hidden = match (info.access, &proved) {
            (Access::Local, _) => is_refused(None),
            (Access::Mtls, Proved::Names(names)) => is_refused(Some(names.clone())),
            (access, _) => matches!(access, Access::Jwt | Access::Mtls | Access::Webhook),
        };
        // A discovery request does not prove for which namespace it asks, so only functions of the
        // default namespace are shown.
        if is_hidden || info.name.namespace().is_some() {
            continue;
        }
        let coap = info.coap;
        let href = format!("/{}", info.name);
        let mut attributes: Vec<(&str, String)> = Vec::new();
        if let Some(resource_type) = &coap.resource_type {
            attributes.push(("rt", resource_type.clone()));
        }
        if let Some(title) = &coap.title {
            attributes.push(("title", title.clone()));
        }
        if let Some(format) = coap.content_format {
            attributes.push(("ct", format.to_string()));
        }
        if let Some((key, wanted)) = filter {
            let matched = (key == "href" && matches(&href, wanted))
                || attributes.iter().any(|(name, value)| {
                    // Only `rt` is a list of words (RFC 6690, 3.1).
                    let mut words = value.split(' ').filter(|_| *name == "rt");
                    *name == key
                        && (matches(value, wanted) || words.any(|word| matches(word, wanted)))
                });
            if !matched {
                continue;
            }
        }
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&format!("<{href}>"));
        for (name, value) in attributes {
            if name == "ct" {
                text.push_str(&format!(";ct={value}"));
            } else {
                text.push_str(&format!(";{name}=\"{}\"", quoted(&value)));
            }
        }
    }
    text
}

/// Quotes a string. Only `"` and `\` need a backslash, and control characters are not allowed.
fn quoted(value: &str) -> String {
    let mut text = String::new();
    for letter in value.chars().filter(|letter| !letter.is_control()) {
        if matches!(letter, '"' | '\\') {
            text.push('\\');
        }
        text.push(letter);
    }
    text
}

/// Decodes a percent-encoded query. `None` if it is not valid text.
fn decoded(query: &[u8]) -> Option<String> {
    let bytes: Vec<u8> = percent_encoding::percent_decode(query).collect();
    String::from_utf8(bytes).ok()
}

/// Whether the value equals `wanted`, or begins with it if `wanted` ends in `*`.
fn matches(value: &str, wanted: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(prefix) => value.starts_with(prefix),
        None => value == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        assert!(matches("temperature-c", "temperature*"));
        assert!(matches("a", "*"));
        assert!(matches("a", "a") && !matches("ab", "a"));
        assert_eq!(decoded(b"title=a%20b%22*"), Some("title=a b\"*".into()));
        assert_eq!(decoded(b"rt=%ff"), None);
        assert_eq!(quoted("a\"b\\c\n"), "a\\\"b\\\\c");
    }
}
