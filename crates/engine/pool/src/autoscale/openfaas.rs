//! OpenFaaS's classic alert rule, written from its documentation.

use super::decision::Reason;
use super::history::History;
use super::observation::Observation;
use super::proposal::{Bounds, MS_NS, Proposal};
use mote_spec::policy::OpenFaasSettings;

#[derive(Debug)]
pub(super) struct OpenFaas {
    settings: OpenFaasSettings,
    history: History,
    evaluate_ns: u64,
    /// When the rate rose above the threshold.
    above_since_ns: Option<u64>,
    /// The time at which the firing alert is sent again.
    notify_ns: Option<u64>,
    last: Proposal,
}

impl OpenFaas {
    pub(super) fn new(settings: OpenFaasSettings) -> Self {
        let window_ns = settings.window_ms * MS_NS;
        Self {
            history: History::new(window_ns / 10, window_ns),
            settings,
            evaluate_ns: 0,
            above_since_ns: None,
            notify_ns: None,
            last: Proposal::new(1, Reason::Steady),
        }
    }

    pub(super) fn decide(&mut self, o: &Observation, bounds: &Bounds) -> Proposal {
        let settings = &self.settings;
        if self.evaluate_ns == 0 {
            self.evaluate_ns = o.now_ns + settings.evaluate_ms * MS_NS;
        }
        self.history.push(o);
        if o.now_ns >= self.evaluate_ns {
            self.evaluate_ns = o.now_ns + settings.evaluate_ms * MS_NS;
            // The rule counts only successful answers, so it does not scale up a saturated or
            // failing function.
            let rate = self
                .history
                .over(settings.window_ms * MS_NS)
                .map_or(0.0, |growth| growth.answered / growth.seconds);
            if rate <= f64::from(settings.threshold_rps) {
                if self.notify_ns.take().is_some() {
                    self.last = Proposal::new(bounds.min.max(1), Reason::AlertEnded);
                }
                self.above_since_ns = None;
            } else {
                let since = *self.above_since_ns.get_or_insert(o.now_ns);
                let fires = o.now_ns - since >= settings.for_ms * MS_NS;
                if fires && self.notify_ns.is_none() {
                    self.notify_ns = Some(o.now_ns);
                }
            }
        }
        if self.notify_ns.is_some_and(|at| o.now_ns >= at) {
            self.notify_ns = Some(o.now_ns + settings.repeat_ms * MS_NS);
            let step = (bounds.max * settings.factor_percent).div_ceil(100).max(1);
            let desired = (self.last.desired.max(bounds.min) + step).min(bounds.max);
            self.last = Proposal::new(desired, Reason::Alert);
        }
        self.last.look_at(self.notify_ns.map_or(self.evaluate_ns, |at| at.min(self.evaluate_ns)))
    }
}
