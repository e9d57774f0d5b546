//! Decides which cell runs the journals that no cell runs: the journals of cells that are gone, and
//! the journal of schedules. This happens only if the cells have journals in NATS.
//!
//! The decision is stored in the status of the cells, so a new controller continues with it. NATS
//! ensures that a journal has only one owner, so a wrong decision costs time but does no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use mote_core::rollout::sticky_key;
use serde_json::json;

use super::{Controller, is_ready};
use crate::resources::{Cell, EMPTY, POD, SCHEDULES};

/// The queue entry that stands for the journals. No function has this name.
pub(super) const WORK: &str = "_journals";
/// How long a pod may be not ready, for example because it is stopping, before other cells run its
/// journals. The time is longer than a pod takes to stop, and shorter than the time for which
/// schedules make up.
const NOT_READY: Duration = Duration::from_secs(50);

/// Whether a cell can run journals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// The cell takes part.
    Live,
    /// The cell keeps its journals, and receives no more.
    Unsure,
    /// The cell runs nothing any more.
    Gone,
}

/// The facts about a cell on which this decision depends.
#[derive(Debug, Clone)]
struct Seen {
    name: String,
    own: Option<String>,
    presence: Presence,
    /// Whether this controller has heard the pulse of the cell.
    is_heard: bool,
    /// The journals that the cell should run in addition to its own.
    has: BTreeSet<String>,
    /// The journals among `has` that the cell has found empty.
    empty: BTreeSet<String>,
}

/// Returns the new journals of each cell for which they change. A cell that is gone keeps a journal
/// if no other cell can run it.
fn assign(cells: &[Seen]) -> BTreeMap<String, BTreeSet<String>> {
    let present = || cells.iter().filter(|cell| cell.presence != Presence::Gone);
    let able: Vec<&Seen> =
        cells.iter().filter(|cell| cell.presence == Presence::Live && cell.own.is_some()).collect();
    let mut journals: BTreeSet<&str> =
        cells.iter().flat_map(|cell| &cell.has).map(|s| &**s).collect();
    for cell in cells.iter().filter(|cell| cell.presence == Presence::Gone) {
        journals.extend(cell.own.as_deref());
    }
    if cells.iter().any(|cell| cell.own.is_some()) {
        journals.insert(SCHEDULES);
    }
    let mut lists: BTreeMap<&str, BTreeSet<String>> =
        cells.iter().map(|cell| (&*cell.name, BTreeSet::new())).collect();
    for journal in journals {
        let owner = cells.iter().find(|cell| cell.own.as_deref() == Some(journal));
        let holders: Vec<&Seen> = present().filter(|cell| cell.has.contains(journal)).collect();
        // A cell that this controller has not heard may still be lost, as the previous controller
        // has found.
        let runs_its_own = owner.is_some_and(|owner| {
            owner.presence != Presence::Gone && (owner.is_heard || holders.is_empty())
        });
        // The journal's cell was removed, and the journal is empty, so the journal can be
        // forgotten.
        let is_done = owner.is_none()
            && journal != SCHEDULES
            && !holders.is_empty()
            && holders.iter().all(|cell| cell.empty.contains(journal));
        if runs_its_own || is_done {
            continue;
        }
        let weight = |cell: &&&Seen| sticky_key(format!("{journal} {}", cell.name).as_bytes());
        let next = holders.first().or_else(|| able.iter().max_by_key(weight)).copied();
        match next {
            Some(next) => {
                lists.entry(&next.name).or_default().insert(journal.to_owned());
            }
            // No cell can run the journal, so its entry stays where it is.
            None => {
                for cell in cells.iter().filter(|cell| cell.has.contains(journal)) {
                    lists.entry(&cell.name).or_default().insert(journal.to_owned());
                }
            }
        }
    }
    let differs = |cell: &&Seen| lists.get(&*cell.name) != Some(&cell.has);
    cells
        .iter()
        .filter(differs)
        .map(|cell| (cell.name.clone(), lists.get(&*cell.name).cloned().unwrap_or_default()))
        .collect()
}

/// The parts of a cell on which the decision about journals depends.
pub(super) fn of(cell: Option<&Cell>) -> Option<impl PartialEq + use<>> {
    let cell = cell?;
    let status = cell.status.clone().unwrap_or_default();
    Some((cell.spec.clone(), status.synced, status.journals, status.held))
}

/// Gives journals to cells, and removes cells whose journals other cells have.
pub(super) async fn place(controller: &Arc<Controller>) -> Result<(), kube::Error> {
    let _turn = controller.turn(WORK).await;
    let cells = controller.cells.all();
    if cells.iter().all(|cell| cell.spec.journal.is_none()) {
        return Ok(());
    }
    let seen: Vec<Seen> = cells.iter().map(|cell| look(controller, cell)).collect();
    let mut changes: Vec<_> = assign(&seen).into_iter().collect();
    // The cell that receives a journal is updated first, so that the journal is always listed
    // somewhere.
    let is_gone =
        |name: &str| seen.iter().any(|it| it.name == name && it.presence == Presence::Gone);
    changes.sort_by_key(|(name, _)| is_gone(name));
    for (name, journals) in &changes {
        let list: Vec<_> = journals.iter().map(String::as_str).collect();
        tracing::info!("{name} runs, next to its own, the journals: {}", list.join(", "));
        let patch = Patch::Merge(json!({"status": {"journals": journals}}));
        match controller.cells_api.patch_status(name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(error)) if error.code == 404 => {}
            patched => patched.map(|_| ())?,
        }
    }
    if changes.is_empty() {
        remove_settled(&controller.cells_api, controller, &seen).await?;
    }
    Ok(())
}

/// Removes the resources of cells without a pod, once another cell should run their journals.
async fn remove_settled(
    api: &Api<Cell>,
    controller: &Controller,
    seen: &[Seen],
) -> Result<(), kube::Error> {
    for gone in seen.iter().filter(|cell| cell.presence == Presence::Gone && cell.has.is_empty()) {
        let Some(cell) = controller.cells.get(&gone.name) else { continue };
        let had_pod = cell.annotations().contains_key(POD);
        let Some(own) = &gone.own else { continue };
        let is_held =
            seen.iter().any(|other| other.presence != Presence::Gone && other.has.contains(own));
        if had_pod && controller.pods.get(&gone.name).is_none() && is_held {
            tracing::info!("{} has no pod any more; others run its journal", gone.name);
            match api.delete(&gone.name, &DeleteParams::default()).await {
                Err(kube::Error::Api(error)) if error.code == 404 => {}
                deleted => deleted.map(|_| ())?,
            }
        }
    }
    Ok(())
}

fn look(controller: &Arc<Controller>, cell: &Cell) -> Seen {
    let name = cell.name_any();
    let presence = presence(controller, cell, &name);
    let status = cell.status.clone().unwrap_or_default();
    let empty = |(name, state): (String, String)| (state == EMPTY).then_some(name);
    Seen {
        own: cell.spec.journal.clone(),
        presence,
        is_heard: controller.heard.lock().contains(&name),
        has: status.journals.into_iter().collect(),
        empty: status.held.into_iter().filter_map(empty).collect(),
        name,
    }
}

fn presence(controller: &Arc<Controller>, cell: &Cell, name: &str) -> Presence {
    if controller.lost.lock().contains(name) {
        return Presence::Gone;
    }
    let synced = cell.status.as_ref().is_some_and(|status| status.synced);
    let ready = match controller.pods.get(name) {
        Some(pod) => is_ready(&pod),
        None if super::is_podless(cell) => true,
        None => return Presence::Gone,
    };
    let mut since = controller.not_ready.lock();
    if ready && synced {
        since.remove(name);
        return Presence::Live;
    }
    // While a pod is not ready, the decision must be made again after the grace period, because no
    // other event may follow.
    let begun = *since.entry(name.to_owned()).or_insert_with(|| {
        let work = controller.work.clone();
        tokio::spawn(async move {
            tokio::time::sleep(NOT_READY + Duration::from_secs(1)).await;
            work.add(WORK);
        });
        Instant::now()
    });
    if begun.elapsed() < NOT_READY { Presence::Unsure } else { Presence::Gone }
}

#[cfg(test)]
mod tests {
    use super::Presence::{Gone, Live, Unsure};
    use super::*;

    fn seen(name: &str, presence: Presence, has: &[&str]) -> Seen {
        Seen {
            name: name.to_owned(),
            own: Some(format!("j-{name}")),
            presence,
            is_heard: presence != Gone,
            has: has.iter().map(|one| (*one).to_owned()).collect(),
            empty: BTreeSet::new(),
        }
    }

    /// All journals after the decision, each with the cell that should run it. Leaves out cells
    /// that are gone.
    fn after(cells: &[Seen]) -> BTreeMap<String, String> {
        let changes = assign(cells);
        let list = |cell: &Seen| changes.get(&cell.name).unwrap_or(&cell.has).clone();
        let mut all = BTreeMap::new();
        for cell in cells {
            for journal in list(cell) {
                let twice = all.insert(journal.clone(), cell.name.clone());
                assert_eq!(twice, None, "{journal} is given to two cells");
            }
        }
        all
    }

    #[test]
    fn the_journal_of_schedules_has_one_cell_and_stays_there() {
        let mut cells = vec![seen("a", Live, &[]), seen("b", Live, &[]), seen("c", Live, &[])];
        let home = after(&cells)[SCHEDULES].clone();
        let at =
            |cells: &mut Vec<Seen>, name: &str| cells.iter().position(|c| c.name == name).unwrap();
        let index = at(&mut cells, &home);
        cells[index].has = [SCHEDULES.to_owned()].into();
        assert!(assign(&cells).is_empty(), "nothing changes");
        cells[index].presence = Unsure;
        assert!(assign(&cells).is_empty(), "a pod that stops has it until its end");
        cells[index].presence = Gone;
        let next = after(&cells);
        assert_ne!(next[SCHEDULES], home);
        assert_ne!(next[&format!("j-{home}")], home, "its own journal too");
        // Cells without journals lead to no decisions.
        cells.iter_mut().for_each(|cell| (cell.own, cell.has) = (None, BTreeSet::new()));
        assert!(assign(&cells).is_empty());
    }

    #[test]
    fn the_journal_of_a_lost_cell_runs_elsewhere_until_the_cell_is_heard_again() {
        let mut cells = vec![seen("a", Gone, &["j-x"]), seen("b", Live, &[SCHEDULES])];
        let given = after(&cells);
        assert_eq!(given["j-a"], "b");
        assert_eq!(given["j-x"], "b", "also what it ran for another one");
        cells[0].has.clear();
        cells[1].has = [SCHEDULES, "j-a", "j-x"].map(str::to_owned).into();
        assert!(assign(&cells).is_empty());
        // A new controller has not heard the cell yet.
        (cells[0].presence, cells[0].is_heard) = (Live, false);
        assert_eq!(after(&cells)["j-a"], "b");
        cells[0].is_heard = true;
        let given = after(&cells);
        assert!(!given.contains_key("j-a"), "it runs its own journal");
        assert_eq!((&*given["j-x"], &*given[SCHEDULES]), ("b", "b"));
    }

    #[test]
    fn a_journal_of_a_removed_cell_is_kept_while_it_has_anything_and_while_nobody_can_run_it() {
        let mut cells = vec![seen("a", Live, &[SCHEDULES, "j-x"])];
        assert_eq!(after(&cells)["j-x"], "a");
        cells[0].empty = ["j-x".to_owned(), SCHEDULES.to_owned()].into();
        let given = after(&cells);
        assert_eq!(given.keys().collect::<Vec<_>>(), [SCHEDULES]);
        cells[0].empty.clear();
        cells[0].presence = Gone;
        let given = after(&cells);
        assert_eq!(given.get("j-x").map(String::as_str), Some("a"), "it is not forgotten");
        cells.push(seen("b", Live, &[]));
        let given = after(&cells);
        assert_eq!((&*given["j-x"], &*given["j-a"]), ("b", "b"));
    }

    #[test]
    fn two_holders_become_one() {
        let cells = [seen("a", Live, &["j-x", SCHEDULES]), seen("b", Live, &["j-x"])];
        assert_eq!(after(&cells)["j-x"], "a");
    }
}
