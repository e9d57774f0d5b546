//! Who may call a function, as its manifest says.

use mote_api::manifest::{AccessName, FunctionManifest};
use mote_core::spec::Access;

/// The access mode of a function; `before` if its manifest names none.
pub(super) fn of(function: &FunctionManifest, before: Access) -> Access {
    match function.access {
        Some(AccessName::Key) => Access::Key,
        Some(AccessName::Public) => Access::Public,
        Some(AccessName::Local) => Access::Local,
        None => before,
    }
}
