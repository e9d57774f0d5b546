//! Chooses the next work when several functions have work waiting. The functions take turns, and
//! each has a share of the work that may run at once, so that no function blocks the others. Pure.

use std::collections::{HashMap, VecDeque};

/// Waiting work, by function.
pub(crate) struct Fair<T> {
    /// Most work that may run at once, of all functions and of one.
    total_max: usize,
    share_max: usize,
    running: usize,
    functions: HashMap<String, Function<T>>,
    /// Functions with work waiting, the next one first.
    turns: VecDeque<String>,
}

struct Function<T> {
    waiting: VecDeque<T>,
    running: usize,
}

impl<T> Fair<T> {
    /// At most `total_max` pieces of work run at once, and at most `share_max` of one function.
    pub(crate) fn new(total_max: usize, share_max: usize) -> Self {
        let (functions, turns) = (HashMap::new(), VecDeque::new());
        Self { total_max, share_max, running: 0, functions, turns }
    }

    /// Adds work after the waiting work of the same function.
    pub(crate) fn push(&mut self, function: &str, work: T) {
        let known = self.functions.get_mut(function);
        match known {
            Some(known) => {
                if known.waiting.is_empty() {
                    self.turns.push_back(function.to_owned());
                }
                known.waiting.push_back(work);
            }
            None => {
                let new = Function { waiting: VecDeque::from([work]), running: 0 };
                self.functions.insert(function.to_owned(), new);
                self.turns.push_back(function.to_owned());
            }
        }
    }

    /// The next work that may run; it counts as running until [`Fair::ended`].
    pub(crate) fn next(&mut self) -> Option<(String, T)> {
        if self.running >= self.total_max {
            return None;
        }
        for _ in 0..self.turns.len() {
            let name = self.turns.pop_front()?;
            let function = self.functions.get_mut(&name).expect("a function with work is known");
            if function.running >= self.share_max {
                self.turns.push_back(name);
                continue;
            }
            let work = function.waiting.pop_front().expect("it has a turn because it has work");
            function.running += 1;
            self.running += 1;
            if !function.waiting.is_empty() {
                self.turns.push_back(name.clone());
            }
            return Some((name, work));
        }
        None
    }

    /// Marks a piece of a function's work as ended, whatever its result.
    pub(crate) fn ended(&mut self, function: &str) {
        let Some(known) = self.functions.get_mut(function) else { return };
        known.running = known.running.saturating_sub(1);
        self.running = self.running.saturating_sub(1);
        if known.running == 0 && known.waiting.is_empty() {
            self.functions.remove(function);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_run_in_turn_and_within_their_shares() {
        let mut fair = Fair::new(4, 3);
        for n in 0..100 {
            fair.push("many", n);
        }
        fair.push("few", 1_000);
        fair.push("few", 1_001);
        let next = |fair: &mut Fair<i32>| fair.next().map(|(_, n)| n);
        let begun: Vec<_> = std::iter::from_fn(|| next(&mut fair)).collect();
        assert_eq!(begun, [0, 1_000, 1, 1_001], "in turn, up to the total");
        fair.ended("few");
        fair.ended("few");
        assert_eq!((next(&mut fair), next(&mut fair)), (Some(2), None), "a share ends");
        fair.push("late", 2_000);
        assert_eq!(next(&mut fair), Some(2_000), "others have room all the same");
        for _ in 0..3 {
            fair.ended("many");
        }
        fair.ended("late");
        for n in 3..100 {
            assert_eq!(next(&mut fair), Some(n));
            fair.ended("many");
        }
        assert_eq!(next(&mut fair), None);
        assert!(fair.functions.is_empty() && fair.turns.is_empty(), "the idle are forgotten");
    }
}
