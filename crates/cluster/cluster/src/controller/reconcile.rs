//! Decides what the cells must do, based on a `Function` resource.
//!
//! A change goes through three steps. Each is stored in the API server before the next one begins.
//! First, the controller makes an immutable revision and names it in the status. Second, every cell
//! stores the revision and starts an instance of it. Third, the controller gives the revision
//! traffic, and every cell follows. If a cell cannot start the revision, the traffic stays where it
//! is and the status says why.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ObjectMeta, PartialObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::events::{Event, EventType};
use kube::{Resource as _, ResourceExt as _};
use mote_core::rollout::{Share, Split, Traffic, sticky_key};
use serde_json::json;

use super::{Controller, journals, ready_condition};
use crate::resources::{
    BOUNDS, Bounds, Cell, DIGEST, Function, FunctionRevision, FunctionRevisionSpec, FunctionStatus,
    LABEL_FUNCTION, LABEL_NUMBER, READY, RUNTIME, WantedShare, revision_name,
};
use crate::source::{self, Archive};

/// How many revisions that receive no traffic are kept. The number is the same as on a node.
const REVISIONS_KEPT: usize = 10;

/// Handles the queue for the rest of the process.
pub(super) async fn keep(controller: Arc<Controller>) {
    loop {
        let name = controller.work.next().await;
        let handled = match &name[..] {
            journals::WORK => journals::place(&controller).await,
            name => function(&controller, name).await,
        };
        match handled {
            Ok(()) => controller.work.done(&name),
            Err(error) => {
                let pause = controller.work.again(&name);
                tracing::warn!("{name}: {error}; next attempt in {} ms", pause.as_millis());
            }
        }
    }
}

/// The data of a revision that the controller keeps in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) number: u64,
    pub(super) digest: String,
    pub(super) runtime: String,
    pub(super) bounds: Bounds,
    pub(super) created_ms: u64,
}

/// The highest number of a revision that the controller accepts, because somebody else may have
/// made the revision. Numbers grow by one, so real ones never reach this limit and always have a
/// successor.
const NUMBER_MAX: u64 = 1 << 40;

impl Known {
    /// Reads the labels and annotations of a revision. Returns `None` if no controller can have
    /// given the revision its number.
    fn of(revision: &impl kube::ResourceExt) -> Option<Self> {
        let labels = revision.labels();
        let number = labels.get(LABEL_NUMBER)?.parse().ok()?;
        let name = revision_name(labels.get(LABEL_FUNCTION)?, number);
        if number > NUMBER_MAX || revision.name_any() != name {
            return None;
        }
        let note = |key| revision.annotations().get(key).cloned().unwrap_or_default();
        let created = revision.creation_timestamp();
        Some(Self {
            number,
            digest: note(DIGEST),
            runtime: note(RUNTIME),
            bounds: Bounds {
                min: note(BOUNDS[0]).parse().unwrap_or(0),
                max: note(BOUNDS[1]).parse().ok(),
            },
            created_ms: created
                .and_then(|time| u64::try_from(time.0.as_millisecond()).ok())
                .unwrap_or(0),
        })
    }
}

impl Controller {
    /// Returns one revision of a function, even if the watch has not delivered it yet.
    async fn revision(
        &self,
        function: &Function,
        known: &[Known],
        number: u64,
    ) -> Result<Option<Known>, kube::Error> {
        if let Some(found) = known.iter().find(|known| known.number == number) {
            return Ok(Some(found.clone()));
        }
        let name = revision_name(&function.name_any(), number);
        let there = self.revisions_api.get_metadata_opt(&name).await?;
        Ok(there.filter(|there| is_owned(there, function)).and_then(|there| Known::of(&there)))
    }

    /// Returns the revisions of a function, newest first. Leaves out those that Kubernetes is still
    /// deleting for a removed function with the same name.
    pub(super) fn known(&self, function: &str) -> Vec<Known> {
        let uid = self.functions.get(function).and_then(|function| function.uid());
        let is_of = |revision: &Arc<PartialObjectMeta<FunctionRevision>>| {
            let named = revision.labels().get(LABEL_FUNCTION).is_some_and(|name| name == function);
            named
                && revision.owner_references().iter().any(|owner| Some(&owner.uid) == uid.as_ref())
        };
        let all = self.revisions.all();
        let of = all.iter().filter(|revision| is_of(revision));
        let mut known: Vec<Known> =
            of.filter_map(|revision| Known::of(revision.as_ref())).collect();
        known.sort_by_key(|known| std::cmp::Reverse(known.number));
        known
    }

    /// Returns the highest number that a revision of a function ever had, as far as the watches
    /// have delivered.
    pub(super) fn highest(function: &Function, known: &[Known]) -> Option<u64> {
        let told = function.status.as_ref().and_then(|status| status.highest);
        known.first().map(|newest| newest.number).max(told)
    }

    /// Makes the function's next revision after `highest`, which is the number that the caller has
    /// seen. If the watches have meanwhile delivered exactly the revision that the caller wants,
    /// returns that one.
    pub(super) async fn add_revision(
        &self,
        function: &Function,
        archive: Archive,
        highest: Option<u64>,
    ) -> Result<Known, kube::Error> {
        let name = function.name_any();
        let mut number = highest.unwrap_or(0) + 1;
        let bytes = archive.tar.len() as u64;
        let (archives, digest, tar) =
            (self.archives.clone(), archive.digest.clone(), archive.tar.clone());
        let stored = tokio::task::spawn_blocking(move || match source::inline(&tar) {
            Some(inline) => Ok(Some(inline)),
            None => archives.put(&digest, &tar).map(|()| None),
        });
        let stored = stored.await.map_err(|error| kube::Error::Service(error.into()))?;
        let inline = stored.map_err(|error| kube::Error::Service(error.into()))?;
        loop {
            let spec = FunctionRevisionSpec {
                function: name.clone(),
                number,
                runtime: archive.runtime.clone(),
                digest: archive.digest.clone(),
                bytes,
                archive: inline.clone(),
            };
            let mut revision = FunctionRevision::new(&revision_name(&name, number), spec);
            let owner = function.controller_owner_ref(&()).map(|owner| OwnerReference {
                block_owner_deletion: None, // would need the right to update finalizers
                ..owner
            });
            revision.metadata = ObjectMeta {
                name: revision.metadata.name.take(),
                owner_references: owner.map(|owner| vec![owner]),
                labels: Some(
                    [(LABEL_FUNCTION, name.clone()), (LABEL_NUMBER, number.to_string())]
                        .map(|(key, value)| (key.to_owned(), value))
                        .into(),
                ),
                annotations: Some(annotations(&archive)),
                ..ObjectMeta::default()
            };
            match self.revisions_api.create(&PostParams::default(), &revision).await {
                Ok(_) => {
                    tracing::info!("{name}: revision {number} is made, sha256:{}", archive.digest);
                    return Ok(known_as(number, archive));
                }
                // The revision exists: either this controller made it and the watch has not
                // delivered it yet, or it belongs to a removed function.
                Err(kube::Error::Api(error)) if error.code == 409 => {
                    let there = self.revisions_api.get(&revision_name(&name, number)).await?;
                    if is_owned(&there, function) && there.spec.digest == archive.digest {
                        return Ok(known_as(number, archive));
                    }
                    number += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn annotations(archive: &Archive) -> BTreeMap<String, String> {
    let Bounds { min, max } = archive.bounds;
    let mut notes = vec![
        (DIGEST, archive.digest.clone()),
        (RUNTIME, archive.runtime.clone()),
        (BOUNDS[0], min.to_string()),
    ];
    notes.extend(max.map(|max| (BOUNDS[1], max.to_string())));
    notes.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Whether a revision belongs to exactly this function, and not to a removed function with the same
/// name.
fn is_owned(revision: &impl kube::ResourceExt, function: &Function) -> bool {
    revision.owner_references().iter().any(|owner| Some(&owner.uid) == function.uid().as_ref())
}

fn known_as(number: u64, archive: Archive) -> Known {
    let Archive { digest, runtime, bounds, .. } = archive;
    Known { number, digest, runtime, bounds, created_ms: 0 }
}

async fn function(controller: &Controller, name: &str) -> Result<(), kube::Error> {
    let _turn = controller.turn(name).await;
    let Some(function) = controller.functions.get(name) else {
        sweep(controller).await;
        return Ok(());
    };
    if function.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let before = function.status.clone().unwrap_or_default();
    let known = controller.known(name);
    let latest = match latest(controller, &function, &before, &known).await? {
        Ok(latest) => latest,
        Err(text) => {
            let status = FunctionStatus {
                observed_generation: function.metadata.generation.unwrap_or(0),
                ..before
            };
            return write(controller, &function, status, condition("False", "Invalid", text)).await;
        }
    };
    let live = controller.live_cells();
    let (traffic, condition) = decide(&function, latest.number, &live);
    let serving = count_serving(&function, traffic.as_ref(), &live);
    let main = traffic.as_ref().map(|traffic| traffic.split.main());
    let of_main = known.iter().find(|known| Some(known.number) == main).unwrap_or(&latest);
    let bounds = bounds(&function, of_main.bounds);
    let status = FunctionStatus {
        observed_generation: function.metadata.generation.unwrap_or(0),
        runtime: Some(latest.runtime.clone()),
        revision: main,
        latest: Some(latest.number),
        highest: before.highest.max(Some(latest.number)),
        split: traffic.as_ref().map(|traffic| traffic.split.to_string()),
        traffic: traffic.clone(),
        instances: bounds.min,
        selector: Some(format!("mote.dev/function={name}")),
        home: home(name, before.home.as_deref(), &live),
        shares: shares(name, bounds, &live),
        cells: Some(format!("{serving}/{}", live.len())),
        conditions: before.conditions,
    };
    write(controller, &function, status, condition).await?;
    prune(controller, name, latest.number, traffic.as_ref()).await
}

/// Returns the newest revision that the resource asks for, and makes it if it does not exist.
/// Returns a text if the function's owner must correct something.
async fn latest(
    controller: &Controller,
    function: &Function,
    before: &FunctionStatus,
    known: &[Known],
) -> Result<Result<Known, String>, kube::Error> {
    if let Some(code) = &function.spec.code {
        let found = controller.revision(function, known, code.revision).await?;
        return Ok(found.ok_or_else(|| {
            format!(
                "spec.code.revision: there is no FunctionRevision {}; deploy the code with mote deploy, or replace spec.code with spec.files",
                revision_name(&function.name_any(), code.revision)
            )
        }));
    }
    let generation = function.metadata.generation.unwrap_or(0);
    let is_invalid = ready_condition(function).is_some_and(|ready| ready.reason == "Invalid");
    let is_seen = before.observed_generation == generation && !is_invalid;
    if let Some(number) = before.latest.filter(|_| is_seen)
        && let Some(found) = controller.revision(function, known, number).await?
    {
        return Ok(Ok(found));
    }
    let name = function.name_any();
    // The mirror does not keep the files.
    let Some(whole) = controller.functions_api.get_opt(&name).await? else {
        return Ok(Err("it was removed".to_owned()));
    };
    let wanted = whole.spec;
    let packed = tokio::task::spawn_blocking(move || source::archive(&name, &wanted)).await;
    let archive = match packed.map_err(|error| kube::Error::Service(error.into()))? {
        Ok(archive) => archive,
        Err(text) => return Ok(Err(text)),
    };
    // The newest revision may already fit: the settings were changed and changed back, or another
    // controller has made the revision.
    let highest = Controller::highest(function, known);
    if let Some(number) = highest
        && let Some(newest) = controller.revision(function, known, number).await?
        && newest.digest == archive.digest
    {
        return Ok(Ok(newest));
    }
    Ok(Ok(controller.add_revision(function, archive, highest).await?))
}

/// Returns the split that the resource asks for.
fn wanted_split(wanted: Option<&[WantedShare]>, latest: u64) -> Result<Split, String> {
    let Some(wanted) = wanted else { return Ok(Split::whole(latest)) };
    let mut shares: Vec<Share> = Vec::new();
    for WantedShare { revision, percent, tag, .. } in wanted {
        let revision = revision.unwrap_or(latest);
        // The list may name the newest revision twice: as `latest` and by its number.
        match shares.iter_mut().find(|share| share.revision == revision) {
            Some(share) => {
                share.percent += percent;
                share.tag = share.tag.take().or_else(|| tag.clone());
            }
            None => shares.push(Share { revision, percent: *percent, tag: tag.clone() }),
        }
    }
    Split::new(shares).map_err(|error| format!("spec.traffic: {error}"))
}

/// Decides what the cells must serve, and reports whether they do. The traffic changes only if
/// every cell can start the new revisions.
fn decide(function: &Function, latest: u64, live: &[Arc<Cell>]) -> (Option<Traffic>, Condition) {
    let now = function.status.as_ref().and_then(|status| status.traffic.clone());
    let wanted = match wanted_split(function.spec.traffic.as_deref(), latest) {
        Ok(wanted) => wanted,
        Err(text) => return (now, condition("False", "Invalid", text)),
    };
    if live.is_empty() {
        let text = "no cell is ready; see: kubectl get pods -A -l app.kubernetes.io/name=mote-cell";
        return (now, condition("False", "NoCells", text.to_owned()));
    }
    let held =
        |cell: &Cell, number: u64| cell.of(function)?.revisions.get(&number.to_string()).cloned();
    let mut waiting = Vec::new();
    for share in wanted.shares() {
        if now.as_ref().is_some_and(|now| now.split.reaches(share.revision)) {
            continue;
        }
        for cell in live {
            match held(cell, share.revision) {
                Some(state) if state == READY => {}
                Some(error) => {
                    let text = format!(
                        "revision {} does not start on {}: {error}",
                        share.revision,
                        title(cell)
                    );
                    return (now, condition("False", "NotStarted", text));
                }
                None => waiting.push(format!("revision {} on {}", share.revision, title(cell))),
            }
        }
    }
    if !waiting.is_empty() {
        return (now, condition("Unknown", "Starting", some(&waiting)));
    }
    let traffic = match now {
        None => Traffic::new(wanted.clone()),
        Some(now) if now.split == wanted => now,
        // Returning to a revision that served before is a rollback. A second rollback then goes
        // further back.
        Some(now) if !wanted.is_divided() && now.before.contains(&wanted.main()) => {
            let mut back =
                now.rolled_back(wanted.main()).unwrap_or_else(|_| now.moved(wanted.clone()));
            back.split = wanted.clone();
            back
        }
        Some(now) => now.moved(wanted.clone()),
    };
    let text = traffic.split.to_string();
    for cell in live {
        let has = cell.of(function);
        if has.and_then(|has| has.split.as_deref()) != Some(&text) {
            if let Some(error) = has.and_then(|has| has.error.as_ref()) {
                let text = format!("{}: {error}", title(cell));
                return (Some(traffic), condition("False", "NotServed", text));
            }
            waiting.push(title(cell));
        }
    }
    let limited =
        live.iter().find_map(|cell| Some((cell, cell.of(function)?.bounds_error.as_ref()?)));
    if let Some((cell, error)) = limited {
        let text = format!("scale, on {}: {error}", title(cell));
        return (Some(traffic), condition("False", "NotScaled", text));
    }
    if waiting.is_empty() {
        return (Some(traffic), condition("True", "Serving", text));
    }
    (Some(traffic), condition("Unknown", "Switching", some(&waiting)))
}

/// Returns the limits of a function for the whole cluster: those in the resource, otherwise those
/// of the manifest.
fn bounds(function: &Function, of_revision: Bounds) -> Bounds {
    let scale = function.spec.settings.get("scale");
    let number = |key: &str| {
        let number = scale.and_then(|scale| scale.get(key)?.as_u64());
        number.map(|number| u32::try_from(number).unwrap_or(u32::MAX))
    };
    Bounds { min: number("min").unwrap_or(of_revision.min), max: number("max").or(of_revision.max) }
}

/// Returns each cell's part of the limits; empty if there are no limits. The function's name
/// determines which cells get more, so that functions with few instances spread over the cells.
fn shares(name: &str, bounds: Bounds, live: &[Arc<Cell>]) -> BTreeMap<String, Bounds> {
    if bounds == Bounds::default() || live.is_empty() {
        return BTreeMap::new();
    }
    let count = u32::try_from(live.len()).unwrap_or(u32::MAX);
    let first = (sticky_key(name.as_bytes()) % u64::from(count)) as usize;
    let cells = live.iter().cycle().skip(first).take(live.len());
    (0..).zip(cells).map(|(index, cell)| (cell.name_any(), bounds.part(index, count))).collect()
}

/// Returns the cell that runs the MQTT subscriptions of a function and, without NATS, its
/// schedules. It stays the same cell as before if possible. Otherwise the names determine the cell,
/// so that functions spread over the cells.
fn home(name: &str, before: Option<&str>, live: &[Arc<Cell>]) -> Option<String> {
    let names = || live.iter().map(|cell| cell.name_any());
    let stays = before.and_then(|before| names().find(|cell| cell == before));
    let weight = |cell: &String| sticky_key(format!("{name} {cell}").as_bytes());
    stays.or_else(|| names().max_by_key(weight)).or(before.map(str::to_owned))
}

fn title(cell: &Cell) -> String {
    match &cell.spec.node {
        Some(node) => format!("{} ({node})", cell.name_any()),
        None => cell.name_any(),
    }
}

/// Formats a list, cut to a few entries because a cluster may have many cells.
fn some(waiting: &[String]) -> String {
    let shown = waiting.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
    let more = waiting.len().saturating_sub(5);
    if more > 0 {
        format!("waiting for {shown} and {more} more")
    } else {
        format!("waiting for {shown}")
    }
}

fn count_serving(function: &Function, traffic: Option<&Traffic>, live: &[Arc<Cell>]) -> usize {
    let Some(text) = traffic.map(|traffic| traffic.split.to_string()) else { return 0 };
    let serves =
        |cell: &&Arc<Cell>| cell.of(function).and_then(|has| has.split.as_ref()) == Some(&text);
    live.iter().filter(serves).count()
}

fn condition(status: &str, reason: &str, message: String) -> Condition {
    Condition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: Time(Timestamp::now()),
        observed_generation: None,
    }
}

/// Writes the status if it differs from the current one, and an event if the reason has changed.
async fn write(
    controller: &Controller,
    function: &Function,
    mut status: FunctionStatus,
    mut ready: Condition,
) -> Result<(), kube::Error> {
    ready.observed_generation = Some(status.observed_generation);
    let before = ready_condition(function);
    if let Some(before) = before.filter(|before| before.status == ready.status) {
        ready.last_transition_time = before.last_transition_time.clone();
    }
    let is_told = before.is_some_and(|it| it.reason == ready.reason && it.message == ready.message);
    status.conditions.retain(|condition| condition.type_ != "Ready");
    status.conditions.push(ready.clone());
    if function.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let mut patch = json!({"status": status});
    // A merge patch must name what it removes.
    let before_shares = function.status.iter().flat_map(|status| status.shares.keys());
    for cell in before_shares.filter(|cell| !status.shares.contains_key(*cell)) {
        patch["status"]["shares"][cell] = serde_json::Value::Null;
    }
    let patch = Patch::Merge(patch);
    let name = function.name_any();
    match controller.functions_api.patch_status(&name, &PatchParams::default(), &patch).await {
        // The function was removed in the meantime.
        Err(kube::Error::Api(error)) if error.code == 404 => return Ok(()),
        written => written.map(|_| ())?,
    }
    let is_final = ready.status != "Unknown";
    if is_final && !is_told {
        tell(controller, function, ready).await;
    }
    Ok(())
}

/// Writes an event with the text of a condition. Events only inform people; nothing depends on
/// them.
async fn tell(controller: &Controller, function: &Function, condition: Condition) {
    let type_ = if condition.status == "True" { EventType::Normal } else { EventType::Warning };
    let note = condition.message.chars().take(1_000).collect();
    let event = Event {
        type_,
        reason: condition.reason,
        note: Some(note),
        action: "Reconcile".to_owned(),
        secondary: None,
    };
    if let Err(error) = controller.recorder.publish(&event, &function.object_ref(&())).await {
        let name = function.name_any();
        tracing::warn!("{name}: the event cannot be written: {error}");
    }
}

/// Removes revisions that are no longer needed.
async fn prune(
    controller: &Controller,
    name: &str,
    latest: u64,
    traffic: Option<&Traffic>,
) -> Result<(), kube::Error> {
    let known = controller.known(name);
    let mut removed = false;
    for known in known.iter().skip(REVISIONS_KEPT) {
        let needed = traffic.is_some_and(|traffic| traffic.needs(known.number));
        if needed || known.number == latest {
            continue;
        }
        let name = revision_name(name, known.number);
        match controller.revisions_api.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(error)) if error.code == 404 => {}
            other => {
                other?;
            }
        }
        removed = true;
    }
    if removed {
        sweep(controller).await;
    }
    Ok(())
}

/// After this age, an archive either has a revision or will never have one.
const ARCHIVE_AGE: Duration = Duration::from_secs(3_600);

/// Removes the archives of revisions that are gone.
async fn sweep(controller: &Controller) {
    let named: std::collections::HashSet<String> = controller
        .revisions
        .all()
        .iter()
        .filter_map(|revision| revision.annotations().get(DIGEST).cloned())
        .collect();
    let archives = controller.archives.clone();
    let swept = tokio::task::spawn_blocking(move || {
        archives.sweep(ARCHIVE_AGE, |digest| named.contains(digest))
    });
    if let Ok(Err(error)) = swept.await {
        tracing::warn!("archives that are not needed cannot be removed: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(json: serde_json::Value) -> Function {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "mote.dev/v1alpha1", "kind": "Function", "metadata": {"name": "f"},
            "spec": json["spec"], "status": json["status"],
        }))
        .unwrap()
    }

    fn cell(name: &str, functions: serde_json::Value) -> Arc<Cell> {
        Arc::new(
            serde_json::from_value(serde_json::json!({
                "apiVersion": "mote.dev/v1alpha1", "kind": "Cell", "metadata": {"name": name},
                "spec": {"address": "192.0.2.1"},
                "status": {"synced": true, "functions": functions},
            }))
            .unwrap(),
        )
    }

    fn served(split: &str) -> serde_json::Value {
        json!({"f": {"split": split, "revisions": {"1": "ready", "2": "ready"}}})
    }

    #[test]
    fn traffic_moves_when_every_cell_is_ready_and_is_ready_when_every_cell_follows() {
        let status = json!({"traffic": {"split": [{"revision": 1, "percent": 100}]}});
        let wanted = function(json!({"spec": {}, "status": status}));
        let old = json!({"f": {"split": "@1 100 %", "revisions": {"1": "ready"}}});
        let step = |cells: &[Arc<Cell>]| {
            let (traffic, ready) = decide(&wanted, 2, cells);
            (traffic.unwrap().split.to_string(), ready.status, ready.reason)
        };
        let is = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        let a = cell("a", served("@1 100 %"));
        let b = cell("b", old.clone());
        assert_eq!(step(&[a.clone(), b]), is("@1 100 %", "Unknown", "Starting"));
        let mut failing = old;
        failing["f"]["revisions"]["2"] = json!("M0411: it did not become ready");
        let b = cell("b", failing);
        assert_eq!(step(&[a.clone(), b]), is("@1 100 %", "False", "NotStarted"));
        let b = cell("b", served("@2 100 %"));
        assert_eq!(step(&[a, b.clone()]), is("@2 100 %", "Unknown", "Switching"));
        assert_eq!(step(&[b]), is("@2 100 %", "True", "Serving"));
        assert_eq!(step(&[]), is("@1 100 %", "False", "NoCells"));
    }

    #[test]
    fn what_a_cell_had_of_a_removed_function_does_not_count() {
        let mut wanted = function(json!({"spec": {}, "status": {}}));
        wanted.metadata.uid = Some("new".to_owned());
        let step = |uid: &str| {
            let mut told = served("@1 100 %");
            told["f"]["uid"] = json!(uid);
            let (traffic, ready) = decide(&wanted, 1, &[cell("a", told)]);
            (traffic.is_some(), ready.reason)
        };
        assert_eq!(step("old"), (false, "Starting".to_owned()));
        assert_eq!(step("new"), (true, "Serving".to_owned()));
    }

    #[test]
    fn bounds_that_a_cell_cannot_follow_are_told() {
        let mut has = served("@1 100 %");
        has["f"]["boundsError"] = json!("M0303: min 9 is above max 2");
        let (traffic, ready) = decide(&function(json!({"spec": {}})), 1, &[cell("a", has)]);
        assert_eq!(traffic.unwrap().split.to_string(), "@1 100 %");
        assert_eq!(ready.reason, "NotScaled");
        assert!(ready.message.contains("min 9"), "{}", ready.message);
    }

    #[test]
    fn going_back_to_an_earlier_revision_shortens_the_history() {
        let status =
            json!({"traffic": {"split": [{"revision": 3, "percent": 100}], "before": [1, 2]}});
        let spec = json!({"traffic": [{"revision": 2, "percent": 100}]});
        let wanted = function(json!({"spec": spec, "status": status}));
        let (traffic, _) = decide(&wanted, 3, &[cell("a", served("@3 100 %"))]);
        let traffic = traffic.unwrap();
        assert_eq!(traffic.split.main(), 2);
        assert_eq!(traffic.before, [1]);
        assert_eq!(traffic.back(), Some(1));
    }

    #[test]
    fn bounds_hold_for_the_cluster_and_one_cell_is_home() {
        let cells = ["a", "b", "c"].map(|name| cell(name, json!({})));
        let parts = |min, max| {
            let shares = shares("f", Bounds { min, max }, &cells);
            let mut parts: Vec<_> = shares.into_values().map(|part| (part.min, part.max)).collect();
            parts.sort_unstable_by(|one, other| other.cmp(one));
            parts
        };
        assert_eq!(parts(4, Some(7)), [(2, Some(3)), (1, Some(2)), (1, Some(2))]);
        assert_eq!(parts(1, None), [(1, None), (0, None), (0, None)]);
        assert_eq!(parts(0, Some(2)), [(0, Some(1)), (0, Some(1)), (0, Some(0))]);
        let alone = |name: &str| {
            let shares = shares(name, Bounds { min: 0, max: Some(1) }, &cells);
            shares.into_iter().find(|(_, part)| part.max == Some(1)).unwrap().0
        };
        let homes: std::collections::BTreeSet<_> =
            (0..20).map(|number| alone(&format!("f{number}"))).collect();
        assert_eq!(homes.len(), 3, "functions with one instance spread over the cells");
        assert!(parts(0, None).is_empty());
        let first = home("f", None, &cells).unwrap();
        assert_eq!(home("f", Some(&first), &cells), Some(first.clone()));
        let others: Vec<_> =
            cells.iter().filter(|cell| cell.name_any() != first).cloned().collect();
        assert_ne!(home("f", Some(&first), &others), Some(first.clone()));
        // Without any cell, the home stays.
        assert_eq!(home("f", Some(&first), &[]), Some(first));
    }

    #[test]
    fn a_wanted_split_is_checked() {
        let share = |revision, percent, tag: Option<&str>| WantedShare {
            revision,
            percent,
            tag: tag.map(str::to_owned),
            latest: revision.is_none().then_some(true),
        };
        let split = |shares: &[WantedShare]| wanted_split(Some(shares), 7).map(|it| it.to_string());
        assert_eq!(wanted_split(None, 7).unwrap().to_string(), "@7 100 %");
        assert_eq!(
            split(&[share(Some(3), 90, None), share(None, 10, Some("next"))]).unwrap(),
            "@3 90 %, @7:next 10 %"
        );
        assert_eq!(split(&[share(Some(7), 90, None), share(None, 10, None)]).unwrap(), "@7 100 %");
        assert!(split(&[share(Some(3), 90, None)]).is_err());
    }
}
