//! The companion's side: the companion gives up its rights, and sends its log to the node.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath,
    PathFd, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, Scope, path_beneath_rules,
};
use rustix::fs::MemfdFlags;
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use rustix::thread::{Gid, Uid};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The rights that a companion keeps. It loses all others: it cannot use other users' rights, gain
/// new privileges, send signals to other processes, or run programs.
#[derive(Debug, Clone, Copy)]
pub struct Rights<'a> {
    /// The companion's user, if the node runs as root.
    pub uid: u32,
    /// The most memory in bytes. A companion that needs more ends, and the node starts it again.
    pub memory_bytes: u64,
    /// The most open files.
    pub open_files: u64,
    /// The files that the companion can reach. Files that are already open stay open.
    pub files: Files<'a>,
    /// What the companion may do with new TCP sockets. Sockets that are already open stay open.
    pub network: Network,
}

/// The files that a companion can reach.
#[derive(Debug, Clone, Copy)]
pub enum Files<'a> {
    /// No files.
    Nothing,
    /// Reads the files that its user may read, and writes none.
    ReadAll,
    /// Reads and writes the files in its folder.
    Folder(&'a Path),
    /// Reads and writes the files in its folder, and reads those in [`SYSTEM`].
    FolderAndSystem(&'a Path),
}

/// What a companion may do over TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    Nothing,
    /// Connect to others.
    Connect,
    Listen,
}

/// The folders that a companion needs to resolve host names and to use the system's certificates.
/// They hold settings, libraries, and files that a name service writes. Folders that a machine does
/// not have are left out.
const SYSTEM: &[&str] = &["/etc", "/lib", "/lib32", "/lib64", "/nix", "/run", "/usr", "/proc/self"];

/// Confines this process to `rights`, as far as the kernel supports landlock. Afterwards the
/// process ends when its parent does. Call this while the process has one thread.
pub fn confine(rights: Rights<'_>) -> io::Result<()> {
    let all = AccessFs::from_all(ABI::V6);
    let reads = AccessFs::from_read(ABI::V6);
    let execute = BitFlags::from(AccessFs::Execute);
    let (denied, folder, others): (_, _, &[&str]) = match rights.files {
        Files::Nothing => (all, None, &[]),
        Files::ReadAll => (AccessFs::from_write(ABI::V6) | execute, None, &[]),
        Files::Folder(folder) => (all, Some(folder), &[]),
        Files::FolderAndSystem(folder) => (all, Some(folder), SYSTEM),
    };
    let folder = folder.map(PathFd::new).transpose().map_err(io::Error::other)?;
    let network = match rights.network {
        Network::Nothing => AccessNet::from_all(ABI::V6),
        Network::Connect => AccessNet::BindTcp.into(),
        Network::Listen => AccessNet::ConnectTcp.into(),
    };
    give_up_rights(rights)?;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(denied)
        .and_then(|rules| rules.handle_access(network))
        .and_then(|rules| rules.scope(Scope::from_all(ABI::V6)))
        .and_then(Ruleset::create)
        .and_then(|rules| match folder {
            Some(folder) => rules.add_rule(PathBeneath::new(folder, all & !execute)),
            None => Ok(rules),
        })
        .and_then(|rules| rules.add_rules(path_beneath_rules(others, reads & !execute)))
        .and_then(|rules| rules.restrict_self())
        .map_err(io::Error::other)?;
    Ok(())
}

fn give_up_rights(rights: Rights<'_>) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    let limit = |most| Rlimit { current: Some(most), maximum: Some(most) };
    rustix::process::setrlimit(Resource::Data, limit(rights.memory_bytes))?;
    rustix::process::setrlimit(Resource::Core, limit(0))?;
    let files = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(rights.open_files);
    rustix::process::setrlimit(Resource::Nofile, limit(rights.open_files.min(files)))?;
    if rustix::process::geteuid().is_root() {
        let user = Uid::from_raw(rights.uid);
        let group = Gid::from_raw(rights.uid);
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
        // Without this, the process's own files in /proc belong to root. The change of user has
        // also cleared the signal that ends the process with its parent, so it is set again.
        rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    }
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// Writes to standard error, in the form that the node reads, the log lines of `target` at level
/// INFO or above, and other log lines at level `others` or above.
pub fn log_to_node(target: &'static str, others: LevelFilter) {
    let levels = Targets::new().with_target(target, tracing::Level::INFO).with_default(others);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        // If the node has ended, log lines cannot be written. That must not end the companion.
        .log_internal_errors(false);
    tracing_subscriber::registry().with(lines).with(levels).init();
}

/// A file in memory that is not on any disk, for a library that reads, for instance, secrets only
/// by path.
#[derive(Debug)]
pub struct FileInMemory {
    /// The path by which this process can open the file.
    pub path: PathBuf,
    _file: OwnedFd,
}

/// Makes a file with this content. The file vanishes when the result is dropped.
pub fn file_in_memory(name: &str, content: &[u8]) -> io::Result<FileInMemory> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = &rest[written..];
    }
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    Ok(FileInMemory { path, _file: file })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_memory_can_be_read_by_path_until_it_is_dropped() {
        let file = file_in_memory("secret", b"k3y").expect("a file");
        assert_eq!(std::fs::read(&file.path).expect("read"), b"k3y");
        let path = file.path.clone();
        drop(file);
        // Another thread of the test may have reused the descriptor's number, but not with this
        // content.
        assert!(std::fs::read(path).map_or(true, |content| content != b"k3y"));
    }
}
