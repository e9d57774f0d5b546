//! Takes from the process what it does not need: other users' rights, new privileges, files to write
//! outside its folder, programs to run, ports to listen on, and more memory than it may use.

use std::io;
use std::path::Path;

use landlock::{
    ABI, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreatedAttr as _,
};
use mote_companion::confinement::{Bounds, give_up_rights};

const BOUNDS: Bounds = Bounds { memory_bytes: 256 << 20, files: 64 };

/// Confines this process. Call it while it has one thread.
pub(crate) fn confine(uid: u32, folder: &Path) -> io::Result<()> {
    let own = PathFd::new(folder).map_err(io::Error::other)?;
    give_up_rights(uid, BOUNDS)?;
    // It reads the files that names of hosts and certificates of the system need, as far as its user
    // may.
    let writes = AccessFs::from_write(ABI::V6);
    let denied: BitFlags<AccessFs> = writes | AccessFs::Execute;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(denied)
        .and_then(|rules| rules.handle_access(AccessNet::BindTcp))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.add_rule(PathBeneath::new(own, writes)))
        .and_then(|rules| rules.restrict_self())
        .map_err(io::Error::other)?;
    Ok(())
}
