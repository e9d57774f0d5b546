//! Tests the runner with closures as functions and a real file: shares, results that cannot be
//! delivered, faults of the node, and the stop.

mod file_log;
mod functions;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use mote_core::accept::{Accept as _, Deferred};
use mote_core::{Fault, Invocation, InvocationId};
use mote_journal::{Cancelled, Journal, State};
use mote_outgoing::{Outgoing, Reach};

use functions::{Answer, Functions, deferred, state, until};

/// Where a test keeps its journal. Each test runs with both kinds.
#[derive(Clone, Copy)]
enum Keeping {
    OnDisk,
    InLog,
}

async fn opened(keeping: Keeping, dir: &std::path::Path, outgoing: Outgoing) -> Journal {
    let path = dir.join("journal.db");
    match keeping {
        Keeping::OnDisk => Journal::new(path, outgoing),
        Keeping::InLog => {
            let replication = file_log::replication(&dir.join("log"), "here", &Arc::default());
            let journal = Journal::replicated(path, outgoing, replication);
            journal.take_up().await.expect("the log is there");
            journal
        }
    }
}

/// Starts a journal whose functions are `run`.
async fn running(
    keeping: Keeping,
    run: impl Fn(String, Invocation) -> BoxFuture<'static, Answer> + Send + Sync + 'static,
) -> (Journal, tempfile::TempDir, tokio::task::JoinHandle<()>) {
    let dir = tempfile::tempdir().expect("a folder");
    let outgoing = Outgoing { reach: Reach::Machine, ..Outgoing::default() };
    let journal = opened(keeping, dir.path(), outgoing).await;
    let task = tokio::spawn(mote_journal::run(journal.clone(), Functions(Arc::new(run))));
    (journal, dir, task)
}

async fn accept(journal: &Journal, deferred: Deferred) -> InvocationId {
    journal.accept(deferred).await.expect("accepted").id
}

async fn results_that_nobody_takes_do_not_keep_calls_from_running(keeping: Keeping) {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let url = format!("http://{}/", silent.local_addr().expect("bound"));
    let ran = Arc::new(Mutex::new(Vec::new()));
    let noted = ran.clone();
    let (journal, _dir, _task) = running(keeping, move |name, _| {
        noted.lock().expect("not poisoned").push(name);
        async { Ok((200, "done")) }.boxed()
    })
    .await;
    for _ in 0..100 {
        accept(&journal, deferred("hostile", Some(&url))).await;
    }
    until("all run while their results wait", || ran.lock().expect("not poisoned").len() == 100)
        .await;
    let id = accept(&journal, deferred("other", None)).await;
    assert_eq!(state(&journal, id).await, State::Succeeded);
    assert_eq!(journal.figures().waiting, 100, "the results are kept");
}

async fn calls_that_take_long_leave_room_to_other_functions(keeping: Keeping) {
    let began = Arc::new(Mutex::new(Vec::new()));
    let noted = began.clone();
    let (journal, _dir, _task) = running(keeping, move |name, _| {
        let slow = name == "slow";
        noted.lock().expect("not poisoned").push(name);
        async move {
            if slow {
                std::future::pending::<()>().await;
            }
            Ok((200, "done"))
        }
        .boxed()
    })
    .await;
    for _ in 0..100 {
        accept(&journal, deferred("slow", None)).await;
    }
    let id = accept(&journal, deferred("quick", None)).await;
    assert_eq!(state(&journal, id).await, State::Succeeded);
    let slow = || began.lock().expect("not poisoned").iter().filter(|one| *one == "slow").count();
    until("half of its places are used", || slow() == 8).await;
}

async fn a_call_that_makes_the_node_fail_ends_as_a_dead_letter(keeping: Keeping) {
    let (journal, _dir, task) =
        running(keeping, |_, _| async { panic!("on purpose") }.boxed()).await;
    let id = accept(&journal, deferred("panics", None)).await;
    assert_eq!(state(&journal, id).await, State::Dead);
    assert_eq!(journal.figures().waiting, 0, "its place is free");
    journal.stop();
    tokio::time::timeout(Duration::from_secs(20), task).await.expect("it ends").expect("no panic");
}

async fn what_the_stop_of_the_node_interrupts_runs_again(keeping: Keeping) {
    let (journal, dir, task) =
        running(keeping, |_, _| async { Err(Fault::Stopping) }.boxed()).await;
    let id = accept(&journal, deferred("f", None)).await;
    journal.stop();
    assert!(journal.accept(deferred("f", None)).await.is_err(), "a stopping node accepts nothing");
    tokio::time::timeout(Duration::from_secs(20), task).await.expect("it ends").expect("no panic");
    drop(journal);

    let again = opened(keeping, dir.path(), Outgoing::default()).await;
    assert_eq!(again.take_up().await.expect("readable"), 1);
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let functions = Functions(Arc::new(move |_, invocation: Invocation| {
        counted.fetch_add(1, Ordering::SeqCst);
        assert_eq!(invocation.id, id, "the same id");
        async { Ok((200, "done")) }.boxed()
    }));
    tokio::spawn(mote_journal::run(again.clone(), functions));
    assert_eq!(state(&again, id).await, State::Succeeded);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

async fn an_invocation_that_is_cancelled_twice_gives_its_place_back_once(keeping: Keeping) {
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = begun.clone();
    let (journal, _dir, _task) = running(keeping, move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::pending().boxed()
    })
    .await;
    // Each round fills the 8 places of the function and empties them again.
    for round in 1..=3 {
        let mut ids = Vec::new();
        for _ in 0..8 {
            ids.push(accept(&journal, deferred("slow", None)).await);
        }
        until("all run", || begun.load(Ordering::SeqCst) == 8 * round).await;
        for id in &ids {
            let both = tokio::join!(journal.cancel(*id), journal.cancel(*id));
            assert_eq!(both.0.expect("readable"), Cancelled::Running);
            assert_eq!(both.1.expect("readable"), Cancelled::Running);
        }
        for id in ids {
            assert_eq!(state(&journal, id).await, State::Cancelled);
        }
    }
    assert_eq!(journal.figures().waiting, 0);
}

async fn a_cancelled_invocation_is_not_tried_again(keeping: Keeping) {
    let (journal, _dir, _task) = running(keeping, |_, _| {
        async { Err(Fault::HandlerError { message: "boom".to_owned() }) }.boxed()
    })
    .await;
    // Some are cancelled while they run, some while their attempt is being noted, some while they
    // wait.
    for _ in 0..200 {
        let id = accept(&journal, deferred("fails", None)).await;
        if journal.cancel(id).await.expect("readable") != Cancelled::Ended {
            assert_eq!(state(&journal, id).await, State::Cancelled);
        }
    }
}

async fn the_steps_of_a_run_are_kept_while_it_runs_and_bounded(keeping: Keeping) {
    let shared: Arc<Mutex<Option<Journal>>> = Arc::default();
    let inner = shared.clone();
    let (journal, _dir, _task) = running(keeping, move |_, invocation| {
        let journal = inner.lock().expect("no panic").clone().expect("set");
        async move {
            let id = invocation.id;
            let big = Bytes::from(format!("{{\"ok\":\"{}\",\"ms\":3}}", "x".repeat(500 << 10)));
            for key in ["a", "b", "c"] {
                journal.keep_step(id, key.to_owned(), big.clone()).await.expect("room");
            }
            let mut after = String::new();
            let mut found = Vec::new();
            loop {
                let page = journal.step_page(id, after.clone()).await.expect("readable");
                let page = page.expect("the run is running");
                assert!(page.began_ms > 0);
                assert_eq!(page.steps.len(), 1, "a page is bounded");
                after.clone_from(&page.steps[0].0);
                found.push(after.clone());
                if !page.more {
                    break;
                }
            }
            assert_eq!(found, ["a", "b", "c"]);
            let mut kept = 3;
            while journal.keep_step(id, format!("d{kept}"), big.clone()).await.is_ok() {
                kept += 1;
            }
            assert_eq!(kept, 16, "8 MiB hold 16 steps of 500 KiB");
            Ok((200, "done"))
        }
        .boxed()
    })
    .await;
    *shared.lock().expect("no panic") = Some(journal.clone());
    let id = accept(&journal, deferred("f", None)).await;
    assert_eq!(state(&journal, id).await, State::Succeeded);
    let steps = journal.steps(id).await.expect("readable");
    assert_eq!(steps.len(), 16);
    assert_eq!(steps[0].kind, mote_journal::StepKind::Done(3));
    assert!(journal.step_page(id, String::new()).await.expect("readable").is_none());
    let late = journal.keep_step(id, "late".to_owned(), Bytes::new()).await;
    assert!(late.is_err(), "the run has ended");
}

async fn an_invocation_of_a_removed_function_waits_until_it_is_deployed(keeping: Keeping) {
    let (journal, _dir, _task) = running(keeping, |_, _| async { Ok((200, "done")) }.boxed()).await;
    let absent = accept(&journal, deferred("absent", None)).await;
    for _ in 0..20 {
        let other = accept(&journal, deferred("other", None)).await;
        assert_eq!(state(&journal, other).await, State::Succeeded, "others run");
    }
    let shown = journal.show(absent).await.expect("readable").expect("known");
    assert_eq!((shown.stored.state, shown.is_running), (State::Waiting, false));
    assert_eq!(journal.figures().waiting, 1);
    journal.cancel(absent).await.expect("readable");
    assert_eq!(state(&journal, absent).await, State::Cancelled);
}

macro_rules! with_both {
    ($($name:ident),+ $(,)?) => {
        mod on_disk {
            $(#[tokio::test] async fn $name() { super::$name(super::Keeping::OnDisk).await; })+
        }
        mod in_log {
            $(#[tokio::test] async fn $name() { super::$name(super::Keeping::InLog).await; })+
        }
    };
}

with_both! {
    results_that_nobody_takes_do_not_keep_calls_from_running,
    calls_that_take_long_leave_room_to_other_functions,
    a_call_that_makes_the_node_fail_ends_as_a_dead_letter,
    what_the_stop_of_the_node_interrupts_runs_again,
    an_invocation_that_is_cancelled_twice_gives_its_place_back_once,
    a_cancelled_invocation_is_not_tried_again,
    an_invocation_of_a_removed_function_waits_until_it_is_deployed,
    the_steps_of_a_run_are_kept_while_it_runs_and_bounded,
}
