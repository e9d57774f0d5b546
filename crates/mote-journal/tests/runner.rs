//! The runner over functions that are closures, with a real file: shares, results that cannot be
//! delivered, faults of the node, and the end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use mote_core::accept::{Accept as _, Callback, Deferred};
use mote_core::body::Body;
use mote_core::invocation::Head;
use mote_core::spec::CoapResource;
use mote_core::{
    Fault, FunctionName, Invocation, InvocationId, Invoker, Phases, Reply, RouteInfo, Trigger,
};
use mote_journal::{Cancelled, Journal, State};
use mote_outgoing::{Outgoing, Reach};

type Answer = Result<(u16, &'static str), Fault>;
type Run = dyn Fn(String, Invocation) -> BoxFuture<'static, Answer> + Send + Sync;

/// Functions of any name, each with 16 places.
#[derive(Clone)]
struct Functions(Arc<Run>);

#[derive(Clone)]
struct Route(FunctionName);

impl RouteInfo for Route {
    fn name(&self) -> &FunctionName {
        &self.0
    }
    fn timeout_ms(&self) -> u64 {
        10_000
    }
    fn body_bytes_max(&self) -> u64 {
        1 << 20
    }
    fn methods(&self) -> &[String] {
        &[]
    }
    fn coap(&self) -> &CoapResource {
        static NONE: CoapResource =
            CoapResource { title: None, resource_type: None, content_format: None };
        &NONE
    }
    fn places(&self) -> u32 {
        16
    }
}

impl Invoker for Functions {
    type Route = Route;

    fn route(&self, name: &str, _: impl FnOnce() -> Option<u64>) -> Option<Route> {
        FunctionName::new(name).ok().map(Route)
    }

    fn routes(&self) -> Vec<Route> {
        Vec::new()
    }

    async fn invoke(&self, route: &Route, invocation: Invocation) -> Result<Reply, Fault> {
        let (status, body) = (self.0)(route.0.as_str().to_owned(), invocation).await?;
        let body = Body::whole(Bytes::from_static(body.as_bytes()));
        Ok(Reply { status, headers: Bytes::new(), body, phases: Phases::default() })
    }
}

/// A journal that runs, over functions that are `run`.
fn running(
    run: impl Fn(String, Invocation) -> BoxFuture<'static, Answer> + Send + Sync + 'static,
) -> (Journal, tempfile::TempDir, tokio::task::JoinHandle<()>) {
    let dir = tempfile::tempdir().expect("a folder");
    let outgoing = Outgoing { reach: Reach::Machine, ..Outgoing::default() };
    let journal = Journal::new(dir.path().join("journal.db"), outgoing);
    let task = tokio::spawn(mote_journal::run(journal.clone(), Functions(Arc::new(run))));
    (journal, dir, task)
}

fn deferred(function: &str, callback: Option<&str>) -> Deferred {
    let head = Head::builder(b"POST", b"/", b"").finish();
    let callback = callback.map(|url| Callback { url: url.to_owned(), fields: Vec::new() });
    let body = Bytes::from_static(b"body");
    Deferred { callback, ..Deferred::new(function, Trigger::Http, head, body) }
}

async fn accept(journal: &Journal, deferred: Deferred) -> InvocationId {
    journal.accept(deferred).await.expect("accepted").id
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("waited in vain: {what}"));
}

async fn state(journal: &Journal, id: InvocationId) -> State {
    tokio::time::timeout(Duration::from_secs(20), journal.ended(id)).await.expect("it ends");
    journal.show(id).await.expect("readable").expect("known").stored.state
}

#[tokio::test]
async fn results_that_nobody_takes_do_not_keep_calls_from_running() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let url = format!("http://{}/", silent.local_addr().expect("bound"));
    let ran = Arc::new(Mutex::new(Vec::new()));
    let noted = ran.clone();
    let (journal, _dir, _task) = running(move |name, _| {
        noted.lock().expect("not poisoned").push(name);
        async { Ok((200, "done")) }.boxed()
    });
    for _ in 0..100 {
        accept(&journal, deferred("hostile", Some(&url))).await;
    }
    until("all run while their results wait", || ran.lock().expect("not poisoned").len() == 100)
        .await;
    let id = accept(&journal, deferred("other", None)).await;
    assert_eq!(state(&journal, id).await, State::Succeeded);
    assert_eq!(journal.figures().waiting, 100, "the results are kept");
}

#[tokio::test]
async fn calls_that_take_long_leave_room_to_other_functions() {
    let began = Arc::new(Mutex::new(Vec::new()));
    let noted = began.clone();
    let (journal, _dir, _task) = running(move |name, _| {
        let slow = name == "slow";
        noted.lock().expect("not poisoned").push(name);
        async move {
            if slow {
                std::future::pending::<()>().await;
            }
            Ok((200, "done"))
        }
        .boxed()
    });
    for _ in 0..100 {
        accept(&journal, deferred("slow", None)).await;
    }
    let id = accept(&journal, deferred("quick", None)).await;
    assert_eq!(state(&journal, id).await, State::Succeeded);
    let slow = || began.lock().expect("not poisoned").iter().filter(|one| *one == "slow").count();
    until("half of its places are used", || slow() == 8).await;
}

#[tokio::test]
async fn a_call_that_makes_the_node_fail_ends_as_a_dead_letter() {
    let (journal, _dir, task) = running(|_, _| async { panic!("on purpose") }.boxed());
    let id = accept(&journal, deferred("panics", None)).await;
    assert_eq!(state(&journal, id).await, State::Dead);
    assert_eq!(journal.figures().waiting, 0, "its place is free");
    journal.stop();
    tokio::time::timeout(Duration::from_secs(20), task).await.expect("it ends").expect("no panic");
}

#[tokio::test]
async fn what_the_stop_of_the_node_interrupts_runs_again() {
    let (journal, dir, task) = running(|_, _| async { Err(Fault::Stopping) }.boxed());
    let id = accept(&journal, deferred("f", None)).await;
    journal.stop();
    assert!(journal.accept(deferred("f", None)).await.is_err(), "a stopping node accepts nothing");
    tokio::time::timeout(Duration::from_secs(20), task).await.expect("it ends").expect("no panic");
    drop(journal);

    let again = Journal::new(dir.path().join("journal.db"), Outgoing::default());
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

#[tokio::test]
async fn an_invocation_that_is_cancelled_twice_gives_its_place_back_once() {
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = begun.clone();
    let (journal, _dir, _task) = running(move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        std::future::pending().boxed()
    });
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

#[tokio::test]
async fn a_cancelled_invocation_is_not_tried_again() {
    let (journal, _dir, _task) =
        running(|_, _| async { Err(Fault::HandlerError { message: "boom".to_owned() }) }.boxed());
    // Some are cancelled while they run, some while their attempt is noted, some while they wait.
    for _ in 0..200 {
        let id = accept(&journal, deferred("fails", None)).await;
        if journal.cancel(id).await.expect("readable") != Cancelled::Ended {
            assert_eq!(state(&journal, id).await, State::Cancelled);
        }
    }
}

#[tokio::test]
async fn the_steps_of_a_run_are_kept_while_it_runs_and_bounded() {
    let shared: Arc<Mutex<Option<Journal>>> = Arc::default();
    let inner = shared.clone();
    let (journal, _dir, _task) = running(move |_, invocation| {
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
    });
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
