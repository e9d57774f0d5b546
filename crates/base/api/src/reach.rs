//! Wire types about where a function can be called, and what its callers must send.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The tokens that a function accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AcceptedTokens {
    /// The required issuer.
    pub issuer: String,
    /// The required audience.
    pub audience: String,
}

/// The signed requests that a function accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AcceptedSignatures {
    /// The signature scheme: `github`, `stripe`, `slack`, `standard` or `hmac`.
    pub scheme: String,
    /// The name of the secret with which they are signed.
    pub secret: String,
    /// How far the timestamp of a signature may be from the node's clock, in milliseconds. Absent
    /// if the scheme has no timestamp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<u64>,
}

/// Where a function can be called.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Urls {
    /// Its address over HTTP, if that front is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    /// Its address over CoAP, if that front is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coap: Option<String>,
    /// Its address over CoAP with DTLS, or with TLS if the function cannot be called over DTLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coaps: Option<String>,
    /// Its routes: methods, host and path, and the target of a redirect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<String>,
    /// The function's own port, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<OwnPort>,
}

/// A TCP port of the node that only one function uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnPort {
    /// Its number.
    pub number: u16,
    /// Where the function answers, while the port is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Why the port is not open, if it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl std::fmt::Display for OwnPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.url, &self.problem) {
            (Some(url), _) => f.write_str(url),
            (None, Some(problem)) => write!(f, "{} is not open: {problem}", self.number),
            (None, None) => write!(f, "{} is not open", self.number),
        }
    }
}
