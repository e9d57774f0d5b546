//! The description of a run.

use std::time::Duration;

use crate::Nanos;
use crate::clock::SECOND;

/// Most operations per second; no machine keeps a faster schedule.
const RATE_MAX: f64 = 10_000_000.0;
/// Most clients, because each holds a port.
const CLIENTS_MAX: usize = 60_000;
/// Fewest pairs of turns; the median of fewer has no interval.
pub const PAIRS_MIN: usize = 6;

/// What determines the start of an operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// Each client begins its next operation when its previous one has ended.
    Closed,
    /// A schedule with an evenly spaced rate, independent of the target. A free client takes the
    /// oldest operation that is due.
    Open {
        /// Operations per second of all clients together.
        rate: f64,
    },
}

/// When a run ends. It waits for operations that have begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// After this number of measured operations: of each client in a closed loop, of all in an open
    /// one.
    Operations(u64),
    /// No operation has an intended time later than this after the warm-up.
    Duration(Duration),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What determines the start of an operation.
    pub load: Load,
    /// Connections (HTTP) or ports (CoAP), each with one operation at a time at most.
    pub clients: usize,
    /// Threads that share the clients; at most one per client.
    pub threads: usize,
    /// Operations of this first span are made but not measured.
    pub warmup: Duration,
    /// The end of the run.
    pub limit: Limit,
    /// Time limit of an operation from its intended time.
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
    /// Not a number, not above 0, or more than any schedule keeps.
    #[error("rate: above 0, up to {RATE_MAX} per second")]
    Rate,
    /// The run would have no operations.
    #[error("a run needs at least one operation, or a duration above 0")]
    Empty,
    /// Too few pairs for a result.
    #[error(
        "a ratio needs at least {PAIRS_MIN} pairs of turns: a longer duration, or shorter turns"
    )]
    Pairs,
    /// No operation could ever be answered.
    #[error("the time limit of an operation is above 0")]
    Timeout,
}

/// Checks that there are clients, and not too many.
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

    /// Threads that have at least one client each.
    pub(crate) fn threads(&self) -> usize {
        self.threads.clamp(1, self.clients)
    }

    /// The number of clients of one thread.
    pub(crate) fn clients_of(&self, thread: usize) -> usize {
        let threads = self.threads();
        self.clients / threads + usize::from(thread < self.clients % threads)
    }

    /// The time at which arrival `index` of the schedule is due, from the start of the run.
    pub(crate) fn arrival(rate: f64, index: u64) -> Nanos {
        (index as f64 * SECOND as f64 / rate) as Nanos
    }
}
