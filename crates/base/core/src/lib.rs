//! The basic types of `mote`, without any access to the outside world.
//!
//! This crate defines invocations, faults, the worker wire format, and small rules as pure
//! functions that take the time as an argument. The definition of a function, its name included, is
//! in `mote-spec`. This crate must not know about sockets, files, clocks, the environment or an
//! async runtime (`clippy.toml` bans them), so a test can run all of it in microseconds.
//!
//! Start with [`invocation`] (a request to a function and its answer), then read [`wire`] (the
//! protocol to a worker), [`fault`] (the classes of failures), [`accept`] (invocations that run
//! after their caller was answered), [`services`] (the services that functions request from their
//! node), and [`publish`] (messages for MQTT brokers). Decisions about queues and instances are in
//! `mote-pool`.
//!
//! Further files:
//!
//! - `rollout.rs`: how traffic is split over revisions, tags, rollback
//! - `place.rs`: the place that a call holds among the calls that a function accepts at once
//! - `seats.rs`: which connection ends to make room for a newcomer at a limit
//! - `shares.rs`, `fair_queue.rs`, `turn.rs`: how much one owner may hold, how owners take turns
//!   while they wait for slow work, and when a task must yield
//! - `line_budget.rs`: how many log lines per second are kept
//! - `destination.rs`: addresses that lead to the node itself
//! - `elsewhere.rs`: invocations that another cell runs
//! - `retry.rs`, `state.rs`, `chain.rs`: what follows a failed attempt, the state of functions, and
//!   the chain of functions that called each other

// Every district uses these items, so each item documents its contract. Elsewhere, a comment is
// written only if it says more than the name.
#![warn(missing_docs)]

pub mod accept;
pub mod backend;
pub mod base64;
pub mod body;
pub mod chain;
pub mod chunks;
pub mod destination;
pub mod elsewhere;
pub mod fair_queue;
pub mod fault;
pub mod invocation;
pub mod line_budget;
pub mod openwhisk_action;
pub mod path;
pub mod place;
pub mod publish;
pub mod retry;
pub mod rollout;
pub mod seats;
pub mod services;
pub mod shared_folders;
pub mod shares;
pub mod state;
pub mod trace;
pub mod turn;
pub mod wire;

pub use fault::{Fault, FaultClass};
pub use invocation::{
    Instances, Invocation, InvocationId, Invoker, Phases, Reply, RouteInfo, Routed, Trigger,
};
