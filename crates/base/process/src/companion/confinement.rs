//! The side of the program: it gives up rights, and logs to the node.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use rustix::fs::MemfdFlags;
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use rustix::thread::{Gid, Uid};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// What a program may use.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Memory. The program ends when it needs more, and the node starts it again.
    pub memory_bytes: u64,
    /// Open files.
    pub files: u64,
}

/// Takes from this process other users' rights, the way to new privileges, and what is beyond
/// `bounds`. It ends with its parent. Call it while the process has one thread; each program then
/// restricts by landlock what it does not need.
pub fn give_up_rights(uid: u32, bounds: Bounds) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    let limit = |most| Rlimit { current: Some(most), maximum: Some(most) };
    rustix::process::setrlimit(Resource::Data, limit(bounds.memory_bytes))?;
    rustix::process::setrlimit(Resource::Core, limit(0))?;
    let files = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(bounds.files);
    rustix::process::setrlimit(Resource::Nofile, limit(bounds.files.min(files)))?;
    if rustix::process::geteuid().is_root() {
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
        // Otherwise its own files in /proc belong to root. A change of the user also clears the
        // signal for the death of the parent.
        rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    }
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// Writes log lines of `target` and lines of `others` to standard error, in the form that the node
/// reads.
pub fn log_to_node(target: &'static str, others: LevelFilter) {
    let levels = Targets::new().with_target(target, tracing::Level::INFO).with_default(others);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        // Where the node has ended, a line that cannot be written must not end anything else.
        .log_internal_errors(false);
    tracing_subscriber::registry().with(lines).with(levels).init();
}

/// A file without a place on a disk, for what a library reads by path, such as secrets.
#[derive(Debug)]
pub struct FileInMemory {
    /// Where this process can open it.
    pub path: PathBuf,
    _file: OwnedFd,
}

/// Makes a file with this content; it is gone when the result is dropped.
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
        // Another thread of the test may have its number by now, but not its content.
        assert!(std::fs::read(path).map_or(true, |content| content != b"k3y"));
    }
}
