//! Tests how many instances a function has, and in which states: idle, kept, prewarmed, spare and
//! paused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mote_core::wire::{FrameKind, Invoke};
use mote_engine::Revision;
use tokio::sync::Notify;

mod support;
use support::*;

#[tokio::test]
async fn an_idle_instance_stops_and_leaves_nothing() {
    let bench = Bench::new();
    bench.script(|mut worker| async move {
        worker.begin(1).await;
        while let Some((header, payload)) = worker.frame().await {
            match header.kind {
                FrameKind::Invoke => {
                    let body = Invoke::parse(&payload).unwrap().body.to_vec();
                    worker.answer(header.stream, &String::from_utf8(body).unwrap()).await;
                }
                FrameKind::Drain => return,
                kind => panic!("{kind:?}"),
            }
        }
    });
    bench.script(echo);
    let revision = bench.publish(|spec| spec.scale.idle_timeout_ms = 50);
    assert_eq!(patient(bench.call(&revision, "POST", "a")).await.unwrap().unwrap(), "a");
    patient(async {
        while !revision.status().instances.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(patient(bench.call(&revision, "POST", "b")).await.unwrap().unwrap(), "b");
    assert_eq!(bench.scripts.starts.load(Ordering::SeqCst), 2);
}

/// Waits until this many instances are ready.
async fn until_ready(revision: &Arc<Revision>, count: usize) {
    patient(async {
        while revision.status().instances.len() != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn waiting_work_starts_several_instances_and_their_reasons_are_kept() {
    let bench = Bench::new();
    let go = Arc::new(Notify::new());
    for _ in 0..4 {
        let gate = go.clone();
        bench.script(move |mut worker| async move {
            worker.begin(1).await;
            while let Some((stream, body)) = worker.invoke().await {
                gate.notified().await;
                worker.answer(stream, &body).await;
            }
        });
    }
    let revision = bench.publish(|spec| {
        spec.scale.max = Some(4);
        spec.scale.idle_timeout_ms = 50;
    });
    let calls: Vec<_> = (0..8).map(|n| bench.call(&revision, "POST", &n.to_string())).collect();
    until_ready(&revision, 4).await;
    let mut words: Vec<_> =
        revision.status().instances.iter().map(|instance| instance.why.word).collect();
    words.sort_unstable();
    assert_eq!(words, ["backlog", "backlog", "backlog", "first-invocation"]);
    // At most one permit is kept at a time, so each call is released only when it runs.
    let answers = patient(async {
        let mut answers = 0;
        for call in calls {
            let mut call = call;
            loop {
                go.notify_one();
                tokio::select! {
                    answer = &mut call => {
                        answer.unwrap().unwrap();
                        answers += 1;
                        break;
                    }
                    () = tokio::time::sleep(Duration::from_millis(1)) => {}
                }
            }
        }
        answers
    })
    .await;
    assert_eq!(answers, 8);
    until_ready(&revision, 0).await;
    let log: Vec<_> = revision.log.tail(100).iter().map(|line| line.text.clone()).collect();
    assert!(log.iter().any(|line| line.contains("started (first-invocation): an ")), "{log:?}");
    assert!(log.iter().any(|line| line.starts_with("stopping (idle): keeping it ")), "{log:?}");
}

#[tokio::test]
async fn a_minimum_is_kept_without_any_request() {
    let bench = Bench::new();
    // The first worker dies on request, the next start fails, and the one after it serves.
    let die = Arc::new(Notify::new());
    let told = die.clone();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        told.notified().await;
    });
    let revision = bench.publish(|spec| spec.scale.min = 1);
    until_ready(&revision, 1).await;
    assert_eq!(revision.status().instances[0].why.word, "min");
    die.notify_one();
    patient(async {
        while bench.scripts.starts.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    bench.script(echo);
    until_ready(&revision, 1).await;
    assert_eq!(bench.scripts.starts.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn what_waits_changes_with_what_functions_need() {
    let bench = Bench::new();
    let until_waiting = async |pids: u32| {
        patient(async {
            loop {
                let waiting = bench.scripts.waiting.lock().clone();
                if let [one] = &waiting[..]
                    && (one.like.limits.pids, one.count) == (pids, 1)
                {
                    break;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
    };
    bench.publish(|spec| spec.limits.pids = 16);
    until_waiting(16).await;
    // The same number of programs must wait, but they are of another kind, because a limit has
    // changed.
    bench.publish(|spec| spec.limits.pids = 32);
    until_waiting(32).await;
}

async fn until_states(revision: &Arc<Revision>, states: &[&str]) {
    patient(async {
        loop {
            let mut now: Vec<_> = revision.status().instances.iter().map(|i| i.state).collect();
            now.sort_unstable();
            if now == states {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_paused_instance_does_not_stand_in_for_one_that_died() {
    let bench = Bench::new();
    bench.scripts.pausable.store(true, Ordering::SeqCst);
    let die = Arc::new(Notify::new());
    let told = die.clone();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        told.notified().await;
    });
    bench.script(echo);
    bench.script(echo);
    let revision = bench.publish(|spec| {
        spec.scale.min = 2;
        spec.scale.max = Some(2);
        spec.scale.pause_ms = Some(0);
    });
    until_states(&revision, &["paused", "paused"]).await;
    die.notify_one();
    patient(async {
        while bench.scripts.starts.load(Ordering::SeqCst) < 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    until_states(&revision, &["paused", "paused"]).await;
}

#[tokio::test]
async fn where_nothing_can_be_paused_no_spare_one_is_kept() {
    let bench = Bench::new();
    for _ in 0..4 {
        bench.script(echo);
    }
    let revision = bench.publish(|spec| {
        spec.scale.spare = 1;
        spec.scale.max = Some(4);
    });
    until_states(&revision, &["ready"]).await;
    for _ in 0..20 {
        assert_eq!(patient(bench.call(&revision, "POST", "a")).await.unwrap().unwrap(), "a");
    }
    assert_eq!(bench.scripts.starts.load(Ordering::SeqCst), 1);
    let log: Vec<_> = revision.log.tail(100).iter().map(|line| line.text.clone()).collect();
    assert!(log.iter().any(|line| line.contains("cannot pause them")), "{log:?}");
}

#[tokio::test]
async fn scaling_by_hand_leaves_spare_ones_alone_and_uses_them() {
    let bench = Bench::new();
    bench.scripts.pausable.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        bench.script(echo);
    }
    let revision = bench.publish(|spec| {
        spec.scale.spare = 1;
        spec.scale.max = Some(2);
    });
    until_states(&revision, &["spare"]).await;
    // The spare serves, and another spare replaces it. That other spare has then been idle for
    // longer.
    for _ in 0..2 {
        assert_eq!(patient(bench.call(&revision, "POST", "a")).await.unwrap().unwrap(), "a");
        until_states(&revision, &["ready", "spare"]).await;
    }
    let scaled = revision.scale_to(0);
    assert_eq!((scaled.ready, scaled.stopped), (0, 1));
    until_states(&revision, &["spare"]).await;
    let scaled = revision.scale_to(1);
    assert_eq!((scaled.ready, scaled.starting), (1, 0), "the spare one is there already");
}

#[tokio::test]
async fn a_paused_instance_that_must_go_is_no_room() {
    let bench = Bench::new();
    bench.scripts.pausable.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        bench.script(echo);
    }
    let revision = bench.publish(|spec| {
        spec.scale.queue = 0;
        spec.scale.pause_ms = Some(0);
    });
    assert_eq!(revision.scale_to(1).starting, 1);
    until_states(&revision, &["paused"]).await;
    assert_eq!(revision.scale_to(0).stopped, 1);
    // The call arrives before anything else happens. It waits for another instance.
    assert_eq!(patient(bench.call(&revision, "POST", "a")).await.unwrap().unwrap(), "a");
    assert_eq!(bench.scripts.starts.load(Ordering::SeqCst), 2);
}
