//! The reconciler of a revision: a task that exists only while the revision has work or instances.
//!
//! It carries out the decisions of the pool: it answers invocations whose deadline has passed,
//! starts instances, and logs those that stop. An idle function without instances has no task and
//! no timer.

use std::sync::Arc;
use std::time::Duration;

use mote_core::backend::InstanceControl;
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
    let timeout_ms = revision.timeout_ms();
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

/// A long-running instance whose processor time is to be measured.
struct Look {
    key: usize,
    control: Arc<dyn InstanceControl>,
    /// How long its oldest invocation runs.
    running_ns: u64,
    /// Time since the last measurement; `None` if that was before its oldest invocation, so that
    /// it says nothing about it.
    since_ns: Option<u64>,
    burnt_before_ns: u64,
    is_lifted: bool,
}

/// Puts greedy functions with neighbours into the background. Takes functions whose work is short
/// again, or that have no neighbours, out of it. Lets one starved instance of each function compete
/// until it has had its floor (docs/decisions/0009-neighbours.md). Reads one small file per
/// long-running instance.
fn govern(revision: &Revision, now: u64) {
    let has_neighbours = revision.has_neighbours(now);
    let (background, mut one_is_lifted, mut looks) = {
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
        let looks = due_looks(&mut pool, now);
        (pool.is_in_background(), pool.has_lifted(), looks)
    };
    // The instance whose invocation waits longest is the first to be lifted.
    looks.sort_by_key(|look| std::cmp::Reverse((look.is_lifted, look.running_ns)));
    for look in looks {
        let Some(usage) = look.control.usage() else { continue };
        let mut pool = revision.pool.lock();
        let Some(worker) = pool.worker_mut(look.key) else { continue };
        let instance = worker.instance_mut();
        let burnt_ns = usage.cpu_ns.saturating_sub(look.burnt_before_ns);
        let starved = look.since_ns.is_some_and(|since_ns| is_starved(burnt_ns, since_ns));
        if background && starved && (look.is_lifted || !one_is_lifted) {
            // The measurement goes on from where it began, so the lift lasts until the floor is
            // reached.
            one_is_lifted = true;
            instance.lifted_until_ns = now + LIFT_NS;
            if !look.is_lifted {
                instance.control.set_background(false);
            }
            continue;
        }
        instance.burnt_ns = usage.cpu_ns;
        instance.looked_ns = now;
        if look.is_lifted {
            one_is_lifted = false;
            instance.end_lift();
        } else if !background
            && look.since_ns.is_some_and(|since_ns| is_greedy(burnt_ns, since_ns, look.running_ns))
        {
            return pool.put_into_background(true);
        }
    }
}

/// The instances that have run long, and whose last measurement is some time ago. Ends lifts whose
/// invocation has ended.
fn due_looks(pool: &mut Pool, now: u64) -> Vec<Look> {
    let pause_ns = if pool.is_in_background() { BACKGROUND_LOOK_NS } else { LOOK_NS };
    let mut looks = Vec::new();
    for (key, worker) in pool.workers_mut() {
        let oldest = worker.calls().iter().map(|(_, call)| call.began_ns()).min();
        let running_ns = oldest.map_or(0, |began| now.saturating_sub(began));
        let instance = worker.instance_mut();
        let is_lifted = instance.lifted_until_ns != 0;
        if running_ns < LONG_WORK_NS {
            if is_lifted && now >= instance.lifted_until_ns {
                instance.end_lift();
            }
            continue;
        }
        let since_ns = now.saturating_sub(instance.looked_ns);
        let is_due = match is_lifted {
            true => now >= instance.lifted_until_ns,
            false => since_ns >= pause_ns || since_ns > running_ns,
        };
        if is_due {
            looks.push(Look {
                key,
                control: instance.control.clone(),
                running_ns,
                since_ns: (since_ns <= running_ns).then_some(since_ns),
                burnt_before_ns: instance.burnt_ns,
                is_lifted,
            });
        }
    }
    looks
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
