//! The description of a run.

use std::time::Duration;

use crate::Nanos;
use crate::clock::SECOND;

/// The maximum number of operations per second. No machine can keep a faster schedule.
const RATE_MAX: f64 = 10_000_000.0;
/// The maximum number of clients, because each client uses a port.
const CLIENTS_MAX: usize = 60_000;
/// The minimum number of pairs of turns. The median of fewer pairs has no interval.
pub const PAIRS_MIN: usize = 6;

/// What determines when an operation begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// Each client begins its next operation when its previous one has ended.
    Closed,
    /// A schedule of evenly spaced operations, which does not depend on the target. A free client
    /// takes the oldest operation that is due.
    Open {
        /// Operations per second of all clients together.
        rate: f64,
    },
}

/// When a run ends. The run waits for operations that have begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// After this number of measured operations, which counts for each client in a closed loop and
    /// for all clients together in an open loop.
    Operations(u64),
    /// After this time, counted from the end of the warm-up. No operation has a later intended
    /// time.
    Duration(Duration),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What determines when an operation begins.
    pub load: Load,
    /// The number of connections (HTTP) or ports (CoAP). Each has at most one operation at a time.
    pub clients: usize,
    /// The number of threads that share the clients. There is at most one thread per client.
    pub threads: usize,
    /// The length of the warm-up, whose operations are made but not measured.
    pub warmup: Duration,
    /// The end of the run.
    pub limit: Limit,
    /// How long an operation may take, counted from its intended time.
    pub timeout: Duration,
    /// Whether each measured operation is kept as a [`Row`](crate::Row).
    pub keeps_rows: bool,
}

/// A plan that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too few or too many clients.
    #[error("clients: 1 to {CLIENTS_MAX}")]
    Clients,
    /// The rate is not a number, is not above 0, or is higher than any schedule can keep.
    #[error("rate: above 0, up to {RATE_MAX} per second")]
    Rate,
    /// The run would have no operations.
    #[error("a run needs at least one operation, or a duration above 0")]
    Empty,
    /// There are too few pairs for a result.
    #[error(
        "a ratio needs at least {PAIRS_MIN} pairs of turns: a longer duration, or shorter turns"
    )]
    Pairs,
    /// With this time limit, no operation could ever be answered.
    #[error("the time limit of an operation is above 0")]
    Timeout,
}

/// Checks that there is at least one client, and that there are not too many.
pub(crate) fn check_clients(clients: usize) -> Result<(), PlanError> {
    if (1..=CLIENTS_MAX).contains(&clients) { Ok(()) } else { Err(PlanError::Clients) }
}

impl Plan {
    /// Checks that the plan can be run.
    pub fn check(&self) -> Result<(), PlanError> {
        check_clients(self.clients)?;
        if let Load::Open { rate } = self.load
            && !(rate > 0.0 && rate <= RATE_MAX)
        {
            return Err(PlanError::Rate);
        }
        if matches!(self.limit, Limit::Operations(0) | Limit::Duration(Duration::ZERO)) {
            return Err(PlanError::Empty);
        }
        if self.timeout.is_zero() {
            return Err(PlanError::Timeout);
        }
        Ok(())
    }

    /// The number of threads that have at least one client each.
    pub(crate) fn threads(&self) -> usize {
        self.threads.clamp(1, self.clients)
    }

    /// The number of clients of one thread.
    pub(crate) fn clients_of(&self, thread: usize) -> usize {
        let threads = self.threads();
        self.clients / threads + usize::from(thread < self.clients % threads)
    }

    /// When arrival `index` of the schedule is due, counted from the start of the run.
    pub(crate) fn arrival(rate: f64, index: u64) -> Nanos {
        (index as f64 * SECOND as f64 / rate) as Nanos
    }
}
