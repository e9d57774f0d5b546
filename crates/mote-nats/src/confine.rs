//! Takes from the process what it does not need: other users' rights, new privileges, files to
//! write, programs to run, ports to listen on, and more memory than it may use.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use landlock::{
    ABI, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
};
use rustix::fs::MemfdFlags;
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use rustix::thread::{Gid, Uid};

/// Memory that the process may have: the requests under way, and the keys of the namespaces that
/// are in use. It ends when it needs more, and the node starts it again.
const MEMORY_BYTES_MAX: u64 = 512 << 20;
/// Open files: the connections, and some room.
const FILES_MAX: u64 = 256;

/// Confines this process. Call it while it has one thread.
pub(crate) fn confine(uid: u32) -> io::Result<()> {
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

/// A file without a place on a disk, for what the library reads by path.
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
