//! Tests what happens to calls and later starts when a worker dies, exits by itself, closes its
//! connection or breaks the protocol.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mote_core::Fault;
use mote_core::wire::{FLAG_END, FrameKind};
use mote_process::clock;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, mpsc};

mod support;
use support::*;

#[tokio::test]
async fn a_dead_worker_fails_posts_and_repeats_gets_once() {
    let bench = Bench::new();
    for _ in 0..2 {
        bench.script(|mut worker| async move {
            worker.begin(1).await;
            worker.invoke().await;
        });
    }
    bench.script(echo);
    let revision = bench.publish(|_| ());
    let post = patient(bench.call(&revision, "POST", "x")).await.unwrap();
    assert_eq!(post, Err(Fault::WorkerExited { status: 0, attempt: 1 }));
    let get = patient(bench.call(&revision, "GET", "y")).await.unwrap();
    assert_eq!(get, Ok("y".into()), "the second worker died under it, the third answered");
}

#[tokio::test]
async fn what_a_worker_that_ends_has_not_begun_runs_elsewhere() {
    let bench = Bench::new();
    let exits = Arc::new(Notify::new());
    let exit = exits.clone();
    bench.script(move |mut worker| async move {
        worker.begin(2).await;
        let (begun, _) = worker.invoke().await.unwrap();
        let (_, body) = worker.invoke().await.unwrap();
        assert_eq!(body, "not begun");
        let error = br#"{"kind":"RangeError","message":"loose"}"#;
        worker.send(FrameKind::Error, FLAG_END, begun, error).await;
        worker.send(FrameKind::Error, FLAG_END, 0, error).await;
        exit.notified().await;
        assert!(worker.input.is_empty(), "it was given more");
    });
    let (ran, mut order) = mpsc::unbounded_channel();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        while let Some((stream, body)) = worker.invoke().await {
            ran.send(body.clone()).unwrap();
            worker.answer(stream, &body).await;
        }
    });
    let revision = bench.publish(|spec| spec.scale.max = Some(1));
    let begun = bench.call(&revision, "POST", "begun");
    until_running(&revision).await;
    let not_begun = bench.call(&revision, "POST", "not begun");
    let fault = patient(begun).await.unwrap().unwrap_err();
    assert!(matches!(fault, Fault::HandlerError { .. }), "{fault:?}");
    until_queued(&revision, 1).await;
    let later = bench.call(&revision, "POST", "later");
    until_queued(&revision, 2).await;
    exits.notify_one();
    assert_eq!(patient(not_begun).await.unwrap(), Ok("not begun".into()));
    assert_eq!(patient(later).await.unwrap(), Ok("later".into()));
    assert_eq!([order.recv().await.unwrap(), order.recv().await.unwrap()], ["not begun", "later"]);
}

#[tokio::test]
async fn a_worker_that_says_that_it_ends_and_stays_is_killed() {
    let bench = Bench::new();
    bench.script(|mut worker| async move {
        worker.begin(1).await;
        worker.invoke().await.unwrap();
        worker.send(FrameKind::Error, FLAG_END, 0, br#"{"kind":"E","message":"m"}"#).await;
        std::future::pending().await
    });
    bench.script(echo);
    let revision = bench.publish(|spec| spec.scale.max = Some(1));
    assert_eq!(patient(bench.call(&revision, "POST", "a")).await.unwrap(), Ok("a".into()));
}

#[tokio::test]
async fn nobody_is_given_to_a_worker_that_has_closed_its_connection() {
    let bench = Bench::new();
    let closed = Arc::new(Notify::new());
    let exits = Arc::new(Notify::new());
    let close = closed.clone();
    let exit = exits.clone();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        let (stream, body) = worker.invoke().await.unwrap();
        worker.answer(stream, &body).await;
        drop(worker);
        close.notify_one();
        exit.notified().await;
    });
    bench.script(echo);
    let revision = bench.publish(|_| ());
    assert_eq!(patient(bench.call(&revision, "POST", "a")).await.unwrap(), Ok("a".into()));
    patient(closed.notified()).await;
    // The node does not know yet that the process has ended, but it must not give this invocation
    // to the worker.
    let next = bench.call(&revision, "POST", "b");
    assert_eq!(patient(next).await.unwrap(), Ok("b".into()));
    exits.notify_one();
}

#[tokio::test]
async fn a_failed_start_answers_those_who_wait_and_backs_off() {
    let bench = Bench::new();
    let revision = bench.publish(|_| ());
    for _ in 0..3 {
        let result = patient(bench.call(&revision, "POST", "x")).await.unwrap();
        assert!(
            matches!(&result, Err(Fault::StartFailed { message }) if message.contains("no script"))
        );
    }
    assert_eq!(bench.scripts.starts.load(Ordering::SeqCst), 1, "the second and third did not try");
}

#[tokio::test]
async fn a_worker_that_dies_by_itself_again_and_again_is_paused() {
    let bench = Bench::new();
    for _ in 0..10 {
        bench.script(|mut worker| async move { worker.begin(1).await });
    }
    let revision = bench.publish(|spec| spec.scale.min = 1);
    // Three starts for the minimum fail. After that, the engine refuses a caller at once.
    let refused = patient(async {
        loop {
            let lines = revision.log.tail(usize::MAX);
            if lines.iter().any(|line| line.text.contains("died 3 times")) {
                return bench.call(&revision, "POST", "x").await.unwrap();
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(matches!(refused, Err(Fault::StartFailed { .. })), "{refused:?}");
    assert_eq!(bench.scripts.starts.load(Ordering::SeqCst), 3);
}

/// A worker that serves calls one after the other, and ends when it is asked to.
async fn mortal(mut worker: Worker) {
    worker.begin(1).await;
    while let Some((stream, body)) = worker.invoke().await {
        if body == "die" {
            return;
        }
        worker.answer(stream, &body).await;
    }
}

#[tokio::test]
async fn a_request_that_ends_its_worker_keeps_no_other_caller_waiting() {
    const ROUNDS: usize = 12;
    let bench = Bench::new();
    // Each of these GET calls ends two workers, because it is run once more. A POST call ends one.
    for _ in 0..=3 * ROUNDS {
        bench.script(mortal);
    }
    let revision = bench.publish(|_| ());
    let mut served = 0;
    for round in 0..ROUNDS {
        let deadly = bench.call(&revision, "GET", "die");
        let others: Vec<_> = (0..3).map(|_| bench.call(&revision, "POST", "fine")).collect();
        let fault = patient(deadly).await.unwrap().unwrap_err();
        assert!(matches!(fault, Fault::WorkerExited { .. }), "round {round}: {fault:?}");
        for other in others {
            // One of these calls may have been in the worker when the worker ended.
            served += usize::from(patient(other).await.unwrap().is_ok());
        }
        // Even if the caller has left by then, the death does not count.
        let gone = bench.call(&revision, "POST", "die");
        patient(async {
            let is_running = || revision.status().instances.iter().any(|i| i.in_flight > 0);
            while !gone.is_finished() && !is_running() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        gone.abort();
    }
    assert!(served >= ROUNDS * 5 / 2, "{served} of {} others were served", 3 * ROUNDS);
}

#[tokio::test]
async fn where_every_request_ends_its_worker_starts_are_slowed_and_nobody_is_refused() {
    let bench = Bench::new();
    for _ in 0..100 {
        bench.script(mortal);
    }
    let revision = bench.publish(|_| ());
    let since = clock::now_ns();
    for _ in 0..20 {
        let fault = patient(bench.call(&revision, "POST", "die")).await.unwrap().unwrap_err();
        assert!(matches!(fault, Fault::WorkerExited { .. }), "{fault:?}");
        if bench.scripts.starts.load(Ordering::SeqCst) == 10 {
            break;
        }
    }
    // The ninth and the tenth start waited half a second each.
    assert!(clock::now_ns() - since >= 500_000_000);
    assert_eq!(patient(bench.call(&revision, "POST", "fine")).await.unwrap().unwrap(), "fine");
}

#[tokio::test]
async fn a_worker_that_breaks_the_protocol_is_ended_and_replaced() {
    let garbage: &[u8] = &[0xff; 12];
    let short_result: &[u8] = &[0, 0, 0, 0, 6, 0, 0, 0, 1, 0, 0, 0];
    let no_such_stream: &[u8] = &[1, 0, 0, 0, 6, 1, 0, 0, 99, 0, 0, 0, 0];
    for bad in [garbage, short_result, no_such_stream] {
        let bench = Bench::new();
        bench.script(move |mut worker| async move {
            worker.begin(1).await;
            worker.invoke().await;
            worker.stream.write_all(bad).await.unwrap();
            std::future::pending().await
        });
        bench.script(echo);
        let revision = bench.publish(|_| ());
        let result = patient(bench.call(&revision, "POST", "x")).await.unwrap();
        assert!(matches!(result, Err(Fault::BadReply { .. })), "{result:?}");
        assert_eq!(patient(bench.call(&revision, "POST", "ok")).await.unwrap().unwrap(), "ok");
    }
}
