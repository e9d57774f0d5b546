//! A running node: its parts and how they are connected, from start to stop.
//!
//! [`run()`] is the entry point: it takes a checked [`Config`] and returns the exit code of the
//! process. From there you reach deploys, the management API (`admin/`) and the APIs of other
//! platforms (`compat.rs`). This crate must not know the verbs of the command line, or the output
//! of commands. Only [`settings`] reads flags, environment and file. Start reading at `run.rs`.
//!
//! The files:
//!
//! - `up.rs`: forks the zygote, then starts the node
//! - `run.rs`, `run/`, `listeners.rs`: the steps of start and stop; the sockets, which the node
//!   binds or is given
//! - `develop.rs`, `kept_packages.rs`: what `mote dev` sees of the node, and what outlives the node
//! - `node.rs`: the parts of a running node
//! - `addresses.rs`, `deployed.rs`: where clients reach the node; what the node keeps for each
//!   function
//! - `settings/`, `config/`: how settings are read, and the checked result
//! - `deploy.rs`, `rollout.rs`: a deploy, and the switch between revisions
//! - `access_warnings.rs`, `spec_check.rs`: a deploy's warnings about a spec, and the specs it
//!   refuses
//! - `packages.rs`, `golang.rs`, `wasm.rs`, `interpreters.rs`: installations and builds, with
//!   `mote-build`
//! - `fronts/`: the fronts over the engine; `dtls.rs` starts `mote-dtls`
//! - `services/`: answers to the requests of functions to their node
//! - `compat.rs`, `code.rs`: the parts of the node that other platforms' APIs may use, and deploys
//!   through these APIs
//! - `admin/`: the management API
//! - `accepted.rs`, `schedules.rs`, `mqtt.rs`, `nats.rs`, `cells.rs`, `https.rs`, `keys.rs`,
//!   `secrets.rs`, `namespaces.rs`, `operators.rs`, `ports.rs`: the node's side of each of these
//!   parts

mod accepted;
mod access_warnings;
mod addresses;
mod admin;
mod advice;
mod cells;
mod code;
mod compat;
pub mod config;
mod data_files;
mod data_folders;
mod deploy;
mod deployed;
pub mod develop;
pub mod doctor;
mod failed_logs;
pub mod fronts;
mod functions;
mod golang;
mod https;
mod ids;
mod images;
mod interpreters;
mod kept;
mod kept_packages;
mod keys;
mod listeners;
mod log_line;
mod logs;
mod mqtt;
mod namespaces;
mod nats;
mod node;
mod operators;
mod otlp;
mod packages;
pub mod ports;
mod reach;
mod recorder;
mod rollout;
mod run;
mod schedules;
mod secrets;
pub mod services;
pub mod settings;
mod spec_check;
mod store_work;
mod traces;
mod turns;
mod unusable;
mod up;
mod wasm;

pub use crate::config::{
    CellSettings, Config, NatsServers, OwnBroker, PlatformApis, Share, TinyFaas,
};
pub use mote_http::access_log::{Destination as AccessLogPlace, Format as AccessLogFormat};
pub use mote_http::http::{Proxies, ProxyWord};
pub use mote_journal::nats::{WrongAddress as WrongNatsAddress, address as nats_address};
pub use mote_journal::nats_log::is_name as is_journal_name;
pub use mote_outgoing::Reach;
pub use mote_sandbox::UID_BASE_DEFAULT;
pub(crate) use node::Node;
pub use up::{develop, run};
