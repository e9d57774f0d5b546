//! Secrets: the store keeps them encrypted, and instances receive them as files when they start.

use std::sync::Arc;

use anyhow::Result;
use mote_api::Problem;
use mote_api::types::{Secret, SecretList};
use mote_engine::Engine;
use mote_spec::name::{kept, of_kept};
use mote_spec::{FunctionSpec, is_secret_name};
use mote_store::seal::{KeySource, Keys, SecretError, Secrets, Zeroizing, make_key_file};
use mote_store::{SecretsThere, Store};
use mote_tenants::namespaces::{Namespaces, flag, no_such_secret as unknown};

use super::store_work::with_store;
use crate::config::Config;
use crate::unusable::unusable;

pub(crate) const VALUE_BYTES_MAX: usize = 64 << 10;
/// Largest sum of all secret values of one function, in bytes. One message of 160 KiB carries them
/// to the function's sandbox.
const FUNCTION_BYTES_MAX: usize = 128 << 10;
/// Limits for each namespace except the default one: the number of secrets, and their encrypted
/// size in bytes.
const NAMESPACE_SECRETS_MAX: u64 = 256;
const NAMESPACE_BYTES_MAX: u64 = 4 << 20;
/// The file in the data folder that holds the key if the configuration names no key.
const KEY_FILE: &str = "secrets.key";

/// Reads the keys and the secrets. Secrets that are not yet encrypted with the first key are
/// encrypted with it now. Blocks.
pub(super) fn open(config: &Config, store: &Store) -> Result<Secrets> {
    let own = store.root().join(KEY_FILE);
    let own_source = KeySource::File(own.clone());
    let wrong = |text: String| unusable("secrets_key", text);
    let (first, others) = config.secrets_key.split_first().unwrap_or((&own_source, &[]));
    let is_own_first = first == &own_source;
    if is_own_first && !own.exists() {
        let count = store.secrets()?.len();
        if count > 0 {
            let own = own.display();
            return Err(wrong(format!(
                "no key is named, {own} is missing, and there are {count} encrypted secrets; name \
                 their key with --secrets-key, or put {own} back from a copy; if the key is lost, name \
                 a new one and set these secrets again"
            )));
        }
        make_key_file(&own).map_err(|error| wrong(error.to_string()))?;
    }
    let mut keys = Keys::load(first, others).map_err(|error| wrong(error.to_string()))?;
    // This key was used before the configuration named one. Even if it is not usable, the node
    // starts.
    if !is_own_first && own.exists() {
        match keys.add(&own_source) {
            Ok(()) => tracing::info!(
                "{own_source} is no longer used and can be removed, if no secret is missing"
            ),
            Err(error) => tracing::warn!("an old key cannot be read: {error}"),
        }
    }
    let secrets = Secrets::new(keys);
    let mut all = store.secrets()?;
    let plain = store.plain_secrets()?;
    let mut changed = !plain.is_empty();
    all.extend(plain.into_iter().map(|(name, value)| {
        let sealed = secrets.seal(&name, &value);
        (name, sealed)
    }));
    for (name, sealed) in &mut all {
        match secrets.renewed(name, sealed) {
            Ok(None) => {}
            Ok(Some(renewed)) => (*sealed, changed) = (renewed, true),
            Err(error) => tracing::error!(
                "{error}; name its key in secrets_key, or set it again: mote secret set {name} < FILE"
            ),
        }
    }
    if changed {
        store.replace_secrets(&all)?;
        tracing::info!(key = %first, "the secrets are encrypted with this key now");
    }
    // The disk may be full. The next start tries again.
    if let Err(error) = store.clean_secrets() {
        tracing::warn!(
            "secrets that earlier versions stored in plain text may still be in mote.db: {error}"
        );
    }
    all.into_iter().for_each(|(name, sealed)| secrets.put(&name, Some(sealed)));
    Ok(secrets)
}

/// All secrets, each with the functions that read it.
pub(crate) async fn list(store: &Arc<Store>, engine: &Engine) -> Result<SecretList, Problem> {
    let all = with_store(store, Store::secret_names).await?;
    let secrets = all.into_iter().map(|name| described(engine, name)).collect();
    Ok(SecretList { secrets })
}

/// A secret, with the functions whose live revisions read it.
pub(crate) fn described(engine: &Engine, name: String) -> Secret {
    let live = engine.list();
    let (namespace, own) = of_kept(&name);
    let connects = |spec: &FunctionSpec| spec.mqtt_secret_names().any(|known| *known == *own);
    let live = live.iter().filter(|one| one.spec.name.namespace() == namespace);
    let reads = live.filter(|one| one.spec.secret_names().contains(own) || connects(&one.spec));
    Secret { functions: reads.map(|one| one.spec.name.to_string()).collect(), name }
}

/// Checks that the node has every secret that a function reads.
pub(super) fn check(engine: &Engine, spec: &FunctionSpec) -> Result<(), Problem> {
    let function = &spec.name;
    let length = |name: &str| match engine.secrets().get(&kept(name, function.namespace())) {
        Ok(value) => Ok(value.len()),
        Err(error) => {
            let text = match error {
                SecretError::Missing(_) => {
                    format!("{function} reads the secret {name}, which this node does not have")
                }
                error => format!("{function} cannot read a secret: {error}"),
            };
            let flag = flag(function.namespace());
            let hint = format!("create it: mote secret set {name}{flag} < FILE");
            Err(Problem::new(422, "M0414", text).with_hint(hint).with_field("secrets"))
        }
    };
    let mut bytes = 0;
    for name in spec.mqtt_secret_names() {
        length(name)?;
    }
    for name in spec.secrets.iter().chain(spec.secret_env.values()) {
        bytes += length(name)?;
    }
    if bytes > FUNCTION_BYTES_MAX {
        let most = FUNCTION_BYTES_MAX >> 10;
        let text = format!("{function} reads {bytes} bytes of secrets; the limit is {most} KiB");
        return Err(Problem::new(422, "M0303", text).with_field("secrets"));
    }
    Ok(())
}

/// Creates or replaces a secret. `replace` says whether the secret must already exist, or must not
/// exist; with `None`, both are accepted. Returns whether the secret existed.
pub(crate) async fn put(
    store: &Arc<Store>,
    engine: &Engine,
    namespaces: &Arc<Namespaces>,
    name: String,
    value: String,
    replace: Option<bool>,
) -> Result<bool, Problem> {
    let (namespace, own) = of_kept(&name);
    let _change = namespace.map(|namespace| namespaces.change(namespace)).transpose()?;
    if !is_secret_name(own) {
        let text = "name: 1 to 253 of a-z, A-Z, 0-9, -, _ and ., not beginning with .";
        return Err(Problem::new(422, "M0303", text).with_field("name"));
    }
    if value.len() > VALUE_BYTES_MAX || value.contains('\0') {
        return Err(not_a_value());
    }
    let sealed = engine.secrets().seal(&name, &Zeroizing::new(value));
    let wanted = name.clone();
    let stored = sealed.clone();
    let existed = with_store(store, move |store| {
        let may = |there| may_put(&wanted, stored.len() as u64, replace, there);
        store.put_secret(&wanted, &stored, may)
    });
    let existed = existed.await??;
    engine.secrets().put(&name, Some(sealed));
    Ok(existed)
}

/// Checks whether a secret of this size may be stored next to those that exist.
fn may_put(
    name: &str,
    bytes: u64,
    replace: Option<bool>,
    there: SecretsThere,
) -> Result<(), Problem> {
    match (replace, there.exists) {
        (Some(false), true) => {
            return Err(Problem::new(409, "M1405", format!("secret {name} already exists")));
        }
        (Some(true), false) => return Err(unknown(name)),
        _ => {}
    }
    let Some(namespace) = of_kept(name).0 else { return Ok(()) };
    let hint = "remove secrets that no function reads: mote secret remove NAME";
    if there.others >= NAMESPACE_SECRETS_MAX {
        let problem = mote_tenants::namespaces::full(namespace, NAMESPACE_SECRETS_MAX, "secrets");
        return Err(problem.with_hint(hint));
    }
    if there.others_bytes + bytes > NAMESPACE_BYTES_MAX {
        let most = NAMESPACE_BYTES_MAX >> 20;
        let problem = mote_tenants::namespaces::full(namespace, most, "MiB of secrets");
        return Err(problem.with_hint(hint));
    }
    Ok(())
}

/// Removes all secrets of a namespace.
pub(crate) async fn remove_all_of(
    store: &Arc<Store>,
    engine: &Engine,
    namespace: String,
) -> Result<(), Problem> {
    let removed = with_store(store, move |store| store.remove_secrets_of(&namespace)).await?;
    removed.iter().for_each(|name| engine.secrets().put(name, None));
    Ok(())
}

/// Removes a secret. Running instances keep their copies of it.
pub(crate) async fn remove(
    store: &Arc<Store>,
    engine: &Engine,
    name: String,
) -> Result<(), Problem> {
    let wanted = name.clone();
    if !with_store(store, move |store| store.remove_secret(&wanted)).await? {
        return Err(unknown(&name));
    }
    engine.secrets().put(&name, None);
    Ok(())
}

/// The error for a value that is not valid.
pub(crate) fn not_a_value() -> Problem {
    let text = format!("value: text of at most {} KiB, without NUL", VALUE_BYTES_MAX >> 10);
    Problem::new(422, "M0303", text).with_field("value")
}
