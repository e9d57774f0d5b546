//! Errors of the store.

use std::io;
use std::path::{Path, PathBuf};

use crate::archive_error::ArchiveError;

/// Why an operation of the store failed. No partial result remains.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A newer version made the tables. Nothing was written.
    #[error(
        "{path}: written by a newer version of mote (table format {found}, this version knows {known}). \
         Nothing was changed. Install the newer version again, or name another --data folder"
    )]
    Newer {
        /// The database file.
        path: PathBuf,
        /// The version of the file's tables.
        found: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// Another process holds the data directory.
    #[error("{path}: in use by pid {pid}")]
    InUse {
        /// The data directory.
        path: PathBuf,
        /// The process that holds the directory; `?` if it left no number.
        pid: String,
    },
    /// No space left.
    #[error("node disk full ({left_text} left)")]
    DiskFull {
        left_bytes: u64,
        /// `left_bytes` in a form for people.
        left_text: String,
    },
    /// The file system returned an error.
    #[error("{path}")]
    Io { path: PathBuf, source: io::Error },
    #[error("mote.db")]
    Database(#[source] rusqlite::Error),
    /// A file or row differs from the one that was written.
    #[error("{0}")]
    Damaged(String),
    /// There is code, but the database that should name it is missing or empty. Nothing was
    /// removed.
    #[error(
        "{path} is missing or empty, but there is stored code such as {tree}, which would be \
         removed. Restore mote.db from a backup, or move the folders code and packages away \
         to start without functions"
    )]
    Lost {
        /// The database file.
        path: PathBuf,
        /// A tree that the database must have named.
        tree: PathBuf,
    },
    /// The uploaded archive is refused.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// There is no such function or revision.
    #[error("no revision {revision} of {function}")]
    NoSuchRevision { function: String, revision: u64 },
    /// A revision names code or packages that are not stored.
    #[error("{0} is not in the store")]
    NotStored(String),
    /// The place that keeps this file's changes outside of the machine cannot be reached.
    #[error("the stream that keeps accepted invocations cannot be reached: {0}")]
    Away(String),
    /// Another node now owns the place that keeps this file's changes.
    #[error("another node has taken over the accepted invocations of this node: {0}")]
    TakenOver(String),
    /// The key cannot be the name of a package folder.
    #[error("packages key `{0}`: 1\u{2013}200 of a\u{2013}z A\u{2013}Z 0\u{2013}9 . _ -")]
    BadKey(String),
}

impl StoreError {
    pub fn code(&self) -> &'static str {
        match self {
            StoreError::Newer { .. } => "M0701",
            StoreError::InUse { .. } => "M0702",
            StoreError::DiskFull { .. } => "M0703",
            StoreError::Damaged(_) | StoreError::Lost { .. } => "M0705",
            StoreError::Away(_) => "M0706",
            StoreError::TakenOver(_) => "M0707",
            StoreError::Archive(error) => error.code(),
            StoreError::NoSuchRevision { .. } => "M0412",
            StoreError::Io { .. }
            | StoreError::Database(_)
            | StoreError::NotStored(_)
            | StoreError::BadKey(_) => "M0704",
        }
    }

    /// Returns what the user can do about the error, if the error's text does not say it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            StoreError::DiskFull { .. } => Some(
                "free space in the data folder's file system, remove functions, or choose another \
                 folder with --data",
            ),
            StoreError::Io { source, .. } => match source.kind() {
                io::ErrorKind::ReadOnlyFilesystem => Some(
                    "mount the file system for writing, or choose another folder with --data; after \
                     an error of the disk the kernel mounts it read-only (see dmesg)",
                ),
                io::ErrorKind::PermissionDenied => Some(
                    "choose a folder that this user may write with --data, or change the owner of \
                     this one",
                ),
                _ => None,
            },
            _ => None,
        }
    }

    /// Adds the file's path to an I/O error, and distinguishes a full disk.
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        if source.kind() == io::ErrorKind::StorageFull {
            return Self::disk_full(path);
        }
        StoreError::Io { path: path.to_owned(), source }
    }

    pub(crate) fn disk_full(path: &Path) -> Self {
        let left_bytes = path
            .ancestors()
            .find_map(|path| rustix::fs::statvfs(path).ok())
            .map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
        let tenths = left_bytes.saturating_mul(10) >> 20;
        StoreError::DiskFull {
            left_bytes,
            left_text: format!("{}.{} MiB", tenths / 10, tenths % 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(kind: io::ErrorKind) -> Option<&'static str> {
        StoreError::io(Path::new("/nowhere/data"), kind.into()).hint()
    }

    #[test]
    fn what_can_be_done_is_said_where_it_is_known() {
        assert!(hint(io::ErrorKind::StorageFull).is_some_and(|hint| hint.contains("free space")));
        let read_only = hint(io::ErrorKind::ReadOnlyFilesystem);
        assert!(read_only.is_some_and(|hint| hint.contains("mount")));
        let refused = hint(io::ErrorKind::PermissionDenied);
        assert!(refused.is_some_and(|hint| hint.contains("--data")));
        assert_eq!(hint(io::ErrorKind::UnexpectedEof), None);
    }
}
