//! The tokens of people and programs that manage a node, and the record of what they changed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::client::{Client, ClientError, encode};
use crate::paths;
use crate::time::Timestamp;

/// A token, without the token itself, which nobody keeps but its holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperatorToken {
    /// Its name.
    pub name: String,
    /// What its holder may do: `viewer`, `deployer` or `operator`.
    pub role: String,
    /// The namespace that it is for; absent for the whole node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// From when on it is not valid; absent if it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

/// The tokens of a node, without the one in its data folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OperatorTokens {
    /// By name.
    pub tokens: Vec<OperatorToken>,
}

/// A token to make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OperatorTokenRequest {
    /// Its name: 1 to 253 of a-z, A-Z, 0-9, -, _ and ., not beginning with a dot.
    pub name: String,
    /// What its holder may do: `viewer`, `deployer` or `operator`.
    pub role: String,
    /// The namespace that it is for; the whole node if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// How long it is valid, in milliseconds; for ever if it is absent.
    #[serde(default)]
    pub valid_ms: Option<u64>,
}

/// A token that was made just now. It is never shown again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewOperatorToken {
    /// Its name.
    pub name: String,
    /// What its holder may do.
    pub role: String,
    /// The namespace that it is for; absent for the whole node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The token.
    pub token: String,
    /// From when on it is not valid; absent if it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

/// A request that changed something, or was not permitted to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// When it was answered.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Who sent it: the name of a token, after its namespace and a slash if it has one,
    /// `admin.token`, or a user of the node's machine.
    pub who: String,
    /// The address of the sender, or `socket`.
    pub from: String,
    /// Its method and path.
    pub act: String,
    /// The HTTP status of the answer.
    pub status: u16,
}

/// The latest part of the record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditLog {
    /// The oldest first.
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
