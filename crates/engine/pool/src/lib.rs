//! The pool of a revision: the waiting invocations, the instances that run them, and how many
//! instances there are.
//!
//! [`Pool`] holds the queue and the instances of a revision. The modules around it make the
//! decisions:
//!
//! - [`autoscale`]: how many instances there should be
//! - [`budget`]: what the node can afford
//! - [`tenants`]: what namespaces hold and may hold
//! - [`prewarm`]: how many prewarmed programs wait to become instances
//! - [`admission`]: whether an invocation runs, waits or is refused
//!
//! The daemon and the simulator (`mote-lab`) drive the same types. This crate must not know about
//! sockets, files, clocks, the environment or an async runtime (`clippy.toml` bans them). Every
//! method takes the time as an argument, so that a test runs in microseconds. Start reading at
//! [`Pool`].
//!
//! Further files:
//!
//! - `pool/worker.rs`: the states of an instance and their transitions
//! - `pool/pick.rs`: the choice of the instance for an invocation
//! - `pool/look.rs`, `pool/scaling.rs`: events that time causes: deadlines, starts and stops
//! - `pool/life.rs`: an instance from its start to its end
//! - `pool/own.rs`: instances that serve only one caller or one call
//! - `pool/guests.rs`: invocations that leave for other cells or arrive from them
//! - `balance.rs`: the balancing rules that a manifest can choose

pub mod admission;
pub mod autoscale;
mod balance;
pub mod budget;
mod pool;
pub mod prewarm;
pub mod tenants;

pub use pool::{
    Call, Calls, Dispatched, Ended, Expired, Expiry, Gone, Instance, NewInstance, Orders, Pool,
    Refusal, Rules, Running, Start, State, Stop, StopReason, Stopping, Submitted, Surroundings,
    Waiting, Why, Withdrawn, Worker, caller_of,
};
