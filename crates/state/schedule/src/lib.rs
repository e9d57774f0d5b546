//! When functions run by themselves.
//!
//! [`times`] reads a schedule and finds its times, [`look`] decides which of them run now, and
//! [`book`] keeps all schedules of a node; these are decisions with the wall clock as an argument.
//! [`driver`] is the one task that waits, and hands what is due to the journal through
//! `mote_core::accept::Accept`. The crate must not know manifests, the store or how a function is
//! run. Start with [`Schedules`].
//!
//! The rules for clock changes and for missed times are in `docs/decisions/0037-journal.md`.

pub mod book;
pub mod driver;
pub mod look;
pub mod times;

pub use book::{Known, Last, Listed, Outcome, duration, expression};
pub use driver::{Marks, Schedules};
pub use times::{Times, TimesError, UnixMs};
