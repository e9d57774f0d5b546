//! Tests the data path on several threads, with callers and instances on each of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use mote_core::body::Body;
use mote_core::{Fault, Invoker};
use mote_engine::{Revision, Route};
use support::{Bench, Worker, echo, patient, text, until_running};
use tokio::runtime::{Builder, Handle};

/// A runtime on a separate thread, which lasts until the test ends.
fn thread() -> Handle {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    handle
}

fn bench() -> (Bench, [Handle; 3]) {
    let threads = [thread(), thread(), thread()];
    (Bench::on(threads[0].clone(), &threads[1..]), threads)
}

/// Calls the function `count` times, one call after the other.
async fn calls(bench: Arc<Bench>, revision: Arc<Revision>, count: u32) -> Result<(), Fault> {
    for call in 0..count {
        let body = Body::whole(call.to_string().into_bytes());
        let invocation = bench.invocation("POST", body, 20_000);
        let reply = bench.engine.invoke(&Route::to(revision.clone()), invocation).await?;
        assert_eq!(text(reply).await?, call.to_string());
    }
    Ok(())
}

#[tokio::test]
async fn each_call_is_answered_wherever_its_caller_and_its_instance_are() {
    let (bench, threads) = bench();
    for _ in 0..3 {
        bench.script(|mut worker: Worker| async move {
            worker.begin(4).await;
            while let Some((stream, body)) = worker.invoke().await {
                worker.answer(stream, &body).await;
            }
        });
    }
    let revision = bench.publish(|spec| {
        (spec.scale.min, spec.scale.max) = (3, Some(3));
        spec.limits.concurrency = Some(4);
    });
    let bench = Arc::new(bench);
    patient(async {
        while revision.status().instances.len() < 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let callers: Vec<_> = threads
        .iter()
        .chain([&Handle::current()])
        .flat_map(|thread| {
            let call = || thread.spawn(calls(bench.clone(), revision.clone(), 300));
            [call(), call(), call(), call(), call()]
        })
        .collect();
    for caller in callers {
        patient(caller).await.unwrap().unwrap();
    }
    let instances = revision.status().instances;
    assert!(instances.iter().all(|instance| instance.served > 0), "{instances:?}");
    assert_eq!(instances.iter().map(|instance| instance.served).sum::<u64>(), 20 * 300);
    assert!(bench.engine.idle().is_some());
}

#[tokio::test]
async fn a_call_ends_with_its_caller_on_another_thread() {
    let (bench, threads) = bench();
    let (cancelled, was_cancelled) = tokio::sync::oneshot::channel();
    bench.script(|mut worker: Worker| async move {
        worker.begin(1).await;
        worker.invoke().await.unwrap();
        // The frame is CANCEL.
        let _ = cancelled.send(worker.frame().await.is_some());
        worker.answer(1, "late").await;
        while let Some((stream, body)) = worker.invoke().await {
            worker.answer(stream, &body).await;
        }
    });
    let revision = bench.publish(|_| {});
    let bench = Arc::new(bench);
    for thread in [&threads[1], &threads[2]] {
        let caller = thread.spawn(calls(bench.clone(), revision.clone(), 1));
        if thread.id() == threads[1].id() {
            until_running(&revision).await;
            caller.abort();
        } else {
            patient(caller).await.unwrap().unwrap();
        }
    }
    assert!(patient(was_cancelled).await.unwrap());
}

#[tokio::test]
async fn calls_of_a_worker_that_dies_run_again_on_another_thread() {
    let (bench, threads) = bench();
    bench.script(|mut worker: Worker| async move {
        worker.begin(1).await;
        worker.invoke().await.unwrap();
    });
    bench.script(echo);
    let revision = bench.publish(|_| {});
    let bench = Arc::new(bench);
    let invocation = bench.invocation("GET", Body::whole(b"again".to_vec()), 20_000);
    let route = Route::to(revision);
    let caller =
        threads[2].spawn(async move { text(bench.engine.invoke(&route, invocation).await?).await });
    assert_eq!(patient(caller).await.unwrap().unwrap(), "again");
}
