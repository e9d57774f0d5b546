//! Who may change the revisions of a function: one change of each at a time.

use std::collections::HashSet;

use mote_api::Problem;
use mote_core::FunctionName;
use parking_lot::Mutex;

use super::Node;

/// Names that are being deployed now: two deploys of one function at once would race for which
/// is newer.
#[derive(Default)]
pub(crate) struct Deploying(Mutex<HashSet<FunctionName>>);

/// The right to change one function's revisions, until dropped.
pub(crate) struct Turn<'a> {
    deploying: &'a Deploying,
    name: FunctionName,
}

/// Begins a change of `name`, or says that another one is under way.
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
