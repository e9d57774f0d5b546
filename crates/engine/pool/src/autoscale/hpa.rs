//! The CPU rule of Kubernetes' horizontal pod autoscaler, written from its documentation.

use super::decision::Reason;
use super::history::{History, WindowMax};
use super::observation::Observation;
use super::proposal::{MS_NS, Proposal};
use mote_spec::policy::HpaSettings;

#[derive(Debug)]
pub(super) struct Hpa {
    settings: HpaSettings,
    history: History,
    tick_ns: u64,
    last: Proposal,
    /// The largest recommendation during the stabilisation window.
    recommended: WindowMax,
}

impl Hpa {
    pub(super) fn new(settings: HpaSettings) -> Self {
        let sync_ns = settings.sync_ms * MS_NS;
        Self {
            history: History::new(sync_ns / 4, sync_ns),
            settings,
            tick_ns: 0,
            last: Proposal::new(1, Reason::Steady),
            recommended: WindowMax::default(),
        }
    }

    pub(super) fn decide(&mut self, o: &Observation) -> Proposal {
        if self.tick_ns == 0 {
            // The first metrics appear one period after the first instance.
            self.tick_ns = o.now_ns + self.settings.sync_ms * MS_NS;
        }
        self.history.push(o);
        if o.now_ns >= self.tick_ns {
            self.tick_ns = o.now_ns + self.settings.sync_ms * MS_NS;
            self.last = self.evaluate(o);
        }
        self.last.look_at(self.tick_ns)
    }

    fn evaluate(&mut self, o: &Observation) -> Proposal {
        let settings = &self.settings;
        let current = self.last.desired.max(1);
        let cores = self.history.over(settings.sync_ms * MS_NS).map_or(0.0, |growth| growth.cores);
        let recommended = recommend(settings, o, cores, current);
        self.recommended.push(o.now_ns, recommended, settings.down_window_ms * MS_NS);
        let step = settings.up_pods.max(current * settings.up_percent / 100);
        let desired = if recommended >= current {
            recommended.min(current + step)
        } else {
            self.recommended.max().min(current)
        };
        let reason = match () {
            () if desired != current => Reason::Cpu,
            () if recommended < current => Reason::Stabilising,
            () => Reason::Steady,
        };
        Proposal::new(desired, reason)
    }
}

/// The number of current instances times use divided by target. If the rule would scale up,
/// instances that are not ready count as unused.
fn recommend(settings: &HpaSettings, o: &Observation, cores: f64, current: u32) -> u32 {
    let per_instance = f64::from(o.cpu_millis_per_instance.max(1)) / 1_000.0
        * f64::from(settings.target_percent.max(1))
        / 100.0;
    let tolerance = f64::from(settings.tolerance_percent) / 100.0;
    if o.ready == 0 {
        return current;
    }
    let of_ready = cores / (f64::from(o.ready) * per_instance);
    let (ratio, count) = if of_ready > 1.0 && o.starting > 0 {
        let count = o.ready + o.starting;
        (cores / (f64::from(count) * per_instance), count)
    } else {
        (of_ready, o.ready)
    };
    if (ratio - 1.0).abs() <= tolerance || (of_ready > 1.0 && ratio < 1.0) {
        return current;
    }
    ((ratio * f64::from(count)).ceil() as u32).max(1)
}
