//! A queue of names that need attention. A name is in the queue at most once, and one task at a
//! time handles it. If that fails, the name returns after a pause.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;

/// The first pause after a failure; each further failure doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The queue. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Work {
    state: Arc<Mutex<State>>,
    ready: Arc<Notify>,
    /// Counts the handled names.
    pub(crate) handled: Counter,
    pub(crate) failed: Counter,
}

#[derive(Default)]
struct State {
    waiting: Vec<String>,
    queued: HashSet<String>,
    failures: HashMap<String, u32>,
}

impl Work {
    /// Adds a name, unless it is already in the queue.
    pub(crate) fn add(&self, name: &str) {
        let mut state = self.state.lock();
        if state.queued.insert(name.to_owned()) {
            state.waiting.push(name.to_owned());
            self.ready.notify_one();
        }
    }

    /// Takes the name that was queued first, and waits while the queue is empty. A change that
    /// arrives after this queues the name again.
    pub(crate) async fn next(&self) -> String {
        loop {
            {
                let mut state = self.state.lock();
                if !state.waiting.is_empty() {
                    let name = state.waiting.remove(0);
                    state.queued.remove(&name);
                    if !state.waiting.is_empty() {
                        self.ready.notify_one();
                    }
                    return name;
                }
            }
            self.ready.notified().await;
        }
    }

    /// The number of waiting names.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Records that the name was handled.
    pub(crate) fn done(&self, name: &str) {
        self.handled.inc();
        self.state.lock().failures.remove(name);
    }

    /// Records that handling the name failed. The name returns to the queue after a pause. Returns
    /// the pause.
    pub(crate) fn again(&self, name: &str) -> Duration {
        self.failed.inc();
        let pause = {
            let mut state = self.state.lock();
            let failures = state.failures.entry(name.to_owned()).or_default();
            let pause = PAUSE_MAX.min(PAUSE_MIN * 2_u32.saturating_pow(*failures).min(1 << 16));
            *failures += 1;
            pause
        };
        let work = self.clone();
        let name = name.to_owned();
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            work.add(&name);
        });
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_name_is_queued_once_and_pauses_grow() {
        let work = Work::default();
        work.add("a");
        work.add("a");
        work.add("b");
        assert_eq!(work.next().await, "a");
        work.add("a");
        assert_eq!(work.next().await, "b");
        assert_eq!(work.next().await, "a");
        assert_eq!(work.len(), 0);
        let pauses: Vec<_> = (0..12).map(|_| work.again("a")).collect();
        assert_eq!(pauses[0], PAUSE_MIN);
        assert_eq!(pauses[1], 2 * PAUSE_MIN);
        assert_eq!(pauses[11], PAUSE_MAX);
        work.done("a");
        assert_eq!(work.again("a"), PAUSE_MIN);
        assert_eq!(work.next().await, "a");
    }
}
