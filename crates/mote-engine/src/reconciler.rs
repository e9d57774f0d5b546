//! The reconciler of a revision: a task that exists only while the revision has work or instances.
//!
//! It carries out the decisions of the pool: it answers invocations whose deadline has passed,
//! starts instances, and logs those that stop. An idle function without instances has no task and
//! no timer.

use std::sync::Arc;
use std::time::Duration;

use mote_core::{Fault, Trigger};
use mote_pool::admission::{
    BACKGROUND_LOOK_NS, LIFT_NS, LONG_WORK_NS, is_considerate, is_greedy, is_starved,
};
use mote_pool::{Expiry, Orders, Surroundings};

use crate::clock::now_ns;
use crate::logs::LogLevel;
use crate::pool::{FollowUp, Pool, cancel};
use crate::revision::Revision;
use crate::starts;
use crate::threads::ReplySender;

/// Pause between two measurements of the processor time of a long-running instance.
const LOOK_NS: u64 = 35_000_000;
/// The shortest sleep of the reconciler.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// What one look at the pool decided.
struct Round {
    orders: Orders,
    expired: Vec<(Trigger, ReplySender, Fault)>,
    follow_ups: Vec<FollowUp>,
    /// Invocations that wait although no further instance can be started.
    stuck: usize,
}

/// Runs until the pool is quiet.
pub(crate) async fn run(revision: Arc<Revision>) {
    loop {
        let now = now_ns();
        let round = {
            let mut pool = revision.pool.lock();
            let round = look(&mut pool, &revision, now);
            if round.expired.is_empty() && pool.ends_reconciler() {
                return;
            }
            round
        };
        for (_, reply, fault) in round.expired {
            reply.send(Err(fault.into()));
        }
        revision.tell_elsewhere(round.stuck);
        let log = |instance, text: &str| {
            revision.log.platform(LogLevel::Info, revision.number, instance, text);
        };
        for instance in round.orders.killed {
            log(instance, "killed: it did not end an invocation whose deadline had passed");
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
        govern(&revision, now);
        measure(&revision, now);
        match round.orders.sleep_ns {
            Some(sleep_ns) => {
                let sleep = Duration::from_nanos(sleep_ns).max(SLEEP_MIN);
                let _ = tokio::time::timeout(sleep, revision.changed.notified()).await;
            }
            None => revision.changed.notified().await,
        }
    }
}

fn look(pool: &mut Pool, revision: &Revision, now: u64) -> Round {
    let timeout_ms = revision.spec.limits.timeout_ms;
    let found = pool.expire(now);
    let mut expired = Vec::new();
    for (pending, expiry) in found.waiting {
        let fault = match expiry {
            Expiry::NodeFull => Fault::NodeFull,
            Expiry::Starting => Fault::DeadlineStarting { timeout_ms },
            Expiry::Queued => Fault::DeadlineQueued { timeout_ms },
        };
        expired.push((pending.invocation.trigger, pending.reply, fault));
    }
    for (key, slot) in found.running {
        let Some(worker) = pool.worker_mut(key) else { continue };
        if let Some(stream) = worker.parts().0.get_mut(slot)
            && let Some(reply) = stream.reply.take()
        {
            expired.push((stream.trigger, reply, Fault::DeadlineRunning { timeout_ms }));
        }
        cancel(worker, slot, now);
    }
    let ledger = &revision.shared.ledger;
    let around = Surroundings { version: ledger.version(), memory_pressure: ledger.pressure() };
    let mut follow_ups = Vec::new();
    let orders = pool.look(around, now, &mut follow_ups);
    pool.reconciler_sleeps = orders.rests;
    let stuck = if pool.is_stuck(around.version) { pool.queued() } else { 0 };
    Round { orders, expired, follow_ups, stuck }
}

/// Puts greedy functions with neighbours into the background. Takes functions whose work is short
/// again, or that have no neighbours, out of it. Lets those that starve there compete now and then
/// (docs/decisions/0009-neighbours.md). Reads one small file per long-running instance.
fn govern(revision: &Revision, now: u64) {
    let mut looks = Vec::new();
    let has_neighbours = revision.has_neighbours(now);
    let background = {
        let mut pool = revision.pool.lock();
        let leaves = pool.is_in_background()
            && (!has_neighbours
                || pool.workers().any(|(_, worker)| is_considerate(worker.mean_ns())));
        if leaves {
            return pool.put_into_background(false);
        }
        if !has_neighbours {
            return;
        }
        let background = pool.is_in_background();
        let pause = if background { BACKGROUND_LOOK_NS } else { LOOK_NS };
        for (key, worker) in pool.workers_mut() {
            let oldest = worker.calls().iter().map(|(_, call)| call.began_ns()).min();
            let instance = worker.instance_mut();
            let lift_is_over = instance.lifted_until_ns != 0 && now >= instance.lifted_until_ns;
            if lift_is_over {
                instance.lifted_until_ns = 0;
                instance.control.set_background(true);
            }
            let running = oldest.map_or(0, |began| now.saturating_sub(began));
            let since = now.saturating_sub(instance.looked_ns);
            let is_lifted = instance.lifted_until_ns != 0;
            if running < LONG_WORK_NS || is_lifted || (since < pause && !lift_is_over) {
                continue;
            }
            // A measurement from before this invocation or its lift does not apply to it, so
            // measuring starts again.
            let since = (since <= running && !lift_is_over).then_some(since);
            looks.push((key, instance.control.clone(), running, since, instance.burnt_ns));
            instance.looked_ns = now;
        }
        background
    };
    for (key, control, running, since, before) in looks {
        let Some(usage) = control.usage() else { continue };
        let mut pool = revision.pool.lock();
        let Some(worker) = pool.worker_mut(key) else { continue };
        let instance = worker.instance_mut();
        instance.burnt_ns = usage.cpu_ns;
        let Some(since) = since else { continue };
        let burnt = usage.cpu_ns.saturating_sub(before);
        if background && is_starved(burnt, since) {
            instance.lifted_until_ns = now + LIFT_NS;
            instance.control.set_background(false);
        } else if !background && is_greedy(burnt, since, running) {
            pool.put_into_background(true);
            return;
        }
    }
}

/// Reads the resource use of instances, where the autoscaler's rule depends on it.
fn measure(revision: &Revision, now: u64) {
    let controls: Vec<_> = {
        let mut pool = revision.pool.lock();
        if !pool.wants_measures(now) {
            return;
        }
        let workers = pool.workers();
        workers.map(|(key, worker)| (key, worker.instance().control.clone())).collect()
    };
    for (key, control) in controls {
        let Some(usage) = control.usage() else { continue };
        if let Some(worker) = revision.pool.lock().worker_mut(key) {
            worker.record_usage(usage.cpu_ns, usage.memory_bytes);
        }
    }
}
