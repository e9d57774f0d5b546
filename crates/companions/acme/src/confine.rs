//! Takes from the process what it does not need: other users' rights, new privileges, files outside
//! its folder but those of the system, programs to run, ports to listen on, signals to others, and
//! more memory than it may use.

use std::io;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath,
    PathFd, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, Scope, path_beneath_rules,
};
use mote_process::companion::confinement::{Bounds, give_up_rights};

/// What the names of hosts and the certificates of the system need: settings, libraries, and what a
/// service for names writes.
const READ: &[&str] = &["/etc", "/lib", "/lib32", "/lib64", "/nix", "/run", "/usr", "/proc/self"];
const BOUNDS: Bounds = Bounds { memory_bytes: 256 << 20, files: 64 };

/// Confines this process. Call it while it has one thread.
pub(crate) fn confine(uid: u32, folder: &Path) -> io::Result<()> {
    let own = PathFd::new(folder).map_err(io::Error::other)?;
    give_up_rights(uid, BOUNDS)?;
    let (all, reads) = (AccessFs::from_all(ABI::V6), AccessFs::from_read(ABI::V6));
    // Folders that this machine does not have are left out.
    let others = path_beneath_rules(READ, reads & !BitFlags::from(AccessFs::Execute));
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)
        .and_then(|rules| rules.handle_access(AccessNet::BindTcp))
        .and_then(|rules| rules.scope(Scope::from_all(ABI::V6)))
        .and_then(Ruleset::create)
        .and_then(|rules| {
            rules.add_rule(PathBeneath::new(own, all & !BitFlags::from(AccessFs::Execute)))
        })
        .and_then(|rules| rules.add_rules(others))
        .and_then(|rules| rules.restrict_self())
        .map_err(io::Error::other)?;
    Ok(())
}
