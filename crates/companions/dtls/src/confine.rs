//! Takes from the program what it does not need: other users' rights, all files, ports, connections,
//! signals to others, and more memory than it may use. Its sockets were opened by the node.

use std::io;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    Scope,
};
use mote_process::companion::confinement::{Bounds, give_up_rights};

/// All sessions with the most that their clients can make the library keep, which is five times the
/// usual, and a few descriptors.
const BOUNDS: Bounds = Bounds { memory_bytes: 384 << 20, files: 16 };

/// Confines this process. Call it while it has one thread.
pub(crate) fn confine(uid: u32) -> io::Result<()> {
    give_up_rights(uid, BOUNDS)?;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V6))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(ABI::V6)))
        .and_then(|rules| rules.scope(Scope::from_all(ABI::V6)))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.restrict_self())
        .map_err(io::Error::other)?;
    Ok(())
}
