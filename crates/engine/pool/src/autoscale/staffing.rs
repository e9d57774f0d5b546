//! The number of servers that keeps the wait short, by Erlang's formulas.

/// Above this offered load, square-root staffing replaces the recursion, so that a decision still
/// takes only microseconds. Above this load, the two results differ by at most one server.
const ERLANGS_EXACT: f64 = 1_000.0;
/// The number of servers beyond the load, in units of the load's square root, if the recursion is
/// not used. The factor keeps the probability of waiting near 5 % (Halfin and Whitt, "Heavy-traffic
/// limits for queues with many exponential servers", Operations Research 29(3), 1981).
const SQUARE_ROOT_FACTOR: f64 = 1.5;

/// The properties of a stream of work that matter for staffing. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Invocations per second, including refused ones.
    pub rate: f64,
    /// Mean run time.
    pub service_s: f64,
    /// Squared coefficient of variation of the run time.
    pub variation_squared: f64,
}

/// How much avoiding a wait is worth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Patience {
    /// The maximum mean wait, in seconds.
    pub wait_max_s: f64,
    /// Even if the mean wait is below the maximum, one more server is added if it spares callers at
    /// least one second of waiting per this many server-seconds.
    pub server_seconds_per_second: f64,
}

/// The number of servers for a load.
///
/// The offered load in erlangs is rate times run time (Little's law). Erlang's C formula gives the
/// wait of M/M/m. If run times have another variation, the wait is multiplied by (1 + cv²) / 2
/// (Allen and Cunneen's approximation for M/G/m).
pub fn servers_for(load: &Load, patience: &Patience) -> u32 {
    let erlangs = load.rate * load.service_s;
    if erlangs.is_nan() || erlangs <= 0.0 {
        return 0;
    }
    if erlangs > ERLANGS_EXACT {
        return (erlangs + SQUARE_ROOT_FACTOR * erlangs.sqrt()).ceil() as u32;
    }
    let spread = (1.0 + load.variation_squared) / 2.0;
    // Erlang's B formula, by recursion over the number of servers. The C formula follows from it.
    let mut blocked = 1.0;
    let mut servers = 0.0;
    let mut wait_before_s = f64::INFINITY;
    loop {
        servers += 1.0;
        blocked = erlangs * blocked / (servers + erlangs * blocked);
        if servers <= erlangs {
            continue;
        }
        let waits = blocked / (1.0 - erlangs / servers * (1.0 - blocked));
        let who_waits_s = load.service_s / (servers - erlangs) * spread;
        let wait_s = waits * who_waits_s;
        if servers > 2.0 * erlangs + 64.0 {
            return servers as u32;
        }
        let spared_s = load.rate * (wait_before_s - wait_s);
        if wait_before_s <= patience.wait_max_s
            && spared_s * patience.server_seconds_per_second < 1.0
        {
            return servers as u32 - 1;
        }
        wait_before_s = wait_s;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(rate: f64, service_s: f64, variation_squared: f64, wait_max_s: f64) -> u32 {
        let load = Load { rate, service_s, variation_squared };
        servers_for(&load, &Patience { wait_max_s, server_seconds_per_second: 0.0 })
    }

    #[test]
    fn known_values() {
        // Erlang C for 10 erlangs and 12 servers: 0.4494 of the arrivals wait. The mean wait is
        // 0.2247 s if the mean run time is 1 s.
        assert_eq!(servers(10.0, 1.0, 1.0, 0.2248), 12);
        assert_eq!(servers(10.0, 1.0, 1.0, 0.2240), 13);
        assert_eq!(servers(0.0, 1.0, 1.0, 0.1), 0);
        assert_eq!(servers(0.01, 1.0, 1.0, 0.1), 1);
        assert_eq!(servers(10.0, 1.0, 0.0, 0.12), 12, "constant work waits half as long");
    }

    #[test]
    fn more_load_never_wants_fewer() {
        let mut before = 0;
        for step in 1..3_000 {
            let load = Load { rate: f64::from(step) * 5.0, service_s: 0.1, variation_squared: 1.0 };
            let patience = Patience { wait_max_s: 0.005, server_seconds_per_second: 1.0 };
            let servers = servers_for(&load, &patience);
            let erlangs = f64::from(step) * 0.5;
            assert!(servers >= before && f64::from(servers) > erlangs, "{step}: {servers}");
            before = servers;
        }
    }

    #[test]
    fn a_server_is_added_as_long_as_it_spares_more_waiting_than_it_costs() {
        let load = Load { rate: 20.0, service_s: 0.2, variation_squared: 0.25 };
        let servers = |price| {
            let patience = Patience { wait_max_s: 0.1, server_seconds_per_second: price };
            servers_for(&load, &patience)
        };
        // From 5 to 6 servers, callers are spared 1.03 s per second, and from 6 to 7 0.25 s.
        assert_eq!([0.9, 1.1, 3.0, 5.0].map(servers), [5, 6, 6, 7]);
    }
}
