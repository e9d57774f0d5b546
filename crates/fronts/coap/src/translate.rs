//! Translates between CoAP and invocations: methods, options and header fields, and statuses and
//! codes (the opposite direction of RFC 8075).

use bytes::Bytes;
use mote_core::invocation::{Head, headers};

use super::content_format::{content_format, media_type};
use super::message::{Code, Request, Response};

/// The method of a request code. `None` for a method that the front does not offer (4.05).
pub(crate) fn method(code: Code) -> Option<&'static [u8]> {
    Some(match code {
        (0, 1) => b"GET",
        (0, 2) => b"POST",
        (0, 3) => b"PUT",
        (0, 4) => b"DELETE",
        (0, 5) => b"FETCH",
        (0, 6) => b"PATCH",
        (0, 7) => b"IPATCH",
        _ => return None,
    })
}

/// The head of the invocation. `path` is the part of the path below the function's name.
pub(crate) fn head(method: &[u8], path: &[u8], query: &[u8], request: &Request<'_>) -> Head {
    let mut builder = Head::builder(method, path, query);
    if let Some(host) = request.host
        && host.iter().all(|byte| byte.is_ascii_graphic())
    {
        builder.header(b"host", host);
    }
    if let Some(format) = request.content_format {
        match media_type(format) {
            Some(name) => builder.header(b"content-type", name.as_bytes()),
            None => builder.header(b"coap-content-format", format.to_string().as_bytes()),
        };
    }
    if let Some(format) = request.accept {
        match media_type(format) {
            Some(name) => builder.header(b"accept", name.as_bytes()),
            None => builder.header(b"coap-accept", format.to_string().as_bytes()),
        };
    }
    if !request.if_match.is_empty() {
        // An empty value matches anything (RFC 7252, 5.10.8.1).
        let any = request.if_match.contains(&&b""[..]);
        let tags: Vec<_> = request.if_match.iter().map(|etag| entity_tag(etag)).collect();
        let value = if any { "*".to_owned() } else { tags.join(", ") };
        builder.header(b"if-match", value.as_bytes());
    }
    if request.if_none_match {
        builder.header(b"if-none-match", b"*");
    } else if let Some(etag) = request.etag {
        builder.header(b"if-none-match", entity_tag(etag).as_bytes());
    }
    for field in &request.fields {
        if let Some((name, value)) = wish(field) {
            builder.header(name.as_bytes(), value);
        }
    }
    builder.finish()
}

/// The prefix of the query parameter that holds the caller's key.
const KEY_PARAMETER: &[u8] = b"mote-key=";

/// Takes the caller's key out of a query, in which `&` occurs only between options. If there are
/// several keys, the last one counts.
pub(crate) fn take_key(query: &mut Vec<u8>) -> Option<Vec<u8>> {
    if !query.windows(KEY_PARAMETER.len()).any(|part| part == KEY_PARAMETER) {
        return None;
    }
    let mut key = None;
    let mut kept = Vec::with_capacity(query.len());
    for parameter in query.split(|byte| *byte == b'&') {
        match parameter.strip_prefix(KEY_PARAMETER) {
            Some(value) => key = Some(value.to_vec()),
            None => kept.push(parameter),
        }
    }
    *query = kept.join(&b'&');
    key
}

/// A field that describes how an invocation is accepted for later. `None` for any other text.
fn wish(field: &[u8]) -> Option<(String, &[u8])> {
    let at = field.iter().position(|byte| *byte == b':')?;
    let name = std::str::from_utf8(&field[..at]).ok()?.trim().to_ascii_lowercase();
    let value = field[at + 1..].trim_ascii();
    let is_plain = value.iter().all(|byte| *byte == b' ' || byte.is_ascii_graphic());
    (mote_core::accept::is_wish(name.as_bytes()) && is_plain).then_some((name, value))
}

/// Bytes from the caller in a form for error texts: escaped, and at most 64 of them.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let ellipsis = if bytes.len() > 64 { "\u{2026}" } else { "" };
    format!("{}{ellipsis}", bytes[..bytes.len().min(64)].escape_ascii())
}

fn entity_tag(etag: &[u8]) -> String {
    format!("\"{}\"", base16ct::lower::encode_string(etag))
}

/// Turns a function's answer into a response, before it is cut into blocks.
pub(crate) fn response(method: &[u8], status: u16, block: &[u8], body: Bytes) -> Response {
    let mut response =
        Response { code: code(method, status), payload: body, ..Response::default() };
    for (name, value) in headers(block) {
        match name {
            b"content-type" => response.content_format = content_format(value),
            b"etag" => response.etag = etag(value),
            b"cache-control" => response.max_age_s = max_age(value),
            b"location" => (response.location, response.location_query) = location(value),
            b"coap-content-format" => {
                let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                response.content_format = number.or(response.content_format);
            }
            _ => {}
        }
    }
    response
}

/// The CoAP code for an HTTP status and a method (RFC 7252, 5.9; RFC 8075, 7).
pub(crate) fn code(method: &[u8], status: u16) -> Code {
    match status {
        201 => (2, 1),
        200..=299 => match method {
            b"GET" | b"FETCH" => (2, 5),
            b"DELETE" => (2, 2),
            _ if status == 200 && method == b"POST" => (2, 4),
            _ => (2, 4),
        },
        304 => (2, 3),
        300..=399 => (5, 2),
        400..=406 => (4, (status - 400) as u8),
        408 => (4, 8),
        409 => (4, 9),
        412 => (4, 12),
        413 => (4, 13),
        415 => (4, 15),
        422 => (4, 22),
        429 => (4, 29),
        501..=504 => (5, (status - 500) as u8),
        _ if status < 500 => (4, 0),
        _ => (5, 0),
    }
}

/// An ETag value. A hexadecimal entity tag becomes its bytes, and any other tag its text, cut to
/// the 8 bytes that CoAP allows.
fn etag(value: &[u8]) -> Option<Vec<u8>> {
    let text = value.strip_prefix(b"W/").unwrap_or(value);
    let text = text.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    // Only lower-case digits are accepted, because the tag is written in lower case when a
    // conditional request repeats it.
    let hex = (text.len() <= 16).then(|| base16ct::lower::decode_vec(text).ok()).flatten();
    let bytes = hex.unwrap_or_else(|| text[..text.len().min(8)].to_vec());
    (!bytes.is_empty()).then_some(bytes)
}

fn max_age(value: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(value).ok()?;
    text.split(',').find_map(|part| match part.trim() {
        "no-store" | "no-cache" => Some(0),
        part => part.strip_prefix("max-age=")?.parse().ok(),
    })
}

/// The path segments and query parameters of a location (RFC 7252, 5.10.7).
fn location(value: &[u8]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let value = value.split(|byte| *byte == b'#').next().unwrap_or_default();
    let mut halves = value.splitn(2, |byte| *byte == b'?');
    let mut parts = |separator: u8| -> Vec<Vec<u8>> {
        halves
            .next()
            .unwrap_or_default()
            .split(|byte| *byte == separator)
            .filter(|part| !part.is_empty())
            .map(|part| part[..part.len().min(255)].to_vec())
            .take(16)
            .collect()
    };
    (parts(b'/'), parts(b'&'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses() {
        for (method, status, expected) in [
            (&b"GET"[..], 200, (2, 5)),
            (b"POST", 200, (2, 4)),
            (b"PUT", 201, (2, 1)),
            (b"DELETE", 204, (2, 2)),
            (b"FETCH", 200, (2, 5)),
            (b"GET", 304, (2, 3)),
            (b"GET", 404, (4, 4)),
            (b"GET", 410, (4, 0)),
            (b"GET", 422, (4, 22)),
            (b"GET", 429, (4, 29)),
            (b"GET", 500, (5, 0)),
            (b"GET", 504, (5, 4)),
            (b"GET", 599, (5, 0)),
        ] {
            assert_eq!(code(method, status), expected, "{status}");
        }
    }

    #[test]
    fn the_key_is_taken_out_of_a_query() {
        for (query, rest, key) in [
            ("a=1&mote-key=k&b", "a=1&b", Some("k")),
            ("mote-key=k", "", Some("k")),
            ("mote-key=", "", Some("")),
            ("mote-key=1&mote-key=2", "", Some("2")),
            ("xmote-key=k&&mote-keys=k", "xmote-key=k&&mote-keys=k", None),
            ("a=1%26mote-key=k&mote-key=l", "a=1%26mote-key=k", Some("l")),
            ("", "", None),
        ] {
            let mut left = query.as_bytes().to_vec();
            let taken = take_key(&mut left);
            assert_eq!(taken.as_deref(), key.map(str::as_bytes), "{query}");
            assert_eq!(left, rest.as_bytes(), "{query}");
        }
    }

    #[test]
    fn fields_become_options() {
        let block = b"content-type\napplication/json\netag\n\"0a0b\"\ncache-control\npublic, max-age=7\nlocation\n/a/b?c=1&d#e\n";
        let response = response(b"POST", 201, block, Bytes::new());
        assert_eq!(response.content_format, Some(50));
        assert_eq!(response.etag, Some(vec![10, 11]));
        for (tag, expected) in [
            ("\"+f\"", b"+f".to_vec()),
            ("\"0A\"", b"0A".to_vec()),
            ("W/\"0a\"", vec![10]),
            ("\"a\"", b"a".to_vec()),
        ] {
            assert_eq!(etag(tag.as_bytes()), Some(expected), "{tag}");
        }
        assert_eq!(response.max_age_s, Some(7));
        assert_eq!(response.location, [b"a".to_vec(), b"b".to_vec()]);
        assert_eq!(response.location_query, [b"c=1".to_vec(), b"d".to_vec()]);
    }
}
