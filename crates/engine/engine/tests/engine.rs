//! Tests the engine with workers that it cannot distinguish from real ones: tasks that speak the
//! worker protocol over a socket pair. Each test controls its workers with scripts, so that it can
//! produce every order of events that matters (R29, R56, R80, R85, R88).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use mote_core::body::{Body, BodyError, BodySource};
use mote_core::wire::{self, FLAG_END, FrameKind, ResultHead};
use mote_core::{Fault, Invoker};
use mote_engine::Route;
use mote_process::clock;
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
    let learnt = first.known();
    let second = bench.publish(|_| ());
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
            // The engine must not have sent anything further while this invocation runs.
            assert!(worker.input.is_empty());
            worker.answer(stream, &body).await;
            // The first answer determines the service time. It is slow, so nothing is sent in
            // advance.
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
            // From here on, frames may be sent in advance, because the service time is known and
            // short.
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
    // Wait until an invocation has left the queue.
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
    // The stuck worker is killed after its grace period, and the next instance serves.
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
    // The caller does not read yet, so the worker may send its window and no more.
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
    let engine = bench.engine.clone();
    let route = Route::to(revision);
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

/// A watcher sees every call with its answer, and changes none of them.
#[tokio::test]
async fn a_watch_sees_each_call() {
    struct Seen(mpsc::UnboundedSender<(String, Result<u16, String>)>);
    impl mote_engine::Watch for Seen {
        fn begin(
            &self,
            function: &mote_spec::FunctionSpec,
            revision: u64,
            invocation: &mut mote_core::Invocation,
        ) -> Option<mote_engine::Ended> {
            let method = String::from_utf8_lossy(invocation.head.method()).into_owned();
            let call = format!("{}@{revision} {method}", function.name);
            let seen = self.0.clone();
            Some(Box::new(move |result| {
                let ended = result.map(|reply| reply.status).map_err(|fault| fault.to_string());
                seen.send((call, ended)).unwrap();
            }))
        }
    }
    let bench = Bench::new();
    let (sender, mut seen) = mpsc::unbounded_channel();
    let watching = bench.engine.watch(Arc::new(Seen(sender)));
    bench.script(echo);
    let revision = bench.publish(|_| ());
    let route = bench.engine.route("f", || None).unwrap();
    let body = Body::whole("a");
    let answered = bench.engine.invoke(&route, bench.invocation("POST", body, 60_000));
    assert_eq!(patient(answered).await.unwrap().status, 200);
    assert_eq!(seen.recv().await.unwrap(), ("f@1 POST".to_owned(), Ok(200)));
    // Some runs are not calls from a caller.
    let body = Body::whole("b");
    let answered = bench.engine.run(&route, bench.invocation("POST", body, 60_000));
    assert_eq!(patient(answered).await.unwrap().status, 200);
    bench.engine.remove("f");
    drop(revision);
    let late = bench.engine.invoke(&route, bench.invocation("GET", Body::Empty, 60_000));
    let fault = patient(late).await.unwrap_err().to_string();
    assert_eq!(seen.recv().await.unwrap(), ("f@1 GET".to_owned(), Err(fault)));
    // After the watch has ended, no more calls are shown.
    drop(watching);
    let unseen = bench.engine.invoke(&route, bench.invocation("GET", Body::Empty, 60_000));
    let _ = patient(unseen).await;
    assert!(seen.recv().await.is_none());
}
