//! Runs functions: routes, the one queue per revision, workers, instances, logs and metrics.
//!
//! Fronts call it through [`mote_core::Invoker`], it starts instances through
//! [`mote_core::backend::Backend`]. It must not know HTTP or CoAP clients, manifests, the store or
//! the management API. Start reading at `revision.rs` (what happens to an invocation), then
//! `pool.rs` (the queue), `worker.rs` (the socket to a worker), `scaling.rs` (what the autoscaler is told),
//! `keeper.rs` (deadlines, starts and stops), `starts.rs` and `ledger.rs` (what the node affords) and
//! `instance.rs` (the life of an instance).

#![forbid(unsafe_code)]

mod body_channel;
mod busy_poll;
mod by_hand;
pub mod clock;
mod egress;
mod engine;
mod histogram;
mod instance;
mod keeper;
mod latency;
pub mod ledger;
pub mod logs;
mod metrics;
mod names;
mod output;
mod pool;
mod prewarm;
mod relay;
mod revision;
mod routes;
mod scaling;
mod server;
mod starts;
mod worker;

pub use by_hand::Scaled;
pub use engine::{Config, Engine, Interpreters};
pub use instance::{CODE_DIR, PACKAGES_DIR};
pub use metrics::Metrics;
pub use revision::{InstanceStatus, LastError, PoolStatus, Revision};
pub use routes::{Route, Serving};
pub use scaling::Why;
pub use starts::WarmError;
