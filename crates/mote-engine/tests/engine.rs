//! The engine against workers it cannot tell from real ones: tasks that speak the worker protocol
//! over a socket pair. What a worker does is a script of the test, so every order of events that
//! matters can be made to happen (R29, R56, R80, R85, R88).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mote_core::backend::BoxFuture;
use mote_core::body::{Body, BodyError, BodySource};
use mote_core::rollout::{Share, Split};
use mote_core::wire::{self, FLAG_END, FrameKind, Invoke, ResultHead};
use mote_core::{Fault, Invoker};
use mote_engine::{Revision, Route, Serving, clock};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, mpsc};

mod support;
use support::*;

#[tokio::test]
async fn a_call_waits_for_the_first_instance_and_reuses_it() {
    let bench = Bench::new();
    bench.script(echo);
    let revision = bench.publish(|_| ());
    for body in ["a", "b", "c"] {
        assert_eq!(patient(bench.call(&revision, "POST", body)).await.unwrap().unwrap(), body);
    }
    assert_eq!(bench.scripts.starts.load(Ordering::SeqCst), 1);
    assert_eq!(revision.cold_starts(), 1);
    assert_eq!(revision.totals()[0], ("ok", 3));
}

#[tokio::test]
async fn a_new_revision_begins_with_what_was_learnt() {
    let bench = Bench::new();
    bench.script(echo);
    let first = bench.publish(|_| ());
    assert_eq!(first.known().service.mean_ns(), None);
    assert_eq!(patient(bench.call(&first, "POST", "a")).await.unwrap().unwrap(), "a");
    patient(async {
        while first.known().service.count() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (learnt, second) = (first.known(), bench.publish(|_| ()));
    assert_eq!((second.known().service, second.known().start), (learnt.service, learnt.start));
}

#[tokio::test]
async fn a_worker_of_unknown_speed_gets_one_call_at_a_time_in_order() {
    let bench = Bench::new();
    let (seen, mut order) = mpsc::unbounded_channel();
    let go = Arc::new(Notify::new());
    let gate = go.clone();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        while let Some((stream, body)) = worker.invoke().await {
            seen.send(body.clone()).unwrap();
            gate.notified().await;
            // Nothing further may have been sent while this one runs.
            assert!(worker.input.is_empty());
            worker.answer(stream, &body).await;
            // The first answer tells a service time; keep it slow so that nothing is sent ahead.
        }
    });
    let revision = bench.publish(|_| ());
    let calls: Vec<_> = (0..3).map(|n| bench.call(&revision, "POST", &n.to_string())).collect();
    for (n, call) in calls.into_iter().enumerate() {
        assert_eq!(patient(order.recv()).await.unwrap(), n.to_string());
        if n < 2 {
            assert!(order.try_recv().is_err());
        }
        go.notify_one();
        assert_eq!(patient(call).await.unwrap().unwrap(), n.to_string());
        if n == 0 {
            // From here on frames may be sent ahead: the service time is known and short.
            break;
        }
    }
}

#[tokio::test]
async fn the_queue_is_bounded() {
    let bench = Bench::new();
    bench.script(|mut worker| async move {
        worker.begin(1).await;
        std::future::pending().await
    });
    let revision = bench.publish(|spec| spec.scale.queue = 2);
    let first = bench.call(&revision, "POST", "runs");
    // Wait until it has left the queue.
    patient(async {
        while revision.status().instances.first().is_none_or(|i| i.in_flight == 0) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let _second = bench.call(&revision, "POST", "waits");
    let _third = bench.call(&revision, "POST", "waits");
    patient(async {
        while revision.status().queued < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let refused = patient(bench.call(&revision, "POST", "refused")).await.unwrap();
    assert_eq!(refused, Err(Fault::QueueFull));
    drop(first);
}

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

async fn until_queued(revision: &Arc<Revision>, count: usize) {
    patient(async {
        while revision.status().queued != count {
            tokio::task::yield_now().await;
        }
    })
    .await;
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
    // Fewer places than wait: those who were admitted keep theirs.
    let new = bench.revision(2, |spec| spec.scale.queue = 1);
    patient(new.warm()).await.unwrap();
    bench.engine.publish(new.clone());
    for call in waiting {
        assert_eq!(patient(call).await.unwrap(), Ok("new".into()));
    }
    // Routed before the switch, submitted after it.
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

    // A tag that moved is followed, and never answered by what serves the name.
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

#[tokio::test]
async fn a_caller_that_goes_away_is_cancelled_in_queue_and_worker() {
    let bench = Bench::new();
    let (seen, mut frames) = mpsc::unbounded_channel();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        while let Some((header, _)) = worker.frame().await {
            seen.send(header.kind).unwrap();
            if header.kind == FrameKind::Cancel {
                let error = br#"{"kind":"Cancelled","message":""}"#;
                worker.send(FrameKind::Error, FLAG_END, header.stream, error).await;
            }
        }
    });
    let revision = bench.publish(|_| ());
    let running = bench.call(&revision, "POST", "a");
    assert_eq!(patient(frames.recv()).await, Some(FrameKind::Invoke));
    let waiting = bench.call(&revision, "POST", "b");
    patient(async {
        while revision.status().queued < 1 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    waiting.abort();
    patient(async {
        while revision.status().queued > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    running.abort();
    assert_eq!(patient(frames.recv()).await, Some(FrameKind::Cancel));
    patient(async {
        while revision.status().instances[0].in_flight > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn deadlines_name_the_phase_and_a_stuck_worker_is_replaced() {
    let bench = Bench::new();
    bench.script(|mut worker| async move {
        worker.begin(1).await;
        std::future::pending().await
    });
    bench.script(echo);
    let revision = bench.publish(|spec| spec.limits.timeout_ms = 100);
    let running = bench.call(&revision, "POST", "a");
    patient(async {
        while revision.status().instances.first().is_none_or(|i| i.in_flight == 0) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let queued = bench.call(&revision, "POST", "b");
    assert_eq!(patient(running).await.unwrap(), Err(Fault::DeadlineRunning { timeout_ms: 100 }));
    assert_eq!(patient(queued).await.unwrap(), Err(Fault::DeadlineQueued { timeout_ms: 100 }));
    // The stuck worker is killed after its grace; the next instance serves.
    let answer = patient(async {
        loop {
            if let Ok(answer) = bench.call(&revision, "POST", "c").await.unwrap() {
                return answer;
            }
        }
    })
    .await;
    assert_eq!(answer, "c");
}

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
    let (closed, exits) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (close, exit) = (closed.clone(), exits.clone());
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
    // Its process is not known to have ended, and yet it must not get this one.
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
    // Three starts for the minimum fail; after them a caller is refused at once.
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

/// A worker that serves one call after the other and ends when it is asked to.
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
    // Each such GET ends two workers, as it is run once more, and a POST one.
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
            // One of them may have been in the worker when it ended.
            served += usize::from(patient(other).await.unwrap().is_ok());
        }
        // Nor does it count when the caller has gone by the time.
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
    // The ninth and the tenth waited half a second each.
    assert!(clock::now_ns() - since >= 500_000_000);
    assert_eq!(patient(bench.call(&revision, "POST", "fine")).await.unwrap().unwrap(), "fine");
}

#[tokio::test]
async fn answers_stream_with_credit_and_stop_when_the_reader_goes() {
    const CHUNKS: usize = 64;
    let bench = Bench::new();
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = sent.clone();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        let (stream, _) = worker.invoke().await.unwrap();
        let now = clock::now_ns();
        let head = ResultHead {
            entered_ns: now,
            returned_ns: now,
            status: 200,
            headers: Bytes::new(),
            body: Bytes::new(),
        };
        let mut out = Vec::new();
        head.put(&mut out, stream, false);
        worker.stream.write_all(&out).await.unwrap();
        let mut credit = wire::WINDOW_BYTES as usize;
        let chunk = vec![b'x'; wire::CHUNK_BYTES_MAX];
        for _ in 0..CHUNKS {
            while credit < chunk.len() {
                let (header, payload) = worker.frame().await.unwrap();
                assert_eq!(header.kind, FrameKind::Credit);
                credit += u32::from_le_bytes(payload[..4].try_into().unwrap()) as usize;
            }
            credit -= chunk.len();
            worker.send(FrameKind::Body, 0, stream, &chunk).await;
            counter.fetch_add(1, Ordering::SeqCst);
        }
        worker.send(FrameKind::Body, FLAG_END, stream, &[]).await;
        while worker.frame().await.is_some() {}
    });
    let revision = bench.publish(|_| ());
    let invocation = bench.invocation("GET", Body::Empty, 10_000);
    let route = Route::to(revision.clone());
    let mut reply = patient(bench.engine.invoke(&route, invocation)).await.unwrap();
    // Nobody reads yet: the worker may send its window and no more.
    patient(async {
        while sent.load(Ordering::SeqCst) < 4 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(sent.load(Ordering::SeqCst), 4, "sent beyond its window");
    let mut bytes = 0;
    while let Some(chunk) = patient(reply.body.chunk()).await {
        bytes += chunk.unwrap().len();
    }
    assert_eq!(bytes, CHUNKS * wire::CHUNK_BYTES_MAX);
}

/// A body that counts how much of it was taken.
struct Counted {
    left: usize,
    taken: Arc<AtomicUsize>,
}

impl BodySource for Counted {
    fn poll_chunk(
        &mut self,
        _cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Bytes, BodyError>>> {
        if self.left == 0 {
            return std::task::Poll::Ready(None);
        }
        self.left -= 1;
        self.taken.fetch_add(1, Ordering::SeqCst);
        std::task::Poll::Ready(Some(Ok(Bytes::from(vec![b'y'; 50_000]))))
    }
}

#[tokio::test]
async fn request_bodies_wait_for_the_workers_credit() {
    let bench = Bench::new();
    let taken = Arc::new(AtomicUsize::new(0));
    let go = Arc::new(Notify::new());
    let gate = go.clone();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        let (stream, _) = worker.invoke().await.unwrap();
        gate.notified().await;
        let mut bytes = 0;
        loop {
            let (header, payload) = worker.frame().await.unwrap();
            assert_eq!(header.kind, FrameKind::Body);
            bytes += payload.len();
            if header.is_end() {
                break;
            }
            let credit = (payload.len() as u32).to_le_bytes();
            worker.send(FrameKind::Credit, 0, stream, &credit).await;
        }
        worker.answer(stream, &bytes.to_string()).await;
        while worker.frame().await.is_some() {}
    });
    let revision = bench.publish(|_| ());
    let source = Counted { left: 100, taken: taken.clone() };
    let body = Body::Stream { source: Box::new(source), length: None };
    let invocation = bench.invocation("POST", body, 10_000);
    let (engine, route) = (bench.engine.clone(), Route::to(revision));
    let call = tokio::spawn(async move { text(engine.invoke(&route, invocation).await?).await });
    patient(async {
        while taken.load(Ordering::SeqCst) < 5 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    let ahead = taken.load(Ordering::SeqCst);
    assert!(ahead <= 7, "{ahead} chunks were taken without credit");
    go.notify_one();
    assert_eq!(patient(call).await.unwrap().unwrap(), "5000000");
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

/// Waits until so many instances are ready.
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
    // One permit is kept at a time, so each call is let go when it runs.
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
    assert!(log.iter().any(|line| line.starts_with("stopping (idle): no call ")), "{log:?}");
}

#[tokio::test]
async fn a_minimum_is_kept_without_any_request() {
    let bench = Bench::new();
    // The first dies when it is told to, the next start fails, and the one after serves.
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
    // As many as before, of another kind.
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
    // It serves, and another takes its place, which has then been idle for longer.
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
    bench.script(echo);
    let revision = bench.publish(|spec| {
        spec.scale.queue = 0;
        spec.scale.pause_ms = Some(0);
    });
    assert_eq!(revision.scale_to(1).starting, 1);
    until_states(&revision, &["paused"]).await;
    assert_eq!(revision.scale_to(0).stopped, 1);
    // It arrives before anything else happens.
    let route = Route::to(revision.clone());
    let call = bench.engine.invoke(&route, bench.invocation("POST", Body::Empty, 10_000));
    assert_eq!(patient(call).await.unwrap_err(), Fault::QueueFull);
}
