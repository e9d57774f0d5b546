//! Explicit targets for one instance: concurrency, rate, processor use and memory.

use super::decision::Reason;
use super::history::{History, WindowMax};
use super::observation::Observation;
use super::proposal::{Bounds, MS_NS, Proposal};
use mote_spec::policy::Policy;

/// The pause between two looks of the rule while there is work or an instance.
const LOOK_NS: u64 = 500 * MS_NS;
/// The window over which rises are measured. With it, the rule wants ten instances two seconds
/// after the load began. Knative needs 12 s for the same step (Li et al., "Analyzing Open-Source
/// Serverless Platforms", 2021, section IV-C1).
const RISE_NS: u64 = 2_000 * MS_NS;
/// The window over which the level of the load is measured.
const LEVEL_NS: u64 = 10_000 * MS_NS;
/// The number of instances falls only after fewer have been enough for this long.
const FALL_NS: u64 = 30_000 * MS_NS;
/// If CPU or memory use is within this share of its target, nothing changes. Kubernetes uses the
/// same tolerance.
const TOLERANCE: f64 = 0.1;

#[derive(Debug)]
pub(super) struct Target {
    policy: Policy,
    history: History,
    needed: WindowMax,
    tick_ns: u64,
    last: Proposal,
    idle_since_ns: Option<u64>,
}

impl Target {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
            history: History::new(LOOK_NS, LEVEL_NS),
            needed: WindowMax::default(),
            tick_ns: 0,
            last: Proposal::new(0, Reason::Idle),
            idle_since_ns: None,
        }
    }

    pub(super) fn decide(&mut self, o: &Observation, bounds: &Bounds) -> Proposal {
        self.history.push(o);
        if o.is_idle() {
            self.idle_since_ns.get_or_insert(o.now_ns);
        } else {
            self.idle_since_ns = None;
        }
        if o.now_ns >= self.tick_ns {
            self.tick_ns = o.now_ns + LOOK_NS;
            self.last = self.evaluate(o, bounds);
        }
        if self.last.desired == 0 && o.live() == 0 && o.is_idle() {
            self.tick_ns = 0;
            return self.last;
        }
        self.last.look_at(self.tick_ns)
    }

    fn evaluate(&mut self, o: &Observation, bounds: &Bounds) -> Proposal {
        let idle_ns = self.idle_since_ns.map_or(0, |since| o.now_ns - since);
        if self.idle_since_ns.is_some() && idle_ns >= bounds.idle_timeout_ns {
            return Proposal::new(0, Reason::Idle);
        }
        let (wanted, reason) = self.wanted(o);
        // The windows do not show an invocation that has just arrived, but its instance must stay.
        let wanted = wanted.max(u32::from(o.live() > 0 || !o.is_idle()));
        self.needed.push(o.now_ns, wanted, FALL_NS);
        let desired = self.needed.max();
        match () {
            () if o.is_idle() && wanted <= 1 => Proposal::new(desired, Reason::KeepAlive),
            () if desired > wanted => Proposal::new(desired, Reason::Stabilising),
            () => Proposal::new(desired, reason),
        }
    }

    fn wanted(&self, o: &Observation) -> (u32, Reason) {
        let rise = self.history.over(RISE_NS);
        let level = self.history.over(LEVEL_NS);
        let larger = |value: fn(&super::history::Growth) -> f64| {
            let of = |growth: &Option<_>| growth.as_ref().map_or(0.0, value);
            f64::max(of(&rise), of(&level))
        };
        match self.policy {
            Policy::Concurrency { target } => {
                // No instance could reach a target above the number of invocations that its worker
                // runs at once.
                let target = target.min(o.concurrency).max(1);
                let value = larger(|growth| growth.concurrency);
                ((value / f64::from(target)).ceil() as u32, Reason::Concurrency)
            }
            Policy::Rps { target } => {
                let value = larger(|growth| growth.offered / growth.seconds.max(1.0));
                ((value / f64::from(target.max(1))).ceil() as u32, Reason::Rate)
            }
            Policy::Cpu { target_percent } => {
                let promised = f64::from(o.cpu_millis_per_instance.max(1)) / 1_000.0;
                let value = larger(|growth| growth.cores) / promised;
                (by_ratio(value, target_percent, o.ready), Reason::Cpu)
            }
            Policy::Memory { target_percent } => {
                let value = o.memory_bytes as f64 / o.memory_limit_bytes.max(1) as f64;
                (by_ratio(value, target_percent, o.ready), Reason::Memory)
            }
            _ => (0, Reason::Idle),
        }
    }
}

/// `used` is the use of the resource, in units of what one instance has.
fn by_ratio(used: f64, target_percent: u32, ready: u32) -> u32 {
    let wanted = used * 100.0 / f64::from(target_percent.max(1));
    let ready_f = f64::from(ready);
    if ready > 0 && (wanted / ready_f - 1.0).abs() <= TOLERANCE {
        return ready;
    }
    wanted.ceil() as u32
}
