//! Which instances the engine puts into the background, and when it lets them compete again
//! (docs/decisions/0009-neighbours.md). The test decides what is measured.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use mote_core::FunctionName;

mod support;
use support::*;

/// The pause between two measurements in the background, and the length of a lift, are far below
/// this time.
const LONG: Duration = Duration::from_secs(1);

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
    // Other programs take the whole processor, also while it competes.
    processor.uses(20);
    patient(background.wait_for(|background| !background)).await.unwrap();
    let early =
        tokio::time::timeout(LONG, background.wait_for(|background| *background)).await.is_ok();
    assert!(!early, "in the background again with a fiftieth of a processor");
    processor.uses(500);
    patient(background.wait_for(|background| *background)).await.unwrap();
}
