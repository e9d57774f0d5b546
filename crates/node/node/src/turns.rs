//! The lock on the revisions of a function: one change of each function at a time.

use mote_api::Problem;
use mote_spec::FunctionName;

use super::Node;
use super::deploying::Turn;

/// Begins a change of `name`, or fails because another one is under way.
pub(crate) fn turn<'a>(node: &'a Node, name: &FunctionName) -> Result<Turn<'a>, Problem> {
    let change = name.namespace().map(|namespace| node.namespaces.change(namespace)).transpose()?;
    node.deploying.claim(name, change)
}

/// The same for the removal of the whole namespace of `name`, which lets nothing else begin.
pub(crate) fn last_turn<'a>(node: &'a Node, name: &FunctionName) -> Result<Turn<'a>, Problem> {
    node.deploying.claim(name, None)
}

/// Functions of a namespace, other than `name`, that are deployed for the first time now.
pub(crate) fn new_ones(node: &Node, namespace: &str, name: &FunctionName) -> u64 {
    node.deploying.count(|other| {
        let is_other = other.namespace() == Some(namespace) && other != name;
        is_other && node.engine.get(other.as_str()).is_none()
    })
}
