//! The keys of an issuer.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde_json::{Map, Value};

use crate::jwt::json;

/// Longest text of a key set, in bytes.
pub const SET_BYTES_MAX: usize = 64 << 10;
/// The maximum number of keys of a set.
const KEYS_MAX: usize = 64;
/// The permitted length of an RSA modulus in bytes, which is 2048 to 8192 bits.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1_024;

/// An algorithm with which a token may be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Es256,
    Es384,
    EdDsa,
}

impl Algorithm {
    /// Finds the algorithm with exactly this name. The table has no entry for `none`, or for
    /// algorithms with shared secrets.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "EdDSA" => Self::EdDsa,
            _ => return None,
        })
    }
}

/// The values of which a key consists.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Material {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point.
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// A key that verifies signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VerifyingKey {
    pub(crate) id: Option<String>,
    /// The name of the only algorithm for which the key may be used; `None` if it does not say.
    algorithm: Option<String>,
    material: Material,
}

impl VerifyingKey {
    /// Whether this key may verify tokens with this algorithm.
    pub(crate) fn fits(&self, algorithm: Algorithm, name: &str) -> bool {
        use Algorithm::{EdDsa, Es256, Es384, Ps256, Rs256, Rs384, Rs512};
        let is_of_type = match &self.material {
            Material::Rsa { .. } => matches!(algorithm, Rs256 | Rs384 | Rs512 | Ps256),
            Material::P256(_) => algorithm == Es256,
            Material::P384(_) => algorithm == Es384,
            Material::Ed25519(_) => algorithm == EdDsa,
        };
        is_of_type && self.algorithm.as_deref().is_none_or(|only| only == name)
    }

    /// Whether `signature` is a valid signature of `message`. The key must fit the algorithm.
    pub(crate) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let done = match &self.material {
            Material::Rsa { n, e } => {
                let how = match algorithm {
                    Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                    Algorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
                    Algorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
                    Algorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
                    _ => return false,
                };
                RsaPublicKeyComponents { n, e }.verify(how, message, signature)
            }
            // A signature consists of two numbers of fixed length, one after the other. It is never
            // DER (RFC 7518, 3.4).
            Material::P256(point) => {
                let how = &signature::ECDSA_P256_SHA256_FIXED;
                UnparsedPublicKey::new(how, point).verify(message, signature)
            }
            Material::P384(point) => {
                let how = &signature::ECDSA_P384_SHA384_FIXED;
                UnparsedPublicKey::new(how, point).verify(message, signature)
            }
            Material::Ed25519(key) => {
                UnparsedPublicKey::new(&signature::ED25519, key).verify(message, signature)
            }
        };
        done.is_ok()
    }
}

/// The keys of an issuer that this node can use to verify tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySet(Vec<VerifyingKey>);

impl KeySet {
    /// Reads a JSON Web Key Set. Keys for other purposes or algorithms are left out. If a key is
    /// secret, the whole set is refused.
    pub fn parse(text: &[u8]) -> Result<Self, &'static str> {
        if text.len() > SET_BYTES_MAX {
            return Err("the key set is longer than 64 KiB");
        }
        let set = json::parse(text).ok_or("the key set is not a JSON object with unique names")?;
        let Some(Value::Array(keys)) = set.get("keys") else {
            return Err("the key set has no list `keys`");
        };
        if keys.len() > KEYS_MAX {
            return Err("the key set has more than 64 keys");
        }
        let mut all = Vec::new();
        for key in keys {
            let Value::Object(key) = key else { return Err("a key is not a JSON object") };
            if key.contains_key("d") || key.contains_key("k") {
                return Err(
                    "the key set has a private or shared key: only public keys belong there",
                );
            }
            all.extend(read(key));
        }
        if all.is_empty() {
            return Err(
                "the key set has no key for RS256, RS384, RS512, PS256, ES256, ES384 or EdDSA",
            );
        }
        Ok(Self(all))
    }

    pub(crate) fn keys(&self) -> &[VerifyingKey] {
        &self.0
    }
}

/// Reads a key that can verify signatures. Returns `None` for any other key.
fn read(key: &Map<String, Value>) -> Option<VerifyingKey> {
    let text = |name: &str| key.get(name)?.as_str();
    let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?).ok();
    if key.contains_key("use") && text("use") != Some("sig") {
        return None;
    }
    let operations = key.get("key_ops").map(|operations| operations.as_array());
    if operations.is_some_and(|list| !list.is_some_and(|list| list.contains(&"verify".into()))) {
        return None;
    }
    let point = |length: usize| {
        let x = bytes("x")?;
        let y = bytes("y")?;
        (x.len() == length && y.len() == length).then(|| [&[4], &x[..], &y[..]].concat())
    };
    let material = match (text("kty")?, text("crv")) {
        ("RSA", _) => {
            let n = bytes("n")?;
            let e = bytes("e")?;
            let is_plain = n.first() != Some(&0) && e.first().is_some_and(|first| *first != 0);
            if !is_plain || !RSA_BYTES.contains(&n.len()) || e.len() > 8 {
                return None;
            }
            Material::Rsa { n, e }
        }
        ("EC", Some("P-256")) => Material::P256(point(32)?),
        ("EC", Some("P-384")) => Material::P384(point(48)?),
        ("OKP", Some("Ed25519")) => Material::Ed25519(bytes("x").filter(|key| key.len() == 32)?),
        _ => return None,
    };
    // An id or an algorithm that is not a text is an error. It must not be treated like a missing
    // one.
    let optional = |name: &str| match key.get(name) {
        Some(value) => value.as_str().map(|text| Some(text.to_owned())),
        None => Some(None),
    };
    Some(VerifyingKey { id: optional("kid")?, algorithm: optional("alg")?, material })
}
