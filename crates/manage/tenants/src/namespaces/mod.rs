//! Namespaces separate the functions of several owners on one node.
//!
//! The name of a function in a namespace contains a dot: `hello.plant`. The names of secrets and of
//! callers' keys may contain dots, so these are kept under `plant/NAME`. Functions without a dot
//! are in the default namespace, and nothing in this module is used for them.
//!
//! - [`Scope`] says what the holder of a token may reach.
//! - [`View`] says what short names mean in one request, and what its lists show.
//! - [`examine`] decides about a request to the management API.
//! - [`Api`] decides about a request to the API of another platform.
//! - [`confined`] refuses settings that functions of a namespace may not have.
//! - [`Namespaces`] holds the namespaces of the node.
//! - [`Turns`] orders work that the node does one piece at a time.
//!
//! This module must not know HTTP connections, or how a namespace is emptied.

pub mod confined;
mod disk;
mod platforms;
mod problems;
mod registry;
mod request;
mod scope;
mod sizes;
mod turns;

pub use disk::FilesTurn;
pub use platforms::{Api, Space};
pub use problems::{
    being_deleted, flag, full, must_be_empty, no_such_invocation, no_such_key, no_such_namespace,
    no_such_secret,
};
pub use registry::{Change, Namespace, Namespaces, Removal, Wrong, check_limits};
pub use request::{Examined, examine, outside};
pub use scope::{Scope, View};
pub use sizes::FilesPlace;
pub use turns::{Turn, Turns};
