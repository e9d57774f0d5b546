//! The invocations that a node has accepted and runs later: asynchronous calls, messages,
//! schedules, and requests that deliver results.
//!
//! The node writes an invocation to disk before it tells the caller that the invocation was
//! accepted, and keeps trying until the invocation has ended. Each invocation runs at least once:
//! the node repeats an attempt that a crash interrupted. This crate must not know fronts, the
//! inside of the engine, or the management API. It calls functions through an `Invoker`.
//!
//! [`Journal`] is the handle of one journal, and [`Journals`] the handle of all journals that a
//! node runs. [`records`] is the journal's file, [`pending`] decides what runs next (pure), [`run`]
//! runs it, and `mote_core::retry` decides what follows an attempt (pure). [`Deferring`] is the
//! layer in front of the engine that accepts requests whose callers do not want to wait.
//!
//! The files:
//!
//! - `journal.rs`, `journals.rs`: one journal; all journals of a node, including those taken over
//!   from lost nodes
//! - `front.rs`: `Prefer: respond-async` and `/_invocations`
//! - `room.rs`: how many unfinished invocations functions and namespaces may have (pure)
//! - `runner.rs`: runs a record, settles it, and sends its result to its destination
//! - `steps.rs`: the records of runs of chains
//! - `view.rs`: the JSON
//! - `replica/`, `replicated.rs`: copies the rows to a log on other machines
//! - `nats/`, `nats_log.rs`: the connection to NATS, and such a log in a NATS stream

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
