//! Which waiting pods there are, and which one is claimed next. Pure but for its random numbers.
//!
//! All cells of a cluster see the same list. A pod accepts one connection in its life, so the first
//! cell wins, and the others try the next pod. A pod that was tried is never tried again, even if it
//! is still in the list: after a claim, the function in it could have taken its place.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;

use mote_core::spec::PodKind;
use mote_raw_keys::PublicKey;

/// A pod that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaitingPod {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) key: PublicKey,
    pub(crate) kind: PodKind,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Waiting {
    pods: Vec<WaitingPod>,
    /// The keys of pods in the list that were tried.
    tried: HashSet<PublicKey>,
    /// Each cell has its own order, so that several do not try the same pod.
    order: RandomState,
}

impl Waiting {
    pub(crate) fn new() -> Self {
        Self { pods: Vec::new(), tried: HashSet::new(), order: RandomState::new() }
    }

    /// Replaces the list.
    pub(crate) fn set(&mut self, mut pods: Vec<WaitingPod>) {
        pods.sort_by_key(|pod| self.order.hash_one(pod.key));
        let listed: HashSet<PublicKey> = pods.iter().map(|pod| pod.key).collect();
        self.tried.retain(|key| listed.contains(key));
        self.pods = pods;
    }

    /// The next pod to try.
    pub(crate) fn take(&mut self, kind: &PodKind) -> Option<WaitingPod> {
        let is_next = |pod: &&WaitingPod| pod.kind == *kind && !self.tried.contains(&pod.key);
        let pod = self.pods.iter().find(is_next)?.clone();
        self.tried.insert(pod.key);
        Some(pod)
    }

    /// The pods in the list, each with whether it was tried.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&WaitingPod, bool)> {
        self.pods.iter().map(|pod| (pod, self.tried.contains(&pod.key)))
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
    fn a_pod_is_tried_once_even_if_it_stays_in_the_list() {
        let mut waiting = Waiting::new();
        let list = vec![pod("a", "python"), pod("b", "node"), pod("c", "python")];
        waiting.set(list.clone());
        let kind = list[0].kind.clone();
        let mut names: Vec<_> =
            (0..2).filter_map(|_| waiting.take(&kind)).map(|pod| pod.name).collect();
        names.sort();
        assert_eq!(names, ["a", "c"]);
        assert_eq!(waiting.take(&kind), None);
        waiting.set(list);
        assert_eq!(waiting.take(&kind), None);
        // A further pod is tried, and a name of the past counts for nothing.
        waiting.set(vec![pod("d", "python")]);
        assert_eq!(waiting.take(&kind).unwrap().name, "d");
    }
}
