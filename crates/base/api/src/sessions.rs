//! Browser sessions for the dashboard. A browser keeps a session in a cookie, because a page must
//! not keep a token.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::client::{Client, ClientError, Endpoint};
use crate::paths;
use crate::time::Timestamp;

/// Where the node serves the dashboard.
pub const DASHBOARD: &str = "/dashboard/";

/// What a browser sends to begin a session: either a token or a code.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// A token of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// A code that `POST /v1/session/code` made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// A session, without the secret in its cookie.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// The owner of the session's rights: the name of a token, or a user of the node's machine.
    pub name: String,
    /// The session's role: `viewer`, `deployer` or `operator`.
    pub role: String,
    /// The namespace to which the session is restricted; absent if the session is for the whole
    /// node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The value that every request other than GET and HEAD must carry as `Mote-Csrf`.
    pub csrf: String,
}

/// A code that begins one session.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionCode {
    /// The address of the dashboard for a browser on the node's machine, with the code.
    pub url: String,
    /// The code.
    pub code: String,
    /// When the code expires.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}

impl Client {
    /// Makes a code that begins one session with the rights of this client. The URL in the answer
    /// uses the address under which this client knows the node.
    pub async fn session_code(&self) -> Result<SessionCode, ClientError> {
        let mut made: SessionCode =
            self.send_json(hyper::Method::POST, paths::SESSION_CODE, &(), self.timeout).await?;
        if let Endpoint::Tcp { .. } = self.endpoint() {
            made.url = format!("{}{DASHBOARD}#code={}", self.endpoint(), made.code);
        }
        Ok(made)
    }
}
