//! A request that a front refuses before any function receives it, and the text of the refusal.

use std::borrow::Cow;
use std::fmt::Write as _;

use mote_core::invocation::put_header;
use mote_spec::Platform;

use crate::added::Added;

/// `WWW-Authenticate` of a 401 (RFC 6750, 3).
const CHALLENGE: &str = "Bearer realm=\"mote\"";
/// The `WWW-Authenticate` of a 401 for a function that accepts only signed requests.
const SIGNATURE_CHALLENGE: &str = "Signature realm=\"mote\"";

/// An answer that the platform itself gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    pub code: &'static str,
    /// Tells the caller what is wrong and how to correct it.
    pub detail: String,
    /// The value of `Allow`, for a 405.
    pub allow: Option<String>,
    pub retry_after_s: Option<u32>,
    /// Fields for browsers, if the function has rules for browsers.
    pub(crate) added: Added,
    /// The realm of basic authentication (RFC 7617), for a 401 that asks for a password.
    pub realm: Option<String>,
}

impl Refusal {
    /// The refusal of a request whose connection has lost its place.
    pub(crate) fn no_place() -> Self {
        let text = "too many connections of callers without a key, a token or a certificate";
        let mut refusal = Self::new(503, "M1032", text);
        refusal.retry_after_s = Some(1);
        refusal
    }

    pub fn new(status: u16, code: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self {
            status,
            code,
            detail,
            allow: None,
            retry_after_s: None,
            realm: None,
            added: Added::default(),
        }
    }

    /// The answer to a browser that asks whether it may send a request. It is not a refusal, but
    /// like a refusal, it comes from the node itself. It has no body.
    pub(crate) fn no_content() -> Self {
        Self::new(204, "", "")
    }

    /// An answer that redirects the client to the address `to`. If `to` has no query, the query of
    /// the request is added.
    pub(crate) fn redirect(status: u16, to: &[u8], query: &[u8]) -> Self {
        let mut to = to.to_vec();
        if !query.is_empty() && !to.contains(&b'?') && !to.contains(&b'#') {
            to.push(b'?');
            to.extend_from_slice(query);
        }
        let mut fields = Vec::new();
        put_header(&mut fields, b"location", &to);
        Self { added: Added::new(fields.into()), ..Self::new(status, "", "") }
    }

    /// An answer with a text of the node itself, for a request that no function answers.
    pub(crate) fn text(text: String) -> Self {
        Self::new(200, "", text)
    }

    pub(crate) fn has_body(&self) -> bool {
        self.status != 204
    }

    pub(crate) fn content_type(&self) -> &'static str {
        if self.code.is_empty() { "application/octet-stream" } else { "application/problem+json" }
    }

    /// Sets the fields for browsers, unless `added` is empty.
    pub(crate) fn with(mut self, added: &Added) -> Self {
        if *added != Added::default() {
            self.added.clone_from(added);
        }
        self
    }

    /// Adds these fields for browsers to those that the refusal already has.
    pub(crate) fn with_fields(mut self, added: &Added) -> Self {
        self.added = self.added.and(added);
        self
    }

    /// The refusal that the table of faults defines for `fault`, with the fault's public text.
    pub fn of_fault(fault: &mote_core::Fault, function: &str) -> Self {
        let answer = fault.answer();
        Self {
            retry_after_s: answer.retry_after_s,
            realm: (*fault == mote_core::Fault::NoPassword).then(|| shown(function.as_bytes())),
            ..Self::new(answer.http, answer.code, fault.public_text(&shown(function.as_bytes())))
        }
    }

    /// Like [`Refusal::of_fault`], but with the status that callers of a function written for
    /// `compat` expect.
    pub fn of_fault_for(
        fault: &mote_core::Fault,
        function: &str,
        compat: Option<Platform>,
    ) -> Self {
        Self { status: fault.http_for(compat), ..Self::of_fault(fault, function) }
    }

    /// The value of `WWW-Authenticate` for a 401.
    pub(crate) fn challenge(&self) -> Cow<'static, str> {
        match &self.realm {
            Some(realm) => format!("Basic realm=\"{realm}\", charset=\"UTF-8\"").into(),
            None if self.code == mote_core::Fault::NoSignature.answer().code => {
                SIGNATURE_CHALLENGE.into()
            }
            None => CHALLENGE.into(),
        }
    }

    /// The body of the answer. For a refusal, problem details (RFC 9457) with `mote`'s code, and
    /// the invocation id if there is one.
    ///
    ///  For an answer that is not a refusal, only the text.
    pub fn problem_json(&self, invocation: Option<mote_core::InvocationId>) -> String {
        if self.code.is_empty() {
            return self.detail.clone();
        }
        let mut text = String::with_capacity(128);
        let title = reason(self.status);
        let detail = serde_json::Value::from(self.detail.as_str());
        let _ = write!(
            text,
            r#"{{"title":"{title}","status":{},"code":"{}","detail":{detail}"#,
            self.status, self.code
        );
        if let Some(id) = invocation {
            let _ = write!(text, r#","invocation":"{id}""#);
        }
        text.push_str("}\n");
        text
    }
}

/// Bytes from the caller in a form for error texts: escaped, and at most 64 characters.
pub fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (count, byte) in bytes.iter().enumerate() {
        if count == 64 {
            text.push('\u{2026}');
            break;
        }
        match byte {
            b' '..=b'~' if *byte != b'"' && *byte != b'<' => text.push(char::from(*byte)),
            other => {
                let _ = write!(text, "\\x{other:02x}");
            }
        }
    }
    text
}

/// The reason phrase of a status (RFC 9110, 15), for status lines and titles.
pub fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_bytes_are_shown_escaped_and_cut() {
        assert_eq!(shown(b"ok-1"), "ok-1");
        assert_eq!(shown(b"\x1b[31m<b>\""), "\\x1b[31m\\x3cb>\\x22");
        assert_eq!(shown(&[b'a'; 100]).chars().count(), 65);
    }
}
