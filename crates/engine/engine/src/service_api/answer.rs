//! Converts the node's answer into an HTTP response.

use bytes::{Buf as _, Bytes};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use mote_core::base64;
use mote_core::invocation::headers;
use mote_core::services::{Answer, Asked, Status};
use mote_core::state::Operation;
use mote_spec::hop_by_hop::is_hop_by_hop;

use crate::service_api::request::Refusal;

/// This field is in every answer that comes from the node itself, and gives the reason. It
/// distinguishes the answer from one of a called function.
const ERROR: HeaderName = HeaderName::from_static("mote-error");
/// When an entry expires, in milliseconds since 1970.
const EXPIRES: HeaderName = HeaderName::from_static("mote-expires");

/// The form of an answer. It depends on the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Entry,
    Written,
    Counted,
    Listed,
    Called,
    /// A text, such as the id of an accepted call.
    Accepted,
    Notified,
    /// An answer without content.
    Done,
}

impl Form {
    pub(crate) fn of(asked: &Asked) -> Self {
        match asked {
            Asked::State { operation, .. } => match operation {
                Operation::Get { .. } => Form::Entry,
                Operation::Put { .. } => Form::Written,
                Operation::Increment { .. } => Form::Counted,
                Operation::List { .. } => Form::Listed,
                Operation::Delete { .. } => Form::Done,
            },
            Asked::Call(call) if call.waits => Form::Called,
            Asked::Call(_) => Form::Accepted,
            Asked::Notify(_) => Form::Notified,
            _ => Form::Done,
        }
    }
}

/// The response to a request that was not carried out.
pub(crate) fn refused(refusal: &Refusal) -> Response<Bytes> {
    error(refusal.status, "invalid", &refusal.text)
}

/// The response to a request that was carried out.
pub(crate) fn response(form: Form, answer: Answer) -> Response<Bytes> {
    let status = answer.status;
    if status == Status::Done {
        return done(form, answer);
    }
    let mut content = whole(answer);
    if status == Status::Conflict {
        let version = number(&mut content);
        let text = match version {
            0 => "there is no such entry".to_owned(),
            version => format!("the entry has version {version}"),
        };
        let mut response = error(StatusCode::PRECONDITION_FAILED, "conflict", &text);
        set_version(&mut response, version);
        return response;
    }
    let (code, word) = match status {
        Status::NotFound => {
            return error(StatusCode::NOT_FOUND, "absent", "there is no such entry");
        }
        Status::Failed => {
            let code = if content.len() < 2 { 502 } else { content.get_u16_le() };
            (StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_GATEWAY), "failed")
        }
        Status::Full => (StatusCode::INSUFFICIENT_STORAGE, "full"),
        Status::Denied => (StatusCode::FORBIDDEN, "denied"),
        Status::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        Status::Cancelled => (StatusCode::GONE, "cancelled"),
        Status::Invalid | Status::Done | Status::Conflict => (StatusCode::BAD_REQUEST, "invalid"),
    };
    error(code, word, &String::from_utf8_lossy(&content))
}

/// The whole content. It is copied only if both parts are present.
fn whole(answer: Answer) -> Bytes {
    match answer.body.is_empty() {
        true => answer.head.into(),
        false => [&answer.head[..], &answer.body[..]].concat().into(),
    }
}

fn done(form: Form, answer: Answer) -> Response<Bytes> {
    let (answer, mut content) = match form {
        Form::Entry | Form::Called => (answer, Bytes::new()),
        _ => (Answer::new(answer.status, Vec::new(), Bytes::new()), whole(answer)),
    };
    match form {
        Form::Entry => {
            let mut head = &answer.head[..];
            let version = number(&mut head);
            let expires = number(&mut head);
            let mut response = Response::new(answer.body);
            let kind = HeaderValue::from_static("application/octet-stream");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            set_version(&mut response, version);
            if expires > 0 {
                response.headers_mut().insert(EXPIRES, HeaderValue::from(expires));
            }
            response
        }
        Form::Written => {
            let version = number(&mut content);
            let mut response = text(StatusCode::OK, format!("{version}\n"));
            set_version(&mut response, version);
            response
        }
        Form::Counted => {
            let version = number(&mut content);
            let sum = number(&mut content) as i64;
            let mut response = text(StatusCode::OK, format!("{sum}\n"));
            set_version(&mut response, version);
            response
        }
        Form::Listed => listing(content),
        Form::Called => called(answer.head.into(), answer.body),
        Form::Accepted => {
            let id = String::from_utf8_lossy(&content);
            text(StatusCode::ACCEPTED, format!("{id}\n"))
        }
        Form::Notified => {
            let count = if content.len() < 4 { 0 } else { content.get_u32_le() };
            text(StatusCode::OK, format!("{count}\n"))
        }
        Form::Done => {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
    }
}

/// Entries as JSON. A value that is valid text is in the field `value`; any other value is in
/// `base64`.
fn listing(mut content: Bytes) -> Response<Bytes> {
    let mut entries = Vec::new();
    let more = content.first().is_some_and(|more| *more != 0);
    content.advance(content.len().min(8));
    while content.len() >= 16 {
        let version = content.get_u64_le();
        let value = content.get_u32_le() as usize;
        let key = content.get_u32_le() as usize;
        if content.len() < value.saturating_add(key) {
            break;
        }
        let key = String::from_utf8_lossy(&content.split_to(key)).into_owned();
        let value = content.split_to(value);
        entries.push(match std::str::from_utf8(&value) {
            Ok(text) => serde_json::json!({ "key": key, "version": version, "value": text }),
            Err(_) => {
                let value = base64::encode(&value);
                serde_json::json!({ "key": key, "version": version, "base64": value })
            }
        });
    }
    let after = entries.last().filter(|_| more).map(|entry| entry["key"].clone());
    let json = serde_json::json!({ "entries": entries, "after": after });
    let mut response = Response::new(Bytes::from(json.to_string() + "\n"));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The answer that a called function gave, unchanged.
fn called(mut head: Bytes, body: Bytes) -> Response<Bytes> {
    let broken = || error(StatusCode::BAD_GATEWAY, "failed", "the answer cannot be passed on");
    if head.len() < 8 {
        return broken();
    }
    let status = head.get_u16_le();
    head.advance(2);
    let length = head.get_u32_le() as usize;
    if head.len() != length {
        return broken();
    }
    let mut response = Response::new(body);
    let Ok(status) = StatusCode::from_u16(status) else { return broken() };
    *response.status_mut() = status;
    for (name, value) in headers(&head) {
        let name = HeaderName::from_bytes(name);
        let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) else { continue };
        let is_own = is_hop_by_hop(name.as_str().as_bytes()) || name == CONTENT_LENGTH;
        if !is_own && name != ERROR {
            response.headers_mut().append(name, value);
        }
    }
    response
}

fn number(content: &mut impl bytes::Buf) -> u64 {
    if content.remaining() < 8 { 0 } else { content.get_u64_le() }
}

fn set_version(response: &mut Response<Bytes>, version: u64) {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{version}\"")) {
        response.headers_mut().insert(ETAG, value);
    }
}

fn text(status: StatusCode, text: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

pub(crate) fn error(status: StatusCode, word: &'static str, why: &str) -> Response<Bytes> {
    let mut response = text(status, format!("{why}\n"));
    response.headers_mut().insert(ERROR, HeaderValue::from_static(word));
    response
}

#[cfg(test)]
mod tests {
    use mote_core::services::state_answer;
    use mote_core::state::{Entry, Outcome, StateError};

    use super::*;

    fn shown(response: &Response<Bytes>) -> (u16, Vec<(&str, &str)>, String) {
        let fields = response.headers().iter();
        let fields = fields.map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        let body = String::from_utf8(response.body().to_vec()).unwrap();
        (response.status().as_u16(), fields, body)
    }

    #[test]
    fn answers_of_the_state_have_their_version() {
        let entry = |value: &'static [u8], version, expires_unix_ms| Entry {
            value: Bytes::from_static(value),
            version,
            expires_unix_ms,
        };
        let found = state_answer(Ok(Outcome::Entry(Some(entry(b"v", 7, Some(99))))));
        let fields = vec![
            ("content-type", "application/octet-stream"),
            ("etag", "\"7\""),
            ("mote-expires", "99"),
        ];
        assert_eq!(shown(&response(Form::Entry, found)), (200, fields, "v".into()));
        let plain = ("content-type", "text/plain; charset=utf-8");
        let written = state_answer(Ok(Outcome::Written { version: 8 }));
        let fields = vec![plain, ("etag", "\"8\"")];
        assert_eq!(shown(&response(Form::Written, written)), (200, fields, "8\n".into()));
        let counted = state_answer(Ok(Outcome::Counted { version: 9, value: -2 }));
        let fields = vec![plain, ("etag", "\"9\"")];
        assert_eq!(shown(&response(Form::Counted, counted)), (200, fields, "-2\n".into()));
        let conflict = state_answer(Err(StateError::Conflict { version: 4 }));
        let fields = vec![plain, ("mote-error", "conflict"), ("etag", "\"4\"")];
        let text = "the entry has version 4\n".to_owned();
        assert_eq!(shown(&response(Form::Written, conflict)), (412, fields, text));
        let absent = state_answer(Ok(Outcome::Entry(None)));
        let fields = vec![plain, ("mote-error", "absent")];
        let text = "there is no such entry\n".to_owned();
        assert_eq!(shown(&response(Form::Entry, absent)), (404, fields, text));
        let entries = vec![
            ("a".to_owned(), entry(b"text", 1, None)),
            ("b".to_owned(), entry(b"\xff", 2, None)),
        ];
        let listed = state_answer(Ok(Outcome::Listed { entries, more: true }));
        let response = response(Form::Listed, listed);
        let json: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        let expected = serde_json::json!({
            "entries": [
                { "key": "a", "version": 1, "value": "text" },
                { "key": "b", "version": 2, "base64": "/w==" },
            ],
            "after": "b",
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn answers_of_functions_differ_from_answers_of_the_node() {
        let mut head = 418_u16.to_le_bytes().to_vec();
        head.extend([0, 0]);
        let block = b"x-a\n1\nmote-error\nforged\ncontent-length\n9\n";
        head.extend((block.len() as u32).to_le_bytes());
        head.extend(block);
        let answer = Answer::new(Status::Done, head, Bytes::from_static(b"tea"));
        let found = response(Form::Called, answer);
        assert_eq!(shown(&found), (418, vec![("x-a", "1")], "tea".into()));
        let failed = response(Form::Called, Answer::failed(504, "too late"));
        assert_eq!(failed.status(), 504);
        assert_eq!(
            (&failed.headers()["mote-error"], &failed.body()[..]),
            (&HeaderValue::from_static("failed"), &b"too late\n"[..])
        );
    }
}
