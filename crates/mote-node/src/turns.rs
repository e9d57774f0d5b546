//! The lock on the revisions of a function: one change of each function at a time.

use std::collections::HashSet;

use mote_api::Problem;
use mote_core::FunctionName;
use parking_lot::Mutex;

use super::Node;

/// Names that are being deployed now: two simultaneous deploys of one function would compete for
/// the newer number.
#[derive(Default)]
pub(crate) struct Deploying(Mutex<HashSet<FunctionName>>);

/// The right to change one function's revisions, until dropped.
pub(crate) struct Turn<'a> {
    deploying: &'a Deploying,
    name: FunctionName,
}

/// Begins a change of `name`, or fails because another one is under way.
pub(crate) fn turn<'a>(node: &'a Node, name: &FunctionName) -> Result<Turn<'a>, Problem> {
    let deploying = &node.deploying;
    if deploying.0.lock().insert(name.clone()) {
        return Ok(Turn { deploying, name: name.clone() });
    }
    let text = format!("another deploy of {name} is running");
    Err(Problem::new(409, "M1405", text).with_hint("try again when it has ended"))
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.deploying.0.lock().remove(&self.name);
    }
}
