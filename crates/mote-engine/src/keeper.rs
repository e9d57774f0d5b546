//! The keeper of a revision: a task that exists only while the revision has work or instances.
//!
//! It expires deadlines, starts instances for those who wait, stops instances that idle, and kills
//! workers that are stuck. An idle function without instances has no task and no timer.

use std::sync::Arc;
use std::time::Duration;

use mote_core::admission::{LONG_WORK_NS, instances_to_start, is_considerate, is_greedy};
use mote_core::wire::{self, FrameKind};
use mote_core::{Fault, Trigger};

use crate::clock::now_ns;
use crate::instance;
use crate::logs::LogLevel;
use crate::pool::{FollowUp, Link, Pool, ReplySender};
use crate::revision::Revision;

/// Pace while there is work: how late a deadline may be noticed.
const TICK: Duration = Duration::from_millis(20);
/// After this long without work the keeper stops ticking and sleeps until the next idle stop.
const QUIET_NS: u64 = 1_000_000_000;
/// A worker that has not ended a cancelled invocation by then is stuck, or busy for nobody.
const STUCK_NS: u64 = 1_000_000_000;
/// A draining worker that has not exited by then is killed.
const DRAIN_NS: u64 = 1_000_000_000;
/// Pause between two looks at what a long-running instance burns.
const LOOK_NS: u64 = 35_000_000;
/// Waiting this long although instances run is reason for another instance.
const WAIT_NS: u64 = 10_000_000;

/// What one look at the pool decided.
struct Round {
    start: u32,
    expired: Vec<(Trigger, ReplySender, Fault)>,
    stopping: Vec<(u64, &'static str)>,
    follow_ups: Vec<FollowUp>,
    sleep: Option<Duration>,
}

/// Runs until the pool is quiet.
pub(crate) async fn run(revision: Arc<Revision>) {
    loop {
        let now = now_ns();
        let round = {
            let mut pool = revision.pool.lock();
            let round = look(&mut pool, &revision, now);
            if pool.is_quiet() && round.expired.is_empty() {
                pool.keeper = false;
                return;
            }
            round
        };
        for (_, reply, fault) in round.expired {
            let _ = reply.send(Err(fault));
        }
        for (instance, why) in round.stopping {
            revision.log.platform(LogLevel::Info, revision.number, instance, why);
        }
        for _ in 0..round.start {
            revision.shared.runtime.spawn(instance::start(revision.clone()));
        }
        revision.follow_up(round.follow_ups);
        govern(&revision, now);
        match round.sleep {
            Some(time) => {
                let _ = tokio::time::timeout(time, revision.changed.notified()).await;
            }
            None => revision.changed.notified().await,
        }
    }
}

/// Puts greedy functions into the background and takes considerate ones out of it
/// (docs/decisions/0009-neighbours.md). Reads one small file per long-running instance.
fn govern(revision: &Revision, now: u64) {
    let mut looks = Vec::new();
    {
        let mut pool = revision.pool.lock();
        let considerate = pool.background
            && pool.workers.iter().any(|(_, worker)| is_considerate(worker.service_ns));
        if considerate {
            pool.background = false;
            for (_, worker) in &pool.workers {
                worker.control.set_background(false);
            }
            return;
        }
        if pool.background {
            return;
        }
        for (key, worker) in &mut pool.workers {
            let oldest = worker.streams.iter().map(|(_, stream)| stream.phases.sent_ns).min();
            let running = oldest.map_or(0, |sent| now.saturating_sub(sent));
            if running < LONG_WORK_NS || now.saturating_sub(worker.looked_ns) < LOOK_NS {
                continue;
            }
            // A look from before this invocation says nothing about it: begin anew.
            let since = now.saturating_sub(worker.looked_ns);
            let since = (since <= running).then_some(since);
            looks.push((key, worker.control.clone(), running, since, worker.burnt_ns));
            worker.looked_ns = now;
        }
    }
    for (key, control, running, since, before) in looks {
        let Some(usage) = control.usage() else { continue };
        let mut pool = revision.pool.lock();
        if let Some(worker) = pool.workers.get_mut(key) {
            worker.burnt_ns = usage.cpu_ns;
        }
        let burnt = usage.cpu_ns.saturating_sub(before);
        if since.is_some_and(|since| is_greedy(burnt, since, running)) {
            pool.background = true;
            for (_, worker) in &pool.workers {
                worker.control.set_background(true);
            }
            return;
        }
    }
}

fn look(pool: &mut Pool, revision: &Revision, now: u64) -> Round {
    let mut round = Round {
        start: 0,
        expired: Vec::new(),
        stopping: Vec::new(),
        follow_ups: Vec::new(),
        sleep: Some(TICK),
    };
    expire_waiting(pool, revision, now, &mut round);
    expire_running(pool, revision, now, &mut round);
    stop_idle(pool, revision, now, &mut round);
    drain(pool, now);
    pool.dispatch(now, &mut round.follow_ups);

    let running = pool.workers.iter().filter(|(_, worker)| !worker.draining).count() as u32;
    let oldest_wait =
        pool.queue.front().map_or(0, |pending| now.saturating_sub(pending.invocation.received_ns));
    // The first instance at once; more only when those that run cannot keep up.
    let waiting = if running + pool.starting == 0 || oldest_wait >= WAIT_NS {
        pool.queue.len().min(1)
    } else {
        0
    };
    if now >= pool.retry_at_ns && !pool.closed {
        let below_min = revision.spec.scale.min.saturating_sub(running + pool.starting);
        round.start = instances_to_start(waiting, pool.starting, running, revision.instances_max())
            .max(below_min);
    }
    if round.start > 0 {
        if pool.starting == 0 {
            pool.starting_since_ns = now;
        }
        pool.starting += round.start;
    }
    round.sleep = pace(pool, revision, now);
    round
}

fn expire_waiting(pool: &mut Pool, revision: &Revision, now: u64, round: &mut Round) {
    let timeout_ms = revision.spec.limits.timeout_ms;
    let starting = pool.workers.is_empty();
    // Deadlines differ only where callers shortened theirs, so a scan is rarely long.
    let mut at = 0;
    while at < pool.queue.len() {
        if pool.queue[at].invocation.deadline_ns > now && !pool.queue[at].reply.is_closed() {
            at += 1;
            continue;
        }
        let Some(pending) = pool.queue.remove(at) else { break };
        let fault = if starting {
            Fault::DeadlineStarting { timeout_ms }
        } else {
            Fault::DeadlineQueued { timeout_ms }
        };
        round.expired.push((pending.invocation.trigger, pending.reply, fault));
    }
}

fn expire_running(pool: &mut Pool, revision: &Revision, now: u64, round: &mut Round) {
    let timeout_ms = revision.spec.limits.timeout_ms;
    for (_, worker) in &mut pool.workers {
        let late: Vec<usize> = worker
            .streams
            .iter()
            // An answer whose head was passed on has met its deadline.
            .filter(|(_, stream)| stream.reply.is_some() && stream.deadline_ns <= now)
            .map(|(slot, _)| slot)
            .collect();
        for slot in late {
            if let Some(stream) = worker.streams.get_mut(slot)
                && let Some(reply) = stream.reply.take()
            {
                let fault = Fault::DeadlineRunning { timeout_ms };
                round.expired.push((stream.trigger, reply, fault));
            }
            worker.cancel(slot, now);
        }
        let stuck = worker.streams.iter().any(|(_, stream)| {
            stream.cancelled_ns.is_some_and(|since| now.saturating_sub(since) > STUCK_NS)
        });
        if !stuck || worker.stop_reason == Some("deadline-kill") {
            continue;
        }
        let silent = worker.streams.iter().any(|(_, stream)| {
            stream.cancelled_ns.is_some() && stream.cancelled_at_frame == worker.frames_seen
        });
        let only_cancelled = worker.streams.iter().all(|(_, stream)| stream.cancelled_ns.is_some());
        worker.draining = true;
        worker.stop_reason.get_or_insert("deadline");
        if silent || only_cancelled {
            worker.stop_reason = Some("deadline-kill");
            worker.control.kill();
            round.stopping.push((
                worker.instance,
                "killed: it did not end an invocation whose deadline had passed",
            ));
        }
    }
}

fn stop_idle(pool: &mut Pool, revision: &Revision, now: u64, round: &mut Round) {
    let idle_ns = revision.spec.scale.idle_timeout_ms.saturating_mul(1_000_000);
    let mut spare = (pool.workers.iter().filter(|(_, worker)| !worker.draining).count() as u32)
        .saturating_sub(revision.spec.scale.min);
    if !pool.queue.is_empty() {
        return;
    }
    for (_, worker) in &mut pool.workers {
        let idle = worker.streams.is_empty() && now.saturating_sub(worker.idle_since_ns) >= idle_ns;
        if idle && !worker.draining && spare > 0 {
            spare -= 1;
            worker.draining = true;
            worker.stop_reason = Some("idle");
            round.stopping.push((worker.instance, "stopping: idle"));
        }
    }
}

/// Asks draining workers without work to exit, and kills those that do not.
fn drain(pool: &mut Pool, now: u64) {
    for (_, worker) in &mut pool.workers {
        if !worker.draining || !worker.streams.is_empty() {
            continue;
        }
        match worker.drain_sent_ns {
            None => {
                worker.drain_sent_ns = Some(now);
                match worker.link {
                    Link::Frames { .. } => {
                        worker.write(|out| wire::put_frame(out, FrameKind::Drain, 0, 0, &[]));
                    }
                    Link::Server(_) => worker.control.kill(),
                }
            }
            Some(since) if now.saturating_sub(since) > DRAIN_NS => worker.control.kill(),
            Some(_) => {}
        }
    }
}

/// How long the keeper may sleep; `None` until something changes.
fn pace(pool: &mut Pool, revision: &Revision, now: u64) -> Option<Duration> {
    let busy = !pool.queue.is_empty()
        || pool.workers.iter().any(|(_, worker)| worker.draining || !worker.streams.is_empty());
    let newest = pool.workers.iter().map(|(_, worker)| worker.idle_since_ns).max().unwrap_or(0);
    if busy || now.saturating_sub(newest) < QUIET_NS {
        pool.keeper_sleeps = false;
        return Some(TICK);
    }
    pool.keeper_sleeps = true;
    let oldest = pool.workers.iter().map(|(_, worker)| worker.idle_since_ns).min()?;
    let idle_ns = revision.spec.scale.idle_timeout_ms.saturating_mul(1_000_000);
    let keeps = pool.workers.len() as u32 <= revision.spec.scale.min;
    if keeps {
        return None;
    }
    let left = oldest.saturating_add(idle_ns).saturating_sub(now);
    Some(Duration::from_nanos(left).max(TICK))
}
