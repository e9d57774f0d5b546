//! Which waiting pods there are, and which one is claimed next. Pure but for its random numbers, with
//! the time as an argument.
//!
//! All cells of a cluster see the same list. A pod accepts one connection in its life, so the first
//! cell wins, and the others try the next pod. A pod that could not be claimed is tried again after a
//! pause, because its machine may only have been busy; one that this cell has claimed never is, even
//! if it is still in the list.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mote_core::spec::PodKind;
use mote_raw_keys::PublicKey;

/// The pause after the first failure, by when the claim of another cell is known. It doubles with each.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// A pod that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaitingPod {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) key: PublicKey,
    pub(crate) kind: PodKind,
}

/// What is known of a pod in the list that was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tried {
    failed: u32,
    /// When it may be tried again; `None` while it is being claimed, and after that has succeeded.
    again: Option<Instant>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Waiting {
    pods: Vec<WaitingPod>,
    /// By key, for the pods in the list that were tried.
    tried: HashMap<PublicKey, Tried>,
    /// Each cell has its own order, so that several do not try the same pod.
    order: RandomState,
}

impl Waiting {
    pub(crate) fn new() -> Self {
        Self { pods: Vec::new(), tried: HashMap::new(), order: RandomState::new() }
    }

    /// Replaces the list.
    pub(crate) fn set(&mut self, mut pods: Vec<WaitingPod>) {
        pods.sort_unstable_by_key(|pod| self.order.hash_one(pod.key));
        let listed: HashSet<PublicKey> = pods.iter().map(|pod| pod.key).collect();
        self.tried.retain(|key, _| listed.contains(key));
        self.pods = pods;
    }

    /// The next pod to try: one that was not tried yet, otherwise the one with the fewest failures
    /// whose pause is over.
    pub(crate) fn take(&mut self, kind: &PodKind, now: Instant) -> Option<WaitingPod> {
        let failures = |pod: &&WaitingPod| match self.tried.get(&pod.key) {
            None => Some(0),
            Some(Tried { failed, again: Some(again) }) if *again <= now => Some(*failed),
            Some(_) => None,
        };
        let of_kind = self.pods.iter().filter(|pod| pod.kind == *kind);
        let able = of_kind.filter_map(|pod| Some((failures(&pod)?, pod)));
        let (failed, pod) = able.min_by_key(|(failed, _)| *failed)?;
        let pod = pod.clone();
        self.tried.insert(pod.key, Tried { failed, again: None });
        Some(pod)
    }

    /// A pod that was taken could not be claimed.
    pub(crate) fn failed(&mut self, key: PublicKey, now: Instant) {
        // It may have left the list meanwhile.
        if let Some(tried) = self.tried.get_mut(&key) {
            let pause = PAUSE.saturating_mul(1 << tried.failed.min(8)).min(PAUSE_MAX);
            *tried = Tried { failed: tried.failed.saturating_add(1), again: Some(now + pause) };
        }
    }

    /// When the next pod of this kind may be tried again.
    pub(crate) fn next(&self, kind: &PodKind) -> Option<Instant> {
        let of_kind = self.pods.iter().filter(|pod| pod.kind == *kind);
        of_kind.filter_map(|pod| self.tried.get(&pod.key)?.again).min()
    }

    /// The pods in the list, each with whether it was tried, and how often in vain.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&WaitingPod, bool, u32)> {
        self.pods.iter().map(|pod| {
            let tried = self.tried.get(&pod.key);
            (pod, tried.is_some(), tried.map_or(0, |tried| tried.failed))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, shape: &str) -> WaitingPod {
        let key = mote_raw_keys::KeyPair::derive(name, &[0; 32]).unwrap().public();
        let kind = PodKind { shape: shape.into(), function: String::new() };
        WaitingPod { name: name.into(), address: "127.0.0.1:1".parse().unwrap(), key, kind }
    }

    #[test]
    fn a_pod_is_claimed_once_even_if_it_stays_in_the_list() {
        let now = Instant::now();
        let mut waiting = Waiting::new();
        let list = vec![pod("a", "python"), pod("b", "node"), pod("c", "python")];
        waiting.set(list.clone());
        let kind = list[0].kind.clone();
        let mut names: Vec<_> =
            (0..2).filter_map(|_| waiting.take(&kind, now)).map(|pod| pod.name).collect();
        names.sort_unstable();
        assert_eq!(names, ["a", "c"]);
        assert_eq!(waiting.take(&kind, now), None);
        waiting.set(list);
        assert_eq!(waiting.take(&kind, now + PAUSE_MAX), None);
        // A further pod is tried, and a name of the past counts for nothing.
        waiting.set(vec![pod("d", "python")]);
        assert_eq!(waiting.take(&kind, now).unwrap().name, "d");
    }

    #[test]
    fn a_pod_that_could_not_be_claimed_is_tried_again_after_a_growing_pause() {
        let mut now = Instant::now();
        let mut waiting = Waiting::new();
        let (first, second) = (pod("a", "python"), pod("b", "python"));
        waiting.set(vec![first.clone()]);
        for (failures, seconds) in (1..).zip([1, 2, 4, 8, 8]) {
            assert_eq!(waiting.take(&first.kind, now).unwrap().name, "a");
            assert_eq!(waiting.next(&first.kind), None, "it is being claimed");
            waiting.failed(first.key, now);
            let next = waiting.next(&first.kind).unwrap();
            assert_eq!(next, now + Duration::from_secs(seconds));
            assert_eq!(waiting.take(&first.kind, next - Duration::from_millis(1)), None);
            assert_eq!(waiting.all().next().unwrap().2, failures);
            now = next;
        }
        // One without failures is tried before it.
        waiting.set(vec![first.clone(), second]);
        assert_eq!(waiting.take(&first.kind, now).unwrap().name, "b");
        assert_eq!(waiting.take(&first.kind, now).unwrap().name, "a");
    }
}
