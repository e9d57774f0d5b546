//! A queue in front of slow work, in which owners take turns.
//!
//! In a first-come, first-served queue, one owner with a thousand pieces of work delays all others
//! by a thousand pieces. Here, an owner (an address, a host) waits for at most one piece of each
//! other owner, however much work the others have. Levels take precedence over turns: work of a
//! lower level is taken first, so that callers with a good record do not wait for unknown callers.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Waiting work, in `LEVELS` levels.
#[derive(Debug)]
pub struct FairQueue<K, T, const LEVELS: usize = 1> {
    levels: [Ring<K, T>; LEVELS],
    waiting: usize,
    total_max: usize,
}

/// The work of one level.
#[derive(Debug)]
struct Ring<K, T> {
    /// Owners with work, in the order of their turns.
    order: VecDeque<K>,
    /// The waiting work of each owner. An owner without work has no entry.
    lines: HashMap<K, VecDeque<T>>,
}

impl<K: Clone + Eq + Hash, T, const LEVELS: usize> FairQueue<K, T, LEVELS> {
    /// Makes an empty queue, in which at most `total_max` pieces of work may wait.
    pub fn new(total_max: usize) -> Self {
        let ring = |_| Ring { order: VecDeque::new(), lines: HashMap::new() };
        Self { levels: std::array::from_fn(ring), waiting: 0, total_max: total_max.max(1) }
    }

    /// Adds work at the end of its owner's line. If the queue is full, one piece of work leaves the
    /// queue and is returned: the newest piece of the owner with the most work in the last level
    /// that has any. This may be the piece that was just added.
    pub fn push(&mut self, level: usize, owner: K, work: T) -> Option<T> {
        let ring = &mut self.levels[level.min(LEVELS - 1)];
        let line = ring.lines.entry(owner.clone()).or_default();
        if line.is_empty() {
            ring.order.push_back(owner);
        }
        line.push_back(work);
        self.waiting += 1;
        if self.waiting <= self.total_max {
            return None;
        }
        let ring = self.levels.iter_mut().rfind(|ring| !ring.order.is_empty())?;
        // The queue's limit also bounds the number of owners, so this search is short. Among
        // equals, the owner whose turn is last loses work.
        let greediest = ring.order.iter().max_by_key(|owner| ring.lines[*owner].len())?.clone();
        let line = ring.lines.get_mut(&greediest)?;
        let latest = line.pop_back();
        if line.is_empty() {
            ring.lines.remove(&greediest);
            ring.order.retain(|owner| *owner != greediest);
        }
        self.waiting -= 1;
        latest
    }

    /// Takes the next piece of work.
    pub fn pop(&mut self) -> Option<T> {
        let ring = self.levels.iter_mut().find(|ring| !ring.order.is_empty())?;
        let owner = ring.order.pop_front()?;
        let line = ring.lines.get_mut(&owner)?;
        let work = line.pop_front();
        if line.is_empty() {
            ring.lines.remove(&owner);
        } else {
            ring.order.push_back(owner);
        }
        self.waiting -= 1;
        work
    }

    /// The number of waiting pieces of work.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all<const LEVELS: usize>(queue: &mut FairQueue<char, u32, LEVELS>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn owners_take_turns() {
        let mut queue = FairQueue::<_, _>::new(100);
        for work in 0..5 {
            assert_eq!(queue.push(0, 'a', work), None);
        }
        queue.push(0, 'b', 10);
        queue.push(0, 'c', 20);
        queue.push(0, 'c', 21);
        assert_eq!(queue.pop(), Some(0));
        queue.push(0, 'b', 11);
        assert_eq!(all(&mut queue), [10, 20, 1, 11, 21, 2, 3, 4]);
        assert!(queue.is_empty() && queue.levels[0].lines.is_empty());
    }

    #[test]
    fn a_lower_level_comes_first() {
        let mut queue = FairQueue::<_, _, 2>::new(100);
        queue.push(1, 'a', 1);
        queue.push(1, 'b', 2);
        queue.push(0, 'b', 3);
        queue.push(0, 'b', 4);
        queue.push(7, 'c', 5);
        assert_eq!(all(&mut queue), [3, 4, 1, 2, 5]);
    }

    #[test]
    fn at_the_limit_the_owner_with_the_most_loses_its_latest() {
        let mut queue = FairQueue::<_, _, 2>::new(4);
        for work in 0..3 {
            queue.push(1, 'a', work);
        }
        queue.push(1, 'b', 10);
        assert_eq!(queue.push(1, 'c', 20), Some(2));
        assert_eq!(queue.push(1, 'a', 3), Some(3), "its own");
        assert_eq!(
            queue.push(0, 'd', 30),
            Some(1),
            "another level has room while the last has work"
        );
        // Among equals, the owner that was added last loses its work.
        assert_eq!(queue.push(1, 'e', 40), Some(40));
        assert_eq!((queue.len(), all(&mut queue)), (4, vec![30, 0, 10, 20]));
    }
}
