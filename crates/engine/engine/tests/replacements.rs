//! Tests what happens to calls when the revision of a function is replaced or removed, or when its
//! traffic is split.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use mote_core::backend::BoxFuture;
use mote_core::body::Body;
use mote_core::rollout::{Share, Split};
use mote_core::{Fault, Invoker};
use mote_engine::Serving;
use tokio::sync::Notify;

mod support;
use support::*;

/// A worker that answers with its own name.
fn says(name: &'static str) -> impl FnOnce(Worker) -> BoxFuture<()> + Send {
    move |mut worker| {
        Box::pin(async move {
            worker.begin(1).await;
            while let Some((stream, _)) = worker.invoke().await {
                worker.answer(stream, name).await;
            }
        })
    }
}

#[tokio::test]
async fn what_waits_for_a_replaced_revision_is_answered_by_the_next() {
    let bench = Bench::new();
    let go = Arc::new(Notify::new());
    let gate = go.clone();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        let (stream, _) = worker.invoke().await.unwrap();
        gate.notified().await;
        worker.answer(stream, "old").await;
        while worker.frame().await.is_some() {}
    });
    bench.script(says("new"));
    let old = bench.publish(|spec| spec.scale.queue = 3);
    let running = bench.call(&old, "POST", "");
    until_running(&old).await;
    let waiting: Vec<_> = (0..3).map(|_| bench.call(&old, "POST", "")).collect();
    until_queued(&old, 3).await;
    // There are fewer places in the queue than waiting invocations, but invocations that were
    // already admitted keep their places.
    let new = bench.revision(2, |spec| spec.scale.queue = 1);
    patient(new.warm()).await.unwrap();
    bench.engine.publish(new.clone());
    for call in waiting {
        assert_eq!(patient(call).await.unwrap(), Ok("new".into()));
    }
    // This call is routed before the switch and submitted after it.
    assert_eq!(patient(bench.call(&old, "POST", "")).await.unwrap(), Ok("new".into()));
    go.notify_one();
    assert_eq!(patient(running).await.unwrap(), Ok("old".into()), "what ran runs to its end");
    assert_eq!(new.totals()[0], ("ok", 5));
    assert!(new.totals()[1..].iter().all(|(_, count)| *count == 0), "{:?}", new.totals());
    assert!(old.last_error().is_none() && new.last_error().is_none());
}

#[tokio::test]
async fn a_replacement_may_itself_be_replaced_while_callers_move() {
    let bench = Bench::new();
    bench.script(|_| async { std::future::pending().await });
    let first = bench.publish(|_| ());
    let call = bench.call(&first, "GET", "");
    until_queued(&first, 1).await;
    bench.script(says("third"));
    for number in 2..=3 {
        bench.engine.publish(bench.revision(number, |_| ()));
    }
    assert_eq!(patient(call).await.unwrap(), Ok("third".into()));
}

#[tokio::test]
async fn what_waits_for_a_removed_function_learns_it_at_once() {
    let bench = Bench::new();
    bench.script(|_| async { std::future::pending().await });
    let revision = bench.publish(|_| ());
    let call = bench.call(&revision, "GET", "");
    until_queued(&revision, 1).await;
    assert!(bench.engine.remove("f"));
    assert_eq!(patient(call).await.unwrap(), Err(Fault::NoSuchFunction));
}

#[tokio::test]
async fn a_draining_worker_that_dies_leaves_safe_calls_to_the_next_revision() {
    let bench = Bench::new();
    let go = Arc::new(Notify::new());
    let gate = go.clone();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        worker.invoke().await;
        gate.notified().await;
    });
    bench.script(says("new"));
    let old = bench.publish(|_| ());
    let call = bench.call(&old, "GET", "");
    until_running(&old).await;
    bench.engine.publish(bench.revision(2, |_| ()));
    go.notify_one();
    assert_eq!(patient(call).await.unwrap(), Ok("new".into()));
}

#[tokio::test]
async fn traffic_is_split_by_weight_key_and_tag() {
    let bench = Bench::new();
    let revisions: Vec<_> = (1..=3).map(|number| bench.revision(number, |_| ())).collect();
    let share = |revision, percent, tag: Option<&str>| Share {
        revision,
        percent,
        tag: tag.map(str::to_owned),
    };
    let shares = vec![share(1, 75, None), share(2, 25, None), share(3, 0, Some("next"))];
    let split = Split::new(shares).unwrap();
    assert!(Serving::new(split.clone(), &revisions[..2]).is_none(), "one is missing");
    bench.engine.publish(Serving::new(split, &revisions).unwrap());
    let number = |name: &str, key| bench.engine.route(name, || key).map(|r| r.revision().number);
    let to_second = (0..10_000).filter(|_| number("f", None) == Some(2)).count();
    assert!((2_200..2_800).contains(&to_second), "{to_second}");
    for key in 0..100 {
        assert_eq!(number("f", Some(key)), number("f", Some(key)));
    }
    assert_eq!(number("f@next", None), Some(3));
    for nothing in ["f@", "f@old", "g@next", "@next", "f@next@next"] {
        assert_eq!(number(nothing, None), None, "{nothing}");
    }

    // An invocation follows a tag that has moved. The revision that serves the plain name never
    // answers it.
    let tagged = bench.engine.route("f@next", || None).unwrap();
    bench.script(says("moved"));
    let fourth = bench.revision(4, |_| ());
    let shares = vec![share(1, 100, None), share(4, 0, Some("next"))];
    let revisions = [revisions[0].clone(), fourth];
    bench.engine.publish(Serving::new(Split::new(shares).unwrap(), &revisions).unwrap());
    let invocation = bench.invocation("GET", Body::Empty, 10_000);
    let reply = patient(bench.engine.invoke(&tagged, invocation)).await.unwrap();
    assert_eq!(text(reply).await, Ok("moved".into()));
    bench.engine.publish(revisions[0].clone());
    let invocation = bench.invocation("GET", Body::Empty, 10_000);
    let gone = patient(bench.engine.invoke(&tagged, invocation)).await;
    assert_eq!(gone.map(|_| ()), Err(Fault::NoSuchFunction));
}
