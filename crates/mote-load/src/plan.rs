//! What a run does.

use std::time::Duration;

use crate::Nanos;
use crate::clock::SECOND;

/// Operations per second at most; beyond, no machine keeps the schedule.
const RATE_MAX: f64 = 10_000_000.0;
/// Clients at most: each holds a port.
const CLIENTS_MAX: usize = 60_000;
/// Pairs of turns at least: fewer have no interval of their median.
pub const PAIRS_MIN: usize = 6;

/// Who decides when an operation begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// Each client begins its next operation when the one before has ended.
    Closed,
    /// A schedule: so many per second, evenly spaced, whatever the target does. A client that is
    /// free takes the oldest that is due.
    Open {
        /// Operations per second of all clients together.
        rate: f64,
    },
}

/// When a run ends. Operations that have begun are waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// After so many measured operations: of each client in a closed loop, of all in an open one.
    Operations(u64),
    /// No operation is meant to begin later than this after the warm-up.
    Duration(Duration),
}

/// A run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Who decides when an operation begins.
    pub load: Load,
    /// Connections (HTTP) or ports (CoAP), each with one operation at a time at most.
    pub clients: usize,
    /// Threads that share the clients; never more than those.
    pub threads: usize,
    /// Operations of this first span are made and not measured.
    pub warmup: Duration,
    /// The end.
    pub limit: Limit,
    /// From its intended time on an operation may take this long.
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
    /// No number, none at all, or more than any schedule keeps.
    #[error("rate: above 0, up to {RATE_MAX} per second")]
    Rate,
    /// Nothing to do.
    #[error("a run needs at least one operation, or a duration above 0")]
    Empty,
    /// Too few to say anything.
    #[error(
        "a ratio needs at least {PAIRS_MIN} pairs of turns: a longer duration, or shorter turns"
    )]
    Pairs,
    /// Nothing could ever be answered.
    #[error("the time limit of an operation is above 0")]
    Timeout,
}

/// Whether there are clients, and not too many.
pub(crate) fn check_clients(clients: usize) -> Result<(), PlanError> {
    if (1..=CLIENTS_MAX).contains(&clients) { Ok(()) } else { Err(PlanError::Clients) }
}

impl Plan {
    /// Whether it can be run.
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

    /// Clients of one thread.
    pub(crate) fn clients_of(&self, thread: usize) -> usize {
        let threads = self.threads();
        self.clients / threads + usize::from(thread < self.clients % threads)
    }

    /// When arrival `index` of the schedule is due, from the start of the run.
    pub(crate) fn arrival(rate: f64, index: u64) -> Nanos {
        (index as f64 * SECOND as f64 / rate) as Nanos
    }
}
