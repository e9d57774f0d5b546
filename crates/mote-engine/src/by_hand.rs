//! What an owner asks for by hand: so many instances now, other bounds until the next deploy.

use std::sync::Arc;

use mote_core::spec::ScaleOverride;

use crate::clock::now_ns;
use crate::logs::LogLevel;
use crate::revision::Revision;
use crate::scaling::Why;
use crate::starts;

/// What became of a wish for so many instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scaled {
    /// Instances ready.
    pub ready: u32,
    /// Instances on their way.
    pub starting: u32,
    /// Idle instances told to exit.
    pub stopped: u32,
    /// Why not all were started, where not all were.
    pub lack: Option<String>,
}

impl Revision {
    /// Lets `bounds` stand in for the manifest's from now on. Does not block; lost with the process.
    pub fn set_bounds(self: &Arc<Self>, bounds: ScaleOverride) {
        *self.bounds.lock() = bounds;
        let kept = self.autoscaler_bounds();
        let mut pool = self.pool.lock();
        let quiet = pool.is_quiet();
        if let Some(scaling) = &mut pool.scaling {
            scaling.set_bounds(&self.spec.scale.policy, kept);
        }
        drop(pool);
        if kept.min > 0 || !quiet {
            self.ensure_keeper();
            self.changed.notify_one();
        }
    }

    /// Starts instances up to `count`, or stops idle ones down to it, now. The autoscaler goes on
    /// from there: it keeps what was started for `scale.idle` at most, and starts more when they are
    /// needed. What `min` keeps is not stopped, and `max` is not passed. Does not wait for starts.
    pub fn scale_to(self: &Arc<Self>, count: u32) -> Scaled {
        let now = now_ns();
        let (count, min) = (count.min(self.instances_max()), self.instances_min());
        let hold_ns = self.spec.scale.idle_timeout_ms.saturating_mul(1_000_000);
        let mut stopped = Vec::new();
        let missing = {
            let mut pool = self.pool.lock();
            self.ensure_scaling(&mut pool);
            pool.asked_for = (count > 0).then(|| (count, now.saturating_add(hold_ns)));
            while pool.ready() > count.max(min) {
                let idle = pool.workers.iter_mut().map(|(_, worker)| worker);
                let longest = idle.filter(|worker| worker.is_idle() && !worker.spare);
                let Some(worker) = longest.min_by_key(|worker| worker.idle_since_ns) else { break };
                worker.draining = true;
                worker.stop_reason = Some("scale");
                worker.stop_text = format!("mote scale asked for {count}");
                stopped.push(worker.instance);
            }
            let live = pool.ready() + pool.starting;
            let mut missing = if pool.closed { 0 } else { count.saturating_sub(live) };
            while missing > 0 && pool.wake_spare() {
                missing -= 1;
            }
            if missing > 0 && pool.starting == 0 {
                pool.starting_since_ns = now;
            }
            pool.starting += missing;
            missing
        };
        for instance in &stopped {
            let text = format!("stopping (scale): mote scale asked for {count}");
            self.log.platform(LogLevel::Info, self.number, *instance, &text);
        }
        let lack = starts::begin(self, missing, Why::SCALE, true);
        self.ensure_keeper();
        self.changed.notify_one();
        let pool = self.pool.lock();
        let (ready, starting) = (pool.ready(), pool.starting);
        Scaled { ready, starting, stopped: stopped.len() as u32, lack }
    }
}
