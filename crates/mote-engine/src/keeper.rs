//! The keeper of a revision: a task that exists only while the revision has work or instances.
//!
//! It expires deadlines, obeys the autoscaler (starts and drains instances), and kills workers that
//! are stuck. An idle function without instances has no task and no timer.

use std::sync::Arc;
use std::time::Duration;

use mote_core::admission::{
    BACKGROUND_LOOK_NS, LIFT_NS, LONG_WORK_NS, is_considerate, is_greedy, is_starved,
};
use mote_core::autoscale::Reason;
use mote_core::budget::{Rest, rest};
use mote_core::wire::{self, FrameKind};
use mote_core::{Fault, Trigger};

use crate::clock::now_ns;
use crate::logs::LogLevel;
use crate::pool::{FollowUp, Link, Pool, ReplySender, WorkerState};
use crate::revision::Revision;
use crate::scaling::{Memory, Why};
use crate::starts;

/// Pace while there is work: how late a deadline may be noticed.
const TICK: Duration = Duration::from_millis(20);
/// After this long without work the keeper stops ticking and sleeps until the autoscaler looks.
const QUIET_NS: u64 = 1_000_000_000;
/// A worker that has not ended a cancelled invocation by then is stuck, or busy for nobody.
const STUCK_NS: u64 = 1_000_000_000;
/// A draining worker that has not exited by then is killed.
const DRAIN_NS: u64 = 1_000_000_000;
/// Pause between two looks at what a long-running instance burns.
const LOOK_NS: u64 = 35_000_000;
/// Instances of one function starting at once, per core. A start is mostly CPU work: more of them
/// only make each later, and take the processor from those who serve.
const STARTS_PER_CORE: u32 = 2;
/// Pause between two attempts to pause what could not be paused, for instance as the machine has
/// no control groups.
const PAUSE_AGAIN_NS: u64 = 60_000_000_000;
/// No sleep of the keeper is shorter.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// What one look at the pool decided.
struct Round {
    start: u32,
    why: Why,
    start_spare: bool,
    /// Somebody waits for these, or their owner wants them: idle instances of others may go.
    evict: bool,
    expired: Vec<(Trigger, ReplySender, Fault)>,
    stopping: Vec<(u64, String)>,
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
            let owed = revision.keeps_some() && !pool.closed;
            if pool.is_quiet() && round.expired.is_empty() && !owed {
                pool.keeper = false;
                // What busy times took is not kept for a function at rest.
                pool.workers.shrink_to_fit();
                pool.queue.shrink_to_fit();
                return;
            }
            round
        };
        for (_, reply, fault) in round.expired {
            let _ = reply.send(Err(fault));
        }
        for (instance, why) in round.stopping {
            revision.log.platform(LogLevel::Info, revision.number, instance, &why);
        }
        if round.start > 0 {
            starts::begin(&revision, round.start, round.why, round.evict);
        }
        if round.start_spare {
            starts::begin_spare(&revision);
        }
        revision.follow_up(round.follow_ups);
        govern(&revision, now);
        measure(&revision, now);
        match round.sleep {
            Some(time) => {
                let _ = tokio::time::timeout(time, revision.changed.notified()).await;
            }
            None => revision.changed.notified().await,
        }
    }
}

/// Puts greedy functions with neighbours into the background, takes out of it who is considerate or
/// alone, and lets those that starve there compete now and then (docs/decisions/0009-neighbours.md).
/// Reads one small file per long-running instance.
fn govern(revision: &Revision, now: u64) {
    let mut looks = Vec::new();
    let has_neighbours = revision.has_neighbours(now);
    let background = {
        let mut pool = revision.pool.lock();
        let leaves = pool.background
            && (!has_neighbours
                || pool.workers.iter().any(|(_, worker)| is_considerate(worker.run_times.mean_ns)));
        if leaves {
            return pool.put_into_background(false);
        }
        if !has_neighbours {
            return;
        }
        let background = pool.background;
        let pause = if background { BACKGROUND_LOOK_NS } else { LOOK_NS };
        for (key, worker) in &mut pool.workers {
            let lift_is_over = worker.lifted_until_ns != 0 && now >= worker.lifted_until_ns;
            if lift_is_over {
                worker.lifted_until_ns = 0;
                worker.control.set_background(true);
            }
            let oldest = worker.streams.iter().map(|(_, stream)| stream.phases.sent_ns).min();
            let running = oldest.map_or(0, |sent| now.saturating_sub(sent));
            let since = now.saturating_sub(worker.looked_ns);
            let is_lifted = worker.lifted_until_ns != 0;
            if running < LONG_WORK_NS || is_lifted || (since < pause && !lift_is_over) {
                continue;
            }
            // A look from before this invocation or its lift says nothing about it: begin anew.
            let since = (since <= running && !lift_is_over).then_some(since);
            looks.push((key, worker.control.clone(), running, since, worker.burnt_ns));
            worker.looked_ns = now;
        }
        background
    };
    for (key, control, running, since, before) in looks {
        let Some(usage) = control.usage() else { continue };
        let mut pool = revision.pool.lock();
        let Some(worker) = pool.workers.get_mut(key) else { continue };
        worker.burnt_ns = usage.cpu_ns;
        let Some(since) = since else { continue };
        let burnt = usage.cpu_ns.saturating_sub(before);
        if background && is_starved(burnt, since) {
            worker.lifted_until_ns = now + LIFT_NS;
            worker.control.set_background(false);
        } else if !background && is_greedy(burnt, since, running) {
            pool.put_into_background(true);
            return;
        }
    }
}

/// Reads what instances use, where the autoscaler's rule looks at it.
fn measure(revision: &Revision, now: u64) {
    let controls: Vec<_> = {
        let mut pool = revision.pool.lock();
        let policy = &revision.spec.scale.policy;
        if !pool.scaling.as_mut().is_some_and(|scaling| scaling.wants_measures(policy, now)) {
            return;
        }
        pool.workers.iter().map(|(key, worker)| (key, worker.control.clone())).collect()
    };
    for (key, control) in controls {
        let Some(usage) = control.usage() else { continue };
        if let Some(worker) = revision.pool.lock().workers.get_mut(key) {
            worker.cpu_ns = usage.cpu_ns;
            worker.memory_bytes = usage.memory_bytes;
        }
    }
}

fn look(pool: &mut Pool, revision: &Revision, now: u64) -> Round {
    let mut round = Round {
        start: 0,
        why: Why::from(Reason::Steady),
        start_spare: false,
        evict: false,
        expired: Vec::new(),
        stopping: Vec::new(),
        follow_ups: Vec::new(),
        sleep: Some(TICK),
    };
    expire_waiting(pool, revision, now, &mut round);
    expire_running(pool, revision, now, &mut round);
    pool.dispatch(now, &mut round.follow_ups);
    scale(pool, revision, now, &mut round);
    keep_spares(pool, revision, now, &mut round);
    pause(pool, revision, now);
    drain(pool, now);
    round.sleep = pace(pool, revision, now);
    round
}

fn expire_waiting(pool: &mut Pool, revision: &Revision, now: u64, round: &mut Round) {
    let timeout_ms = revision.spec.limits.timeout_ms;
    let starting = pool.workers.is_empty();
    let full = starting && pool.starting == 0 && pool.full.is_some_and(|full| full.memory);
    // Deadlines differ only where callers shortened theirs, so a scan is rarely long.
    let mut at = 0;
    while at < pool.queue.len() {
        if pool.queue[at].invocation.deadline_ns > now && !pool.queue[at].reply.is_closed() {
            at += 1;
            continue;
        }
        let Some(pending) = pool.queue.remove(at) else { break };
        let fault = if full {
            Fault::NodeFull
        } else if starting {
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
                "killed: it did not end an invocation whose deadline had passed".into(),
            ));
        }
    }
}

/// Obeys the autoscaler when it has something to decide.
fn scale(pool: &mut Pool, revision: &Revision, now: u64, round: &mut Round) {
    if pool.closed {
        return;
    }
    let ledger = &revision.shared.ledger;
    ask_again(pool, ledger.version());
    let memory =
        Memory { limit_bytes: revision.spec.limits.memory_bytes, pressure: ledger.pressure() };
    let Some(decision) = pool.decide(memory, now) else { return };
    let ready = pool.ready();
    let min = revision.instances_min();
    // What is kept for the next call is not started anew for it when it died.
    let kept_only = decision.reason == Reason::KeepAlive && ready + pool.starting == 0;
    let mut desired = if kept_only { min } else { decision.desired };
    if let Some((count, until_ns)) = asked_for(pool, now) {
        desired = desired.max(count.min(ready + pool.starting));
        if let Some(scaling) = &mut pool.scaling {
            scaling.look_by(until_ns);
        }
    }
    let starts_max = STARTS_PER_CORE * revision.shared.config.instances_max_default.max(1);
    // The rest is asked for again when one of these is ready or has failed.
    // A spare one on its way serves if it is needed by then.
    let on_their_way = pool.starting + pool.starting_spares;
    let mut missing =
        desired.saturating_sub(ready + on_their_way).min(starts_max.saturating_sub(on_their_way));
    // Paused ones that have served count as ready.
    while missing > 0 && pool.wake_spare() {
        missing -= 1;
    }
    let for_minimum = missing > 0 && pool.queue.is_empty() && desired <= min;
    round.why = if for_minimum { Why::MIN } else { Why::from(decision.reason) };
    round.evict = for_minimum || !pool.queue.is_empty();
    let full_until_ns = pool.full.map_or(0, |full| full.until_ns);
    let not_before = full_until_ns.max(pool.retry_at_ns).max(pool.slow_until_ns);
    if missing == 0 {
        pool.full = None;
    }
    if missing > 0 && now < not_before {
        pool.look_at(not_before);
    } else if missing > 0 {
        if pool.starting == 0 {
            pool.starting_since_ns = now;
        }
        pool.starting += missing;
        round.start = missing;
    }
    // An instance that is not ready yet takes nobody's place: it is judged when it is.
    for _ in desired..ready {
        let Some(worker) = surplus(pool) else { return };
        worker.draining = true;
        worker.stop_reason = Some(if decision.reason == Reason::Idle { "idle" } else { "surplus" });
        worker.stop_text = round.why.text.to_owned();
        let text = format!("stopping ({}): {}", round.why.word, round.why.text);
        round.stopping.push((worker.instance, text));
    }
}

/// Starts what is missing of the instances that are kept loaded and paused.
fn keep_spares(pool: &mut Pool, revision: &Revision, now: u64, round: &mut Round) {
    // Those that somebody waits for come first.
    let have = pool.spares() + pool.starting_spares;
    let room = revision.instances_max().saturating_sub(pool.ready() + pool.starting + have);
    if pool.closed || pool.no_spares || revision.spec.scale.spare <= have || room == 0 {
        return;
    }
    let not_before = pool.retry_at_ns.max(pool.slow_until_ns).max(pool.spare_again_ns);
    if now < not_before {
        pool.look_at(not_before);
    } else if pool.starting + pool.starting_spares == 0 && pool.queue.is_empty() {
        // One at a time: nobody waits for them.
        pool.starting_spares = 1;
        round.start_spare = true;
    }
}

/// Pauses instances that have been idle for long enough.
fn pause(pool: &mut Pool, revision: &Revision, now: u64) {
    let Some(after_ms) = revision.spec.scale.pause_ms else { return };
    if now < pool.pause_again_ns {
        return;
    }
    let after_ns = after_ms.saturating_mul(1_000_000);
    for (_, worker) in &mut pool.workers {
        let idle_ns = now.saturating_sub(worker.idle_since_ns);
        let stays = !worker.draining && worker.ending_ns.is_none();
        let rests = rest(stays, idle_ns, Some(after_ns)) == Rest::Pause;
        if rests && !worker.paused && worker.streams.is_empty() {
            worker.pause();
            if !worker.paused {
                pool.pause_again_ns = now + PAUSE_AGAIN_NS;
                return;
            }
        }
    }
}

/// Something came back to the node since a start was refused: look at once.
fn ask_again(pool: &mut Pool, version: u64) {
    if let (Some(full), Some(scaling)) = (&mut pool.full, &mut pool.scaling)
        && full.version != version
    {
        full.version = version;
        full.until_ns = 0;
        scaling.look_by(0);
    }
}

/// What was asked for by hand, while it holds.
fn asked_for(pool: &mut Pool, now: u64) -> Option<(u32, u64)> {
    pool.asked_for = pool.asked_for.filter(|(_, until_ns)| now < *until_ns);
    pool.asked_for
}

/// Who goes when fewer are wanted: the one that has idled longest, else the least busy.
pub(crate) fn surplus(pool: &mut Pool) -> Option<&mut WorkerState> {
    pool.workers
        .iter_mut()
        .map(|(_, worker)| worker)
        .filter(|worker| !worker.draining && !worker.spare)
        .min_by_key(|worker| (worker.streams.len(), worker.idle_since_ns))
}

/// Asks draining workers without work to exit, and kills those that do not, and those that said that
/// they end and do not.
fn drain(pool: &mut Pool, now: u64) {
    for (_, worker) in &mut pool.workers {
        if let Some(since) = worker.ending_ns {
            if now.saturating_sub(since) > DRAIN_NS {
                worker.control.kill();
            }
            continue;
        }
        if !worker.draining || !worker.streams.is_empty() {
            continue;
        }
        match worker.drain_sent_ns {
            None => {
                worker.drain_sent_ns = Some(now);
                worker.resume();
                worker.reservation.leave();
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
        || pool.workers.iter().any(|(_, worker)| {
            worker.draining || worker.ending_ns.is_some() || !worker.streams.is_empty()
        });
    let newest = pool.workers.iter().map(|(_, worker)| worker.idle_since_ns).max().unwrap_or(0);
    let until = |at: u64| Duration::from_nanos(at.saturating_sub(now)).max(SLEEP_MIN);
    if busy || now.saturating_sub(newest) < QUIET_NS {
        pool.keeper_sleeps = false;
        let live = pool.ready() + pool.starting;
        let full = pool.full.is_some_and(|full| now < full.until_ns);
        let next = match &pool.scaling {
            // Those who wait are decided upon together, and soon.
            Some(scaling)
                if !pool.queue.is_empty()
                    && live < revision.instances_max()
                    && now >= pool.retry_at_ns.max(pool.slow_until_ns)
                    && !full =>
            {
                until(scaling.next_ns(live))
            }
            // A stop is due when it is due, not up to a tick later.
            Some(scaling) => scaling.look_ns.map_or(TICK, until),
            None => TICK,
        };
        return Some(next.min(TICK));
    }
    pool.keeper_sleeps = true;
    let look = pool.scaling.as_ref().and_then(|scaling| scaling.look_ns);
    look.into_iter().chain(next_pause(pool, revision)).min().map(until)
}

/// When the next idle instance is to be paused.
fn next_pause(pool: &Pool, revision: &Revision) -> Option<u64> {
    let after_ns = revision.spec.scale.pause_ms?.saturating_mul(1_000_000);
    let awake = pool.workers.iter().filter(|(_, worker)| !worker.paused && !worker.draining);
    let next = awake.map(|(_, worker)| worker.idle_since_ns.saturating_add(after_ns)).min();
    next.map(|next_ns| next_ns.max(pool.pause_again_ns))
}
