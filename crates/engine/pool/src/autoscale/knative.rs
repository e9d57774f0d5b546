//! The rules of Knative's pod autoscaler, written from its documentation (knative/serving
//! `docs/scaling/SYSTEM.md`).

use super::decision::Reason;
use super::history::History;
use super::observation::Observation;
use super::proposal::{MS_NS, Proposal};
use mote_spec::policy::{KnativeMetric, KnativeSettings};

#[derive(Debug)]
pub(super) struct Knative {
    settings: KnativeSettings,
    history: History,
    tick_ns: u64,
    last: Proposal,
    /// The time at which the short window last asked for panic, and the largest number that was
    /// wanted since the panic began.
    panic_at_ns: Option<u64>,
    panic_max: u32,
    /// When the stable window became empty.
    empty_since_ns: Option<u64>,
}

impl Knative {
    pub(super) fn new(settings: KnativeSettings) -> Self {
        let stable_ns = settings.stable_window_ms * MS_NS;
        Self {
            // Knative keeps buckets of one second.
            history: History::new((stable_ns / 60).max(MS_NS), stable_ns),
            settings,
            tick_ns: 0,
            last: Proposal::new(0, Reason::Idle),
            panic_at_ns: None,
            panic_max: 0,
            empty_since_ns: None,
        }
    }

    /// The number of invocations, at once or per second, that one instance should get.
    fn target(&self, concurrency: u32) -> f64 {
        let target = match self.settings.metric {
            // If the hard limit (`containerConcurrency`) is below the soft target, the limit
            // replaces the target.
            KnativeMetric::Concurrency => self.settings.target.min(concurrency.max(1)),
            KnativeMetric::Rps => self.settings.target,
        };
        f64::from(target.max(1)) * f64::from(self.settings.utilization_percent.max(1)) / 100.0
    }

    pub(super) fn decide(&mut self, o: &Observation) -> Proposal {
        self.history.push(o);
        if o.now_ns < self.tick_ns {
            return self.last.look_at(self.tick_ns);
        }
        self.tick_ns = o.now_ns + self.settings.tick_ms * MS_NS;
        self.last = self.evaluate(o);
        // With no instances, only the activator can report demand.
        if self.last.desired == 0 && o.live() == 0 && o.is_idle() {
            self.tick_ns = 0;
            return self.last;
        }
        self.last.look_at(self.tick_ns)
    }

    fn evaluate(&mut self, o: &Observation) -> Proposal {
        let settings = &self.settings;
        let stable_ns = settings.stable_window_ms * MS_NS;
        let panic_ns = stable_ns / 100 * u64::from(settings.panic_window_percent);
        let per_instance = self.target(o.concurrency);
        let wanted = |window_ns| {
            let growth = self.history.over(window_ns);
            let value = growth.map_or(0.0, |growth| match settings.metric {
                KnativeMetric::Concurrency => growth.concurrency,
                // Knative's proxies count the invocations that they let in, so the rule does not
                // see refused ones. Its buckets are one second long.
                KnativeMetric::Rps => growth.admitted / growth.seconds.max(1.0),
            });
            (value / per_instance).ceil() as u32
        };
        let ready = o.ready.max(1);
        let up = settings.up_rate_max.saturating_mul(ready);
        let down = if o.ready > 0 { o.ready / settings.down_rate_max.max(1) } else { 0 };
        let stable = wanted(stable_ns);
        let short = wanted(panic_ns);
        let stable_desired = stable.max(down).min(up);
        let short_desired = short.max(down).min(up);

        if u64::from(short) * 100 >= u64::from(ready * settings.panic_threshold_percent) {
            self.panic_at_ns = Some(o.now_ns);
        } else if self.panic_at_ns.is_some_and(|since| o.now_ns - since > stable_ns) {
            self.panic_at_ns = None;
            self.panic_max = 0;
        }
        let (desired, reason) = if self.panic_at_ns.is_some() {
            self.panic_max = self.panic_max.max(short_desired).max(stable_desired);
            (self.panic_max, Reason::Panic)
        } else {
            let reason = match settings.metric {
                KnativeMetric::Concurrency => Reason::Concurrency,
                KnativeMetric::Rps => Reason::Rate,
            };
            (stable_desired, reason)
        };
        self.keep_last(o, stable, desired, reason)
    }

    /// Keeps the last instance until the stable window has been empty for its whole length and the
    /// grace period has passed.
    fn keep_last(
        &mut self,
        o: &Observation,
        stable: u32,
        desired: u32,
        reason: Reason,
    ) -> Proposal {
        let empty = stable == 0 && o.is_idle();
        if !empty {
            self.empty_since_ns = None;
            return Proposal::new(desired.max(u32::from(o.ready > 0)), reason);
        }
        let since = *self.empty_since_ns.get_or_insert(o.now_ns);
        if desired > 1 {
            return Proposal::new(desired, reason);
        }
        if o.now_ns - since >= self.settings.grace_ms * MS_NS || o.live() == 0 {
            self.panic_at_ns = None;
            self.panic_max = 0;
            Proposal::new(0, Reason::Idle)
        } else {
            Proposal::new(1, Reason::Stabilising)
        }
    }
}
