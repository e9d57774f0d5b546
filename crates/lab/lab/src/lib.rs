//! The lab tests scaling decisions under a virtual clock.
//!
//! It is a discrete event simulation of one node with any number of functions. Instances, queues
//! and callers are modelled. All decisions (admission, balancing, scaling, the node's budget) come
//! from `mote-pool`, the code that the engine runs. A result therefore also applies to the daemon,
//! and a defect found here is a defect of the daemon. Hours pass in seconds, and equal seeds give
//! equal results on every machine.
//!
//! Start with [`Scenario`], then [`simulate`], then [`Report`]. [`families`] makes the demand for
//! comparing policies, [`experiments`] contains the experiments of published studies by name, and
//! [`trace`] reads recorded demand. [`comparison`] compares the reports of policies, and [`plot`]
//! draws them.
//!
//! The model leaves out the network, the handover to a worker, and deadlines of running
//! invocations. Sharing of processors is modelled only by one factor, which is fixed when an
//! invocation begins.
//!
//! The files:
//!
//! - `simulation.rs`, `scaling.rs`: the event loop, and the pool's orders
//! - `families.rs`, `published.rs`, `experiments.rs`, `trace.rs`: demand
//! - `studied.rs`, `oracle.rs`: rules from publications, and the least possible cost
//! - `report.rs`, `comparison.rs`, `plot.rs`, `study.rs`: results

mod arrivals;
pub mod comparison;
mod distribution;
mod event;
pub mod experiments;
pub mod families;
mod function;
pub mod oracle;
pub mod plot;
pub mod published;
mod report;
mod scaling;
mod scenario;
mod simulation;
pub mod studied;
pub mod study;
mod tally;
pub mod trace;
mod waits;

pub use arrivals::Arrivals;
pub use distribution::Distribution;
pub use report::{Point, Report, WaitSummary, csv, table};
pub use scenario::{
    FunctionModel, MEMORY_PER_CORE_BYTES, NodeModel, START_CPU_MS, Scenario, StartModel, WorkModel,
};
pub use simulation::{simulate, simulate_with};
