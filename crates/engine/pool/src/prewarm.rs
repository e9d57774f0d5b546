//! How many prewarmed programs of each kind wait to become an instance. The functions are pure.
//!
//! A cold start from a prewarmed interpreter takes only as long as loading the function. One
//! program is kept of each kind that deployed functions need. More are kept if several starts
//! recently arrived at once. A memory budget limits the total.

use std::cmp::Ordering;

/// Starts within this time count as simultaneous. A later start finds programs that were brought up
/// in the meantime.
const BURST_NS: u64 = 1_000_000_000;
/// The half-life of the remembered number of simultaneous starts.
const HALF_LIFE_S: f64 = 60.0;

/// The largest number of simultaneous starts, which is slowly forgotten.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Peak {
    value: f64,
    at_ns: u64,
    burst_since_ns: u64,
    burst: u32,
}

impl Peak {
    pub fn record(&mut self, now_ns: u64) {
        if self.burst == 0 || now_ns.saturating_sub(self.burst_since_ns) > BURST_NS {
            self.burst_since_ns = now_ns;
            self.burst = 0;
        }
        self.burst = self.burst.saturating_add(1);
        self.value = self.value(now_ns).max(f64::from(self.burst));
        self.at_ns = now_ns;
    }

    /// The largest number of simultaneous starts, reduced by the part that has been forgotten by
    /// `now_ns`.
    pub fn value(&self, now_ns: u64) -> f64 {
        let age_s = now_ns.saturating_sub(self.at_ns) as f64 / 1e9;
        self.value * (-age_s / HALF_LIFE_S).exp2()
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProgramKind {
    /// The number of deployed functions that need this kind of program.
    pub functions: u32,
    /// The number of simultaneous starts; see [`Peak::value`].
    pub peak: f64,
    /// Memory that one waiting program of this kind holds, in bytes.
    pub memory_bytes: u64,
}

impl ProgramKind {
    fn wanted(&self, most: u32) -> u32 {
        // The number is rounded, so a single recent start does not cause a second program.
        if self.functions == 0 { 0 } else { (self.peak.round() as u32).clamp(1, most.max(1)) }
    }
}

/// Never inlined, because the sort would otherwise contain some hundred copies of it.
#[inline(never)]
fn most_wanted_first(kinds: &[ProgramKind], at: usize, other: usize) -> Ordering {
    let a = &kinds[at];
    let b = &kinds[other];
    b.peak.total_cmp(&a.peak).then(b.functions.cmp(&a.functions)).then(at.cmp(&other))
}

/// How many programs of each kind should wait: for each kind at most `most`, the number of
/// instances that can start at once. The first program of every kind comes before the second
/// program of any kind. Otherwise, the kind with more simultaneous starts comes first, then the
/// kind with more functions.
pub fn counts(kinds: &[ProgramKind], most: u32, budget_bytes: u64) -> Vec<u32> {
    let mut counts = vec![0; kinds.len()];
    let mut order: Vec<usize> = (0..kinds.len()).collect();
    order.sort_unstable_by(|at, other| most_wanted_first(kinds, *at, *other));
    let mut left = budget_bytes;
    loop {
        let mut added = false;
        for at in &order {
            let kind = &kinds[*at];
            if counts[*at] < kind.wanted(most) && kind.memory_bytes <= left {
                counts[*at] += 1;
                left -= kind.memory_bytes;
                added = true;
            }
        }
        if !added {
            return counts;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    #[test]
    fn a_burst_is_remembered_and_forgotten() {
        let mut peak = Peak::default();
        assert_eq!(peak.value(0), 0.0);
        for start in 0..8 {
            peak.record(10 * S + start * S / 10);
        }
        let last = 10 * S + 7 * S / 10;
        assert_eq!(peak.value(last), 8.0);
        assert_eq!(peak.value(last + 60 * S), 4.0);
        // A single later start neither raises nor lowers the remembered number.
        peak.record(last + 60 * S);
        assert_eq!(peak.value(last + 60 * S), 4.0);
        peak.record(last + 3_600 * S);
        assert_eq!(peak.value(last + 3_600 * S), 1.0);
    }

    #[test]
    fn within_the_budget_first_ones_first() {
        let python = |functions, peak| ProgramKind { functions, peak, memory_bytes: 16 * MIB };
        let node = |functions, peak| ProgramKind { functions, peak, memory_bytes: 64 * MIB };
        for (kinds, budget_mib, expected) in [
            (vec![python(3, 0.0), node(1, 0.0)], 80, vec![1, 1]),
            (vec![python(3, 0.0), node(0, 9.0)], 80, vec![1, 0]),
            (vec![python(3, 4.2), node(1, 0.0)], 112, vec![3, 1]),
            (vec![python(3, 4.2), node(1, 0.0)], 1_000, vec![4, 1]),
            (vec![python(3, 0.0), node(1, 0.0)], 70, vec![1, 0]),
            (vec![python(1, 0.0), node(9, 2.0)], 70, vec![0, 1]),
            (vec![python(1, 3.0)], 0, vec![0]),
            (vec![python(1, 99.0)], 1_000, vec![8]),
            (vec![], 80, vec![]),
        ] {
            assert_eq!(counts(&kinds, 8, budget_mib * MIB), expected, "{kinds:?} in {budget_mib}");
        }
    }
}
