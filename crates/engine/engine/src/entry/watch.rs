//! Shows the invocations of a node to somebody who develops its functions.

use mote_core::{Fault, Invocation, Reply};
use mote_spec::FunctionSpec;

/// Sees each invocation of a node, whatever its trigger is. Its calls are on the path of a request, so
/// they must not block.
pub trait Watch: Send + Sync {
    /// Called before an invocation of a function's revision runs; may replace the body by one that it
    /// reads along. The result is called when the answer has begun, and is dropped if nobody waits
    /// for the answer any more.
    fn begin(&self, function: &FunctionSpec, revision: u64, invocation: &mut Invocation) -> Ended;
}

/// Called with the beginning of the answer, whose body it may replace in the same way.
pub type Ended = Box<dyn FnOnce(Result<&mut Reply, &Fault>) + Send>;
