//! The load engine: makes operations against a target by a schedule and says what came of them.
//!
//! What is decided is apart from what is done. [`Pacer`] says when the next operation begins,
//! [`drive`] runs one thread's clients over anything that is a [`Wire`], [`Tally`] counts; none of
//! them knows a socket or a clock, so tests run them in virtual time. [`http`] and [`coap`] are
//! wires over sockets, [`run`] puts threads under them, [`Report`] is what users read, save and
//! compare ([`compare`], [`limits`]). [`turns`] drives two wires in alternation.
//!
//! Latency is measured from the *intended* time of an operation. In a closed loop that is when its
//! client became free; in an open loop it is the schedule's, fixed in advance, so that a stall of
//! the target counts for every operation that should have begun meanwhile.
//!
//! Must not know: functions, nodes, the command line.

mod clock;
pub mod coap;
pub mod compare;
mod driver;
mod failure;
mod generator;
pub mod http;
pub mod limits;
mod pacer;
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
