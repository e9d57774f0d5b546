//! Tests which instances the engine puts into the background, and when it lets them compete again
//! (docs/decisions/0009-neighbours.md). The test sets the measured values.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use mote_spec::FunctionName;

mod support;
use support::*;

/// This time is far longer than a lift, and than the pause between two measurements in the
/// background.
const LONG: Duration = Duration::from_secs(1);
const PATIENT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_starved_instance_competes_until_it_has_had_its_floor() {
    let bench = Bench::new();
    bench.script(|mut worker| async move {
        worker.begin(1).await;
        let _ = worker.invoke().await;
        std::future::pending().await
    });
    let busy = bench.publish(|spec| spec.limits.timeout_ms = 60_000);
    let neighbour = bench.publish(|spec| spec.name = FunctionName::new("neighbour").unwrap());
    let processor = bench.scripts.processor.clone();
    let mut background = processor.background.subscribe();

    processor.uses(1000);
    let _call = bench.call(&busy, "GET", "");
    bench.script(echo);
    patient(bench.call(&neighbour, "GET", "")).await.unwrap().unwrap();
    patient(background.wait_for(|background| *background)).await.unwrap();
    // Other programs take the whole processor, even while the instance competes.
    processor.uses(20);
    patient(background.wait_for(|background| !background)).await.unwrap();
    let early =
        tokio::time::timeout(LONG, background.wait_for(|background| *background)).await.is_ok();
    assert!(!early, "in the background again with a fiftieth of a processor");
    processor.uses(500);
    patient(background.wait_for(|background| *background)).await.unwrap();
}

#[tokio::test]
async fn a_namespace_that_takes_most_of_a_core_gives_way_to_others() {
    let bench = Bench::new();
    let publish = |name: &str| {
        bench.script(echo);
        bench.publish(|spec| spec.name = FunctionName::new(name).unwrap())
    };
    let busy = publish("busy.a");
    let neighbour = publish("neighbour.a");
    let processor = bench.scripts.processor.clone();
    let mut background = processor.background.subscribe();
    // A caller that calls without pauses and whose calls are short.
    let calls = async {
        loop {
            bench.call(&busy, "GET", "").await.unwrap().unwrap();
        }
    };
    tokio::pin!(calls);
    let mut while_called = async |is_background: bool, most: Duration| {
        tokio::select! {
            () = &mut calls => unreachable!("no end"),
            found = tokio::time::timeout(most, background.wait_for(|b| *b == is_background)) => {
                found.is_ok()
            }
        }
    };

    processor.uses(1000);
    patient(bench.call(&neighbour, "GET", "")).await.unwrap().unwrap();
    assert!(!while_called(true, LONG).await, "functions of one owner share as they like");
    let other = publish("other.b");
    patient(bench.call(&other, "GET", "")).await.unwrap().unwrap();
    assert!(while_called(true, PATIENT).await, "another namespace is called");
    processor.uses(300);
    assert!(while_called(false, PATIENT).await, "it uses less than half of a core");
}
