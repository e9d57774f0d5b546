//! Invocations that wait here and would leave if another cell had a place for them.

use std::collections::HashMap;
use std::sync::Arc;

use mote_core::elsewhere::{Later, RevisionKey};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The waiting invocations by revision. A revision has an entry only while at least one of its
/// invocations is waiting.
#[derive(Clone, Default)]
pub(crate) struct Waiters(Arc<Mutex<HashMap<RevisionKey, Entry>>>);

#[derive(Default)]
struct Entry {
    waiting: usize,
    /// Wakes the waiting invocations in the order in which they arrived.
    notify: Arc<Notify>,
}

/// Counts one waiting invocation until it is dropped.
struct Waiting {
    all: Waiters,
    key: RevisionKey,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        if let Some(entry) = all.get_mut(&self.key) {
            entry.waiting -= 1;
            if entry.waiting == 0 {
                all.remove(&self.key);
            }
        }
    }
}

impl Waiters {
    /// Resolves when it is worth trying to claim a place.
    pub(crate) fn wait(&self, key: &RevisionKey) -> Later<()> {
        let notify = {
            let mut all = self.0.lock();
            let entry = all.entry(key.clone()).or_default();
            entry.waiting += 1;
            entry.notify.clone()
        };
        let waiting = Waiting { all: self.clone(), key: key.clone() };
        Box::pin(async move {
            let _waiting = waiting;
            notify.notified().await;
        })
    }

    /// Wakes up to `count` waiting invocations of a revision.
    pub(crate) fn wake(&self, key: &RevisionKey, count: usize) {
        let all = self.0.lock();
        let Some(entry) = all.get(key) else { return };
        for _ in 0..count.min(entry.waiting) {
            entry.notify.notify_one();
        }
    }

    /// For each revision, wakes as many waiting invocations as `places` returns.
    pub(crate) fn wake_each(&self, places: impl Fn(&RevisionKey) -> u32) {
        for (key, entry) in self.0.lock().iter() {
            for _ in 0..(places(key) as usize).min(entry.waiting) {
                entry.notify.notify_one();
            }
        }
    }

    pub(crate) fn wake_all(&self) {
        self.wake_each(|_| u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mote_spec::FunctionName;

    #[tokio::test]
    async fn those_who_wait_are_woken_in_order_and_forgotten() {
        let key = |name| RevisionKey {
            function: FunctionName::new(name).unwrap(),
            number: 1,
            content: 0,
        };
        let waiters = Waiters::default();
        let mut first = waiters.wait(&key("f"));
        let mut second = waiters.wait(&key("f"));
        let other = waiters.wait(&key("g"));
        let is_ready = |future: &mut Later<()>| {
            let waker = std::task::Waker::noop();
            future.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_ready()
        };
        assert!(!is_ready(&mut first) && !is_ready(&mut second));
        waiters.wake(&key("f"), 1);
        assert!(is_ready(&mut first) && !is_ready(&mut second));
        waiters.wake_each(|key| u32::from(key.function.as_str() == "f"));
        assert!(is_ready(&mut second));
        drop((first, second, other));
        assert!(waiters.0.lock().is_empty());
    }
}
