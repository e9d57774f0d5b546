//! Secrets: the store keeps them, and instances receive them as files when they start.

use anyhow::{Context as _, Result};
use mote_api::Problem;
use mote_api::types::{Secret, SecretList};
use mote_core::FunctionSpec;
use mote_core::spec::is_secret_name;
use mote_engine::Engine;

use super::Node;
use super::store_work::{blocking, with_store};

/// Largest value in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = 64 << 10;
/// Largest sum of all values of one function in bytes: one message of 160 KiB carries them to its
/// sandbox.
const FUNCTION_BYTES_MAX: usize = 128 << 10;

/// All secrets, each with the functions that read it.
pub(crate) async fn list(node: &Node) -> Result<SecretList, Problem> {
    let all = with_store(node, |store| store.secrets()).await?;
    let secrets = all.into_iter().map(|(name, _)| described(&node.engine, name)).collect();
    Ok(SecretList { secrets })
}

/// A secret with the functions whose live revisions read it.
pub(crate) fn described(engine: &Engine, name: String) -> Secret {
    let live = engine.list();
    let connects = |spec: &FunctionSpec| spec.mqtt_secret_names().any(|known| *known == name);
    let reads = live
        .iter()
        .filter(|one| one.spec.secret_names().contains(name.as_str()) || connects(&one.spec));
    Secret { functions: reads.map(|one| one.spec.name.to_string()).collect(), name }
}

/// Checks that the node has every secret that a function reads.
pub(super) fn check(engine: &Engine, spec: &FunctionSpec) -> Result<(), Problem> {
    let function = &spec.name;
    let length = |name: &str| {
        engine.secret_bytes(name).ok_or_else(|| {
            let text = format!("{function} reads the secret {name}, which this node does not have");
            let hint = format!("create it: mote secret set {name} < FILE");
            Problem::new(422, "M0414", text).with_hint(hint).with_field("secrets")
        })
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

/// Creates or replaces a secret; `replace` says whether it must exist already. Returns whether it
/// did.
pub(crate) async fn put(
    node: &Node,
    name: String,
    value: String,
    replace: Option<bool>,
) -> Result<bool, Problem> {
    if !is_secret_name(&name) {
        let text = "name: 1 to 253 of a-z, A-Z, 0-9, -, _ and ., not beginning with .";
        return Err(Problem::new(422, "M0303", text).with_field("name"));
    }
    if value.len() > VALUE_BYTES_MAX || value.contains('\0') {
        return Err(not_a_value());
    }
    let (wanted, text) = (name.clone(), value.clone());
    let there = with_store(node, move |store| {
        let there = store.secrets()?.iter().any(|(known, _)| *known == wanted);
        if replace.is_none_or(|replace| replace == there) {
            store.put_secret(&wanted, &text)?;
        }
        Ok(there)
    })
    .await?;
    match (replace, there) {
        (Some(false), true) => {
            Err(Problem::new(409, "M1405", format!("secret {name} already exists")))
        }
        (Some(true), false) => Err(unknown(&name)),
        _ => {
            node.engine.set_secret(&name, Some(value));
            Ok(there)
        }
    }
}

/// Removes a secret. Running instances keep their copies.
pub(crate) async fn remove(node: &Node, name: String) -> Result<(), Problem> {
    let wanted = name.clone();
    if !with_store(node, move |store| store.remove_secret(&wanted)).await? {
        return Err(unknown(&name));
    }
    node.engine.set_secret(&name, None);
    Ok(())
}

/// Loads the secrets from the store into the engine.
pub(super) async fn bring_back(node: &Node) -> Result<()> {
    let store = node.store.clone();
    let all = blocking(move || store.secrets()).await;
    for (name, value) in all.context("cannot read the store")?? {
        node.engine.set_secret(&name, Some(value));
    }
    Ok(())
}

/// The answer to a value that is not valid.
pub(crate) fn not_a_value() -> Problem {
    let text = format!("value: text of at most {} KiB, without NUL", VALUE_BYTES_MAX >> 10);
    Problem::new(422, "M0303", text).with_field("value")
}

fn unknown(name: &str) -> Problem {
    let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
    Problem::new(404, "M0415", format!("no secret named {shown}"))
        .with_hint("list the secrets: mote secret list")
}
