//! Manual scaling: sets a number of instances now, or other bounds until the next deploy.

use std::sync::Arc;

use mote_pool::{Start, Why};
use mote_spec::ScaleOverride;

use crate::revision::Revision;
use crate::revision::logs::LogLevel;
use crate::revision::starts;
use mote_process::clock::now_ns;

/// The result of a request for a number of instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scaled {
    pub ready: u32,
    /// The number of starting instances, not counting those that will stop as soon as they are
    /// ready.
    pub starting: u32,
    /// The number of idle instances that were asked to exit.
    pub stopped: u32,
    /// Why not all requested instances were started, if some were not.
    pub lack: Option<String>,
}

impl Revision {
    /// Replaces the manifest's bounds with `bounds` from now on. Does not block. The change is lost
    /// when the process ends.
    pub fn set_bounds(self: &Arc<Self>, bounds: ScaleOverride) {
        let mut pool = self.pool.lock();
        *self.bounds.lock() = bounds;
        let kept = self.autoscaler_bounds();
        let quiet = pool.is_quiet();
        pool.set_bounds(kept);
        drop(pool);
        if kept.min > 0 || !quiet {
            self.ensure_reconciler();
            self.changed.notify_one();
        }
    }

    /// Starts instances until there are `count`, or stops idle ones until `count` are left. The
    /// autoscaler continues from there: it keeps the started instances for at most `scale.idle`,
    /// and starts more when they are needed. Instances that `min` keeps are not stopped, and `max`
    /// is not exceeded. Does not wait for starts.
    pub fn scale_to(self: &Arc<Self>, count: u32) -> Scaled {
        let now = now_ns();
        let count = count.min(self.instances_max());
        let hold_ns = self.spec.scale.idle_timeout_ms.saturating_mul(1_000_000);
        let (stopped, missing) = self.pool.lock().scale_to(count, hold_ns, now);
        for instance in &stopped {
            let text = format!("stopping (scale): mote scale asked for {count}");
            self.log.platform(LogLevel::Info, self.number, *instance, &text);
        }
        let start = Start { count: missing, why: Why::MANUAL, evict: true };
        let lack = starts::begin(self, start);
        self.ensure_reconciler();
        self.changed.notify_one();
        let pool = self.pool.lock();
        let ready = pool.ready_count();
        let starting = pool.starting_count() - pool.unwanted_count();
        Scaled { ready, starting, stopped: stopped.len() as u32, lack }
    }
}
