//! Takes from the broker what it does not need: other users' rights, new privileges, files outside
//! its folder, connections to elsewhere, and more memory than it may use.

use std::io;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, PathBeneath, PathFd,
    Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
};
use mote_process::companion::confinement::{Bounds, give_up_rights};

/// The files are every connection, the storage, and some room.
const BOUNDS: Bounds = Bounds { memory_bytes: 512 << 20, files: 4_096 };

/// Confines this process. Call it while it has one thread.
pub(crate) fn confine(uid: u32, folder: &Path) -> io::Result<()> {
    give_up_rights(uid, BOUNDS)?;
    let files = AccessFs::from_all(ABI::V6);
    let rule = PathBeneath::new(PathFd::new(folder).map_err(io::Error::other)?, files);
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(files)
        .and_then(|rules| rules.handle_access(AccessNet::ConnectTcp))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.add_rule(rule))
        .and_then(|rules| rules.restrict_self())
        .map_err(io::Error::other)?;
    Ok(())
}
