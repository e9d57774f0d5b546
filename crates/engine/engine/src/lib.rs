//! Runs functions: routes, the one queue per revision, workers, instances, logs and metrics.
//!
//! Fronts call it through [`mote_core::Invoker`], and it starts instances through
//! [`mote_core::backend::Backend`]. It must not know HTTP or CoAP clients, manifests or the
//! management API, and of the store only trees of code (`trees.rs`) and secrets. Start reading at
//! `revision.rs` (the path of an invocation), then `pool.rs` (the queue; [`mote_pool`] decides
//! which worker runs which invocation), `worker.rs` (the socket to a worker), `reconciler.rs`
//! (deadlines, starts and stops), `starts.rs` and `ledger.rs` (what the node can afford) and
//! `instance.rs` (the life of an instance).
//!
//! Further files:
//!
//! - `engine.rs`, `routes.rs`, `placed.rs`: which revision serves a name, and the routes of
//!   manifests
//! - `offer.rs`: an invocation that waits for a queue, and its fate when a revision refuses it
//! - `body_channel.rs`: streamed answers
//! - `requests.rs`, `request_bounds.rs`: what workers ask of their node
//! - `services_door.rs`, `service_api/`: the same over HTTP, for programs and servers
//! - `server.rs`, `server_h2.rs`, `server_link.rs`, `server_meter.rs`, `websocket.rs`: functions
//!   that are HTTP servers
//! - `threads.rs`, `tasks.rs`: the threads of the data path, and the tasks of a revision
//! - `busy_poll.rs`, `halt_poll.rs`: polling instead of sleeping
//! - `governor.rs`: which instances run in the background
//! - `prewarm.rs`, `manual.rs`: prewarmed interpreters, and `mote scale`
//! - `launch.rs`: what an instance asks of the backend
//! - `elsewhere.rs`: invocations that leave for another cell, or arrive from one
//! - `egress.rs`, `egress_doors/`: listeners of an instance for other hosts, and their connections
//! - `logs.rs`, `output.rs`, `worker_log.rs`: log lines
//! - `metrics.rs`, `durations/`: counters

#![forbid(unsafe_code)]

mod body_channel;
mod busy_poll;
pub mod durations;
mod egress;
pub mod egress_doors;
mod elsewhere;
mod engine;
pub mod fields;
mod governor;
mod halt_poll;
mod instance;
mod launch;
pub mod ledger;
pub mod logs;
mod manual;
pub mod metrics;
mod offer;
mod output;
mod placed;
mod pool;
mod prewarm;
mod reconciler;
mod request_bounds;
mod requests;
mod revision;
mod routes;
mod server;
mod server_h2;
mod server_link;
mod server_message;
mod server_meter;
pub mod service_api;
mod services_door;
mod settings;
mod shared;
mod starts;
mod tasks;
mod threads;
pub mod trees;
mod websocket;
mod worker;
mod worker_log;

pub use crate::metrics::Metrics;
pub use engine::Engine;
pub use launch::{CODE_DIR, PACKAGES_DIR};
pub use manual::Scaled;
pub use mote_pool::Why;
pub use revision::{InstanceStatus, LastError, PoolStatus, Revision};
pub use routes::{Route, Serving};
pub use settings::{Config, Interpreters};
pub use starts::WarmError;
pub use threads::THREADS_MAX;
