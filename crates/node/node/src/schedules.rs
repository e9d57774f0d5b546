//! The schedules of functions: which schedules this node runs, and how schedules are listed.

use std::sync::Arc;

use mote_api::types::{Schedule, ScheduleList, ScheduleOutcome, ScheduleRun};
use mote_api::{Problem, Timestamp};
use mote_core::accept::AcceptError;
use mote_engine::Revision;
use mote_journal::{Journal, Journals, Reader, view};
use mote_schedule::{Known, Last, Listed, Marks, Outcome, Schedules, Times, UnixMs, expression};
use mote_spec::{FunctionName, FunctionSpec, When};
use mote_store::{Store, StoreError};
use tokio::runtime::Handle;

use super::Node;
use super::accepted::Accepted;
use super::store_work::blocking;

/// The key under which the store keeps the time up to which schedules have been handled.
const MARK: &str = "schedules";
/// When schedules are listed, the states of at most this many last runs are looked up in the
/// journal.
const STATES_MAX: usize = 1_000;

/// Makes the schedules of a node, none of which is known yet. Their runs go into the journal
/// `shared` or, if that is `None`, into the node's own journal. Blocks, because it reads the store.
pub(super) fn open(
    store: Arc<Store>,
    journals: &Journals,
    shared: Option<String>,
    runtime: Handle,
) -> Result<Schedules, StoreError> {
    if shared.is_some() {
        return Ok(Schedules::new(journals.accepting(shared), Arc::new(Unmarked), None, runtime));
    }
    let mark = store.mark(MARK)?;
    Ok(Schedules::new(journals.accepting(None), Arc::new(InStore(store)), mark, runtime))
}

/// Stores no progress, because the journal that several nodes share holds the progress.
struct Unmarked;

impl Marks for Unmarked {
    fn keep(&self, _: UnixMs) {}
}

struct InStore(Arc<Store>);

impl Marks for InStore {
    fn keep(&self, mark: UnixMs) {
        if let Err(error) = self.0.set_mark(MARK, mark) {
            let cause = mote_core::fault::error_chain(&error);
            tracing::warn!("the progress of the schedules was not stored: {cause}");
        }
    }
}

/// Checks that this node can run the schedules of a spec.
pub(super) fn check(spec: &FunctionSpec) -> Result<(), Problem> {
    for schedule in &spec.schedules {
        if let Err(error) = Times::read(schedule.clone(), 0) {
            let text = match &schedule.when {
                When::Cron { expression, timezone } => {
                    format!("the schedule \"{expression}\" in {timezone}: {error}")
                }
                When::Every { .. } => format!("a schedule: {error}"),
            };
            let problem = Problem::new(422, "M0303", text).with_field("trigger");
            return Err(match error {
                mote_schedule::TimesError::NoZones => {
                    problem.with_hint("install the package tzdata on the node, or use UTC")
                }
                _ => problem,
            });
        }
    }
    Ok(())
}

/// Starts the schedules of a revision that has become the live one, if they run on this node.
pub(super) async fn publish(node: &Node, live: &Arc<Revision>) {
    let name = live.spec.name.as_str();
    let seed = seed(node, live);
    if let Some(shared) = &node.config.schedule_journal {
        let published = match node.accepted.journals.named(shared) {
            Some(journal) if !live.spec.schedules.is_empty() => match known(&journal, name).await {
                Ok(known) => {
                    node.accepted.schedules.publish_after(name, &live.spec.schedules, seed, &known)
                }
                // Another node has just taken over the journal.
                Err(_) => return forget(&node.accepted.schedules, &live.spec.name),
            },
            _ => return forget(&node.accepted.schedules, &live.spec.name),
        };
        return report(live, published);
    }
    if node.deployed.elsewhere.lock().contains(&live.spec.name) {
        return forget(&node.accepted.schedules, &live.spec.name);
    }
    let schedules = node.accepted.schedules.clone();
    let live = live.clone();
    // Publishing may write the progress of the schedules to the store, so it runs on a blocking
    // thread.
    let published = blocking(move || {
        let published = schedules.publish(live.spec.name.as_str(), &live.spec.schedules, seed);
        report(&live, published);
    });
    let _ = published.await;
}

/// The progress that other nodes made with the function's schedules before this node took over.
async fn known(journal: &Journal, function: &str) -> Result<Vec<Known>, AcceptError> {
    let runs = journal.schedule_runs(function).await?.into_iter();
    let known = runs.map(|run| Known {
        identity: run.identity,
        handled: run.newest_due_ms,
        running: run.waiting,
    });
    Ok(known.collect())
}

/// Starts all schedules again, or ends them, because this node has begun or stopped running a
/// journal.
pub(crate) async fn moved(node: &Node, journal: &str) {
    if node.config.schedule_journal.as_deref() == Some(journal) {
        for live in node.data_path.engine.list() {
            publish(node, &live).await;
        }
    }
}

/// Starts the schedules of a function that the node had before it was restarted. Schedules in a
/// journal that several nodes share start only when this node runs that journal.
pub(super) fn bring_back(node: &Node, live: &Revision) {
    if node.config.schedule_journal.is_some() {
        return;
    }
    let name = live.spec.name.as_str();
    report(live, node.accepted.schedules.bring_back(name, &live.spec.schedules, seed(node, live)));
}

fn report(live: &Revision, published: Result<(), mote_schedule::TimesError>) {
    if let Err(error) = published {
        let function = &live.spec.name;
        tracing::error!(%function, "its schedules do not run: {error}; deploy it again");
    }
}

/// Ends the schedules of a function that has been removed.
pub(super) fn forget(schedules: &Schedules, name: &FunctionName) {
    schedules.remove(name.as_str());
}

/// A number that determines the jitter. It differs between nodes and functions, and stays the same
/// after restarts and redeploys.
fn seed(node: &Node, revision: &Revision) -> u64 {
    let host = rustix::system::uname();
    let created = node.deployed.created_at_ms(revision).to_le_bytes();
    let name = revision.spec.name.as_str().as_bytes();
    mote_schedule::book::hash(&[host.nodename().to_bytes(), &created, name])
}

/// The schedules of a function.
pub(crate) fn of(schedules: &Schedules, function: &FunctionName) -> Vec<Schedule> {
    schedules.list(Some(function.as_str())).into_iter().map(described).collect()
}

/// All schedules, each with the state of its last run.
pub(crate) async fn list(accepted: &Accepted) -> ScheduleList {
    let mut schedules: Vec<Schedule> = Vec::new();
    let mut looked_up = 0;
    for listed in accepted.schedules.list(None) {
        let id = match &listed.last {
            Some(Last { outcome: Outcome::Accepted(id), .. }) => Some(*id),
            _ => None,
        };
        let mut schedule = described(listed);
        if let (Some(id), Some(last)) = (id, &mut schedule.last)
            && looked_up < STATES_MAX
        {
            looked_up += 1;
            let shown = accepted.journals.show(id).await.ok().flatten();
            last.state = shown.map(|shown| view(&shown, Reader::Owner).state);
        }
        schedules.push(schedule);
    }
    ScheduleList { schedules }
}

fn described(listed: Listed) -> Schedule {
    let Listed { function, schedule, next, last, left_out } = listed;
    let (timezone, every_ms) = match &schedule.when {
        When::Cron { timezone, .. } => (Some(timezone.clone()), None),
        When::Every { ms } => (None, Some(*ms)),
    };
    let time = |ms: UnixMs| Timestamp::from_unix_ms(u64::try_from(ms).unwrap_or(0));
    Schedule {
        function: function.to_string(),
        expression: expression(&schedule.when),
        timezone,
        every_ms,
        missed: schedule.missed.as_str().to_owned(),
        jitter_ms: schedule.jitter_ms,
        overlap: schedule.overlap.as_str().to_owned(),
        next: next.map(time),
        last: last.map(|last| {
            let (outcome, invocation, error) = match last.outcome {
                Outcome::Accepted(id) => (ScheduleOutcome::Accepted, Some(id.to_string()), None),
                Outcome::LeftOut => (ScheduleOutcome::LeftOut, None, None),
                Outcome::Failed(text) => (ScheduleOutcome::Failed, None, Some(text)),
            };
            ScheduleRun { due: time(last.due), outcome, invocation, state: None, error }
        }),
        left_out,
    }
}
