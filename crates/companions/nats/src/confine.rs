//! Takes from the process what it does not need: other users' rights, new privileges, files to
//! write, programs to run, ports to listen on, and more memory than it may use.

use std::io;

use landlock::{
    ABI, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
};
use mote_process::companion::confinement::{Bounds, give_up_rights};

/// The memory is for the requests under way, and for the keys of the namespaces that are in use;
/// the files are the connections, and some room.
const BOUNDS: Bounds = Bounds { memory_bytes: 512 << 20, files: 256 };

/// Confines this process. Call it while it has one thread.
pub(crate) fn confine(uid: u32) -> io::Result<()> {
    give_up_rights(uid, BOUNDS)?;
    // It reads the files that names of hosts and certificates of the system need, as far as its
    // user may.
    let denied: BitFlags<AccessFs> = AccessFs::from_write(ABI::V6) | AccessFs::Execute;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(denied)
        .and_then(|rules| rules.handle_access(AccessNet::BindTcp))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.restrict_self())
        .map_err(io::Error::other)?;
    Ok(())
}
