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
    /// Clients with a certificate; see [`CertificateRules`].
    Mtls,
    /// Services that sign their requests; see [`WebhookRules`].
    Webhook,
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
            Access::Mtls => "mtls",
            Access::Webhook => "webhook",
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

/// The JSON Web Tokens (RFC 7519) that a function accepts. `mote_access::jwt` checks their values.
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

/// Most patterns of [`CertificateRules::callers`], and the bytes of the longest.
const CALLERS_MAX: usize = 64;
const CALLER_BYTES_MAX: usize = 256;

/// The client certificates that a function accepts: those that an authority of the node has signed,
/// with one of these names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateRules {
    /// Names, in which one `*` stands for any text; empty if every name is accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<String>,
}

impl CertificateRules {
    /// The first of a certificate's names that is accepted; it names the caller.
    pub fn caller<'a>(&self, names: &'a [String]) -> Option<&'a str> {
        let accepts = |name: &&String| {
            self.callers.is_empty() || self.callers.iter().any(|pattern| fits(pattern, name))
        };
        names.iter().find(accepts).map(String::as_str)
    }

    /// The first mistake: which pattern, and what is expected.
    pub fn mistake(&self) -> Option<String> {
        if self.callers.len() > CALLERS_MAX {
            return Some(format!("at most {CALLERS_MAX} names"));
        }
        let is_good = |one: &&String| {
            (1..=CALLER_BYTES_MAX).contains(&one.len())
                && one.bytes().filter(|byte| *byte == b'*').count() <= 1
                && one.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        };
        let bad = self.callers.iter().find(|one| !is_good(one))?;
        let shown: String = bad.chars().take(64).flat_map(char::escape_debug).collect();
        Some(format!(
            "\"{shown}\": a name of 1 to {CALLER_BYTES_MAX} ASCII characters with at most one *"
        ))
    }
}

/// Whether a name is this one, or fits it where it has a `*`.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => name.strip_prefix(start).is_some_and(|rest| rest.ends_with(end)),
        None => name == pattern,
    }
}

/// Longest request body of a function that accepts signed requests, in bytes: a body must be complete
/// before its signature can be checked.
pub const WEBHOOK_BODY_BYTES_MAX: u64 = 16 << 20;

/// The signed requests that a function accepts. `mote_access::webhook` checks their values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookRules {
    /// How they are signed.
    pub scheme: WebhookScheme,
    /// The name of the node's secret with which they are signed.
    pub secret: String,
    /// How far the time of a signature may be from the clock of the node, in milliseconds. Not for
    /// signatures without a time.
    pub window_ms: u64,
}

/// How a service signs its requests: an HMAC (RFC 2104) of the body and of other parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WebhookScheme {
    /// GitHub: `X-Hub-Signature-256`.
    Github,
    /// Stripe: `Stripe-Signature`, with a time.
    Stripe,
    /// Slack: `X-Slack-Signature`, with a time.
    Slack,
    /// Standard Webhooks: `webhook-signature`, with a time and an identifier.
    Standard,
    /// Any other.
    Hmac(Box<HmacRules>),
}

impl WebhookScheme {
    /// The word of the manifest, which is also the name of the caller.
    pub fn as_str(&self) -> &'static str {
        match self {
            WebhookScheme::Github => "github",
            WebhookScheme::Stripe => "stripe",
            WebhookScheme::Slack => "slack",
            WebhookScheme::Standard => "standard",
            WebhookScheme::Hmac(_) => "hmac",
        }
    }

    /// Who sends such requests, for people.
    pub fn sender(&self) -> &'static str {
        match self {
            WebhookScheme::Github => "GitHub",
            WebhookScheme::Stripe => "Stripe",
            WebhookScheme::Slack => "Slack",
            WebhookScheme::Standard => "a sender of Standard Webhooks",
            WebhookScheme::Hmac(_) => "a sender",
        }
    }

    /// Whether a signature has a time.
    pub fn has_time(&self) -> bool {
        match self {
            WebhookScheme::Github => false,
            WebhookScheme::Stripe | WebhookScheme::Slack | WebhookScheme::Standard => true,
            WebhookScheme::Hmac(rules) => rules.timestamp.is_some(),
        }
    }
}

/// A signature in a header field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HmacRules {
    /// The field with the signature, in lower case.
    pub header: String,
    /// What stands before the signature in the field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// How the signature is written.
    #[serde(default)]
    pub encoding: SignatureEncoding,
    /// The hash function.
    #[serde(default)]
    pub algorithm: SignatureHash,
    /// The field with the time of the signature in seconds since 1970, in lower case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// What is signed: a text in which `{timestamp}` and `{body}` stand for those. `{body}` is its end.
    pub signed: String,
}

/// How a signature is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignatureEncoding {
    /// Hexadecimal digits, in either case.
    #[default]
    Hex,
    /// Base64 (RFC 4648) with padding.
    Base64,
}

/// The hash function of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignatureHash {
    /// SHA-256.
    #[default]
    Sha256,
    /// SHA-512.
    Sha512,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_certificates() {
        let caller = |callers: &[&str], names: &[&str]| {
            let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
            let rules = CertificateRules { callers: owned(callers) };
            assert_eq!(rules.mistake(), None);
            rules.caller(&owned(names)).map(str::to_owned)
        };
        let names = ["pump 3", "pump-3.plant.example", "spiffe://plant/pump"];
        assert_eq!(caller(&[], &names).as_deref(), Some("pump 3"));
        assert_eq!(caller(&[], &[]), None, "a certificate without a name has no caller");
        assert_eq!(caller(&["*.plant.example"], &names).as_deref(), Some(names[1]));
        assert_eq!(caller(&["x", "spiffe://plant/*"], &names).as_deref(), Some(names[2]));
        assert_eq!(caller(&["spiffe://*/pump"], &names).as_deref(), Some(names[2]));
        assert_eq!(caller(&["pump", "Pump 3", "*.example.com"], &names), None);
        // The two parts of a pattern may not overlap in the name.
        assert_eq!(caller(&["aa*aa"], &["aaa"]), None);
        for bad in ["", "a*b*", "a\nb", "ü", &"x".repeat(257)] {
            assert!(
                CertificateRules { callers: vec![bad.to_owned()] }.mistake().is_some(),
                "{bad}"
            );
        }
    }
}
