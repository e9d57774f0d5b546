//! Stops the parts of a node, in the opposite order of their start.

use std::time::{Duration, Instant};

use mote_engine::Engine;

use super::apis::Apis;
use super::fronts::Fronts;
use crate::Node;

/// How long running invocations may continue after the node begins to stop.
const STOP_GRACE: Duration = Duration::from_secs(30);

/// How long running attempts at accepted invocations may continue after the callers' invocations
/// have ended.
const BACKGROUND_GRACE: Duration = Duration::from_secs(12);

/// How long brokers may take to acknowledge messages that were published before the node stopped.
const PUBLISH_GRACE: Duration = Duration::from_secs(3);

/// How long writing the last lines of functions to the disk may take.
const LOGS_GRACE: Duration = Duration::from_secs(5);

/// How long sending the last lines, and then the last spans, to the collector may take.
const TRACES_GRACE: Duration = Duration::from_secs(2);

/// A step of the stop that takes longer than this is logged, and logged again each time this period
/// passes.
const SLOW_STOP: Duration = Duration::from_secs(2);
/// Such a log line names at most this many functions.
const SLOW_STOP_NAMES_MAX: usize = 8;

/// Stops everything that accepts calls, waits for running calls, and closes what they used. The
/// caller then shuts the backend down, even if it did not wait until this future ended.
pub(super) async fn stop(node: &Node, fronts: &mut Fronts, apis: &mut Apis) {
    let engine = &node.data_path.engine;
    let journals = &node.accepted.journals;
    node.cells.iter().for_each(|cells| cells.drain());
    fronts.stop();
    // Scheduled runs that become due from here on count as missed.
    node.accepted.schedules.stop().await;
    let all_served = async {
        let guests = async {
            if let Some(cells) = &node.cells {
                cells.drained().await;
            }
        };
        let ports = &node.deployed.ports;
        let triggers = &node.mqtt.triggers;
        tokio::join!(fronts.ended(), ports.stop(), triggers.stop(STOP_GRACE), guests);
    };
    let all_served = waiting_for(engine, "calls of HTTP, CoAP and MQTT clients", all_served);
    if tokio::time::timeout(STOP_GRACE, all_served).await.is_err() {
        let grace_s = STOP_GRACE.as_secs();
        tracing::warn!(grace_s, "ending calls that did not finish in time");
    }
    if let Some(log) = fronts.access_log.take() {
        let closed = tokio::task::spawn_blocking(move || log.close());
        let _ = waiting_for(engine, "the access log", closed).await;
    }
    let _ = apis.stop.send(true);
    if let Some(platforms) = apis.platforms.take() {
        let joined = tokio::task::spawn_blocking(move || platforms.join());
        let _ = waiting_for(engine, "the APIs of other platforms", joined).await;
    }
    // Attempts that do not end in time are repeated after the next start.
    journals.stop();
    let ended = tokio::time::timeout(BACKGROUND_GRACE, journals.all_ended());
    let _ = waiting_for(engine, "accepted invocations that run", ended).await;
    waiting_for(engine, "the stream of the journal", journals.flush()).await;
    let stopped = engine.stop(Duration::from_secs(3));
    waiting_for(engine, "instances to end", stopped).await;
    if let Some(logs) = node.opened.logs.clone() {
        let closed = tokio::task::spawn_blocking(move || logs.close(LOGS_GRACE));
        let _ = waiting_for(engine, "the functions' logs", closed).await;
    }
    if let Some(sender) = &node.opened.line_sender {
        waiting_for(engine, "the last lines of functions", sender.flush(TRACES_GRACE)).await;
    }
    if let Some(traces) = &node.opened.traces {
        waiting_for(engine, "the last spans", traces.flush(TRACES_GRACE)).await;
    }
    let published = node.mqtt.publisher.stop(PUBLISH_GRACE);
    waiting_for(engine, "messages to MQTT brokers", published).await;
    if let Some(broker) = &node.mqtt.own_broker {
        waiting_for(engine, "the MQTT broker", broker.stop()).await;
    }
    if let Some(state) = node.data_path.state_file.clone() {
        let closed = tokio::task::spawn_blocking(move || state.close());
        let _ = waiting_for(engine, "the state of functions", closed).await;
    }
    if let Some(nats) = &node.data_path.nats {
        waiting_for(engine, "the connection to NATS", nats.stop()).await;
    }
    let _ = tokio::time::timeout(Duration::from_millis(500), &mut apis.management).await;
}

/// Waits for a step of the stop. Each time [`SLOW_STOP`] has passed, logs what the step still waits
/// for.
async fn waiting_for<T>(engine: &Engine, what: &str, step: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let mut step = std::pin::pin!(step);
    loop {
        if let Ok(done) = tokio::time::timeout(SLOW_STOP, &mut step).await {
            return done;
        }
        let mut functions = Vec::new();
        for revision in engine.revisions() {
            let status = revision.status();
            let running: usize = status.instances.iter().map(|instance| instance.in_flight).sum();
            if running + status.queued > 0 {
                let title = revision.title();
                functions.push(format!("{title} ({running} running, {} waiting)", status.queued));
            }
        }
        functions.truncate(SLOW_STOP_NAMES_MAX);
        let waited_s = began.elapsed().as_secs();
        let functions = functions.join(", ");
        tracing::warn!(waited_s, %functions, "the node waits for {what} before it stops");
    }
}
