//! Tests a node that runs further journals next to its own: the journals of lost nodes, and one
//! journal that several nodes own in turn.

mod file_log;
mod functions;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use mote_api::journals::JournalState;
use mote_core::accept::{Accept as _, AcceptError, Deferred};
use mote_core::{InvocationId, Trigger};
use mote_journal::{Journal, Journals, Named, State};
use mote_outgoing::Outgoing;

use functions::{Functions, deferred, state, until};

/// The functions of a node. Each call is counted and waits until it is released.
#[derive(Default)]
struct Gate {
    is_open: AtomicBool,
    begun: AtomicUsize,
    ended: Mutex<Vec<InvocationId>>,
}

impl Gate {
    fn open() -> Arc<Self> {
        let gate = Self::default();
        gate.is_open.store(true, Ordering::SeqCst);
        Arc::new(gate)
    }

    fn ended(&self) -> Vec<InvocationId> {
        let mut ended = self.ended.lock().expect("not poisoned").clone();
        ended.sort_by_key(|id| id.0);
        ended
    }
}

/// The journals of a node. Their logs are files below `logs`. The node's own journal is named after
/// the node.
async fn node(folder: &Path, logs: &Path, name: &str, gate: &Arc<Gate>) -> Journals {
    let logs = logs.to_owned();
    let title = name.to_owned();
    let faults = Arc::default();
    let replication = move |name: &str| {
        file_log::replication(&logs.join(name), &format!("node {title}"), &faults)
    };
    let path = folder.join("journal.db");
    let own = Journal::replicated(path, Outgoing::default(), replication(name));
    own.take_up().await.expect("the log is there");
    let folder = folder.join("journals");
    let own_name = name.to_owned();
    let named = Named { own: own_name, folder, replication: Box::new(replication) };
    let journals = Journals::new(own, Some(named));
    let gate = gate.clone();
    let invoker = Functions(Arc::new(move |_, invocation| {
        let gate = gate.clone();
        async move {
            gate.begun.fetch_add(1, Ordering::SeqCst);
            until("the gate", || gate.is_open.load(Ordering::SeqCst)).await;
            gate.ended.lock().expect("not poisoned").push(invocation.id);
            Ok((200, "done"))
        }
        .boxed()
    }));
    journals.run(move |journal| tokio::spawn(mote_journal::run(journal, invoker.clone())));
    journals
}

async fn accept(journals: &Journals, key: &str) -> InvocationId {
    let keyed = Deferred { key: Some(key.to_owned()), ..deferred("f", None) };
    journals.accept(keyed).await.expect("accepted").id
}

async fn state_of(journals: &Journals, name: &str) -> Option<JournalState> {
    let list = journals.status().await.journals;
    list.into_iter().find(|one| one.name == name).map(|one| one.state)
}

#[tokio::test]
async fn a_node_continues_the_work_of_another_one_next_to_its_own() {
    let [here, there, logs] = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
    let closed = Arc::new(Gate::default());
    let open = Gate::open();
    let lost = node(here.path(), logs.path(), "a", &closed).await;
    let mut ids = Vec::new();
    for key in ["1", "2", "3"] {
        ids.push(accept(&lost, key).await);
    }
    until("they run", || closed.begun.load(Ordering::SeqCst) == 3).await;

    let other = node(there.path(), logs.path(), "b", &open).await;
    assert!(other.show(ids[0]).await.expect("readable").is_none());
    let own = accept(&other, "1").await;
    other.take("a").await.expect("taken");
    other.take("a").await.expect("nothing changes");
    let taken = other.named("a").expect("it runs");
    for id in &ids {
        assert_eq!(state(&taken, *id).await, State::Succeeded);
        let shown = other.show(*id).await.expect("readable").expect("known");
        assert_eq!(shown.stored.state, State::Succeeded);
    }
    let mut all = [ids.clone(), vec![own]].concat();
    all.sort_by_key(|id| id.0);
    until("its own too", || open.ended() == all).await;
    let newest = |list: Vec<mote_journal::Shown>| -> Vec<InvocationId> {
        list.iter().map(|shown| shown.stored.id).collect()
    };
    all.reverse();
    let listed = newest(other.list(None, None, None, 10).await.expect("readable"));
    assert_eq!(listed, all, "newest first, of both journals");
    let page = newest(other.list(None, None, Some(all[0]), 2).await.expect("readable"));
    assert_eq!(page, all[1..3], "a page begins after an invocation of any journal");
    let figures = other.figures();
    assert_eq!((figures.waiting, figures.succeeded), (0, 4));

    // The former owner is still alive. Its invocations have ended on the other node, so the former
    // owner changes nothing.
    let refused = lost.accept(deferred("f", None)).await.expect_err("taken over");
    assert!(matches!(&refused, AcceptError::TakenOver(by) if by.contains("node b")), "{refused:?}");
    assert_eq!(state_of(&lost, "a").await, Some(JournalState::Taken));
    closed.is_open.store(true, Ordering::SeqCst);
    lost.take("a").await.expect("taken back");
    assert_eq!(state_of(&lost, "a").await, Some(JournalState::Open));
    for id in &ids {
        let shown = lost.show(*id).await.expect("readable").expect("known");
        assert_eq!((shown.stored.state, shown.is_running), (State::Succeeded, false));
    }
    assert_eq!(accept(&lost, "2").await, ids[1], "its key is known");
    let fresh = accept(&lost, "4").await;
    until("it runs again", || closed.ended().contains(&fresh)).await;
    assert_eq!(open.ended().len(), 4, "nothing ran twice on the other node");

    // The other node's copy of the journal closes without harm.
    until("the other node knows it", || other.named("a").is_none()).await;
    assert!(other.show(ids[0]).await.expect("readable").is_none(), "an old copy answers nothing");
    other.give_back("a").await.expect("given back");
    other.give_back("a").await.expect("nothing changes");
    assert_eq!(state_of(&other, "a").await, None);
    assert_eq!(other.figures().succeeded, 4, "what it has done is still counted");
    let left = std::fs::read_dir(there.path().join("journals")).expect("a folder").count();
    assert_eq!(left, 0, "its file is gone");
    assert!(other.give_back("b").await.is_err(), "the own journal ends with the node");
}

#[tokio::test]
async fn a_journal_that_is_given_back_waits_for_what_runs() {
    let [here, there, logs] = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
    let gate = Arc::new(Gate::default());
    let first = node(here.path(), logs.path(), "a", &gate).await;
    first.take("shared").await.expect("taken");
    let shared = first.named("shared").expect("it runs");
    let id = shared.accept(deferred("f", None)).await.expect("accepted").id;
    until("it runs", || gate.begun.load(Ordering::SeqCst) == 1).await;
    let later = gate.clone();
    drop(shared);
    let (given, ()) = tokio::join!(first.give_back("shared"), async {
        until("it is being given back", || first.named("shared").is_none()).await;
        later.is_open.store(true, Ordering::SeqCst);
    });
    given.expect("given back");
    let second = node(there.path(), logs.path(), "b", &gate).await;
    second.take("shared").await.expect("taken");
    let shown = second.show(id).await.expect("readable").expect("known");
    assert_eq!(shown.stored.state, State::Succeeded);
    assert_eq!(gate.begun.load(Ordering::SeqCst), 1, "it ran once");
}

#[tokio::test]
async fn the_times_of_a_schedule_are_accepted_once_by_all_nodes_that_share_its_journal() {
    let [here, there, logs] = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
    let closed = Arc::new(Gate::default());
    let open = Gate::open();
    let first = node(here.path(), logs.path(), "a", &closed).await;
    let second = node(there.path(), logs.path(), "b", &open).await;
    let run = |due: i64| Deferred {
        key: Some(format!("schedule/{:016x}/{due}", 0xab_u64)),
        ..Deferred { trigger: Trigger::Schedule, ..deferred("f", None) }
    };
    let due_on = |journals: &Journals| journals.accepting(Some("schedules".to_owned()));
    let refused = due_on(&first).accept(run(1_000)).await.expect_err("nobody runs it");
    assert!(matches!(refused, AcceptError::Away(_)), "{refused:?}");
    first.take("schedules").await.expect("taken");
    let one = due_on(&first).accept(run(1_000)).await.expect("accepted");
    let two = due_on(&first).accept(run(2_000)).await.expect("accepted");
    assert!(one.is_new && two.is_new);

    second.take("schedules").await.expect("taken");
    let journal = second.named("schedules").expect("it runs");
    let known = journal.schedule_runs("f").await.expect("readable");
    assert_eq!((known.len(), known[0].identity, known[0].newest_due_ms), (1, 0xab, 2_000));
    assert!(journal.schedule_runs("g").await.expect("readable").is_empty());
    let again = due_on(&second).accept(run(2_000)).await.expect("known");
    assert_eq!((again.id, again.is_new), (two.id, false));
    let refused = due_on(&first).accept(run(3_000)).await.expect_err("it is another node's");
    let is_refused = matches!(refused, AcceptError::TakenOver(_) | AcceptError::Away(_));
    assert!(is_refused, "{refused:?}");
    let three = due_on(&second).accept(run(3_000)).await.expect("accepted");
    assert!(three.is_new);
    for id in [one.id, two.id, three.id] {
        assert_eq!(state(&journal, id).await, State::Succeeded);
    }
    let known = journal.schedule_runs("f").await.expect("readable");
    assert_eq!((known[0].newest_due_ms, known[0].waiting.len()), (3_000, 0));
}

#[tokio::test]
async fn a_node_without_a_log_runs_its_own_journal_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let own = Journal::new(folder.path().join("journal.db"), Outgoing::default());
    let journals = Journals::new(own, None);
    assert!(journals.status().await.journals.is_empty());
    let problem = journals.take("a").await.expect_err("there is no log");
    assert_eq!((problem.status, problem.hint.is_some()), (409, true));
    assert!(!folder.path().join("journal.db").exists(), "nothing was opened");
}
