//! Activations that are answered with 202. The journal holds an activation from before the answer until
//! the activation's record is in the store. An activation that a restart interrupts runs again from its
//! beginning, under the same id.

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

/// The description of an accepted activation in the journal.
#[derive(Debug, Serialize, Deserialize)]
struct Accepted {
    kind: Runner,
    id: Id,
    /// The name by which the caller addressed the action. For an action in a binding, this name
    /// contains the binding's name.
    action: String,
    payload: Map<String, Value>,
    cause: Option<Id>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    caller: Option<String>,
    /// The name of the namespace, and the time at which it was created. If this is missing, the
    /// activation belongs to the default namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<(String, u64)>,
}

/// Accepts an activation. Once this function has returned the id, a crash does not lose the activation.
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

/// Accepts an activation that is already running, because its client no longer waits.
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
        // If the action was removed meanwhile, the activation fails and its record gives the reason.
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
        // An activation that panics counts as ended. If it were kept, it would panic again at each
        // start of the node.
        let ended = AssertUnwindSafe(ended).catch_unwind().await.unwrap_or(Err(NotRun::Failed));
        drop(place);
        settle(&owner, activation.id, &activation.found, started_ms, ended, kept).await;
    });
}

/// Removes an activation from the journal once its record is in the store. If the activation could not
/// run, the record gives the reason. If it did not run because the node is stopping, it stays in the
/// journal for the next start.
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
