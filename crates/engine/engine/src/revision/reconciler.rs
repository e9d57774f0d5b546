//! The reconciler of a revision: a task that exists only while the revision has work or instances,
//! or expects a call.
//!
//! The reconciler carries out the decisions of the pool: it answers invocations whose deadline has
//! passed, starts instances, and logs the instances that stop. An idle function without instances
//! has no task and no timer, unless `auto` predicts its next call and will start an instance ahead
//! of the call.

use std::sync::Arc;
use std::time::Duration;

use mote_core::{Fault, Phases};
use mote_pool::{Expiry, Gone, Orders, Surroundings};
use parking_lot::Mutex;

use crate::entry::offer::Unanswered;
use crate::instance::governor;
use crate::ledger::Ledger;
use crate::revision::Revision;
use crate::revision::logs::LogLevel;
use crate::revision::pool::{FollowUp, Pool, cancel_as};
use crate::revision::starts;
use crate::thread::threads::ReplySender;
use mote_process::clock::now_ns;

/// The shortest sleep of the reconciler.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// The result of one look at the pool.
struct Round {
    orders: Orders,
    expired: Vec<(ReplySender, Unanswered)>,
    follow_ups: Vec<FollowUp>,
    /// The number of invocations that wait although no further instance can be started.
    stuck: usize,
}

/// Runs until the pool is quiet.
pub(crate) async fn run(revision: Arc<Revision>) {
    loop {
        let now = now_ns();
        let round = {
            let mut pool = revision.pool.lock();
            let round = look(&mut pool, &revision.shared.ledger, revision.timeout_ms(), now);
            if round.expired.is_empty() && pool.ends_reconciler(now) {
                return;
            }
            round
        };
        for (reply, failed) in round.expired {
            reply.send(Err(failed));
        }
        revision.tell_elsewhere(round.stuck);
        let log = |instance, text: &str| {
            revision.log.platform(LogLevel::Info, revision.number, instance, text);
        };
        for instance in round.orders.killed {
            log(
                instance,
                "killed: it did not end an invocation that was late, or whose caller had left",
            );
        }
        for stopping in round.orders.stopping {
            let why = stopping.why;
            log(stopping.number, &format!("stopping ({}): {}", why.word, why.text));
        }
        if let Some(start) = round.orders.start {
            starts::begin(&revision, start);
        }
        if round.orders.start_spare {
            starts::begin_spare(&revision);
        }
        revision.follow_up(round.follow_ups);
        governor::govern(&revision, now);
        measure(&revision.pool, now);
        match round.orders.sleep_ns {
            Some(sleep_ns) => {
                let sleep = Duration::from_nanos(sleep_ns).max(SLEEP_MIN);
                let _ = tokio::time::timeout(sleep, revision.changed.notified()).await;
            }
            None => revision.changed.notified().await,
        }
    }
}

fn look(pool: &mut Pool, ledger: &Ledger, timeout_ms: u64, now: u64) -> Round {
    let found = pool.expire(now);
    let mut expired = Vec::new();
    for (pending, expiry) in found.waiting {
        let fault = match expiry {
            Expiry::NodeFull => Fault::NodeFull,
            Expiry::Starting => Fault::DeadlineStarting { timeout_ms },
            Expiry::Queued => Fault::DeadlineQueued { timeout_ms },
        };
        let received_ns = pending.invocation.received_ns;
        let waited_ns = now.saturating_sub(received_ns);
        let init_ns = if expiry == Expiry::Starting { waited_ns } else { 0 };
        let phases = Phases { received_ns, init_ns, ..Phases::default() };
        expired.push((pending.reply, Unanswered::failed(fault, phases, now)));
    }
    for (key, slot) in found.running {
        let Some(worker) = pool.worker_mut(key) else { continue };
        if let Some(stream) = worker.parts().0.get_mut(slot)
            && let Some(reply) = stream.reply.take()
        {
            let fault = Fault::DeadlineRunning { timeout_ms };
            expired.push((reply, Unanswered::failed(fault, stream.phases, now)));
        }
        cancel_as(worker, slot, Gone::Late, now);
    }
    let around = Surroundings { version: ledger.version(), memory_pressure: ledger.pressure() };
    let mut follow_ups = Vec::new();
    let orders = pool.look(around, now, &mut follow_ups);
    pool.reconciler_sleeps = orders.rests;
    let stuck = if pool.is_stuck(around.version) { pool.queued() } else { 0 };
    Round { orders, expired, follow_ups, stuck }
}

/// Reads the resource use of instances if the autoscaler's rule depends on it.
fn measure(pool: &Mutex<Pool>, now: u64) {
    let controls: Vec<_> = {
        let mut pool = pool.lock();
        if !pool.wants_measures(now) {
            return;
        }
        let workers = pool.workers();
        workers.map(|(key, worker)| (key, worker.instance().control.clone())).collect()
    };
    for (key, control) in controls {
        let Some(usage) = control.usage() else { continue };
        if let Some(worker) = pool.lock().worker_mut(key) {
            worker.record_usage(usage.cpu_ns, usage.memory_bytes);
        }
    }
}
