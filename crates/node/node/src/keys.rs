//! The keys of callers. The store holds what the node knows about each key. The guard in front of
//! the engine checks the keys that callers send.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use mote_access::{Guard, Key, KeyRing, NewKey, is_pattern};
use mote_api::keys::{CallerKey, CallerKeyRequest, CallerKeyRotation, CallerKeys, NewCallerKey};
use mote_api::{Problem, Timestamp};
use mote_engine::Engine;
use mote_journal::Deferring;
use mote_process::clock;
use mote_spec::is_secret_name;
use mote_spec::name::of_kept;
use mote_store::{Added, Store, StoreError, StoredKey};
use mote_tenants::namespaces::{Namespaces, no_such_key as unknown};

use super::store_work::{blocking, with_store};

/// The maximum numbers of callers with a key in the default namespace, of callers with a key in any
/// other namespace, and of patterns of one key.
const KEYS_MAX: i64 = 10_000;
const NAMESPACE_KEYS_MAX: i64 = 1_000;
const PATTERNS_MAX: usize = 64;
/// Longest lifetime of a key, and longest grace period of a replaced key.
const YEARS_MS_MAX: u64 = 100 * 365 * 86_400_000;

/// The engine as callers reach it, and the checks in front of it.
pub(crate) struct Callers {
    /// The engine, behind the layer that accepts invocations that run later.
    pub(crate) invoker: Deferring<Engine>,
    /// Decides which callers from outside may call a function.
    pub(crate) guard: Guard,
    /// Held from the time a change of keys is stored until it takes effect.
    pub(crate) key_turn: tokio::sync::Mutex<()>,
}

/// Lists the keys of all callers. The list does not contain the secret keys themselves.
pub(crate) async fn list(store: &Arc<Store>) -> Result<CallerKeys, Problem> {
    let now_ms = clock::unix_ms();
    let mut keys: Vec<CallerKey> = Vec::new();
    for one in with_store(store, Store::keys).await? {
        let expires_at = one.expires_at_ms.map(Timestamp::from_unix_ms);
        match keys.last_mut().filter(|last| last.name == one.name) {
            Some(last) if one.expires_at_ms.is_some_and(|until| until > now_ms) => {
                last.previous_until = expires_at;
            }
            Some(_) => {}
            None => keys.push(CallerKey {
                name: one.name,
                functions: one.functions,
                created_at: Timestamp::from_unix_ms(one.created_at_ms),
                expires_at,
                previous_until: None,
            }),
        }
    }
    Ok(CallerKeys { keys })
}

/// Makes a key for a new caller.
pub(crate) async fn create(
    store: &Arc<Store>,
    callers: &Callers,
    namespaces: &Arc<Namespaces>,
    wish: CallerKeyRequest,
) -> Result<NewCallerKey, Problem> {
    let CallerKeyRequest { name, mut functions, valid_ms } = wish;
    let (namespace, own) = of_kept(&name);
    let _change = namespace.map(|namespace| namespaces.change(namespace)).transpose()?;
    if !is_secret_name(own) {
        let text = format!(
            "{}: the name of a caller has 1 to 253 of a-z, A-Z, 0-9, -, _ and ., and does not \
             begin with .",
            shortened(&name)
        );
        return Err(Problem::new(422, "M0303", text).with_field("name"));
    }
    // A key opens only functions of its own namespace, so the patterns are stored without the
    // namespace.
    if let Some(namespace) = namespace {
        let end = format!(".{namespace}");
        for pattern in &mut functions {
            if pattern.ends_with(&end) {
                pattern.truncate(pattern.len() - end.len());
            }
        }
    }
    if functions.len() > PATTERNS_MAX {
        let text = format!("{} functions; a key names at most {PATTERNS_MAX}", functions.len());
        return Err(Problem::new(422, "M0303", text).with_field("functions"));
    }
    if let Some(wrong) = functions.iter().find(|pattern| !is_pattern(pattern)) {
        let text = format!(
            "{}: a function has a name of a-z, 0-9 and -; with * at the end, it is the beginning \
             of names",
            shortened(wrong)
        );
        return Err(Problem::new(422, "M0303", text).with_field("functions"));
    }
    let created_at_ms = clock::unix_ms();
    let expires_at_ms = match valid_ms {
        Some(ms @ 1..=YEARS_MS_MAX) => Some(created_at_ms + ms),
        Some(_) => return Err(not_a_time("valid_ms")),
        None => None,
    };
    let NewKey { text, hash } = new_key()?;
    let keys_max = if namespace.is_some() { NAMESPACE_KEYS_MAX } else { KEYS_MAX };
    let key = StoredKey { name, hash, functions, created_at_ms, expires_at_ms, is_current: true };
    let wanted = key.clone();
    match changed(store, callers, move |store| store.add_key(&wanted, keys_max)).await? {
        Added::Stored => Ok(shown(key, text, None)),
        Added::Exists => {
            let name = key.name;
            Err(Problem::new(409, "M0419", format!("there is a key named {name} already"))
                .with_hint(format!("replace it: mote key rotate {name}")))
        }
        Added::Full => {
            let problem = match of_kept(&key.name).0 {
                Some(namespace) => mote_tenants::namespaces::full(namespace, keys_max, "keys"),
                None => {
                    let text = format!("the node has {KEYS_MAX} keys, which is the limit");
                    Problem::new(409, "M0303", text)
                }
            };
            Err(problem.with_hint("revoke keys that nobody uses"))
        }
    }
}

/// Replaces the key of a caller.
pub(crate) async fn rotate(
    store: &Arc<Store>,
    callers: &Callers,
    name: String,
    wish: CallerKeyRotation,
) -> Result<NewCallerKey, Problem> {
    if wish.grace_ms > YEARS_MS_MAX {
        return Err(not_a_time("grace_ms"));
    }
    let NewKey { text, hash } = new_key()?;
    let now_ms = clock::unix_ms();
    let wanted = name.clone();
    let until_ms = now_ms + wish.grace_ms;
    let new =
        changed(store, callers, move |store| store.rotate_key(&wanted, hash, now_ms, until_ms))
            .await?;
    let key = new.ok_or_else(|| unknown(&name))?;
    Ok(shown(key, text, (wish.grace_ms > 0).then_some(until_ms)))
}

/// Makes the keys of a caller invalid.
pub(crate) async fn revoke(
    store: &Arc<Store>,
    callers: &Callers,
    name: String,
) -> Result<(), Problem> {
    let wanted = name.clone();
    match changed(store, callers, move |store| store.remove_key(&wanted)).await? {
        true => Ok(()),
        false => Err(unknown(&name)),
    }
}

/// Makes all keys of a namespace invalid.
pub(crate) async fn revoke_all_of(
    store: &Arc<Store>,
    callers: &Callers,
    namespace: String,
) -> Result<(), Problem> {
    changed(store, callers, move |store| store.remove_keys_of(&namespace)).await
}

/// Loads the keys from the store into the guard.
pub(super) async fn bring_back(store: &Arc<Store>, guard: &Guard) -> Result<()> {
    let store = store.clone();
    let keys = blocking(move || store.keys()).await;
    guard.replace(ring(keys.context("cannot read the store")??));
    Ok(())
}

/// Changes keys in the store and then in the guard, before another change begins.
async fn changed<T: Send + 'static>(
    store: &Arc<Store>,
    callers: &Callers,
    work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Problem> {
    let _turn = callers.key_turn.lock().await;
    let guard = callers.guard.clone();
    let work = move |store: &Store| {
        let done = work(store)?;
        guard.replace(ring(store.keys()?));
        Ok(done)
    };
    with_store(store, work).await
}

fn ring(keys: Vec<StoredKey>) -> KeyRing {
    KeyRing::new(keys.into_iter().map(|key| Key {
        name: key.name.into(),
        hash: key.hash,
        functions: key.functions,
        expires_unix_ms: key.expires_at_ms,
    }))
}

fn shown(key: StoredKey, text: String, previous_until_ms: Option<u64>) -> NewCallerKey {
    NewCallerKey {
        name: key.name,
        key: text,
        functions: key.functions,
        expires_at: key.expires_at_ms.map(Timestamp::from_unix_ms),
        previous_until: previous_until_ms.map(Timestamp::from_unix_ms),
    }
}

fn new_key() -> Result<NewKey, Problem> {
    NewKey::random().map_err(|error| {
        tracing::error!(%error, "cannot make a key");
        Problem::new(500, "M0599", "the node could not make a key; see its log")
    })
}

fn not_a_time(field: &'static str) -> Problem {
    Problem::new(422, "M0303", format!("{field}: 1 ms to 100 years")).with_field(field)
}

fn shortened(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}
