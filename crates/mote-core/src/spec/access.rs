//! Who may call a function from outside of the node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Who may call a function. Calls that come about inside of the node are not asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// The manifest does not say: the setting `access` of the node holds. A route never has it.
    #[default]
    Unset,
    /// Callers on the node's machine.
    Local,
    /// Everyone.
    Public,
    /// Callers with a key that opens the function.
    Key,
    /// The same, also with the key as the password of HTTP basic authentication.
    Basic,
    /// Callers with a token of an issuer; see [`TokenRules`].
    Jwt,
    /// Everyone; a key is checked if one is sent, and names the caller. For what the node itself
    /// answers.
    #[serde(skip)]
    KeyIfSent,
}

impl Access {
    /// The word of the manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Access::Unset => "unset",
            Access::Local => "local",
            Access::Public | Access::KeyIfSent => "public",
            Access::Key => "key",
            Access::Basic => "basic",
            Access::Jwt => "jwt",
        }
    }

    /// This mode, or `default` if the manifest does not say.
    #[must_use]
    pub fn or(self, default: Access) -> Access {
        if self == Access::Unset { default } else { self }
    }

    /// Whether the manifest does not say it.
    pub fn is_unset(&self) -> bool {
        *self == Access::Unset
    }
}

/// The JSON Web Tokens (RFC 7519) that a function accepts. The crate `mote-jwt` checks their values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRules {
    /// Exactly the claim `iss`.
    pub issuer: String,
    /// One of the audiences in the claim `aud`.
    pub audience: String,
    /// Where the keys of the issuer are.
    pub keys: TokenKeys,
    /// Claims that must have this text, number or truth value, or contain it if they are lists.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: BTreeMap<String, serde_json::Value>,
}

/// Where the keys are with which tokens are verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenKeys {
    /// At the address that the configuration of the issuer names (OpenID Connect Discovery).
    Discovered,
    /// At this address.
    Url(String),
    /// In this text, a JSON Web Key Set (RFC 7517).
    Set(String),
}
