//! The invocations that a node has accepted and runs later: asynchronous calls, messages,
//! schedules, and the results that are sent on.
//!
//! An invocation is on disk before its caller learns that it was accepted, and it is run until it
//! has ended. It runs at least once; an attempt that a crash interrupts is repeated. This crate
//! must not know fronts, the engine's inside, or the management API. It calls functions through an
//! `Invoker`.
//!
//! [`Journal`] is the handle of one journal, [`Journals`] that of all that a node runs. [`records`]
//! is its file, [`pending`] decides what runs next (pure), [`run`] runs it, and `mote_core::retry`
//! decides what follows an attempt (pure). [`Deferring`] is the layer in front of the engine that
//! accepts requests whose callers do not want to wait.
//!
//! The files:
//!
//! - `journal.rs`, `journals.rs`: one journal, and those that a node runs in place of lost nodes
//! - `front.rs`: `Prefer: respond-async` and `/_invocations`
//! - `room.rs`: what functions and namespaces may hold (pure)
//! - `runner.rs`: runs a record, settles it, sends its result on
//! - `steps.rs`: the records of runs of chains
//! - `view.rs`: the JSON
//! - `replica/`, `replicated.rs`: the rows in a log outside of the machine
//! - `nats/`, `nats_log.rs`: the connection to NATS, and that log in a stream of it

mod forgetting;
mod front;
mod journal;
mod journals;
mod metrics;
pub mod nats;
pub mod nats_log;
pub mod pending;
pub mod record;
pub mod records;
pub mod replica;
mod replicated;
mod room;
mod runner;
mod steps;
mod view;

pub use front::{CallerOpens, Deferring, Route, SEGMENT};
pub use journal::{Cancelled, Figures, Journal, Shown};
pub use journals::{Journals, Named};
pub use metrics::JournalMetrics;
pub use record::{ScheduleRun, State};
pub use runner::run;
pub use steps::{Step, StepKind, StepPage};
pub use view::{Reader, problem_of, steps, view};
