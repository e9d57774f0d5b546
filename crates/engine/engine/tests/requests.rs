//! Tests the requests of workers for services of their node. The tests provide both the services
//! and the workers. They check what arrives, which limits apply, and what ends with its invocation.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use bytes::Bytes;
use mote_core::services::{
    Answer, Asked, Begun, Caller, REQUEST_BYTES_MAX, REQUESTS_MAX, Services, Status,
};
use mote_core::state::Operation;
use mote_core::wire::{FrameKind, PAYLOAD_BYTES_MAX};
use mote_engine::Revision;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, mpsc, oneshot};

mod support;
use support::*;

/// A request as the test sees it, and the sender for its answer.
struct Seen {
    asked: Asked,
    deadline_ns: u64,
    answer: oneshot::Sender<Answer>,
}

/// Services whose answers come from the test.
struct Told(mpsc::UnboundedSender<Seen>);

impl Services for Told {
    fn announced(&self) -> Vec<String> {
        vec!["state".into(), "functions".into()]
    }

    fn announced_to_chains(&self) -> Vec<String> {
        Vec::new()
    }

    fn begin(&self, caller: Caller<'_>, asked: Asked) -> Begun {
        if let Asked::State { operation: Operation::Get { key }, .. } = &asked
            && key == "now"
        {
            return Begun::Done(Answer::text(Status::Done, "at once"));
        }
        let (answer, answered) = oneshot::channel();
        let _ = self.0.send(Seen { asked, deadline_ns: caller.deadline_ns, answer });
        let none = || Answer::text(Status::Unavailable, "");
        Begun::Later(Box::pin(async move { answered.await.unwrap_or_else(|_| none()) }))
    }
}

fn with_services() -> (Bench, mpsc::UnboundedReceiver<Seen>) {
    let bench = Bench::new();
    let (told, seen) = mpsc::unbounded_channel();
    bench.engine.set_services(Arc::new(Told(told)));
    (bench, seen)
}

/// The payload of a request to read a key, followed by zeros.
fn get(id: u32, key: &str, zeros: usize) -> Vec<u8> {
    let mut payload = id.to_le_bytes().to_vec();
    payload.extend([1, 1, 0, 0, 0, 0]);
    payload.extend((key.len() as u16).to_le_bytes());
    payload.resize(32, 0);
    payload.extend(key.as_bytes());
    payload.resize(payload.len() + zeros, 0);
    payload
}

/// The payload of a call of `other`.
fn call(id: u32) -> Vec<u8> {
    let mut payload = id.to_le_bytes().to_vec();
    payload.extend([2, 1, 0, 0, 0, 0, 0, 0, 5, 4, 1, 0]);
    payload.resize(40, 0);
    payload.extend(b"otherPOST/");
    payload
}

async fn response(worker: &mut Worker) -> (u32, u8, Bytes) {
    let (header, payload) = worker.frame().await.unwrap();
    assert_eq!(header.kind, FrameKind::Response);
    let id = u32::from_le_bytes(payload[..4].try_into().unwrap());
    (id, payload[4], payload.slice(8..))
}

/// Waits until the node has ended a worker for a violation with this text.
async fn until_killed(revision: &Arc<Revision>, text: &str) {
    patient(async {
        loop {
            let lines = revision.log.tail(usize::MAX);
            if lines.iter().any(|line| line.text.contains("killed") && line.text.contains(text)) {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn requests_are_answered_whenever_their_answer_is_there() {
    let (bench, mut seen) = with_services();
    let (done, mut ended) = mpsc::unbounded_channel();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        let (stream, _) = worker.invoke().await.unwrap();
        worker.send(FrameKind::Request, 0, stream, &get(1, "later", 0)).await;
        worker.send(FrameKind::Request, 0, stream, &get(2, "now", 0)).await;
        worker.send(FrameKind::Request, 0, 0, &get(3, "outside", 0)).await;
        assert_eq!(response(&mut worker).await, (2, 0, Bytes::from_static(b"at once")));
        let mut others = [response(&mut worker).await, response(&mut worker).await];
        others.sort_by_key(|(id, ..)| *id);
        assert_eq!(others[0], (1, 0, Bytes::from_static(b"later")));
        assert_eq!(others[1], (3, 5, Bytes::from_static(b"no")));
        worker.answer(stream, "served").await;
        done.send(()).unwrap();
        std::future::pending().await
    });
    let revision = bench.publish(|spec| spec.limits.timeout_ms = 60_000);
    let caller = bench.call(&revision, "POST", "x");
    let later = patient(seen.recv()).await.unwrap();
    let outside = patient(seen.recv()).await.unwrap();
    // A request outside any invocation may take the function's whole time.
    assert!(outside.deadline_ns >= later.deadline_ns);
    outside.answer.send(Answer::text(Status::Denied, "no")).unwrap();
    later.answer.send(Answer::text(Status::Done, "later")).unwrap();
    patient(ended.recv()).await.unwrap();
    assert_eq!(patient(caller).await.unwrap().unwrap(), "served");
}

#[tokio::test]
async fn a_worker_to_which_nothing_was_announced_is_ended() {
    let bench = Bench::new();
    bench.script(|mut worker| async move {
        worker.begin(1).await;
        let (stream, _) = worker.invoke().await.unwrap();
        worker.send(FrameKind::Request, 0, stream, &get(1, "k", 0)).await;
        std::future::pending().await
    });
    bench.script(echo);
    let revision = bench.publish(|_| ());
    drop(bench.call(&revision, "POST", "x"));
    until_killed(&revision, "not announced").await;
    assert_eq!(patient(bench.call(&revision, "POST", "ok")).await.unwrap().unwrap(), "ok");
}

/// A worker that sends `payload` on its stream as often as it can.
fn sends(bench: &Bench, kind: FrameKind, payload: Vec<u8>) -> Arc<Revision> {
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        let (stream, _) = worker.invoke().await.unwrap();
        let mut frame = Vec::new();
        mote_core::wire::put_frame(&mut frame, kind, 0, stream, &payload);
        while worker.stream.write_all(&frame).await.is_ok() {}
        std::future::pending().await
    });
    bench.script(echo);
    let revision = bench.publish(|spec| spec.limits.timeout_ms = 60_000);
    drop(bench.call(&revision, "POST", "x"));
    revision
}

#[tokio::test]
async fn more_requests_under_way_than_allowed_end_the_worker() {
    let (bench, mut seen) = with_services();
    let revision = sends(&bench, FrameKind::Request, get(1, "k", 0));
    until_killed(&revision, "too many requests under way").await;
    let mut begun = 0;
    while seen.try_recv().is_ok() {
        begun += 1;
    }
    assert!(begun <= REQUESTS_MAX, "{begun} requests were begun");
    assert_eq!(patient(bench.call(&revision, "POST", "ok")).await.unwrap().unwrap(), "ok");
}

#[tokio::test]
async fn more_bytes_under_way_than_allowed_end_the_worker() {
    let (bench, mut seen) = with_services();
    // Each request stores a value of 200 KiB.
    let mut put = get(1, "k", 200 << 10);
    put[5] = 2;
    let revision = sends(&bench, FrameKind::Request, put);
    until_killed(&revision, "too many bytes of requests under way").await;
    let mut begun = 0;
    while seen.try_recv().is_ok() {
        begun += 200 << 10;
    }
    assert!(begun <= REQUEST_BYTES_MAX, "{begun} bytes were taken");
}

#[tokio::test]
async fn garbage_ends_the_worker() {
    let beyond = {
        let mut payload = get(1, "k", 0);
        payload[10] = 200;
        payload
    };
    for (payload, text) in [(vec![0; 7], "too short"), (beyond, "lengths pass its end")] {
        let (bench, _seen) = with_services();
        let revision = sends(&bench, FrameKind::Request, payload);
        until_killed(&revision, text).await;
    }
    let (bench, _seen) = with_services();
    let revision = sends(&bench, FrameKind::Response, vec![0; 8]);
    until_killed(&revision, "longer than its kind allows").await;
    let (bench, _seen) = with_services();
    let revision = sends(&bench, FrameKind::Request, vec![7; PAYLOAD_BYTES_MAX]);
    // The request names a service that does not exist. Each request is answered, until too many
    // bytes are under way.
    until_killed(&revision, "too many bytes of requests under way").await;
}

#[tokio::test]
async fn a_worker_that_does_not_read_its_answers_is_held_to_a_bound() {
    let (bench, mut seen) = with_services();
    let go = Arc::new(Notify::new());
    let gate = go.clone();
    let (counted, mut count) = mpsc::unbounded_channel();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        let (stream, _) = worker.invoke().await.unwrap();
        for id in 0..200 {
            worker.send(FrameKind::Request, 0, stream, &get(id, "k", 0)).await;
        }
        gate.notified().await;
        let mut ids: Vec<u32> = Vec::new();
        for _ in 0..200 {
            let (id, _, value) = response(&mut worker).await;
            assert_eq!(value.len(), 200 << 10);
            ids.push(id);
        }
        ids.sort_unstable();
        counted.send(ids.len()).unwrap();
        std::future::pending().await
    });
    let revision = bench.publish(|spec| spec.limits.timeout_ms = 60_000);
    drop(bench.call(&revision, "POST", "x"));
    // While the worker reads nothing, only a limited number of reads is begun.
    let value: Bytes = vec![1; 200 << 10].into();
    let mut begun = 0;
    let mut idle = 0;
    while idle < 1_000 {
        match seen.try_recv() {
            Ok(one) => {
                begun += 1;
                idle = 0;
                let answer = Answer::new(Status::Done, Vec::new(), value.clone());
                let _ = one.answer.send(answer);
            }
            Err(_) => idle += 1,
        }
        tokio::task::yield_now().await;
    }
    assert!((16..=40).contains(&begun), "{begun} reads were begun for a worker that reads nothing");
    go.notify_one();
    let rest = async {
        while let Some(one) = seen.recv().await {
            let _ = one.answer.send(Answer::new(Status::Done, Vec::new(), value.clone()));
        }
    };
    tokio::select! {
        got = patient(count.recv()) => assert_eq!(got, Some(200)),
        () = rest => panic!("the services ended"),
    }
}

#[tokio::test]
async fn a_request_that_crosses_the_end_of_its_invocation_is_answered() {
    let (bench, _seen) = with_services();
    let (done, mut ended) = mpsc::unbounded_channel();
    bench.script(move |mut worker| async move {
        worker.begin(1).await;
        let (stream, _) = worker.invoke().await.unwrap();
        worker.answer(stream, "served").await;
        worker.send(FrameKind::Request, 0, stream, &get(1, "now", 0)).await;
        done.send(response(&mut worker).await).unwrap();
        std::future::pending().await
    });
    let revision = bench.publish(|_| ());
    let served = patient(bench.call(&revision, "POST", "x")).await.unwrap();
    assert_eq!(served.unwrap(), "served");
    let answer = patient(ended.recv()).await.unwrap();
    assert_eq!(answer, (1, 0, Bytes::from_static(b"at once")));
}

#[tokio::test]
async fn calls_end_with_the_invocation_that_made_them() {
    let (bench, mut seen) = with_services();
    bench.script(|mut worker| async move {
        worker.begin(1).await;
        let (stream, _) = worker.invoke().await.unwrap();
        worker.send(FrameKind::Request, 0, stream, &call(1)).await;
        let (header, _) = worker.frame().await.unwrap();
        assert_eq!(header.kind, FrameKind::Cancel);
        let (_, status, _) = response(&mut worker).await;
        assert_eq!(status, Status::Cancelled as u8);
        std::future::pending().await
    });
    let revision = bench.publish(|spec| spec.limits.timeout_ms = 60_000);
    let caller = bench.call(&revision, "POST", "x");
    let mut begun = patient(seen.recv()).await.unwrap();
    assert!(matches!(begun.asked, Asked::Call(_)));
    caller.abort();
    // The future of the call must have been dropped.
    patient(begun.answer.closed()).await;
}

#[tokio::test]
async fn calls_end_with_the_worker_that_made_them() {
    let (bench, mut seen) = with_services();
    bench.script(|mut worker| async move {
        worker.begin(1).await;
        let (stream, _) = worker.invoke().await.unwrap();
        worker.send(FrameKind::Request, 0, stream, &call(1)).await;
        worker.send(FrameKind::Request, 0, 0, &call(2)).await;
        worker.send(FrameKind::Result, 0, 0, b"garbage").await;
        std::future::pending().await
    });
    let revision = bench.publish(|spec| spec.limits.timeout_ms = 60_000);
    drop(bench.call(&revision, "POST", "x"));
    for _ in 0..2 {
        let mut begun = patient(seen.recv()).await.unwrap();
        patient(begun.answer.closed()).await;
    }
    until_killed(&revision, "stream 0").await;
}
