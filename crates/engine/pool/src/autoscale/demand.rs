//! The work inside a revision over time: its integral, and the times at which it begins and ends.

/// The time integral of running and waiting invocations.
#[derive(Debug, Default)]
pub(super) struct Demand {
    inside: u32,
    settled_ns: u64,
    total_ns: u64,
}

/// Whether work has arrived after an idle time, or the last work has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edge {
    Woke,
    Rested,
}

impl Demand {
    /// Notes that `inside` invocations run or wait from `now_ns` on. If the clock goes back, it
    /// counts as stopped.
    pub(super) fn settle(&mut self, inside: u32, now_ns: u64) -> Option<Edge> {
        let now_ns = now_ns.max(self.settled_ns);
        let grown = u64::from(self.inside).wrapping_mul(now_ns - self.settled_ns);
        self.total_ns = self.total_ns.wrapping_add(grown);
        self.settled_ns = now_ns;
        let before = std::mem::replace(&mut self.inside, inside);
        match (before, inside) {
            (0, 1..) => Some(Edge::Woke),
            (1.., 0) => Some(Edge::Rested),
            _ => None,
        }
    }

    /// The integral up to [`Demand::settled_ns`], in invocation-nanoseconds. It wraps around.
    pub(super) fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// When the integral was last updated.
    pub(super) fn settled_ns(&self) -> u64 {
        self.settled_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_integrates_and_tells_edges() {
        let mut demand = Demand::default();
        for (at_ns, inside, edge, total_ns) in [
            (10, 0, None, 0),
            (20, 2, Some(Edge::Woke), 0),
            (30, 5, None, 20),
            (25, 4, None, 20),
            (40, 0, Some(Edge::Rested), 60),
            (90, 0, None, 60),
        ] {
            assert_eq!(demand.settle(inside, at_ns), edge, "at {at_ns}");
            assert_eq!(demand.total_ns(), total_ns, "at {at_ns}");
        }
    }
}
