//! The load engine makes operations against a target according to a schedule, and reports their
//! results.
//!
//! Decisions are separate from their execution. [`Pacer`] computes when the next operation begins,
//! [`drive`] runs the clients of one thread over any [`Wire`], and [`Tally`] counts. None of these
//! three knows a socket or a clock, so tests run them in virtual time. [`http`] and [`coap`] are
//! wires over sockets, and [`run`] starts their threads. [`Report`] is the result that users read,
//! save and compare ([`compare`], [`limits`]). [`turns`] runs two wires in alternation.
//!
//! Latency is measured from the *intended* time of an operation. In a closed loop, this is the time
//! at which the operation's client became free. In an open loop, the schedule fixes the intended
//! time in advance, so that a stall of the target counts for every operation that should have begun
//! during the stall.
//!
//! This crate must not know functions, nodes or the command line.
//!
//! The files:
//!
//! - `pacer.rs`, `tally.rs`: the schedule of operations, and counters (pure)
//! - `driver.rs`: the clients of one thread
//! - `wire.rs`: the interface through which clients send operations
//! - `generator.rs`: the threads of a run
//! - `report.rs`, `rows.rs`, `phases.rs`: results

mod clock;
pub mod coap;
pub mod compare;
mod driver;
mod failure;
mod generator;
pub mod http;
pub mod limits;
mod pacer;
pub mod page;
mod phases;
mod plan;
mod poller;
mod report;
mod rows;
mod tally;
mod target;
pub mod turns;
mod wire;

pub use clock::Nanos;
pub use driver::drive;
pub use failure::Failure;
pub use generator::{LoadError, run, run_in_turns};
pub use pacer::{Next, Pacer};
pub use phases::{PHASES, Phases};
pub use plan::{Limit, Load, Plan, PlanError};
pub use report::{Generator, Machine, PERCENTILES, Report, Second, Summary};
pub use rows::{ROWS_MAX, Row, write_rows};
pub use tally::Tally;
pub use target::{Protocol, Request, Target, TargetError};
pub use wire::{Done, Live, Mark, Outcome, Wire};
