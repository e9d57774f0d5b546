//! Converts answers into data, and data into paths and queries.

use crate::expression::{Val, get, text_of};
use crate::host::{Error, Reply};

pub(crate) fn refused(function: &str, reply: &Reply) -> Error {
    let text = String::from_utf8_lossy(&reply.body[..reply.body.len().min(1_000)]).into_owned();
    let detail = match text.trim() {
        "" => format!("{function} answered with {}", reply.status),
        text => format!("{function} answered with {}: {text}", reply.status),
    };
    let (kind, title) = match reply.status {
        408 | 504 => ("timeout", "Timeout"),
        401 => ("authentication", "Not authenticated"),
        403 => ("authorization", "Not allowed"),
        _ => ("communication", "Function failed"),
    };
    Error::new(kind, reply.status.into(), title, detail)
}

/// The body of an answer as data: parsed JSON if the answer declares JSON, otherwise text. Null if
/// the body is empty.
pub(crate) fn content(reply: &Reply) -> Result<Val, String> {
    if reply.body.is_empty() {
        return Ok(Val::Null);
    }
    let kind = reply.headers.iter().find(|(name, _)| name == "content-type");
    let kind = kind.map_or("", |(_, value)| value.as_str());
    let media = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media == "application/json" || media.ends_with("+json") {
        return crate::expression::parse(&reply.body)
            .ok_or_else(|| "the answer says that it is JSON, and is not".to_owned());
    }
    match std::str::from_utf8(&reply.body) {
        Ok(text) => Ok(Val::from(text.to_owned())),
        Err(_) => Err("the answer is neither JSON nor text".to_owned()),
    }
}

/// Replaces each `{name}` in a path by the member of the input with that name.
pub(crate) fn fill(path: &str, input: &Val) -> String {
    let mut filled = String::new();
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        match after.split_once('}') {
            Some((name, after)) => {
                if let Some(value) = get(input, name) {
                    filled.push_str(&escape(&text_of(value).unwrap_or_else(|| value.to_string())));
                }
                rest = after;
            }
            None => {
                filled.push('{');
                rest = after;
            }
        }
    }
    filled.push_str(rest);
    filled
}

/// The members of an object, each as a pair of texts.
pub(crate) fn members(value: &Val) -> Vec<(String, String)> {
    let Val::Obj(map) = value else { return Vec::new() };
    let texts = map.iter().filter_map(|(key, value)| {
        Some((text_of(key)?, text_of(value).unwrap_or_else(|| value.to_string())))
    });
    texts.collect()
}

/// Percent-encodes a part of a path or a query.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            escaped.push(byte.into());
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

pub(crate) fn cut(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}
