//! Runs functions: routes, the one queue per revision, workers, instances, logs and metrics.
//!
//! Fronts call it through [`mote_core::Invoker`], and it starts instances through
//! [`mote_core::backend::Backend`]. It must not know HTTP or CoAP clients, manifests or the
//! management API, and of the store only trees of code (`trees.rs`) and secrets.
//!
//! - `entry/`: which revision serves a name, and invocations that leave for another cell or arrive
//!   from one
//! - `revision/`: one immutable revision, its queue (`pool.rs`; [`mote_pool`] decides which worker
//!   runs which invocation), deadlines, starts and stops (`reconciler.rs`), what the node can afford
//!   (`starts.rs` with `ledger.rs`), `mote scale` and the log
//! - `instance/`: the life of an instance, what it asks of the backend (`launch.rs`) and of its node
//! - `link/`: the sockets to workers and to functions that are HTTP servers
//! - `thread/`: the threads of the data path, and polling instead of sleeping
//! - `egress_doors/`, `service_api/`: connections to other hosts, and services over HTTP
//!
//! Start reading at `revision/mod.rs`, the path of an invocation.

#![forbid(unsafe_code)]

pub mod durations;
pub mod egress_doors;
mod entry;
mod instance;
pub mod ledger;
pub mod link;
pub mod metrics;
pub mod revision;
pub mod service_api;
mod thread;
pub mod trees;

pub use crate::metrics::Metrics;
pub use entry::engine::Engine;
pub use entry::routes::{Route, Serving};
pub use entry::settings::{Config, Interpreters};
pub use instance::launch::{CODE_DIR, PACKAGES_DIR};
pub use mote_pool::Why;
pub use revision::manual::Scaled;
pub use revision::starts::WarmError;
pub use revision::{InstanceStatus, LastError, PoolStatus, Revision};
pub use thread::threads::THREADS_MAX;
