//! A copy of a function's code to which the instance may write.
//!
//! The copy is on the tmpfs of `/tmp`, so both share one quota and vanish with the instance. The
//! copy belongs to the instance's user, and nothing in it leads back to the original: links stay
//! links, and everything except files, folders and links is left out.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::sys;

/// The location of the copy below `/tmp`.
pub(crate) const PLACE: &std::ffi::CStr = c".function";
/// The location of the copy below the root.
pub(crate) const PATH: &std::ffi::CStr = c"tmp/.function";
/// The maximum number of files and folders to copy. More would delay each start by more than 100
/// ms.
const ENTRIES_MAX: u32 = 4_096;
/// Folders nested deeper than this are refused, as in an installation of packages.
const DEPTH_MAX: u32 = 200;
const PIECE_BYTES: usize = 64 << 10;

/// Fails with `EFBIG` if a copy of this folder would take more than half of the quota of `/tmp`.
/// The other half is left for what the function writes.
pub(crate) fn measure(code: &Path, tmp_bytes: u64) -> io::Result<()> {
    let too_large = || io::Error::from_raw_os_error(libc::EFBIG);
    let mut bytes = tmp_bytes / 2;
    let mut entries = ENTRIES_MAX;
    let mut folders = vec![(code.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            // Even the smallest file takes a page.
            let taken = meta.len().next_multiple_of(4096);
            bytes = bytes.checked_sub(taken).ok_or_else(too_large)?;
            entries = entries.checked_sub(1).ok_or_else(too_large)?;
            if meta.is_dir() {
                if depth == DEPTH_MAX {
                    return Err(too_large());
                }
                folders.push((entry.path(), depth + 1));
            }
        }
    }
    Ok(())
}

/// Copies the content of a folder that was [measured](measure) into an open, empty folder.
pub(crate) fn copy(from: &Path, to: BorrowedFd<'_>, owner: Option<(u32, u32)>) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = sys::cstring(entry.file_name().as_encoded_bytes())?;
        let path = entry.path();
        let meta = entry.metadata()?;
        let kind = meta.file_type();
        if kind.is_symlink() {
            let target = fs::read_link(&path)?;
            sys::symlinkat(&sys::cstring(target.as_os_str().as_encoded_bytes())?, to, &name)?;
        } else if kind.is_dir() {
            sys::mkdirat(to, &name, 0o755)?;
            let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
            let folder = sys::openat(Some(to), &name, flags, 0)?;
            copy(&path, folder.as_fd(), owner)?;
        } else if kind.is_file() {
            // The bits that change a user or group are not copied.
            let mode = meta.permissions().mode() & 0o777 | 0o600;
            let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_NOFOLLOW;
            let file = sys::openat(Some(to), &name, flags, mode as libc::mode_t)?;
            copy_bytes(&path, &file, meta.len())?;
        } else {
            continue;
        }
        own(to, &name, owner)?;
    }
    Ok(())
}

/// Copies as many bytes as the file had when it was measured.
fn copy_bytes(from: &Path, to: &OwnedFd, length: u64) -> io::Result<()> {
    let mut from = File::open(from)?.take(length);
    let mut piece = vec![0; PIECE_BYTES.min(length as usize)];
    loop {
        let got = from.read(&mut piece)?;
        if got == 0 {
            return Ok(());
        }
        let mut rest = &piece[..got];
        while !rest.is_empty() {
            rest = &rest[sys::write(to.as_fd(), rest)?..];
        }
    }
}

/// Gives an entry to the instance's user. `owner` is `None` if this process is already that user.
pub(crate) fn own(
    folder: BorrowedFd<'_>,
    name: &std::ffi::CStr,
    owner: Option<(u32, u32)>,
) -> io::Result<()> {
    let Some((user, group)) = owner else { return Ok(()) };
    // SAFETY: the name is NUL-terminated and outlives the call.
    let result = unsafe {
        libc::fchownat(folder.as_raw_fd(), name.as_ptr(), user, group, libc::AT_SYMLINK_NOFOLLOW)
    };
    sys::check(libc::c_long::from(result))?;
    Ok(())
}
