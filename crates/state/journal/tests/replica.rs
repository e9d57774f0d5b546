//! The journal in a log. The tests lose the node and its disk after each message and check what
//! survives. They also check who owns the log, and what happens while the log is unreachable.

mod file_log;
mod functions;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use mote_core::accept::{Accept as _, AcceptError, Deferred};
use mote_core::{Fault, Invocation, InvocationId};
use mote_journal::{Journal, State};
use mote_outgoing::Outgoing;

use file_log::{Faults, FileLog, replication};
use functions::{Answer, Functions, deferred, state, until};

/// Opens the journal in `folder` with a log in another folder.
async fn journal(folder: &Path, log: &Path, node: &str, faults: &Arc<Faults>) -> Journal {
    let journal = unopened(folder, log, node, faults);
    journal.take_up().await.expect("the log is there");
    journal
}

fn unopened(folder: &Path, log: &Path, node: &str, faults: &Arc<Faults>) -> Journal {
    let replication = replication(log, node, faults);
    Journal::replicated(folder.join("journal.db"), Outgoing::default(), replication)
}

fn run(
    journal: &Journal,
    run: impl Fn(String, Invocation) -> BoxFuture<'static, Answer> + Send + Sync + 'static,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(mote_journal::run(journal.clone(), Functions(Arc::new(run))))
}

fn keyed(function: &str, key: &str) -> Deferred {
    Deferred { key: Some(key.to_owned()), ..deferred(function, None) }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Runs a chain of three steps. Each step must be done once, however often the run is tried.
async fn chain(journal: Journal, id: InvocationId, done: Done) -> Answer {
    let broken = |_| Fault::Stopping;
    let page = journal.step_page(id, String::new()).await.map_err(broken)?;
    let known: Vec<String> = page.into_iter().flat_map(|p| p.steps).map(|(key, _)| key).collect();
    for step in ["1", "2", "3"] {
        if known.iter().any(|key| key == step) {
            continue;
        }
        let value = Bytes::from_static(b"{\"ms\":1}");
        journal.keep_step(id, step.to_owned(), value).await.map_err(broken)?;
        // A step is counted after its record is confirmed, so a step that is counted twice was
        // forgotten.
        *done.lock().expect("no panic").entry((id, step)).or_default() += 1;
    }
    Ok((200, "done"))
}

type Done = Arc<Mutex<HashMap<(InvocationId, &'static str), usize>>>;

#[test]
fn what_was_accepted_outlives_a_machine_that_is_lost_after_any_message() {
    for first in (2..).step_by(16) {
        // A journal whose log is unreachable takes some seconds to close, so each case has its own
        // thread.
        let complete: Vec<bool> = std::thread::scope(|scope| {
            let lose = |cut_after| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime").block_on(lose_after(cut_after))
            };
            let threads: Vec<_> =
                (first..first + 16).map(|cut_after| scope.spawn(move || lose(cut_after))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        if complete.contains(&true) {
            assert!(first > 20, "there were more messages than {first}");
            return;
        }
    }
}

/// Loses a machine when its log has `cut_after` messages, and continues on another. Returns whether
/// everything had ended before the loss.
async fn lose_after(cut_after: usize) -> bool {
    let here = folder();
    let there = folder();
    let log = folder();
    let log = log.path().join("log");
    let faults = Arc::new(Faults::default());
    faults.cut_after.store(cut_after, Ordering::SeqCst);
    let done = Done::default();

    let first = journal(here.path(), &log, "first", &faults).await;
    let inner = first.clone();
    let noted = done.clone();
    let task = run(&first, move |name, invocation| match &name[..] {
        "chain" => chain(inner.clone(), invocation.id, noted.clone()).boxed(),
        "fails" => async { Err(Fault::HandlerError { message: "no".to_owned() }) }.boxed(),
        _ => async { Ok((200, "done")) }.boxed(),
    });
    let mut accepted = Vec::new();
    for number in 0..4 {
        for function in ["chain", "plain", "fails"] {
            let key = format!("{function} {number}");
            let once = Deferred { attempts_default: 1, ..keyed(function, &key) };
            let asked = first.accept(once);
            let is_cut = until("cut", || faults.away.load(Ordering::SeqCst));
            tokio::select! {
                biased;
                answer = asked => {
                    if let Ok(answer) = answer {
                        accepted.push((function, key, answer.id));
                    }
                }
                () = is_cut => {}
            }
        }
    }
    for (_, _, id) in &accepted {
        tokio::select! {
            biased;
            _ = state(&first, *id) => {}
            () = until("cut", || faults.away.load(Ordering::SeqCst)) => {}
        }
    }
    let complete = !faults.away.load(Ordering::SeqCst);
    task.abort();

    // Another machine continues from the log alone.
    let second = journal(there.path(), &log, "second", &Arc::default()).await;
    for (function, key, id) in &accepted {
        let shown = second.show(*id).await.expect("readable");
        assert!(shown.is_some(), "{function} {key} was accepted and is lost at {cut_after}");
        let again = Deferred { attempts_default: 1, ..keyed(function, key) };
        let again = second.accept(again).await.expect("accepted");
        assert_eq!((again.id, again.is_new), (*id, false), "the key is known");
    }
    let inner = second.clone();
    let noted = done.clone();
    let _task = run(&second, move |name, invocation| match &name[..] {
        "chain" => chain(inner.clone(), invocation.id, noted.clone()).boxed(),
        "fails" => async { Err(Fault::HandlerError { message: "no".to_owned() }) }.boxed(),
        _ => async { Ok((200, "done")) }.boxed(),
    });
    for (function, _, id) in &accepted {
        let expected = if *function == "fails" { State::Dead } else { State::Succeeded };
        assert_eq!(state(&second, *id).await, expected, "{function} at {cut_after}");
        if *function == "chain" {
            assert_eq!(second.steps(*id).await.expect("readable").len(), 3);
        }
    }
    for ((_, step), times) in done.lock().expect("no panic").iter() {
        assert_eq!(*times, 1, "step {step} at {cut_after}");
    }
    complete
}

#[tokio::test]
async fn a_node_that_was_taken_over_accepts_and_runs_nothing() {
    let here = folder();
    let there = folder();
    let log = folder();
    let log = log.path().join("log");
    let faults = Arc::default();
    let old = journal(here.path(), &log, "old", &faults).await;
    let id = old.accept(keyed("f", "1")).await.expect("accepted").id;
    let new = journal(there.path(), &log, "new", &faults).await;
    let refused = old.accept(keyed("f", "2")).await.expect_err("taken over");
    let AcceptError::TakenOver(text) = &refused else { panic!("{refused:?}") };
    assert!(text.contains("new"), "{text}");
    let ran = Arc::new(AtomicUsize::new(0));
    let counted = ran.clone();
    let task = run(&old, move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok((200, "old")) }.boxed()
    });
    let _task = run(&new, |_, _| async { Ok((200, "new")) }.boxed());
    assert_eq!(state(&new, id).await, State::Succeeded);
    old.stop();
    task.await.expect("no panic");
    assert_eq!(ran.load(Ordering::SeqCst), 0, "the old node runs nothing");
    assert!(new.accept(keyed("f", "2")).await.expect("accepted").is_new, "it was not accepted");
    drop(old);

    // The old node starts again, and takes back the journal with everything that has happened
    // meanwhile.
    let old = journal(here.path(), &log, "old", &faults).await;
    assert_eq!(state(&old, id).await, State::Succeeded);
    assert!(!old.accept(keyed("f", "2")).await.expect("accepted").is_new);
    let refused = new.accept(keyed("f", "3")).await.expect_err("taken over");
    assert!(matches!(refused, AcceptError::TakenOver(_)), "{refused:?}");
}

#[tokio::test]
async fn an_append_whose_answer_was_lost_happens_once() {
    let here = folder();
    let log = folder();
    let log = log.path().join("log");
    let faults = Arc::<Faults>::default();
    let one = journal(here.path(), &log, "one", &faults).await;
    for number in 0..10 {
        faults.unanswered.store(1, Ordering::SeqCst);
        let key = number.to_string();
        assert!(one.accept(keyed("f", &key)).await.expect("accepted").is_new);
    }
    let messages = FileLog::open(&log, Arc::default()).subjects();
    assert_eq!(messages.len(), 11, "{messages:?}");
    drop(one);
    let one = journal(here.path(), &log, "one", &faults).await;
    assert_eq!(one.figures().waiting, 10);
}

#[tokio::test]
async fn while_the_log_is_away_nothing_is_accepted_and_what_runs_ends_later() {
    let here = folder();
    let there = folder();
    let log = folder();
    let log = log.path().join("log");
    let faults = Arc::<Faults>::default();
    let one = journal(here.path(), &log, "one", &faults).await;
    let go = Arc::new(tokio::sync::Notify::new());
    let wait = go.clone();
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = begun.clone();
    let _task = run(&one, move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        let wait = wait.clone();
        async move {
            wait.notified().await;
            Ok((200, "done"))
        }
        .boxed()
    });
    let running = one.accept(keyed("f", "runs")).await.expect("accepted").id;
    until("it runs", || begun.load(Ordering::SeqCst) == 1).await;
    let asked = Instant::now();
    faults.away.store(true, Ordering::SeqCst);
    go.notify_one();
    let refused = one.accept(keyed("f", "refused")).await.expect_err("away");
    assert!(matches!(refused, AcceptError::Away(_)), "{refused:?}");
    assert!(asked.elapsed() < Duration::from_secs(10), "the refusal takes a bounded time");
    let at_once = Instant::now();
    let refused = one.accept(keyed("f", "refused at once")).await.expect_err("away");
    assert!(matches!(refused, AcceptError::Away(_)), "{refused:?}");
    assert!(at_once.elapsed() < Duration::from_secs(1), "it is known to be away");
    faults.away.store(false, Ordering::SeqCst);
    assert_eq!(state(&one, running).await, State::Succeeded);
    // The unconfirmed record was stored after all, so it runs once.
    go.notify_one();
    until("the log is back", || one.unconfirmed() == Some(0)).await;
    let again = one.accept(keyed("f", "refused")).await.expect("accepted");
    assert!(!again.is_new);
    assert_eq!(state(&one, again.id).await, State::Succeeded);
    let new = one.accept(keyed("f", "refused at once")).await.expect("accepted");
    assert!(new.is_new, "what is refused at once is not kept");
    go.notify_one();
    assert_eq!(state(&one, new.id).await, State::Succeeded);
    until("all is confirmed", || one.unconfirmed() == Some(0)).await;
    let other = journal(there.path(), &log, "other", &faults).await;
    assert_eq!(other.figures().waiting, 0, "the ends are in the log");
}

#[tokio::test]
async fn a_journal_opens_by_itself_when_its_log_is_back() {
    let here = folder();
    let log = folder();
    let log = log.path().join("log");
    let faults = Arc::<Faults>::default();
    faults.away.store(true, Ordering::SeqCst);
    let one = unopened(here.path(), &log, "one", &faults);
    let refused = one.accept(keyed("f", "1")).await.expect_err("not open");
    assert!(matches!(refused, AcceptError::Away(_)), "{refused:?}");
    one.take_up().await.expect_err("away");
    let refused = one.accept(keyed("f", "1")).await.expect_err("not open");
    assert_eq!(refused, AcceptError::Away("switched off".to_owned()));
    faults.away.store(false, Ordering::SeqCst);
    let opened = tokio::time::timeout(Duration::from_secs(20), async {
        while one.accept(keyed("f", "1")).await.is_err() {
            tokio::task::yield_now().await;
        }
    });
    opened.await.expect("it opens");
}

#[tokio::test]
async fn what_a_node_has_on_disk_goes_into_a_new_log() {
    let here = folder();
    let there = folder();
    let log = folder();
    let log = log.path().join("log");
    let faults = Arc::<Faults>::default();
    let local = Journal::new(here.path().join("journal.db"), Outgoing::default());
    let mut ids = Vec::new();
    for number in 0..1_200 {
        ids.push(local.accept(keyed("f", &number.to_string())).await.expect("accepted").id);
    }
    let activation = local.keep_activation(b"record".to_vec()).await.expect("kept");
    drop(local);
    // The machine is lost while the log is being filled. The file is complete and fills the log
    // again.
    faults.cut_after.store(700, Ordering::SeqCst);
    unopened(here.path(), &log, "one", &faults).take_up().await.expect_err("cut off");
    let faults = Arc::<Faults>::default();
    drop(journal(here.path(), &log, "one", &faults).await);
    let other = journal(there.path(), &log, "other", &faults).await;
    assert_eq!(other.figures().waiting, 1_200);
    assert!(other.show(ids[1_199]).await.expect("readable").is_some());
    let kept = other.activation(activation).await.expect("readable");
    assert_eq!(kept.as_deref(), Some(&b"record"[..]));
    let next = other.keep_activation(b"next".to_vec()).await.expect("kept");
    assert!(next > activation, "numbers are not used again");
    drop(other);

    // A journal that continued without its log keeps everything that it accepted meanwhile.
    let local = Journal::new(here.path().join("journal.db"), Outgoing::default());
    local.accept(keyed("f", "local")).await.expect("accepted");
    drop(local);
    let refused = unopened(here.path(), &log, "one", &faults).take_up().await;
    let text = refused.expect_err("two truths").to_string();
    assert!(text.contains("--journal-name") && text.contains("other"), "{text}");
}

#[tokio::test]
async fn long_rows_are_kept_in_parts_and_leave_none_behind() {
    let here = folder();
    let there = folder();
    let log = folder();
    let log = log.path().join("log");
    let faults = Arc::<Faults>::default();
    let one = journal(here.path(), &log, "one", &faults).await;
    let body: Vec<u8> = (0..5_u32 << 20).map(|n| (n % 251) as u8).collect();
    let long = Deferred { body: body.clone().into(), ..deferred("f", None) };
    let id = one.accept(long).await.expect("accepted").id;
    let mut kept = FileLog::open(&log, Arc::default());
    assert_eq!(kept.subjects().len(), 1 + 7, "{:?}", kept.subjects());
    drop(one);
    let other = journal(there.path(), &log, "other", &faults).await;
    let _task = run(&other, move |_, invocation| {
        let body = body.clone();
        async move {
            let got = invocation.body.collect(8 << 20).await.map_err(|_| Fault::Stopping)?;
            Ok((if got[..] == body[..] { 200 } else { 400 }, "done"))
        }
        .boxed()
    });
    assert_eq!(state(&other, id).await, State::Succeeded);
    until("all is confirmed", || other.unconfirmed() == Some(0)).await;
    assert_eq!(kept.subjects(), ["e", "r.1"]);
}

#[tokio::test]
async fn rows_that_are_removed_leave_the_log() {
    let here = folder();
    let log = folder();
    let log = log.path().join("log");
    let faults = Arc::<Faults>::default();
    let one = journal(here.path(), &log, "one", &faults).await;
    let inner = one.clone();
    let done = Done::default();
    let _task = run(&one, move |_, invocation| {
        let inner = inner.clone();
        let done = done.clone();
        async move {
            chain(inner, invocation.id, done).await?;
            Err(Fault::HandlerError { message: "no".to_owned() })
        }
        .boxed()
    });
    let once = Deferred { attempts_default: 1, ..deferred("f", None) };
    let id = one.accept(once).await.expect("accepted").id;
    assert_eq!(state(&one, id).await, State::Dead);
    let mut kept = FileLog::open(&log, Arc::default());
    until("all is confirmed", || one.unconfirmed() == Some(0)).await;
    assert_eq!(kept.subjects().len(), 5, "{:?}", kept.subjects());
    assert_eq!(one.delete_dead(Some(id), None).await.expect("deleted"), 1);
    assert_eq!(kept.subjects(), ["e"]);
}
