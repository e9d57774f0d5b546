//! What a node keeps of the keys of callers: only the hash of each key, never the key itself.

use std::io;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hashbrown::HashMap;
use mote_spec::name;
use sha2::{Digest, Sha256};

/// The beginning of each key. People and secret scanners recognise a key by it.
const PREFIX: &str = "mote_";
/// Longest text that is examined, in bytes. A key has 48 bytes.
const PRESENTED_BYTES_MAX: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The name of the caller; in a namespace, `NAMESPACE/NAME`.
    pub name: Arc<str>,
    /// The SHA-256 of the key.
    pub hash: [u8; 32],
    /// Names of functions in the caller's namespace, or beginnings of names followed by `*`. Empty
    /// if the key opens every function in the namespace.
    pub functions: Vec<String>,
    /// The time from which on the key is not valid, in milliseconds since 1970.
    pub expires_unix_ms: Option<u64>,
}

impl Key {
    /// Whether the key opens a function. The function must be in the key's own namespace.
    pub fn opens(&self, function: &str) -> bool {
        let (label, namespace) = name::split(function);
        if name::of_kept(&self.name).0 != namespace {
            return false;
        }
        self.functions.is_empty()
            || self.functions.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(start) => label.starts_with(start),
                None => label == pattern,
            })
    }

    fn is_valid(&self, now_unix_ms: u64) -> bool {
        self.expires_unix_ms.is_none_or(|expires| now_unix_ms < expires)
    }

    /// The identity of the pre-shared key that is derived from this key: the name of the caller, a
    /// dot, and the last 8 hexadecimal digits of the hash. A caller whose key is being replaced has
    /// two identities.
    pub fn psk_identity(&self) -> String {
        format!("{}.{}", self.name, base16ct::lower::encode_string(&end_of(&self.hash)))
    }

    /// The pre-shared key: the first 32 hexadecimal digits of the hash, as text. These are 128
    /// random bits. Small devices can store them, and nobody can compute the key or its hash from
    /// them.
    pub fn psk(&self) -> String {
        base16ct::lower::encode_string(&self.hash[..16])
    }
}

/// All keys of a node at one moment.
///
/// A presented key is looked up by its SHA-256. How long the look-up takes reveals something about
/// hashes, which a caller cannot choose, but nothing about keys.
#[derive(Debug, Default)]
pub struct KeyRing {
    all: HashMap<[u8; 32], Key>,
    /// The end of each hash and the hash itself, sorted. Pre-shared keys are found by the ends.
    by_end: Vec<([u8; IDENTITY_BYTES], [u8; 32])>,
}

/// How many bytes from the end of the hash the identity of a pre-shared key contains.
const IDENTITY_BYTES: usize = 4;

fn end_of(hash: &[u8; 32]) -> [u8; IDENTITY_BYTES] {
    *hash.last_chunk().expect("the hash is longer")
}

impl KeyRing {
    pub fn new(keys: impl IntoIterator<Item = Key>) -> Self {
        let mut all = HashMap::default();
        for key in keys {
            all.insert(key.hash, key);
        }
        let mut by_end: Vec<_> = all.keys().map(|hash| (end_of(hash), *hash)).collect();
        by_end.sort_unstable();
        Self { all, by_end }
    }

    /// Returns the key that a caller presents, if it is a valid one.
    pub fn find(&self, presented: &[u8], now_unix_ms: u64) -> Option<&Key> {
        if presented.len() > PRESENTED_BYTES_MAX {
            return None;
        }
        let hash: [u8; 32] = Sha256::digest(presented).into();
        self.all.get(&hash).filter(|key| key.is_valid(now_unix_ms))
    }

    /// Returns the valid key from which the pre-shared key with this identity is derived.
    pub fn find_psk(&self, identity: &str, now_unix_ms: u64) -> Option<&Key> {
        let (name, end) = identity.rsplit_once('.')?;
        let mut wanted = [0; IDENTITY_BYTES];
        if base16ct::lower::decode(end, &mut wanted).ok()?.len() != IDENTITY_BYTES {
            return None;
        }
        let first = self.by_end.partition_point(|(end, _)| *end < wanted);
        let same = self.by_end[first..].iter().take_while(|(end, _)| *end == wanted);
        let mut keys = same.filter_map(|(_, hash)| self.all.get(hash));
        keys.find(|key| *key.name == *name && key.is_valid(now_unix_ms))
    }

    /// All keys, including expired ones.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.all.values()
    }

    /// Whether a valid key of the caller with this name opens a function.
    pub fn caller_opens(&self, caller: &[u8], function: &str, now_unix_ms: u64) -> bool {
        let mut keys = self.all.values().filter(|key| key.name.as_bytes() == caller);
        keys.any(|key| key.is_valid(now_unix_ms) && key.opens(function))
    }

    /// Whether a valid key opens this function.
    pub fn opens(&self, function: &str, now_unix_ms: u64) -> bool {
        self.all.values().any(|key| key.is_valid(now_unix_ms) && key.opens(function))
    }
}

/// Returns the identity and the pre-shared key for the caller `name` whose key is `text`.
pub fn psk_of(name: &str, text: &str) -> (String, String) {
    let hash = Sha256::digest(text).into();
    let key = Key { name: name.into(), hash, functions: Vec::new(), expires_unix_ms: None };
    (key.psk_identity(), key.psk())
}

/// A key that has just been made.
pub struct NewKey {
    /// The key, for its caller. The node does not keep this text.
    pub text: String,
    /// The SHA-256 of the key.
    pub hash: [u8; 32],
}

impl NewKey {
    /// Makes a key from 256 random bits. A number of this size cannot be guessed, even though the
    /// hash is fast to compute.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 32];
        io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
        let text = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
        let hash = Sha256::digest(&text).into();
        Ok(Self { text, hash })
    }
}

/// Whether a text says which functions a key opens. It is a name, or the beginning of names
/// followed by `*`.
pub fn is_pattern(text: &str) -> bool {
    let Some(start) = text.strip_suffix('*') else { return name::is_label(text) };
    let is_part = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    start.len() <= 63 && !start.starts_with('-') && start.bytes().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str, functions: &[&str], expires_unix_ms: Option<u64>) -> Key {
        let hash = Sha256::digest(text).into();
        let functions = functions.iter().map(|name| (*name).to_owned()).collect();
        Key { name: "shop".into(), hash, functions, expires_unix_ms }
    }

    #[test]
    fn a_key_is_found_until_it_expires() {
        let ring = KeyRing::new([key("a", &[], Some(100)), key("b", &["hello"], None)]);
        assert!(ring.find(b"a", 99).is_some());
        assert!(ring.find(b"a", 100).is_none());
        assert!(ring.find(b"b", u64::MAX).is_some());
        for other in ["", "A", "a ", "ab"] {
            assert!(ring.find(other.as_bytes(), 0).is_none(), "{other}");
        }
        assert!(ring.find(&[b'a'; PRESENTED_BYTES_MAX + 1], 0).is_none());
        assert!(ring.opens("other", 99));
        assert!(!ring.opens("other", 100));
        assert!(ring.opens("hello", 100));
        assert!(ring.caller_opens(b"shop", "hello", 100));
        assert!(!ring.caller_opens(b"shop", "other", 100));
        assert!(!ring.caller_opens(b"sho", "hello", 100));
    }

    #[test]
    fn a_pre_shared_key_is_computed_from_the_hash() {
        // printf %s a | sha256sum
        let one = key("a", &[], Some(100));
        assert_eq!(one.psk_identity(), "shop.afee48bb");
        assert_eq!(one.psk(), "ca978112ca1bbdcafac231b39a23dc4d");
        assert_eq!(psk_of("shop", "a"), (one.psk_identity(), one.psk()));
        let ring = KeyRing::new([one, key("b", &["hello"], None)]);
        assert_eq!(ring.find_psk("shop.afee48bb", 99).map(|key| key.hash[0]), Some(0xca));
        assert!(ring.find_psk("shop.afee48bb", 100).is_none());
        let other = ring.keys().find(|key| !key.functions.is_empty()).expect("the other");
        let identity = other.psk_identity();
        assert_eq!(
            ring.find_psk(&identity, 100).map(|key| &key.functions[..]),
            Some(&["hello".to_owned()][..])
        );
        for unknown in [
            "",
            "shop",
            "shop.",
            "shop.afee48bc",
            "shopxafee48bb",
            "xéafee48bb",
            "shop.AFEE48BB",
            "shop.afee48bb0",
            "sho.afee48bb",
            ".afee48bb",
            "é.afee48b",
            "afee48bb",
        ] {
            assert!(ring.find_psk(unknown, 0).is_none(), "{unknown}");
        }
    }

    #[test]
    fn patterns_open_functions() {
        let opens = |functions: &[&str], name: &str| key("a", functions, None).opens(name);
        assert!(opens(&[], "anything"));
        assert!(opens(&["hello"], "hello"));
        assert!(!opens(&["hello"], "hello-2"));
        assert!(opens(&["x", "shop-*"], "shop-cart"));
        assert!(opens(&["shop-*"], "shop-"));
        assert!(!opens(&["shop-*"], "shop"));
        assert!(opens(&["*"], "anything"));
    }

    #[test]
    fn patterns_are_names_or_beginnings() {
        for text in ["hello", "hello-2", "h*", "shop-*", "*"] {
            assert!(is_pattern(text), "{text}");
        }
        for text in ["", "Hello", "a*b", "**", "-*", "hello@tag", "a b", "_x*", "é*"] {
            assert!(!is_pattern(text), "{text}");
        }
    }

    #[test]
    fn new_keys_differ_and_are_found() {
        let one = NewKey::random().expect("random");
        let other = NewKey::random().expect("random");
        assert_ne!(one.text, other.text);
        assert_eq!((one.text.len(), &one.text[..5]), (48, "mote_"));
        assert!(one.text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)));
        let kept = Key { hash: one.hash, ..key("", &[], None) };
        let ring = KeyRing::new([kept]);
        assert!(ring.find(one.text.as_bytes(), 0).is_some());
        assert!(ring.find(other.text.as_bytes(), 0).is_none());
    }
}
