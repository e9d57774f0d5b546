//! Who may call a function from outside the node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The access mode of a function: who may call it. Calls that begin inside the node are not
/// checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// The manifest sets no mode, so the node's setting `access` applies. The route of a function
    /// never has this mode.
    #[default]
    Unset,
    /// Callers on the node's machine.
    Local,
    /// Everyone.
    Public,
    /// Callers with a key that opens the function.
    Key,
    /// Callers with a key that opens the function. The key may also be the password of HTTP basic
    /// authentication.
    Basic,
    /// Callers with a token of an issuer; see [`TokenRules`].
    Jwt,
    /// Clients with a certificate; see [`CertificateRules`].
    Mtls,
    /// Services that sign their requests; see [`WebhookRules`].
    Webhook,
    /// Everyone. If a key is sent, it is checked and names the caller. This mode is for answers
    /// that the node itself gives.
    #[serde(skip)]
    KeyIfSent,
}

impl Access {
    /// The word for this mode in a manifest.
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

    /// Returns this mode, or `default` if the manifest sets no mode.
    #[must_use]
    pub fn or(self, default: Access) -> Access {
        if self == Access::Unset { default } else { self }
    }

    /// Whether the manifest sets no mode.
    pub fn is_unset(&self) -> bool {
        *self == Access::Unset
    }
}

/// The JSON Web Tokens (RFC 7519) that a function accepts. `mote_access::jwt` checks their values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRules {
    /// The value that the claim `iss` must have.
    pub issuer: String,
    /// An audience that the claim `aud` must contain.
    pub audience: String,
    /// The place from which the issuer's keys are taken.
    pub keys: TokenKeys,
    /// Claims that a token must have. Each claim must equal this text, number or truth value, or be
    /// a list that contains it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: BTreeMap<String, serde_json::Value>,
}

/// The place of the keys that verify tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenKeys {
    /// The address that the issuer's configuration names (OpenID Connect Discovery).
    Discovered,
    /// This address.
    Url(String),
    /// This text, which is a JSON Web Key Set (RFC 7517).
    Set(String),
}

/// The maximum number of patterns in [`CertificateRules::callers`], and the maximum number of bytes
/// in one pattern.
const CALLERS_MAX: usize = 64;
const CALLER_BYTES_MAX: usize = 256;

/// The client certificates that a function accepts. One of the node's authorities must have signed
/// the certificate, and the certificate must contain one of these names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateRules {
    /// Accepted names, each of which may contain one `*` for any text. If the list is empty, every
    /// name is accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<String>,
}

impl CertificateRules {
    /// Returns the first accepted name in a certificate. The caller gets this name.
    pub fn caller<'a>(&self, names: &'a [String]) -> Option<&'a str> {
        let accepts = |name: &&String| {
            self.callers.is_empty() || self.callers.iter().any(|pattern| fits(pattern, name))
        };
        names.iter().find(accepts).map(String::as_str)
    }

    /// Describes the first mistake: which pattern is wrong, and what is expected.
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

/// Whether `name` equals `pattern`. A `*` in the pattern stands for any text.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => name.strip_prefix(start).is_some_and(|rest| rest.ends_with(end)),
        None => name == pattern,
    }
}

/// Longest request body of a function that accepts signed requests, in bytes. A limit is needed,
/// because the body must be complete before its signature can be checked.
pub const WEBHOOK_BODY_BYTES_MAX: u64 = 16 << 20;

/// The signed requests that a function accepts. `mote_access::webhook` checks their values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookRules {
    /// The scheme by which requests are signed.
    pub scheme: WebhookScheme,
    /// The name of the node's secret with which requests are signed.
    pub secret: String,
    /// How much the time of a signature may differ from the node's clock, in milliseconds. Ignored
    /// for signatures without a time.
    pub window_ms: u64,
}

/// How a service signs its requests. A signature is an HMAC (RFC 2104) of the body and other parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WebhookScheme {
    /// GitHub's scheme: `X-Hub-Signature-256`, without a time.
    Github,
    /// Stripe's scheme: `Stripe-Signature`, with a time.
    Stripe,
    /// Slack's scheme: `X-Slack-Signature`, with a time.
    Slack,
    /// Standard Webhooks: `webhook-signature`, with a time and an identifier.
    Standard,
    /// Any other scheme.
    Hmac(Box<HmacRules>),
}

impl WebhookScheme {
    /// The word for this scheme in a manifest. It is also the name of the caller.
    pub fn as_str(&self) -> &'static str {
        match self {
            WebhookScheme::Github => "github",
            WebhookScheme::Stripe => "stripe",
            WebhookScheme::Slack => "slack",
            WebhookScheme::Standard => "standard",
            WebhookScheme::Hmac(_) => "hmac",
        }
    }

    /// A description of the sender of such requests, for people.
    pub fn sender(&self) -> &'static str {
        match self {
            WebhookScheme::Github => "GitHub",
            WebhookScheme::Stripe => "Stripe",
            WebhookScheme::Slack => "Slack",
            WebhookScheme::Standard => "a sender of Standard Webhooks",
            WebhookScheme::Hmac(_) => "a sender",
        }
    }

    /// Whether signatures of this scheme contain a time.
    pub fn has_time(&self) -> bool {
        match self {
            WebhookScheme::Github => false,
            WebhookScheme::Stripe | WebhookScheme::Slack | WebhookScheme::Standard => true,
            WebhookScheme::Hmac(rules) => rules.timestamp.is_some(),
        }
    }
}

/// The rules for a signature in a header field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HmacRules {
    /// The name of the field that contains the signature, in lower case.
    pub header: String,
    /// The text before the signature in the field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// The encoding of the signature.
    #[serde(default)]
    pub encoding: SignatureEncoding,
    /// The hash function of the HMAC.
    #[serde(default)]
    pub algorithm: SignatureHash,
    /// The name of the field that contains the time of the signature in seconds since 1970, in
    /// lower case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// The text that is signed. In it, `{timestamp}` and `{body}` stand for the time and the body.
    /// `{body}` must come last.
    pub signed: String,
}

/// The encoding of a signature.
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
        // In the name, the text before the `*` and the text after it must not overlap.
        assert_eq!(caller(&["aa*aa"], &["aaa"]), None);
        for bad in ["", "a*b*", "a\nb", "ü", &"x".repeat(257)] {
            assert!(
                CertificateRules { callers: vec![bad.to_owned()] }.mistake().is_some(),
                "{bad}"
            );
        }
    }
}
