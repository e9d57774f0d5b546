//! Makes the cell run the journals that the controller has given it.
//!
//! NATS ensures that a journal has only one owner, so taking a journal takes it away from its
//! former owner. A former owner that is still alive notices this. It takes its own journal back
//! once no other cell should run it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::ResourceExt as _;
use mote_api::client::Client as Node;
use mote_api::journals::{JournalState, JournalStatus};

use super::Agent;
use crate::mirror::Mirror;
use crate::resources::{Cell, EMPTY};

/// How often the agent asks its cell which journals it runs.
const PAUSE: Duration = Duration::from_secs(2);
/// The pause after something failed.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a journal that this cell should run stays at another cell that has taken it. The other
/// cell may be back, and the controller will then notice.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the cell's own journal, if it has one in NATS.
pub(super) async fn own(node: &Node) -> Option<String> {
    // A failed request must not count as "no journal". Otherwise the cell and its journal would be
    // forgotten together with the pod.
    loop {
        match node.journals().await {
            Ok(list) => return list.journals.into_iter().find(|one| one.own).map(|one| one.name),
            Err(error) => tracing::warn!("the journals of the cell cannot be listed: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The changes to make to the cell's journals.
#[derive(Debug, Default, PartialEq, Eq)]
struct Steps {
    take: Vec<String>,
    give_back: Vec<String>,
}

/// Compares the journals that the cell runs with those that it should run. `wanted` is `None` if
/// that is not known. `elsewhere` contains the journals that other cells should run.
fn steps(
    held: &[JournalStatus],
    wanted: Option<&BTreeSet<String>>,
    elsewhere: &BTreeSet<String>,
) -> Steps {
    let mut steps = Steps::default();
    let Some(wanted) = wanted else { return steps };
    let is_taken = |one: &&JournalStatus| one.state == JournalState::Taken;
    for name in wanted {
        let held = held.iter().find(|one| one.name == *name);
        if held.is_none_or(|held| is_taken(&held)) {
            steps.take.push(name.clone());
        }
    }
    for one in held.iter().filter(|one| !wanted.contains(&one.name)) {
        if !one.own {
            steps.give_back.push(one.name.clone());
        } else if is_taken(&one) && !elsewhere.contains(&one.name) {
            steps.take.push(one.name.clone());
        }
    }
    steps
}

/// Keeps the cell's journals as the controller has decided, for the rest of the process. Does
/// nothing if the cell has no journal in NATS.
pub(super) async fn keep(agent: Arc<Agent>) {
    let Some(cells) = &agent.with_journals else { return std::future::pending().await };
    cells.synced().await;
    let mut taken: HashMap<String, Instant> = HashMap::new();
    let mut failure = String::new();
    loop {
        let pause = match step(&agent, cells, &mut taken).await {
            Ok(()) => {
                failure.clear();
                PAUSE
            }
            Err(error) => {
                if failure != error {
                    tracing::warn!("the journals of the cell: {error}");
                    failure = error;
                }
                AGAIN
            }
        };
        let _ = tokio::time::timeout(pause, agent.journals_changed.notified()).await;
    }
}

async fn step(
    agent: &Agent,
    cells: &Mirror<Cell>,
    taken: &mut HashMap<String, Instant>,
) -> Result<(), String> {
    let held = agent.node.journals().await.map_err(|error| error.to_string())?.journals;
    let of = |cell: &Cell| cell.status.iter().flat_map(|it| it.journals.clone()).collect();
    let wanted: Option<BTreeSet<String>> = cells.get(&agent.options.pod).map(|own| of(&own));
    let others = cells.all();
    let others = others.iter().filter(|cell| cell.name_any() != agent.options.pod);
    let elsewhere = others.flat_map(|cell| of(cell)).collect();
    let steps = steps(&held, wanted.as_ref(), &elsewhere);
    let wanted = wanted.unwrap_or_default();
    taken.retain(|name, _| wanted.contains(name));
    let mut outcome = Ok(());
    let mut now = held;
    for name in steps.take {
        let was_taken = now.iter().any(|one| one.name == name && !one.own);
        if was_taken && taken.get(&name).is_some_and(|at| at.elapsed() < PATIENCE) {
            continue;
        }
        match agent.node.take_journal(&name).await {
            Ok(list) => {
                tracing::info!("the cell runs the journal {name}");
                now = list.journals;
                taken.insert(name, Instant::now());
            }
            Err(error) => outcome = outcome.and(Err(format!("{name}: {error}"))),
        }
    }
    for name in steps.give_back {
        match agent.node.give_journal_back(&name).await {
            Ok(list) => now = list.journals,
            Err(error) => outcome = outcome.and(Err(format!("{name}: {error}"))),
        }
    }
    agent.report.holds(now.iter().map(told).collect::<BTreeMap<_, _>>());
    outcome
}

fn told(one: &JournalStatus) -> (String, String) {
    let state = match one.state {
        JournalState::Open if one.empty => EMPTY,
        JournalState::Open => "open",
        JournalState::Away => "away",
        JournalState::Taken => "taken",
    };
    (one.name.clone(), state.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(name: &str, state: JournalState) -> JournalStatus {
        let own = name == "own";
        JournalStatus { name: name.to_owned(), own, state, detail: None, waiting: 0, empty: false }
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_cell_runs_what_it_is_to_run_and_takes_its_own_back_when_nobody_else_is_to_have_it() {
        use JournalState::{Away, Open, Taken};
        let cases = [
            (vec![held("own", Open)], &["a"][..], &[][..], &["a"][..], &[][..]),
            (vec![held("own", Open), held("a", Away)], &["a"], &[], &[], &[]),
            (vec![held("own", Open), held("a", Taken)], &["a"], &[], &["a"], &[]),
            (vec![held("own", Open), held("a", Open)], &[], &["a"], &[], &["a"]),
            (vec![held("own", Taken)], &[], &["own"], &[], &[]),
            (vec![held("own", Taken)], &[], &[], &["own"], &[]),
        ];
        for (held, wanted, elsewhere, take, give_back) in cases {
            let found = steps(&held, Some(&names(wanted)), &names(elsewhere));
            let text = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
            let expected = Steps { take: text(take), give_back: text(give_back) };
            assert_eq!(found, expected, "{held:?} {wanted:?} {elsewhere:?}");
        }
        let nothing = steps(&[held("own", Taken), held("a", Open)], None, &names(&[]));
        assert_eq!(nothing, Steps::default(), "without its resource the cell changes nothing");
    }
}
