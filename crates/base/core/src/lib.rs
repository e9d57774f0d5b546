//! The basic types of `mote`, without any access to the outside world.
//!
//! Invocations, faults, the worker wire format, and small rules as pure functions with time as an
//! argument. What a function is, its name included, is in `mote-spec`. This crate must not know
//! about sockets, files, clocks, the environment or an async runtime (`clippy.toml` bans them), so
//! all of it runs in a test in microseconds.
//!
//! Start with [`invocation`] (a request to a function and its answer), then [`wire`] (the protocol
//! to a worker), then [`fault`] (the classes of failures), then [`accept`] (invocations that run
//! after their caller was answered), [`services`] (what functions ask of their node), and
//! [`publish`] (messages for MQTT brokers). Decisions about queues and instances are in
//! `mote-pool`.
//!
//! Further files:
//!
//! - `rollout.rs`: splits of traffic, tags, roll back
//! - `place.rs`: from where a request comes
//! - `seats.rs`: which connection ends for a newcomer at a limit
//! - `shares.rs`, `fair_queue.rs`, `turn.rs`: shares of owners, turns in front of slow work, and
//!   when a task yields
//! - `line_budget.rs`: log lines in a second
//! - `destination.rs`: addresses that lead to the node itself
//! - `elsewhere.rs`: invocations that another cell runs
//! - `retry.rs`, `state.rs`, `chain.rs`: what follows a failed attempt, the state of functions, and
//!   the records of chains

// Every district uses these items, so each says what it promises. Elsewhere a comment is written
// only where it says more than the name does.
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
pub mod shares;
pub mod state;
pub mod turn;
pub mod wire;

pub use fault::{Fault, FaultClass};
pub use invocation::{Invocation, InvocationId, Invoker, Phases, Reply, RouteInfo, Trigger};
