//! The keys of callers. A function whose access mode is `key` requires a key.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::client::{Client, ClientError, encode};
use crate::paths;
use crate::time::Timestamp;

/// A key without its secret text, which only the caller keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallerKey {
    /// The name of the caller.
    pub name: String,
    /// The functions that the key opens: names, or prefixes of names followed by `*`. Empty means
    /// every function.
    #[serde(default)]
    pub functions: Vec<String>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When the key expires; absent if it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// Until when the previous key, which a rotation replaced, also stays valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub previous_until: Option<Timestamp>,
}

/// The keys of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallerKeys {
    /// The keys, sorted by caller.
    pub keys: Vec<CallerKey>,
}

/// A key to make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallerKeyRequest {
    /// The name of the caller: 1 to 253 characters from a-z, A-Z, 0-9, -, _ and ., not beginning
    /// with a dot.
    pub name: String,
    /// The functions that the key opens: names, or prefixes of names followed by `*`. Empty means
    /// every function.
    #[serde(default)]
    pub functions: Vec<String>,
    /// How long the key is valid, in milliseconds; absent if it does not expire.
    #[serde(default)]
    pub valid_ms: Option<u64>,
}

/// How a key is replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallerKeyRotation {
    /// How long the previous key stays valid, in milliseconds.
    #[serde(default)]
    pub grace_ms: u64,
}

/// A key that was just made. It is never shown again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewCallerKey {
    /// The name of the caller.
    pub name: String,
    /// The key.
    pub key: String,
    /// The functions that it opens; empty means every function.
    #[serde(default)]
    pub functions: Vec<String>,
    /// When the key expires; absent if it does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// Until when the previous key, which this key replaces, also stays valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub previous_until: Option<Timestamp>,
}

impl Client {
    /// Returns the keys of all callers, without the secret parts.
    pub async fn keys(&self) -> Result<CallerKeys, ClientError> {
        self.get(paths::KEYS).await
    }

    /// Makes a key.
    pub async fn create_key(&self, wish: &CallerKeyRequest) -> Result<NewCallerKey, ClientError> {
        self.send_json(hyper::Method::POST, paths::KEYS, wish, self.timeout).await
    }

    /// Replaces a key with a new one.
    pub async fn rotate_key(
        &self,
        name: &str,
        wish: &CallerKeyRotation,
    ) -> Result<NewCallerKey, ClientError> {
        let path = format!("{}/{}/rotate", paths::KEYS, encode(name));
        self.send_json(hyper::Method::POST, &path, wish, self.timeout).await
    }

    /// Makes a key invalid.
    pub async fn revoke_key(&self, name: &str) -> Result<(), ClientError> {
        self.delete(&format!("{}/{}", paths::KEYS, encode(name))).await
    }
}
