//! Computes when the next operation of a thread begins. The code is pure: time is an argument.

use crate::{Limit, Load, Nanos, Plan};

/// What a free client should do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Begin an operation now. This is the operation's intended time.
    Begin(Nanos),
    /// Ask again at this time.
    At(Nanos),
    /// There are no operations left for this client.
    Never,
}

/// The schedule of one thread.
#[derive(Debug)]
pub struct Pacer {
    load: Load,
    started: Nanos,
    measured_from: Nanos,
    /// All intended times are earlier than this time.
    until: Nanos,
    /// For a closed loop: how many measured operations each client must still make.
    left: Vec<u64>,
    /// For an open loop: the index of this thread's next arrival, the step to the arrival after
    /// that, and the first index that is not part of the run.
    arrival: u64,
    step: u64,
    arrivals_end: u64,
}

impl Pacer {
    /// The part of `plan` for `thread`, which begins at `started`.
    pub fn new(plan: &Plan, thread: usize, started: Nanos) -> Self {
        let warmup = plan.warmup.as_nanos() as Nanos;
        let measured_from = started + warmup;
        let (until, operations) = match plan.limit {
            Limit::Duration(duration) => (measured_from + duration.as_nanos() as Nanos, u64::MAX),
            Limit::Operations(operations) => (Nanos::MAX, operations),
        };
        let arrivals_end = match plan.load {
            Load::Closed => 0,
            Load::Open { rate } => {
                // The index of the first measured arrival.
                let mut first = (warmup as f64 * rate / 1e9) as u64;
                first += u64::from(Plan::arrival(rate, first) < warmup);
                first.saturating_add(operations)
            }
        };
        Self {
            load: plan.load,
            started,
            measured_from,
            until,
            left: vec![operations; plan.clients_of(thread)],
            arrival: thread as u64,
            step: plan.threads() as u64,
            arrivals_end,
        }
    }

    /// Operations whose intended time is this or later are measured.
    pub fn measured_from(&self) -> Nanos {
        self.measured_from
    }

    /// The end of the measured span, if it is fixed in advance.
    pub fn until(&self) -> Option<Nanos> {
        (self.until != Nanos::MAX).then_some(self.until)
    }

    /// What the free `client` should do at `now`.
    pub fn next(&mut self, client: usize, now: Nanos) -> Next {
        match self.load {
            Load::Closed => self.closed(client, now),
            Load::Open { rate } => self.open(rate, now),
        }
    }

    fn closed(&mut self, client: usize, now: Nanos) -> Next {
        if now < self.started {
            return Next::At(self.started);
        }
        if now >= self.until {
            return Next::Never;
        }
        if now >= self.measured_from {
            let Some(left) = self.left[client].checked_sub(1) else { return Next::Never };
            self.left[client] = left;
        }
        Next::Begin(now)
    }

    fn open(&mut self, rate: f64, now: Nanos) -> Next {
        if self.arrival >= self.arrivals_end {
            return Next::Never;
        }
        let intended = self.started + Plan::arrival(rate, self.arrival);
        if intended >= self.until {
            return Next::Never;
        }
        if intended > now {
            return Next::At(intended);
        }
        self.arrival += self.step;
        Next::Begin(intended)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn plan(load: Load, limit: Limit) -> Plan {
        Plan {
            keeps_rows: false,
            load,
            clients: 3,
            threads: 2,
            warmup: Duration::from_secs(1),
            limit,
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn a_closed_loop_counts_after_the_warm_up() {
        let plan = plan(Load::Closed, Limit::Operations(2));
        let mut pacer = Pacer::new(&plan, 0, 100);
        let from = pacer.measured_from();
        assert_eq!(from, 1_000_000_100);
        assert_eq!(pacer.next(0, 99), Next::At(100));
        for now in [100, from - 1] {
            assert_eq!(pacer.next(0, now), Next::Begin(now));
        }
        assert_eq!(pacer.next(0, from), Next::Begin(from));
        assert_eq!(pacer.next(0, from + 5), Next::Begin(from + 5));
        assert_eq!(pacer.next(0, from + 6), Next::Never);
        assert_eq!(pacer.next(1, from + 6), Next::Begin(from + 6), "each client has its own");
    }

    #[test]
    fn threads_share_one_schedule() {
        let plan = plan(Load::Open { rate: 3.0 }, Limit::Operations(4));
        let mut times = Vec::new();
        for thread in 0..2 {
            let mut pacer = Pacer::new(&plan, thread, 0);
            while let Next::Begin(time) = pacer.next(0, Nanos::MAX) {
                times.push(time);
            }
        }
        times.sort_unstable();
        // Three operations of the warm-up, at 0, 1/3 and 2/3 of a second, and then four measured
        // ones.
        let expected: Vec<Nanos> = (0..7).map(|k| Plan::arrival(3.0, k)).collect();
        assert_eq!(times, expected);
        let mut pacer = Pacer::new(&plan, 1, 0);
        assert_eq!(pacer.next(0, 0), Next::At(Plan::arrival(3.0, 1)));
    }

    #[test]
    fn a_duration_ends_the_schedule() {
        let plan = plan(Load::Open { rate: 10.0 }, Limit::Duration(Duration::from_secs(2)));
        let mut pacer = Pacer::new(&plan, 0, 0);
        let mut count = 0;
        while let Next::Begin(time) = pacer.next(0, Nanos::MAX) {
            count += u64::from(time >= pacer.measured_from());
        }
        assert_eq!(count, 10, "half of 20, since two threads share them");
    }
}
