//! The values of recently used keys, in memory.
//!
//! There are two generations of values. A value that is used moves to the young generation. When
//! the young generation is full, it becomes the old one, and the former old generation is dropped.

use std::collections::HashMap;

use mote_core::state::{Entry, Namespace};

const GENERATION_BYTES: usize = 2 << 20;
/// Roughly how many bytes an entry takes in addition to its key and value.
const ENTRY_BYTES: usize = 128;

/// An entry, or the fact that the key has none.
type Known = Option<Entry>;

#[derive(Default)]
pub(crate) struct Cache {
    young: Generation,
    old: Generation,
}

#[derive(Default)]
struct Generation {
    entries: HashMap<Namespace, HashMap<String, Known>>,
    bytes: usize,
}

impl Generation {
    fn take(&mut self, namespace: &Namespace, key: &str) -> Option<Known> {
        let (key, known) = self.entries.get_mut(namespace)?.remove_entry(key)?;
        self.bytes = self.bytes.saturating_sub(cost(&key, &known));
        Some(known)
    }
}

fn cost(key: &str, known: &Known) -> usize {
    ENTRY_BYTES + key.len() + known.as_ref().map_or(0, |entry| entry.value.len())
}

impl Cache {
    /// Returns what is known about a key; `None` if nothing is known.
    pub(crate) fn get(&mut self, namespace: &Namespace, key: &str) -> Option<Known> {
        if let Some(known) = self.young.entries.get(namespace).and_then(|keys| keys.get(key)) {
            return Some(known.clone());
        }
        let known = self.old.take(namespace, key)?;
        self.put(namespace, key, known.clone());
        Some(known)
    }

    pub(crate) fn put(&mut self, namespace: &Namespace, key: &str, known: Known) {
        self.forget(namespace, key);
        let bytes = cost(key, &known);
        if self.young.bytes + bytes > GENERATION_BYTES {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.bytes += bytes;
        let keys = match self.young.entries.get_mut(namespace) {
            Some(keys) => keys,
            None => self.young.entries.entry(namespace.clone()).or_default(),
        };
        keys.insert(key.to_owned(), known);
    }

    pub(crate) fn forget(&mut self, namespace: &Namespace, key: &str) {
        self.young.take(namespace, key);
        self.old.take(namespace, key);
    }

    pub(crate) fn clear(&mut self, namespace: &Namespace) {
        for generation in [&mut self.young, &mut self.old] {
            for (key, known) in generation.entries.remove(namespace).into_iter().flatten() {
                generation.bytes = generation.bytes.saturating_sub(cost(&key, &known));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_rest_is_bounded() {
        let mut cache = Cache::default();
        let namespace = Namespace::Function("f".into());
        let entry =
            |version| Some(Entry { value: vec![0; 10_000].into(), version, expires_unix_ms: None });
        cache.put(&namespace, "kept", entry(1));
        for number in 0..2_000 {
            cache.put(&namespace, &number.to_string(), entry(number));
            assert_eq!(cache.get(&namespace, "kept"), Some(entry(1)), "{number}");
            assert!(cache.young.bytes + cache.old.bytes <= 2 * GENERATION_BYTES, "{number}");
        }
        assert_eq!(cache.get(&namespace, "0"), None);
        cache.put(&namespace, "kept", None);
        assert_eq!(cache.get(&namespace, "kept"), Some(None));
        cache.clear(&namespace);
        assert_eq!((cache.young.bytes, cache.old.bytes), (0, 0));
    }
}
