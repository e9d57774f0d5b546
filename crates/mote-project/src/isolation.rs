//! What separates the instances of a function, as its manifest says.

use mote_api::manifest::{FunctionManifest, IsolationName};
use mote_core::spec::Isolation;

pub(super) fn of(function: &FunctionManifest) -> Isolation {
    match function.isolation {
        Some(IsolationName::Pod) => Isolation::Pod,
        Some(IsolationName::Sandbox) | None => Isolation::Sandbox,
    }
}
