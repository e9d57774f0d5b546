//! The costs of a start and of a waiting instance in one unit: seconds of one processor of this
//! machine.
//!
//! In each second, a node has a second of each of its cores, and its memory budget for a second.
//! Both are lost if they are not used. A function that takes some share of either of them leaves
//! the same share less for the other functions, so equal shares cost the same: one second of one
//! core costs as much as holding, for a second, the part of the budget that belongs to one core.
//! List prices of a provider would be the wrong rate, because nobody can buy more memory for a
//! board: a board with 512 MiB per core must not hold instances as long as a server with 9 GiB per
//! core.

/// What holding `memory_bytes` for one second costs on a machine with this much memory per core.
pub fn memory_cost_s(memory_bytes: f64, memory_per_core_bytes: u64) -> f64 {
    memory_bytes / memory_per_core_bytes.max(1) as f64
}

/// How long something that costs `held_cost_s` per second can be held until that costs as much as
/// `start_cost_s`. An instance that is held for this long after each use costs at most twice the
/// least possible, however the callers behave. This is the rule of Karlin, Manasse, Rudolph and
/// Sleator, "Competitive snoopy caching", Algorithmica 3, 1988.
pub fn break_even_s(start_cost_s: f64, held_cost_s: f64) -> f64 {
    start_cost_s / held_cost_s.max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_costs_as_much_as_the_memory_that_would_have_waited() {
        // 64 MiB of 4 GiB are a 64th of the memory of a core.
        let held_cost_s = memory_cost_s(f64::from(64 << 20), 4 << 30);
        assert_eq!(held_cost_s, 1.0 / 64.0);
        assert_eq!(break_even_s(0.05, held_cost_s), 3.2);
        // An eighth of the memory makes the same instance eight times as dear.
        assert_eq!(memory_cost_s(f64::from(64 << 20), 512 << 20), 1.0 / 8.0);
    }
}
