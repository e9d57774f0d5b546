//! The costs of a start and of a waiting instance in one unit: seconds of one processor.

/// How many GiB of memory cost as much as one processor. The list prices of two providers that bill
/// containers by the second give 9.1 (0.04048 and 0.004445 dollars an hour) and 9.6 (0.000024 and
/// 0.0000025 dollars a second).
const GIB_PER_PROCESSOR: f64 = 9.0;
const GIB: f64 = (1_u64 << 30) as f64;

/// What holding `memory_bytes` for one second costs.
pub fn memory_cost_s(memory_bytes: f64) -> f64 {
    memory_bytes / GIB / GIB_PER_PROCESSOR
}

/// How long an instance of `memory_bytes` can wait until that costs as much as a start that takes
/// `start_s` seconds of one processor. With this limit, the total cost is at most twice the least
/// possible cost, however the callers behave. This is the rule of Karlin, Manasse, Rudolph and
/// Sleator, "Competitive snoopy caching", Algorithmica 3, 1988.
pub fn break_even_s(start_s: f64, memory_bytes: f64) -> f64 {
    start_s / memory_cost_s(memory_bytes.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_costs_as_much_as_the_memory_that_would_have_waited() {
        let memory_bytes = f64::from(64 << 20);
        let held_s = break_even_s(0.05, memory_bytes);
        assert!((held_s - 7.2).abs() < 1e-9, "{held_s}");
        assert!((memory_cost_s(memory_bytes) * held_s - 0.05).abs() < 1e-9);
    }
}
