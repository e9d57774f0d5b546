//! The secrets of a running node.

use std::collections::HashMap;

use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::seal::keys::{Keys, OVERHEAD_BYTES, SecretError};

/// The secrets of a node by name. Their values are encrypted even in memory. A value is decrypted
/// only while it is in use.
#[derive(Debug)]
pub struct Secrets {
    keys: Keys,
    sealed: Mutex<HashMap<String, Vec<u8>>>,
}

impl Secrets {
    pub fn new(keys: Keys) -> Self {
        Self { keys, sealed: Mutex::default() }
    }

    /// Encrypts a value for [`Secrets::put`] and for the store.
    pub fn seal(&self, name: &str, value: &str) -> Vec<u8> {
        self.keys.seal(name, value)
    }

    /// Sets a secret to a value from [`Secrets::seal`]. `None` removes the secret.
    pub fn put(&self, name: &str, sealed: Option<Vec<u8>>) {
        let mut all = self.sealed.lock();
        match sealed {
            Some(sealed) => all.insert(name.to_owned(), sealed),
            None => all.remove(name),
        };
    }

    /// Length of a secret's plain value in bytes; `None` if there is no such secret.
    pub fn value_bytes(&self, name: &str) -> Option<usize> {
        self.sealed.lock().get(name).map(|sealed| sealed.len().saturating_sub(OVERHEAD_BYTES))
    }

    /// Returns the plain value of a secret. Its memory is cleared on drop.
    pub fn get(&self, name: &str) -> Result<Zeroizing<String>, SecretError> {
        let sealed = self.sealed.lock().get(name).cloned();
        self.keys.open(name, &sealed.ok_or_else(|| SecretError::Missing(name.to_owned()))?)
    }

    /// Encrypts a stored value again with the first key. Returns `None` if the first key already
    /// encrypted it. Fails if none of the keys decrypts the value.
    pub fn renewed(&self, name: &str, sealed: &[u8]) -> Result<Option<Vec<u8>>, SecretError> {
        let value = self.keys.open(name, sealed)?;
        Ok((!self.keys.is_current(sealed)).then(|| self.keys.seal(name, &value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_set_read_and_forgotten() {
        let secrets = Secrets::new(Keys::random());
        assert_eq!(secrets.get("a"), Err(SecretError::Missing("a".into())));
        let sealed = secrets.seal("a", "vålue");
        secrets.put("a", Some(sealed.clone()));
        assert_eq!(secrets.value_bytes("a"), Some(6));
        assert_eq!(secrets.get("a").unwrap().as_str(), "vålue");
        assert_eq!(secrets.renewed("a", &sealed), Ok(None));
        let other = Keys::random().seal("a", "vålue");
        assert_eq!(secrets.renewed("a", &other), Err(SecretError::OtherKey("a".into())));
        secrets.put("a", None);
        assert_eq!(secrets.value_bytes("a"), None);
    }
}
