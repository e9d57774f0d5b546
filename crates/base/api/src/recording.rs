//! Calls that `mote record` writes and `mote replay` sends again: one JSON object per line.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Timestamp;

/// The longest line of a recording. It holds a call and its answer, each with a body of at most 1
/// MiB, and JSON may need six bytes for each byte of a body.
pub const LINE_BYTES_MAX: usize = 16 << 20;
/// Parts of the names of header fields that may hold secrets.
const SECRET: [&str; 17] = [
    "auth",
    "bearer",
    "cookie",
    "cred",
    "csrf",
    "hmac",
    "jwt",
    "key",
    "oidc",
    "otp",
    "pass",
    "principal",
    "secret",
    "session",
    "sig",
    "token",
    "xsrf",
];
/// Names of header fields that may hold secrets.
const SECRET_NAMES: [&str; 5] = ["dpop", "sec-websocket-protocol", "x-pat", "x-pwd", "x-sid"];

/// Returns whether recordings leave out the values of this header field, because they may be
/// secrets.
pub fn is_left_out(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('_', "-");
    SECRET.iter().any(|part| name.contains(part)) || SECRET_NAMES.contains(&name.as_str())
}

/// A call that was recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecordedCall {
    /// When it arrived.
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    /// The function.
    pub function: String,
    /// The revision that answered.
    pub revision: u64,
    /// How it was called: http, coap, mqtt, and so on.
    pub trigger: String,
    /// The method.
    pub method: String,
    /// The path below the function, with the query.
    pub path: String,
    /// The header fields, without those in `left_out`.
    pub headers: Vec<(String, String)>,
    /// The names of the header fields that were left out because their values may be secrets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// The body.
    pub body: RecordedBody,
    /// The answer.
    pub answer: RecordedAnswer,
    /// How many calls were not recorded since the previous line, because the reader was too slow.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missed: u64,
}

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecordedAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The header fields, without those whose values may be secrets.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: RecordedBody,
    /// The time from the arrival of the call to the beginning of the answer, in milliseconds.
    pub ms: f64,
    /// Why the call failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// A body of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecordedBody {
    /// A text.
    Text(String),
    /// Other bytes, in Base64.
    Base64(String),
    /// Why the body was not recorded.
    Missing(String),
}

impl RecordedBody {
    /// Returns the form in which these bytes are recorded.
    pub fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Base64(BASE64_STANDARD.encode(bytes)),
        }
    }

    /// Returns the bytes, or the reason why they are missing.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        match self {
            Self::Text(text) => Ok(text.clone().into_bytes()),
            Self::Base64(text) => BASE64_STANDARD.decode(text).map_err(|error| error.to_string()),
            Self::Missing(why) => Err(why.clone()),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_secrets_are_left_out() {
        for name in ["Authorization", "cookie", "Set-Cookie", "X-Api-Key", "x_hub_signature-256"] {
            assert!(is_left_out(name), "{name}");
        }
        for name in ["content-type", "accept", "x-request-id", "keep-alive"] {
            assert!(!is_left_out(name), "{name}");
        }
    }

    #[test]
    fn bodies_keep_every_byte() {
        for bytes in ["text é".as_bytes(), &[0xff, 0, 1], b""] {
            let body = RecordedBody::of(bytes);
            let line = serde_json::to_string(&body).unwrap();
            let read: RecordedBody = serde_json::from_str(&line).unwrap();
            assert_eq!(read.bytes().unwrap(), bytes, "{line}");
        }
    }
}
