//! Activations that are answered with 202. The journal holds each of them from before the answer
//! until its record is in the store. An activation that a restart interrupted runs again under its
//! id, from its beginning.

use std::panic::AssertUnwindSafe;

use crate::compat::journal::{self, Kept, Runner};
use crate::compat::node::Space;
use crate::compat::queue::Resumed;
use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::entities::{Entity, What, unix_ms};
use super::id::Id;
use super::limits::Place;
use super::not_run::NotRun;
use super::run::{self, Activation, Ended, Found};
use super::{Refused, Whisk};

/// The description of one in the journal.
#[derive(Debug, Serialize, Deserialize)]
struct Accepted {
    kind: Runner,
    id: Id,
    /// The action as the caller named it: in a binding, this is the binding's name.
    action: String,
    payload: Map<String, Value>,
    cause: Option<Id>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    caller: Option<String>,
    /// The namespace and when it was made; the default one if this is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<(String, u64)>,
}

/// Accepts an activation: once this has returned its id, a crash does not lose it.
pub(super) async fn accept(
    whisk: &Whisk,
    action: &str,
    found: Found,
    payload: Map<String, Value>,
    (cause, caller): (Option<Id>, Option<String>),
) -> Result<Id, Refused> {
    let place = whisk.limits.of(found.space.as_ref()).place()?;
    let whole = Value::Object(payload.clone());
    run::check_size(&found, &whole)?;
    let id = run::new_id(whisk);
    let kept = keep(whisk, id, (action, &found), payload, (cause, caller.clone())).await?;
    spawn(whisk, Activation { id, found, payload: whole, cause, caller }, place, kept);
    Ok(id)
}

/// Accepts an activation that runs already, because its client no longer waits.
pub(super) async fn accept_running(
    whisk: &Whisk,
    (id, caller): (Id, Option<String>),
    found: Found,
    action: &str,
    payload: Map<String, Value>,
    running: JoinHandle<Result<Ended, NotRun>>,
) -> Result<(), Refused> {
    let kept = keep(whisk, id, (action, &found), payload, (None, caller)).await?;
    let owner = whisk.clone();
    whisk.tasks.spawn(async move {
        let started_ms = unix_ms();
        let ended = running.await.unwrap_or(Err(NotRun::Failed));
        settle(&owner, id, &found, started_ms, ended, kept).await;
    });
    Ok(())
}

/// Runs the activations that an earlier run of the node accepted.
pub(super) async fn resume(whisk: &Whisk, mut resumed: mpsc::UnboundedReceiver<Resumed>) {
    while let Some((kept, record)) = resumed.recv().await {
        let accepted = journal::parts(&record)
            .and_then(|[description, ..]| serde_json::from_slice::<Accepted>(&description).ok());
        let Some(Accepted { id, action, payload, cause, caller, namespace, .. }) = accepted else {
            tracing::error!(
                number = kept.number(),
                "cannot parse an accepted activation; it is kept"
            );
            continue;
        };
        if whisk.activations.get(&id.to_string()).is_some() {
            kept.forget().await;
            continue;
        }
        let space = namespace.map(|(name, created_at_ms)| {
            let name = name.into();
            Space { name, created_at_ms }
        });
        let place = whisk.limits.of(space.as_ref()).kept_place();
        // An activation whose action was removed fails, and its record says so.
        let found = run::find(whisk, space.as_ref(), &action).unwrap_or_else(|_| Found {
            space,
            name: action,
            entity: Entity::new(What::Trigger),
            parameters: Map::new(),
        });
        let payload = Value::Object(payload);
        spawn(whisk, Activation { id, found, payload, cause, caller }, place, kept);
    }
}

async fn keep(
    whisk: &Whisk,
    id: Id,
    (action, found): (&str, &Found),
    payload: Map<String, Value>,
    (cause, caller): (Option<Id>, Option<String>),
) -> Result<Kept, Refused> {
    let action = action.to_owned();
    let namespace = found.space.as_ref().map(|space| (space.name.to_string(), space.created_at_ms));
    let kind = Runner::Activation;
    let accepted = Accepted { kind, id, action, payload, cause, caller, namespace };
    let record = journal::record(&accepted, b"", b"");
    Ok(whisk.context.queue.journal.keep(record).await?)
}

fn spawn(whisk: &Whisk, activation: Activation, place: Place, kept: Kept) {
    let owner = whisk.clone();
    whisk.tasks.spawn(async move {
        let started_ms = unix_ms();
        let ended = run::activate_kept(&owner, &activation, &kept);
        // An activation that makes the node panic counts as ended, because it would do so again at
        // each start.
        let ended = AssertUnwindSafe(ended).catch_unwind().await.unwrap_or(Err(NotRun::Failed));
        drop(place);
        settle(&owner, activation.id, &activation.found, started_ms, ended, kept).await;
    });
}

/// Forgets an accepted activation once its record is in the store; if it could not run, the record
/// gives the reason. An activation that did not run because the node stops stays for the next
/// start.
async fn settle(
    whisk: &Whisk,
    id: Id,
    found: &Found,
    started_ms: u64,
    ended: Result<Ended, NotRun>,
    kept: Kept,
) {
    match ended {
        Ok(_) => {}
        Err(NotRun::Stopping) => {
            tracing::warn!(
                number = kept.number(),
                "an activation could not run because the node is stopping; it is kept"
            );
            return;
        }
        Err(reason) => {
            let Refused(_, text) = reason.into();
            let space = found.space.as_ref();
            let mut record = run::record(space, &found.name, &found.entity, id, started_ms);
            record["response"] = run::response(3, json!({ "error": text }));
            whisk.activations.add(id, record);
        }
    }
    whisk.activations.written().await;
    kept.forget().await;
}
