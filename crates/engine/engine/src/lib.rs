//! Runs functions. The engine holds the routes, one queue per revision, workers, instances, logs
//! and metrics.
//!
//! Fronts call the engine through [`mote_core::Invoker`], and the engine starts instances through
//! [`mote_core::backend::Backend`]. The engine must not know HTTP or CoAP clients, manifests or the
//! management API. Of the store, it knows only the trees of code (`trees.rs`) and the secrets.
//!
//! - `entry/`: finds the revision that serves a name, and exchanges invocations with other cells
//! - `revision/`: one immutable revision with its queue (`pool.rs`; [`mote_pool`] decides which
//!   worker runs which invocation), its deadlines, starts and stops (`reconciler.rs`), the room for
//!   its instances (`starts.rs` with `ledger.rs`), manual scaling (`mote scale`) and the log
//! - `instance/`: the life of an instance, and its requests to the backend (`launch.rs`) and the node
//! - `link/`: the sockets to workers and to functions that are HTTP servers
//! - `thread/`: the threads of the data path, and polling instead of sleeping
//! - `egress_doors/`: connections to other hosts
//! - `service_api/`: services of the node over HTTP
//!
//! Start reading at `revision/mod.rs`, which shows the path of an invocation.

#![forbid(unsafe_code)]

pub mod durations;
pub mod egress_doors;
mod entry;
pub mod gauges;
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
pub use entry::traces::{EndedCall, Outcome, Recorded, Tracer};
pub use entry::watch::{Ended, Watch, Watching};
pub use instance::launch::{CODE_DIR, PACKAGES_DIR, WASM_PROGRAM, data_image};
pub use instance::program::Program;
pub use mote_pool::Why;
pub use revision::manual::Scaled;
pub use revision::starts::WarmError;
pub use revision::{InstanceStatus, LastError, PoolStatus, Revision};
pub use thread::threads::THREADS_MAX;
