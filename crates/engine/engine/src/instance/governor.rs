//! Decides which instances run in the background: those of functions that would otherwise make
//! their neighbours wait for a processor (docs/decisions/0009-neighbours.md).

use std::collections::HashMap;
use std::sync::Arc;

use mote_core::backend::InstanceControl;
use mote_pool::admission::{
    BACKGROUND_LOOK_NS, Background, LIFT_NS, LONG_WORK_NS, METER_NS, ProcessorMeter, background,
    is_considerate, is_greedy, is_starved,
};
use parking_lot::Mutex;

use crate::revision::Revision;
use crate::revision::pool::Pool;

/// The pause between two measurements of the processor time of an instance whose work is long.
const LOOK_NS: u64 = 35_000_000;
/// The same pause for an instance of a namespace, while functions of other namespaces are called.
const SHARED_LOOK_NS: u64 = METER_NS / 2;

/// An instance whose processor time is to be measured.
struct Look {
    key: usize,
    control: Arc<dyn InstanceControl>,
    /// How long the oldest invocation of the instance has been running.
    running_ns: u64,
    /// The time since the last measurement.
    span_ns: u64,
    burnt_before_ns: u64,
    is_lifted: bool,
}

impl Look {
    /// The time since the last measurement. `None` if the oldest invocation is not long work, or if
    /// that invocation began after the measurement, which then says nothing about it.
    fn of_long_work_ns(&self) -> Option<u64> {
        let is_whole = self.running_ns >= LONG_WORK_NS && self.span_ns <= self.running_ns;
        is_whole.then_some(self.span_ns)
    }
}

/// Moves the function of a revision into the background or out of it. A function with neighbours
/// enters the background if its long work uses most of a core, or if its namespace does so while
/// functions of other namespaces are called. It leaves the background if its work is short again or
/// if it has no neighbours. Of the function's starved instances, one at a time may compete until it
/// has received its floor. Reads one small file for each instance that is measured.
pub(crate) fn govern(revision: &Revision, now: u64) {
    let has_neighbours = revision.has_neighbours(now);
    let shares = has_neighbours && revision.has_strangers(now);
    let takes_most = shares && takes_most(&revision.shared.meters, revision.who.namespace, now);
    let (is_in_background, mut one_is_lifted, mut looks) = {
        let mut pool = revision.pool.lock();
        let is_considerate = pool.background().is_some()
            && pool.workers().any(|(_, worker)| is_considerate(worker.mean_ns()));
        let wanted = background(pool.background(), has_neighbours, is_considerate, takes_most);
        if wanted != pool.background() {
            return pool.put_into_background(wanted);
        }
        if !has_neighbours {
            return;
        }
        let looks = due_looks(&mut pool, shares, now);
        (wanted.is_some(), pool.has_lifted(), looks)
    };
    // The instance whose oldest invocation has run longest is the first to be lifted.
    looks.sort_by_key(|look| std::cmp::Reverse((look.is_lifted, look.running_ns)));
    for look in looks {
        let Some(usage) = look.control.usage() else { continue };
        let burnt_ns = usage.cpu_ns.saturating_sub(look.burnt_before_ns);
        let mut pool = revision.pool.lock();
        let Some(worker) = pool.worker_mut(look.key) else { continue };
        let instance = worker.instance_mut();
        let of_long_work_ns = look.of_long_work_ns();
        let starved = of_long_work_ns.is_some_and(|since_ns| is_starved(burnt_ns, since_ns));
        if is_in_background && starved && (look.is_lifted || !one_is_lifted) {
            // The measurement continues from where it began, so the lift lasts until the instance
            // has received its floor.
            one_is_lifted = true;
            instance.lifted_until_ns = now + LIFT_NS;
            if !look.is_lifted {
                instance.control.set_background(false);
            }
            continue;
        }
        instance.burnt_ns = usage.cpu_ns;
        instance.looked_ns = now;
        if shares && look.span_ns < 2 * METER_NS {
            let mut meters = revision.shared.meters.lock();
            let namespace = revision.who.namespace;
            if !meters.contains_key(&namespace) {
                meters.retain(|_, meter| meter.is_fresh(now));
            }
            meters.entry(namespace).or_default().add(burnt_ns, now);
        }
        if look.is_lifted {
            one_is_lifted = false;
            instance.end_lift();
        } else if !is_in_background
            && of_long_work_ns.is_some_and(|since| is_greedy(burnt_ns, since, look.running_ns))
        {
            return pool.put_into_background(Some(Background::Function));
        }
    }
}

/// Whether a namespace uses most of a core.
fn takes_most(meters: &Mutex<HashMap<u64, ProcessorMeter>>, namespace: u64, now: u64) -> bool {
    let meters = meters.lock();
    meters.get(&namespace).is_some_and(|meter| meter.takes_most(now))
}

/// The instances that are due for a measurement: the last measurement was some time ago, and an
/// invocation has been running for a long time. If the namespace shares the node, instances without
/// long work are included. Also ends lifts whose invocation has ended.
fn due_looks(pool: &mut Pool, shares: bool, now: u64) -> Vec<Look> {
    let pause_ns = if pool.background().is_some() { BACKGROUND_LOOK_NS } else { LOOK_NS };
    let mut looks = Vec::new();
    for (key, worker) in pool.workers_mut() {
        let oldest = worker.calls().iter().map(|(_, call)| call.began_ns()).min();
        let running_ns = oldest.map_or(0, |began| now.saturating_sub(began));
        let instance = worker.instance_mut();
        let is_lifted = instance.lifted_until_ns != 0;
        let span_ns = now.saturating_sub(instance.looked_ns);
        let is_shared_look = shares && span_ns >= SHARED_LOOK_NS && !is_lifted;
        let is_due = if running_ns < LONG_WORK_NS {
            if is_lifted && now >= instance.lifted_until_ns {
                instance.end_lift();
            }
            is_shared_look
        } else if is_lifted {
            now >= instance.lifted_until_ns
        } else {
            is_shared_look || span_ns >= pause_ns || span_ns > running_ns
        };
        if is_due {
            looks.push(Look {
                key,
                control: instance.control.clone(),
                running_ns,
                span_ns,
                burnt_before_ns: instance.burnt_ns,
                is_lifted,
            });
        }
    }
    looks
}
