//! The tokens that were verified recently. For a further call with such a token, the signature need
//! not be verified again.

use std::collections::HashMap;
use std::sync::Arc;

use crate::jwt::{KeySet, Verified};

/// The maximum number of tokens that are remembered, in both halves together.
const TOKENS_MAX: usize = 4_096;

/// The SHA-256 of a token, and the number of the rules by which it was verified.
pub(crate) type Name = ([u8; 32], u64);

/// The result for a token, and the keys with which it was verified.
struct Entry {
    verified: Verified,
    keys: Arc<KeySet>,
}

/// A bounded table of two halves. When the newer half is full, it becomes the older half, and the
/// former older half is forgotten. A token that is used again moves to the newer half.
#[derive(Default)]
pub(crate) struct VerifiedTokens {
    newer: HashMap<Name, Entry>,
    older: HashMap<Name, Entry>,
}

impl VerifiedTokens {
    /// Returns the result for a token, if it was verified with these keys and is still valid.
    pub(crate) fn get(&mut self, name: &Name, keys: &Arc<KeySet>, now_s: u64) -> Option<Verified> {
        let holds =
            |entry: &Entry| now_s < entry.verified.until_s && Arc::ptr_eq(&entry.keys, keys);
        if let Some(entry) = self.newer.get(name) {
            return holds(entry).then(|| entry.verified.clone());
        }
        let entry = self.older.remove(name).filter(holds)?;
        let verified = entry.verified.clone();
        self.put(*name, entry);
        Some(verified)
    }

    /// Remembers the result for a token.
    pub(crate) fn insert(&mut self, name: Name, verified: Verified, keys: Arc<KeySet>) {
        self.put(name, Entry { verified, keys });
    }

    fn put(&mut self, name: Name, entry: Entry) {
        if self.newer.len() >= TOKENS_MAX / 2 {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(name, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Arc<KeySet> {
        let text =
            format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","x":"{}"}}]}}"#, "A".repeat(43));
        Arc::new(KeySet::parse(text.as_bytes()).expect("valid"))
    }

    fn name(number: u64) -> Name {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&number.to_le_bytes());
        (hash, 1)
    }

    #[test]
    fn a_decision_holds_for_its_time_its_keys_and_its_rules() {
        let mut table = VerifiedTokens::default();
        let keys = keys();
        let verified = Verified { subject: "a".into(), until_s: 100, has_claims: true };
        table.insert(name(1), verified.clone(), keys.clone());
        assert_eq!(table.get(&name(1), &keys, 99), Some(verified));
        assert_eq!(table.get(&name(1), &keys, 100), None);
        assert_eq!(table.get(&name(2), &keys, 99), None);
        assert_eq!(table.get(&(name(1).0, 2), &keys, 99), None, "other rules");
        let equal = Arc::new(KeySet::clone(&keys));
        assert_eq!(table.get(&name(1), &equal, 99), None, "other keys");
    }

    #[test]
    fn the_table_is_bounded_and_keeps_what_is_used() {
        let mut table = VerifiedTokens::default();
        let keys = keys();
        let verified = Verified { subject: "a".into(), until_s: 100, has_claims: true };
        table.insert(name(0), verified.clone(), keys.clone());
        for number in 1..3 * TOKENS_MAX as u64 {
            table.insert(name(number), verified.clone(), keys.clone());
            assert!(table.get(&name(0), &keys, 0).is_some(), "{number}");
            assert!(table.newer.len() + table.older.len() <= TOKENS_MAX);
        }
        assert!(table.get(&name(1), &keys, 0).is_none());
    }
}
