//! Takes from the broker what it does not need: other users' rights, new privileges, files outside
//! its folder, connections to elsewhere, and more memory than it may use.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, PathBeneath, PathFd,
    Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
};
use rustix::fs::MemfdFlags;
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use rustix::thread::{Gid, Uid};

/// Memory that the broker may have. It ends when it needs more, and the node starts it again.
const MEMORY_BYTES_MAX: u64 = 512 << 20;
/// Open files: every connection, the storage, and some room.
const FILES_MAX: u64 = 4_096;

/// Confines this process. Call it while it has one thread.
pub(crate) fn confine(uid: u32, folder: &Path) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    let limit = |most| Rlimit { current: Some(most), maximum: Some(most) };
    rustix::process::setrlimit(Resource::Data, limit(MEMORY_BYTES_MAX))?;
    rustix::process::setrlimit(Resource::Core, limit(0))?;
    let files = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(FILES_MAX);
    rustix::process::setrlimit(Resource::Nofile, limit(FILES_MAX.min(files)))?;
    if rustix::process::geteuid().is_root() {
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
        // Its own files in /proc belong to root otherwise. Signals of the death of the parent are
        // forgotten when the user changes.
        rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    }
    rustix::thread::set_no_new_privs(true)?;
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

/// A file without a place on a disk, for secrets that the library reads by path.
pub(crate) struct FileInMemory {
    pub(crate) path: PathBuf,
    _file: OwnedFd,
}

pub(crate) fn file_in_memory(name: &str, content: &[u8]) -> io::Result<FileInMemory> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = &rest[written..];
    }
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Ok(FileInMemory { path, _file: file })
}
