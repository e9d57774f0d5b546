//! File systems in files: made, checked and enlarged by the programs of e2fsprogs.
//!
//! The kernel can enlarge a mounted file system itself, but only for a process with
//! `CAP_SYS_RESOURCE`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::config::INSIDE_IDS;
use crate::sys;

/// The programs that this module needs.
pub(crate) const PROGRAMS: [&str; 3] = ["mke2fs", "e2fsck", "resize2fs"];
/// Where distributions install them. The node's `PATH` often lacks these folders.
const FOLDERS: [&str; 6] =
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/local/bin"];
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Sizes are multiples of this. A shorter last group of blocks could be too short for its own
/// records, and would be left out.
const STEP_BYTES: u64 = 8 << 20;
/// One file for this many bytes. Each reserves 256 bytes.
const BYTES_PER_FILE: u64 = 16 << 10;
/// Only features that every kernel with `mount_setattr` knows, whatever `mke2fs.conf` says.
const FEATURES: &str = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,flex_bg,\
    sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum";
/// `EXT4_IOC_RESIZE_FS` of linux/ext4.h.
const RESIZE: u32 = 0x4008_6610;
/// The highest exit status of `e2fsck` after which the file system is in order.
const CORRECTED: i32 = 1;

/// What the first block of a file system says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) bytes: u64,
    /// Whether the kernel has found an error in it, or a change of its size was interrupted.
    pub(crate) is_damaged: bool,
}

/// The size of a file system with room for `bytes`.
pub(crate) fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(STEP_BYTES)
}

/// Reads the facts about the file system in a file. `None` if the file contains none.
pub(crate) fn facts(file: &File) -> io::Result<Option<Facts>> {
    let mut block = [0; 1024];
    match file.read_exact_at(&mut block, 1024) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    Ok(parsed(&block))
}

fn parsed(block: &[u8; 1024]) -> Option<Facts> {
    const MAGIC: u16 = 0xEF53;
    const IS_CLEAN: u16 = 1;
    const HAS_ERRORS: u16 = 2;
    let short = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    let long = |at: usize| u32::from(short(at)) | u32::from(short(at + 2)) << 16;
    let block_bytes = 1024_u64.checked_shl(long(24))?;
    let state = short(58);
    (short(56) == MAGIC).then(|| Facts {
        bytes: u64::from(long(4)).saturating_mul(block_bytes),
        is_damaged: state & IS_CLEAN == 0 || state & HAS_ERRORS != 0,
    })
}

/// Makes a file system with a folder that belongs to [`INSIDE_IDS`]. The file must be empty. The
/// whole file is allocated: if the disk below were full, a write would fail as an error of the
/// device, after which the kernel stops all writes.
pub(crate) fn make(path: &Path, file: &File, bytes: u64) -> io::Result<()> {
    let (user, group) = INSIDE_IDS;
    let owner = format!("root_owner={user}:{group},lazy_itable_init=1,nodiscard");
    let ratio = BYTES_PER_FILE.to_string();
    let block = BLOCK_BYTES.to_string();
    file.set_len(bytes)?;
    let arguments = [
        "-q",
        "-F",
        "-t",
        "ext4",
        "-b",
        &block,
        "-I",
        "256",
        "-i",
        &ratio,
        "-m",
        "0",
        "-e",
        "remount-ro",
        "-O",
        FEATURES,
        "-E",
        &owner,
        "-L",
        "mote-data",
    ];
    run("mke2fs", &arguments, path, 0)?;
    allocate(file, bytes)?;
    file.sync_all()
}

/// Enlarges a file system that is not mounted.
pub(crate) fn enlarge(path: &Path, file: &File, bytes: u64) -> io::Result<()> {
    lengthen(file, bytes)?;
    check(path)?;
    run("resize2fs", &["-f"], path, 0)?;
    file.sync_all()
}

/// Enlarges a mounted file system, of which `folder` is a folder, to the size of its file. The
/// kernel refuses this to a process without `CAP_SYS_RESOURCE`.
pub(crate) fn enlarge_mounted(folder: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let folder = sys::openat(Some(folder), c".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let blocks = bytes / BLOCK_BYTES;
    // SAFETY: the request reads a number of 64 bits, which outlives the call.
    let result = unsafe { libc::ioctl(folder.as_fd().as_raw_fd(), RESIZE as _, &raw const blocks) };
    sys::check(libc::c_long::from(result)).map(drop)
}

/// Makes the file longer, and allocates all of it.
pub(crate) fn lengthen(file: &File, bytes: u64) -> io::Result<()> {
    if file.metadata()?.len() < bytes {
        file.set_len(bytes)?;
    }
    allocate(file, bytes)
}

/// Repairs a file system that is not mounted, as far as that is possible without a choice.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    run("e2fsck", &["-f", "-p"], path, CORRECTED)
}

/// Allocates the holes of a file. File systems that cannot do this leave it sparse.
fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    let length = libc::off64_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: plain integers on a descriptor that outlives the call.
    let result = unsafe { libc::fallocate64(file.as_raw_fd(), 0, 0, length) };
    match sys::check(libc::c_long::from(result)) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        result => result.map(drop),
    }
}

/// The path of a program of e2fsprogs.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    FOLDERS.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file())
}

fn run(name: &str, arguments: &[&str], image: &Path, status_max: i32) -> io::Result<()> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("{name} is not installed"));
    let output = Command::new(program(name).ok_or_else(missing)?)
        .args(arguments)
        .arg(image)
        .env_clear()
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()?;
    if output.status.code().is_some_and(|code| code <= status_max) {
        return Ok(());
    }
    let said = [output.stderr, output.stdout].concat();
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    let line: String = line.chars().take(200).flat_map(char::escape_debug).collect();
    Err(io::Error::other(format!("{name} failed ({}): {line}", output.status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_a_first_block() {
        let mut block = [0; 1024];
        assert_eq!(parsed(&block), None);
        block[4..8].copy_from_slice(&65_536_u32.to_le_bytes());
        block[24] = 2;
        block[56..58].copy_from_slice(&0xEF53_u16.to_le_bytes());
        block[58] = 1;
        assert_eq!(parsed(&block), Some(Facts { bytes: 256 << 20, is_damaged: false }));
        block[58] = 3;
        assert_eq!(parsed(&block).map(|facts| facts.is_damaged), Some(true));
        block[58] = 0;
        assert_eq!(parsed(&block).map(|facts| facts.is_damaged), Some(true));
        block[24] = 255;
        assert_eq!(parsed(&block), None);
    }

    #[test]
    fn sizes_are_rounded_up() {
        assert_eq!(rounded(16 << 20), 16 << 20);
        assert_eq!(rounded((16 << 20) + 1), 24 << 20);
    }
}
