//! Writes the state of the cell into the status of its resource. Changes that arrive during a
//! request go into the next request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use crate::resources::{Cell, CellFunction};

/// Longest text of an error. A status with many errors must stay below the size limit of an object.
const ERROR_BYTES_MAX: usize = 1_000;
/// Longest text of an error of one revision. A function may have eight of these.
const REVISION_ERROR_BYTES_MAX: usize = 200;

/// The changes to be written. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Report {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    /// The last reported state of each function, by function.
    told: BTreeMap<String, CellFunction>,
    /// Every revision that was ever reported, by function. A merge patch must name what it removes.
    revisions: BTreeMap<String, BTreeSet<String>>,
    /// The changes that the next request writes. `None` removes a function.
    next: BTreeMap<String, Option<CellFunction>>,
    synced: Option<bool>,
    /// The journals that the cell runs, and all journals that a merge patch must name to remove
    /// them.
    held: Option<BTreeMap<String, String>>,
    journals: BTreeSet<String>,
}

impl Report {
    /// Reports the state of a function at the cell.
    pub(super) fn tell(&self, name: &str, mut has: CellFunction) {
        has.error.iter_mut().for_each(|text| shorten(text, ERROR_BYTES_MAX));
        has.revisions.values_mut().for_each(|text| shorten(text, REVISION_ERROR_BYTES_MAX));
        let mut state = self.state.lock();
        if state.told.get(name) != Some(&has) {
            state.told.insert(name.to_owned(), has.clone());
            let numbers = has.revisions.keys().cloned();
            state.revisions.entry(name.to_owned()).or_default().extend(numbers);
            state.next.insert(name.to_owned(), Some(has));
            self.changed.notify_one();
        }
    }

    /// Reports that the cell no longer has a function.
    pub(super) fn forget(&self, name: &str) {
        let mut state = self.state.lock();
        if state.told.remove(name).is_some() {
            state.next.insert(name.to_owned(), None);
            self.changed.notify_one();
        }
    }

    /// Returns the last reported state of a function.
    pub(super) fn told(&self, name: &str) -> CellFunction {
        self.state.lock().told.get(name).cloned().unwrap_or_default()
    }

    /// Writes everything again, because the resource was created again.
    pub(super) fn tell_all(&self) {
        let mut state = self.state.lock();
        let told = state.told.clone();
        state.next.extend(told.into_iter().map(|(name, has)| (name, Some(has))));
        self.changed.notify_one();
    }

    /// Reports the journals that the cell runs.
    pub(super) fn holds(&self, held: BTreeMap<String, String>) {
        let mut state = self.state.lock();
        if state.held.as_ref() != Some(&held) {
            state.journals.extend(held.keys().cloned());
            state.held = Some(held);
            self.changed.notify_one();
        }
    }

    /// Reports whether the cell has had all functions at least once.
    pub(super) fn synced(&self, synced: bool) {
        self.state.lock().synced = Some(synced);
        self.changed.notify_one();
    }
}

fn shorten(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str(" …");
    }
}

/// Starts the task that writes. The first request replaces the report of an earlier agent.
pub(super) fn start(cells: Api<Cell>, name: String) -> Report {
    let report = Report::default();
    let reporting = report.clone();
    tokio::spawn(async move {
        let mut is_first = true;
        let mut pause = Duration::from_millis(100);
        loop {
            reporting.changed.notified().await;
            let (next, status) = {
                let mut state = reporting.state.lock();
                let next = std::mem::take(&mut state.next);
                let status = status(&next, &state);
                (next, status)
            };
            let written = write(&cells, &name, &status, is_first).await;
            match written {
                Ok(()) => {
                    let mut state = reporting.state.lock();
                    for (name, _) in next.iter().filter(|(_, has)| has.is_none()) {
                        // If a function with this name was made meanwhile, its next report still
                        // needs these revisions.
                        if !state.told.contains_key(name) {
                            state.revisions.remove(name);
                        }
                    }
                    is_first = false;
                    pause = Duration::from_millis(100);
                }
                Err(error) => {
                    tracing::warn!("the cell's status cannot be written: {error}");
                    {
                        let mut state = reporting.state.lock();
                        for (name, has) in next {
                            state.next.entry(name).or_insert(has);
                        }
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(10));
                    reporting.changed.notify_one();
                }
            }
        }
    });
    report
}

async fn write(
    cells: &Api<Cell>,
    name: &str,
    status: &Value,
    is_first: bool,
) -> Result<(), kube::Error> {
    if is_first {
        // A merge patch cannot remove entries that this agent does not know, so all entries are
        // removed first.
        let empty = json!({"status": {"synced": false, "functions": null, "held": null}});
        cells.patch_status(name, &PatchParams::default(), &Patch::Merge(empty)).await?;
    }
    let patch = json!({"status": status});
    cells.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Builds a merge patch from the changes. `null` removes an entry.
fn status(next: &BTreeMap<String, Option<CellFunction>>, state: &State) -> Value {
    let entry = |name: &String, has: &CellFunction| {
        let known = state.revisions.get(name).into_iter().flatten();
        let revisions: Map<String, Value> =
            known.map(|number| (number.clone(), json!(has.revisions.get(number)))).collect();
        json!({"uid": has.uid, "split": has.split, "error": has.error, "revisions": revisions})
    };
    let functions: Map<String, Value> = next
        .iter()
        .map(|(name, has)| (name.clone(), has.as_ref().map_or(Value::Null, |has| entry(name, has))))
        .collect();
    let mut status = Map::new();
    if !functions.is_empty() {
        status.insert("functions".to_owned(), Value::Object(functions));
    }
    if let Some(synced) = state.synced {
        status.insert("synced".to_owned(), synced.into());
    }
    if let Some(held) = &state.held {
        let of = |name: &String| (name.clone(), json!(held.get(name)));
        status.insert("held".to_owned(), state.journals.iter().map(of).collect());
    }
    Value::Object(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_of_a_removed_function_are_removed_also_if_it_is_made_again_at_once() {
        let report = Report::default();
        let with = |number: &str| CellFunction {
            revisions: BTreeMap::from([(number.to_owned(), "ready".to_owned())]),
            ..CellFunction::default()
        };
        report.tell("a", with("3"));
        report.forget("a");
        report.tell("a", with("1"));
        let state = report.state.lock();
        let told = status(&state.next, &state);
        assert_eq!(told["functions"]["a"]["revisions"], json!({"1": "ready", "3": null}));
    }

    #[test]
    fn only_changes_are_told_and_errors_are_short() {
        let report = Report::default();
        let text = "é".repeat(2_000);
        let revisions = BTreeMap::from([("7".to_owned(), text.clone())]);
        let long = CellFunction { error: Some(text), revisions, ..CellFunction::default() };
        report.tell("a", long.clone());
        assert!(report.told("a").error.is_some_and(|text| text.len() < ERROR_BYTES_MAX + 10));
        assert!(report.told("a").revisions["7"].len() < REVISION_ERROR_BYTES_MAX + 10);
        report.state.lock().next.clear();
        report.tell("a", long);
        assert!(report.state.lock().next.is_empty());
        report.forget("a");
        assert_eq!(report.state.lock().next.get("a"), Some(&None));
        report.forget("never");
        assert_eq!(report.state.lock().next.len(), 1);
    }
}
