//! Secrets: kept in the store, given to instances as files when they start.

use anyhow::{Context as _, Result};
use mote_api::Problem;
use mote_core::spec::is_secret_name;

use super::Node;
use super::rollout::with_store;

/// Largest value: all secrets of a function travel to its sandbox in one message of 160 KiB.
const VALUE_BYTES_MAX: usize = 64 << 10;

/// Makes or replaces a secret; see [`mote_compat::Node::put_secret`].
pub(super) async fn put(
    node: &Node,
    name: String,
    value: String,
    replace: bool,
) -> Result<(), Problem> {
    if !is_secret_name(&name) {
        let text = "name: 1 to 253 of a-z, A-Z, 0-9, -, _ and ., not . in front";
        return Err(Problem::new(422, "M0303", text).with_field("name"));
    }
    if value.len() > VALUE_BYTES_MAX || value.contains('\0') {
        let text = format!("value: text of at most {} KiB", VALUE_BYTES_MAX >> 10);
        return Err(Problem::new(422, "M0303", text).with_field("value"));
    }
    let (wanted, text) = (name.clone(), value.clone());
    with_store(node, move |store| {
        let there = store.secrets()?.iter().any(|(known, _)| *known == wanted);
        Ok(if there == replace {
            store.put_secret(&wanted, &text).map(|_| None)?
        } else {
            Some(there)
        })
    })
    .await?
    .map_or(Ok(()), |there| match there {
        true => Err(Problem::new(409, "M1405", format!("secret {name} is there already"))),
        false => Err(unknown(&name)),
    })?;
    node.engine.set_secret(&name, Some(value));
    Ok(())
}

/// Removes a secret. Instances that run keep what they have.
pub(super) async fn remove(node: &Node, name: String) -> Result<(), Problem> {
    let wanted = name.clone();
    if !with_store(node, move |store| store.remove_secret(&wanted)).await? {
        return Err(unknown(&name));
    }
    node.engine.set_secret(&name, None);
    Ok(())
}

/// Tells the engine what the store has.
pub(super) async fn bring_back(node: &Node) -> Result<()> {
    let store = node.store.clone();
    let all = tokio::task::spawn_blocking(move || store.secrets()).await;
    for (name, value) in all.context("cannot read the store")?? {
        node.engine.set_secret(&name, Some(value));
    }
    Ok(())
}

fn unknown(name: &str) -> Problem {
    let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
    Problem::new(404, "M0501", format!("no secret named {shown}"))
}
