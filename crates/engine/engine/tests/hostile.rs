//! Tests the engine with workers that violate the rules. Such workers claim, send and withhold
//! whatever suits them. No worker may make the node keep more than its limits permit, or keep
//! others from using the data path.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use mote_core::body::{Body, BodyError, BodySource};
use mote_core::line_budget::LINES_PER_S;
use mote_core::turn::TURN_ITEMS_MAX;
use mote_core::wire::{self, FLAG_END, FrameKind, ResultHead, WINDOW_BYTES};
use mote_core::{Fault, Invoker};
use mote_engine::revision::logs::LogSource;
use mote_engine::{Revision, Route};
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, mpsc};

mod support;
use support::*;

/// Far more than an honest worker may send. Reaching it ends a test of a hostile worker.
const FAR_TOO_MUCH: usize = 128 << 20;

/// The first reply of a call that streams.
async fn streamed(bench: &Bench, revision: &Arc<Revision>) -> mote_core::Reply {
    let invocation = bench.invocation("GET", Body::Empty, 60_000);
    let route = Route::to(revision.clone());
    patient(bench.engine.invoke(&route, invocation)).await.unwrap()
}

/// A worker that waits for a notification, then answers one call with BODY frames as fast as it
/// can, and reads nothing. Returns the count of the bytes that the node took.
fn floods(bench: &Bench, go: Arc<Notify>) -> Arc<AtomicUsize> {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        let (stream, _) = worker.invoke().await.unwrap();
        worker.begin_answer(stream).await;
        go.notified().await;
        let mut frame = Vec::new();
        wire::put_frame(&mut frame, FrameKind::Body, 0, stream, &[b'x'; wire::CHUNK_BYTES_MAX]);
        while worker.stream.write_all(&frame).await.is_ok() {
            count.fetch_add(wire::CHUNK_BYTES_MAX, Ordering::SeqCst);
        }
        std::future::pending().await
    });
    sent
}

/// Waits until the node has ended the worker for its violation. Panics if the node takes more bytes
/// than any honest worker may send.
async fn until_ended(revision: &Arc<Revision>, sent: &AtomicUsize) {
    patient(async {
        loop {
            let lines = revision.log.tail(usize::MAX);
            if lines.iter().any(|line| line.text.contains("beyond its window")) {
                return;
            }
            let sent = sent.load(Ordering::SeqCst);
            assert!(sent < FAR_TOO_MUCH, "the node took {sent} bytes: {lines:?}");
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_ignores_its_window_is_ended() {
    let bench = Bench::new();
    let go = Arc::new(Notify::new());
    let sent = floods(&bench, go.clone());
    bench.script(echo);
    let revision = bench.publish(|_| ());
    // The reply is held and not read.
    let mut reply = streamed(&bench, &revision).await;
    go.notify_one();
    until_ended(&revision, &sent).await;
    let sent = sent.load(Ordering::SeqCst);
    // The window, plus the bytes that the socket took before it was closed.
    assert!(sent < 4 << 20, "the node took {sent} bytes of {WINDOW_BYTES}");
    let mut kept = 0;
    let error = loop {
        match patient(reply.body.chunk()).await.unwrap() {
            Ok(chunk) => kept += chunk.len(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, BodyError::WorkerFailed), "{error}");
    assert!(kept <= WINDOW_BYTES as usize, "{kept} bytes were kept");
    assert_eq!(patient(bench.call(&revision, "POST", "ok")).await.unwrap().unwrap(), "ok");
}

#[tokio::test]
async fn a_worker_that_never_reads_its_credit_is_ended() {
    let bench = Bench::new();
    let go = Arc::new(Notify::new());
    let sent = floods(&bench, go.clone());
    let revision = bench.publish(|_| ());
    // The caller leaves, so the worker's bytes are discarded and credited.
    drop(streamed(&bench, &revision).await);
    go.notify_one();
    until_ended(&revision, &sent).await;
}

/// A body of many chunks that counts how many of them were taken.
struct Endless(Arc<AtomicUsize>);

impl BodySource for Endless {
    fn poll_chunk(
        &mut self,
        _cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Bytes, BodyError>>> {
        let taken = self.0.fetch_add(1, Ordering::SeqCst);
        let chunk = || Ok(Bytes::from(vec![b'y'; 64 << 10]));
        std::task::Poll::Ready((taken < FAR_TOO_MUCH / (64 << 10)).then(chunk))
    }
}

#[tokio::test]
async fn credit_is_never_more_than_the_window() {
    let bench = Bench::new();
    let (credited, mut told) = mpsc::unbounded_channel();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        let (stream, _) = worker.invoke().await.unwrap();
        for _ in 0..8 {
            worker.send(FrameKind::Credit, 0, stream, &u32::MAX.to_le_bytes()).await;
        }
        credited.send(()).unwrap();
        std::future::pending().await
    });
    let revision = bench.publish(|_| ());
    let taken = Arc::new(AtomicUsize::new(0));
    let source = Box::new(Endless(taken.clone()));
    let invocation = bench.invocation("POST", Body::Stream { source, length: None }, 60_000);
    let engine = bench.engine.clone();
    let route = Route::to(revision.clone());
    let call = tokio::spawn(async move { engine.invoke(&route, invocation).await.map(drop) });
    patient(told.recv()).await.unwrap();
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
    // Each of the eight CREDIT frames may open the window once more, and the socket takes some
    // bytes.
    let taken = taken.load(Ordering::SeqCst) * (64 << 10);
    assert!(taken <= 10 * WINDOW_BYTES as usize, "{taken} bytes were taken for a worker");
    call.abort();
}

#[tokio::test]
async fn a_claim_of_concurrency_does_not_go_past_the_limit_or_the_queue() {
    let bench = Bench::new();
    bench.script(|mut worker| async move {
        worker.begin(4_000_000_000).await;
        std::future::pending().await
    });
    let revision = bench.publish(|spec| {
        (spec.limits.concurrency, spec.scale.queue) = (Some(2), 3);
        spec.limits.timeout_ms = 60_000;
    });
    patient(revision.warm()).await.unwrap();
    let calls: Vec<_> = (0..9).map(|_| bench.call(&revision, "POST", "x")).collect();
    let mut refused = 0;
    patient(async {
        while refused < 4 {
            refused = calls.iter().filter(|call| call.is_finished()).count();
            tokio::task::yield_now().await;
        }
    })
    .await;
    patient(until_running(&revision)).await;
    let status = revision.status();
    let instance = &status.instances[0];
    assert_eq!((instance.concurrency, instance.in_flight), (2, 2));
    assert_eq!(status.queued, 3);
    for call in calls.into_iter().filter(|call| call.is_finished()) {
        assert_eq!(call.await.unwrap(), Err(Fault::QueueFull));
    }
}

#[tokio::test]
async fn a_worker_that_answers_without_reading_gets_no_more_than_its_bound() {
    const CALLS: usize = 200;
    const BODY_BYTES: usize = 60_000;
    let bench = Bench::new();
    let go = Arc::new(Notify::new());
    let gate = go.clone();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        loop {
            gate.notified().await;
            // The worker has only one stream at a time, but stream numbers are easy to guess.
            worker.answer(1, "").await;
        }
    });
    let revision = bench.publish(|_| ());
    let body = "x".repeat(BODY_BYTES);
    let mut served = 0;
    for _ in 0..CALLS {
        let call = bench.call(&revision, "POST", &body);
        let waits = patient(async {
            loop {
                let status = revision.status();
                let in_flight = status.instances.first().map_or(0, |instance| instance.in_flight);
                if in_flight > 0 || call.is_finished() {
                    break false;
                }
                if !status.instances.is_empty() && status.queued > 0 {
                    break true;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
        if waits {
            break;
        }
        go.notify_one();
        patient(call).await.unwrap().unwrap();
        served += 1;
    }
    // 1 MiB waits to be written, the same amount is being written, and the socket takes some more.
    assert!(served * BODY_BYTES < 4 << 20, "{served} of {CALLS} bodies were kept for a worker");
}

/// Starts an instance of the scripted worker, which writes `count` lines. Then repeatedly runs a
/// turn of everything else, until all lines are in the log. No turn may add more than two turns'
/// worth of lines.
async fn assert_lines_come_in_turns(bench: &Bench, count: u64) {
    let revision = bench.publish(|_| ());
    patient(revision.warm()).await.unwrap();
    let newest = || revision.log.tail(1).last().map_or(0, |line| line.sequence);
    let mut before = newest();
    let mut most = 0;
    patient(async {
        while before < count {
            tokio::task::yield_now().await;
            let now = newest();
            most = most.max(now - before);
            before = now;
        }
    })
    .await;
    let turn = u64::from(TURN_ITEMS_MAX);
    assert!((1..=2 * turn).contains(&most), "{most} lines in one turn");
}

#[tokio::test]
async fn log_frames_do_not_hold_the_data_path() {
    let bench = Bench::new();
    bench.script(|mut worker| async move {
        worker.begin(1).await;
        let mut frames = Vec::new();
        for _ in 0..4_000 {
            wire::put_frame(&mut frames, FrameKind::Log, 0, 0, &[1, 2, b'x']);
        }
        let _ = worker.stream.write_all(&frames).await;
        std::future::pending().await
    });
    assert_lines_come_in_turns(&bench, 4_000).await;
}

#[tokio::test]
async fn lines_of_output_do_not_hold_the_data_path() {
    let bench = Bench::new();
    bench.script(|mut worker| async move {
        worker.begin(1).await;
        // This is less than a pipe can hold, so the write does not block.
        worker.output.write_all(&b"x\n".repeat(4_000)).unwrap();
        std::future::pending().await
    });
    assert_lines_come_in_turns(&bench, 4_000).await;
}

#[tokio::test]
async fn lines_beyond_the_budget_are_dropped_and_counted() {
    const LINES: usize = 4 * LINES_PER_S as usize;
    let bench = Bench::new();
    let (written, mut told) = mpsc::unbounded_channel();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        let (stream, _) = worker.invoke().await.unwrap();
        let mut frames = Vec::new();
        for _ in 0..LINES {
            wire::put_frame(&mut frames, FrameKind::Log, 0, stream, &[1, 2, b'x']);
        }
        let _ = worker.stream.write_all(&frames).await;
        worker.answer(stream, "done").await;
        written.send(()).unwrap();
        worker.frame().await;
    });
    let revision = bench.publish(|_| ());
    assert_eq!(patient(bench.call(&revision, "POST", "x")).await.unwrap().unwrap(), "done");
    patient(told.recv()).await.unwrap();
    let kept = revision.log.tail(1).last().unwrap().sequence as usize;
    assert!(kept < LINES, "all of {kept} lines went through the log");
    bench.engine.remove("f");
    // The number of dropped lines is logged when the instance ends, or earlier.
    patient(async {
        loop {
            let lines = revision.log.tail(usize::MAX);
            let of_platform = lines.iter().filter(|line| line.source == LogSource::Platform);
            let mut texts = of_platform.map(|line| line.text.as_str());
            let number =
                |text: &str| text.strip_prefix("dropped ")?.split(' ').next()?.parse().ok();
            if texts.any(|text| number(text).is_some_and(|count: usize| count > LINES / 10)) {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_answer_of_too_many_fields_fails_alone() {
    let bench = Bench::new();
    bench.script(|mut worker| async move {
        worker.begin(1).await;
        while let Some((stream, body)) = worker.invoke().await {
            let fields: usize = body.parse().unwrap();
            let head = ResultHead {
                entered_ns: 1,
                returned_ns: u64::MAX,
                status: 200,
                headers: b"a\n\n".repeat(fields).into(),
                body: Bytes::new(),
            };
            let mut out = Vec::new();
            head.put(&mut out, stream, true);
            let _ = worker.stream.write_all(&out).await;
        }
    });
    let revision = bench.publish(|_| ());
    for (fields, is_fine) in [("512", true), ("513", false), ("20000", false), ("1", true)] {
        let answer = patient(bench.call(&revision, "POST", fields)).await.unwrap();
        assert_eq!(answer.is_ok(), is_fine, "{fields}: {answer:?}");
    }
    assert_eq!(bench.scripts.starts.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn frames_that_crossed_the_end_of_their_stream_are_no_violation() {
    let bench = Bench::new();
    bench.script(|mut worker| async move {
        worker.begin(1).await;
        while let Some((stream, body)) = worker.invoke().await {
            worker.answer(stream, &body).await;
            worker.send(FrameKind::Credit, 0, stream, &[1, 0, 0, 0]).await;
            worker.send(FrameKind::Body, FLAG_END, stream, b"late").await;
        }
    });
    let revision = bench.publish(|_| ());
    for body in ["a", "b", "c"] {
        assert_eq!(patient(bench.call(&revision, "POST", body)).await.unwrap().unwrap(), body);
    }
    assert_eq!(bench.scripts.starts.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn what_is_longer_than_its_kind_allows_ends_the_worker() {
    let too_long = |kind, bytes: usize| {
        let mut out = Vec::new();
        wire::put_frame(&mut out, kind, 0, 1, &vec![b'x'; bytes]);
        out
    };
    for bad in [
        too_long(FrameKind::Log, wire::LOG_LINE_BYTES_MAX + 3),
        too_long(FrameKind::Error, wire::ERROR_BYTES_MAX + 1),
        too_long(FrameKind::Credit, 5),
        too_long(FrameKind::Body, wire::CHUNK_BYTES_MAX + 1),
    ] {
        let bench = Bench::new();
        bench.script(move |mut worker| async move {
            worker.begin(1).await;
            let (stream, _) = worker.invoke().await.unwrap();
            worker.begin_answer(stream).await;
            let _ = worker.stream.write_all(&bad).await;
            std::future::pending().await
        });
        bench.script(echo);
        let revision = bench.publish(|_| ());
        let mut reply = streamed(&bench, &revision).await;
        assert!(matches!(patient(reply.body.chunk()).await, Some(Err(BodyError::WorkerFailed))));
        assert_eq!(patient(bench.call(&revision, "POST", "ok")).await.unwrap().unwrap(), "ok");
    }
}

#[tokio::test]
async fn a_greeting_is_short_and_its_log_is_bounded() {
    let bench = Bench::new();
    bench.script(|mut worker| async move {
        worker.send(FrameKind::Hello, 0, 0, &[1, 0, b't']).await;
        worker.frame().await.unwrap();
        let mut frames = Vec::new();
        for _ in 0..4 * LINES_PER_S {
            wire::put_frame(&mut frames, FrameKind::Log, 0, 0, &[1, 2, b'x']);
        }
        let _ = worker.stream.write_all(&frames).await;
        worker.send(FrameKind::Ready, 0, 0, &[b' '; wire::GREETING_BYTES_MAX + 1]).await;
        std::future::pending().await
    });
    let revision = bench.publish(|_| ());
    let error = patient(revision.warm()).await.unwrap_err().to_string();
    assert!(error.contains("longer than its kind allows"), "{error}");
    let kept = revision.log.tail(1).last().unwrap().sequence;
    assert!(kept < 4 * u64::from(LINES_PER_S), "all of {kept} lines went through the log");
}
