//! Runs functions at the times of their schedules.
//!
//! [`times`] reads a schedule and finds its times, [`look`] decides which of these times run now,
//! and [`book`] keeps all schedules of a node. These three modules are pure decisions with the wall
//! clock as an argument. [`driver`] is the one task that waits. It hands due runs to the journal
//! through `mote_core::accept::Accept`. The crate must not know manifests, the store or how a
//! function is run. Start with [`Schedules`].
//!
//! The rules for clock changes and for missed times are in `docs/decisions/0037-journal.md`.

pub mod book;
pub mod driver;
pub mod look;
pub mod times;

pub use book::{Known, Last, Listed, Outcome, duration, expression};
pub use driver::{Marks, Schedules};
pub use times::{Times, TimesError, UnixMs};
