//! Who may call a function, as its manifest says.

use mote_api::manifest::{AccessName, FunctionManifest};
use mote_core::spec::Access;

/// The access mode of a function; `before` if its manifest names none.
pub(super) fn of(function: &FunctionManifest, before: Access) -> Access {
    function.access.map_or(before, mode)
}

/// The access mode of this name.
pub fn mode(name: AccessName) -> Access {
    match name {
        AccessName::Key => Access::Key,
        AccessName::Public => Access::Public,
        AccessName::Local => Access::Local,
    }
}
