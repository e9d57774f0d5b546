//! Checks whether this node can run what a spec asks for.

use mote_api::Problem;
use mote_core::FunctionSpec;

use super::{Node, schedules, secrets};

/// The checks of a spec that need no instance.
pub(super) fn check(node: &Node, spec: &FunctionSpec) -> Result<(), Problem> {
    if let Some(error) = spec.check().into_iter().next() {
        return Err(Problem::new(422, "M0303", error.to_string()).with_field(error.field));
    }
    let missing = match spec.runtime {
        mote_core::spec::Runtime::Python => node.interpreters.python.as_ref().err(),
        mote_core::spec::Runtime::Node => node.interpreters.node.as_ref().err(),
        _ => None,
    };
    let chain = match spec.runtime {
        mote_core::spec::Runtime::Chain => crate::shims::unpack_chain(node.store.root()).err(),
        _ => None,
    };
    if let Some(reason) = missing.or(chain.as_ref()) {
        let text = format!("{} cannot run here: {reason}", spec.name);
        return Err(Problem::new(422, "M0403", text).with_hint("see: mote doctor"));
    }
    if spec.limits.memory_bytes > node.memory_bytes {
        let text = format!(
            "memory: {} requested, but the node has {} for all instances",
            mote_core::fault::bytes_text(spec.limits.memory_bytes),
            mote_core::fault::bytes_text(node.memory_bytes)
        );
        return Err(Problem::new(422, "M0303", text).with_field("limits.memory"));
    }
    schedules::check(spec)?;
    secrets::check(&node.engine, spec)
}
