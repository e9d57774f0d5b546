//! The tokens of people and programs that manage a node, and the record of what they changed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::client::{Client, ClientError, encode};
use crate::paths;
use crate::time::Timestamp;

/// A token without its secret text, which only the holder keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperatorToken {
    /// Its name.
    pub name: String,
    /// What its holder may do: `viewer`, `deployer` or `operator`.
    pub role: String,
    /// The namespace to which the token is restricted; absent if the token is for the whole node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When the token expires; absent if it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

/// The tokens of a node, except the token in its data folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperatorTokens {
    /// The tokens, sorted by name.
    pub tokens: Vec<OperatorToken>,
}

/// A token to make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OperatorTokenRequest {
    /// The name: 1 to 253 characters from a-z, A-Z, 0-9, -, _ and ., not beginning with a dot.
    pub name: String,
    /// What its holder may do: `viewer`, `deployer` or `operator`.
    pub role: String,
    /// The namespace to which the token is restricted; absent if the token is for the whole node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// How long the token is valid, in milliseconds; absent if it does not expire.
    #[serde(default)]
    pub valid_ms: Option<u64>,
}

/// A token that was just made. It is never shown again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewOperatorToken {
    /// Its name.
    pub name: String,
    /// What its holder may do.
    pub role: String,
    /// The namespace to which the token is restricted; absent if the token is for the whole node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The token.
    pub token: String,
    /// When the token expires; absent if it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

/// A request that changed something, or that was refused because its sender had no permission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// When the node answered the request.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// The sender: the name of a token (as NAMESPACE/NAME if the token belongs to a namespace),
    /// `admin.token`, or a user of the node's machine.
    pub who: String,
    /// The address of the sender, or `socket`.
    pub from: String,
    /// The method and path of the request.
    pub act: String,
    /// The HTTP status of the answer.
    pub status: u16,
}

/// The latest entries of the record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditLog {
    /// The entries, oldest first.
    pub entries: Vec<AuditEntry>,
}

impl Client {
    /// Returns all tokens, without the secret parts.
    pub async fn tokens(&self) -> Result<OperatorTokens, ClientError> {
        self.get(paths::TOKENS).await
    }

    /// Makes a token.
    pub async fn create_token(
        &self,
        wish: &OperatorTokenRequest,
    ) -> Result<NewOperatorToken, ClientError> {
        self.send_json(hyper::Method::POST, paths::TOKENS, wish, self.timeout).await
    }

    /// Makes a token invalid.
    pub async fn revoke_token(&self, name: &str) -> Result<(), ClientError> {
        self.delete(&format!("{}/{}", paths::TOKENS, encode(name))).await
    }

    /// Returns the latest entries of the record, at most `most`.
    pub async fn audit(&self, most: u32) -> Result<AuditLog, ClientError> {
        self.get(&format!("{}?limit={most}", paths::AUDIT)).await
    }
}
