//! The pre-shared keys that the node has sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use dimpl::PskResolver;
use mote_coap::dtls_frames::Psk;

/// Length of the longest key in bytes. Callers' keys are shorter.
const KEY_BYTES_MAX: usize = 64;

/// All valid keys. During a handshake, the library asks this for the key of an identity.
#[derive(Default)]
pub(crate) struct Keys(Mutex<State>);

#[derive(Default)]
struct State {
    all: HashMap<String, Arc<Psk>>,
    /// The received parts of a list that is not complete yet.
    coming: HashMap<String, Arc<Psk>>,
    now_unix_ms: u64,
    /// The key for which the library asked last.
    asked: Option<Arc<Psk>>,
}

impl Keys {
    /// Takes a part of a list. Returns whether the list is now complete. A complete list replaces
    /// the keys.
    pub(crate) fn take(&self, is_first: bool, is_last: bool, keys: Vec<Psk>) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if is_first {
            state.coming.clear();
        }
        let usable = keys.into_iter().filter(|one| (1..=KEY_BYTES_MAX).contains(&one.key.len()));
        state.coming.extend(usable.map(|one| (one.identity.clone(), Arc::new(one))));
        if is_last {
            state.all = std::mem::take(&mut state.coming);
        }
        is_last
    }

    /// Sets the current time, which decides whether keys are valid.
    pub(crate) fn set_time(&self, now_unix_ms: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).now_unix_ms = now_unix_ms;
    }

    /// Returns the key for which the library has asked since the last call.
    pub(crate) fn asked(&self) -> Option<Arc<Psk>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).asked.take()
    }

    /// Whether an earlier found key is still valid.
    pub(crate) fn has(&self, key: &Psk) -> bool {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.find(&key.identity).is_some_and(|found| found.key == key.key)
    }
}

impl State {
    fn find(&self, identity: &str) -> Option<&Arc<Psk>> {
        let is_valid =
            |key: &&Arc<Psk>| key.expires_unix_ms.is_none_or(|expires| self.now_unix_ms < expires);
        self.all.get(identity).filter(is_valid)
    }
}

impl PskResolver for Keys {
    fn resolve(&self, identity: &[u8]) -> Option<Vec<u8>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = std::str::from_utf8(identity).ok().and_then(|name| state.find(name).cloned());
        let key = found.as_ref().map(|found| found.key.clone());
        state.asked = found;
        key
    }
}
