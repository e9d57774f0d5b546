//! Reasons for refusing an uploaded archive.

use std::io;

use crate::tree::TreeError;

/// The reason for refusing an archive. No part of the archive is kept.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// One entry is not allowed.
    #[error("entry {index}{}: {reason}", name_text(.path))]
    Entry {
        /// The entry's number, from 1.
        index: u64,
        /// The entry's path, escaped and cut; may be empty.
        path: String,
        reason: String,
    },
    /// A limit is exceeded.
    #[error("{0}")]
    TooLarge(String),
    /// The data ended in the middle of an entry.
    #[error("archive ends early, in or after entry {index}")]
    Cut {
        /// The last entry seen.
        index: u64,
    },
    /// The data is neither a tar nor a gzip-compressed tar.
    #[error("not a tar archive (plain tar and gzip are read)")]
    NotTar,
    /// Bytes follow the end mark.
    #[error("data after the end of the archive")]
    Trailing,
    /// The compressed data is broken.
    #[error("gzip data is broken")]
    Gzip,
    /// The archive holds no file.
    #[error("the archive is empty")]
    Empty,
    /// The upload could not be read, or the tree could not be written.
    #[error("unpacking failed")]
    Io(#[source] io::Error),
}

fn name_text(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!(" `{path}`") }
}

impl ArchiveError {
    pub fn code(&self) -> &'static str {
        match self {
            ArchiveError::TooLarge(_) => "M1302",
            ArchiveError::Cut { .. } => "M1303",
            ArchiveError::Io(error) if error.kind() == io::ErrorKind::StorageFull => "M0703",
            ArchiveError::Io(_) => "M0704",
            _ => "M1301",
        }
    }

    pub fn http_status(&self) -> u16 {
        match self {
            ArchiveError::TooLarge(_) => 413,
            ArchiveError::Cut { .. } => 400,
            ArchiveError::Io(error) if error.kind() == io::ErrorKind::StorageFull => 507,
            ArchiveError::Io(_) => 500,
            _ => 422,
        }
    }

    /// Classifies a failed read. Readers pass exceeded limits on as [`Past`].
    pub(crate) fn from_read(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Past>()) {
            Some(Past::Ratio(ratio)) => {
                ArchiveError::TooLarge(format!("unpacks to more than {ratio} times its size"))
            }
            Some(Past::Gzip) => ArchiveError::Gzip,
            None if error.kind() == io::ErrorKind::UnexpectedEof => ArchiveError::Cut { index: 0 },
            None => ArchiveError::Io(error),
        }
    }
}

impl From<TreeError> for ArchiveError {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Io(error) => ArchiveError::Io(error),
            // The caller reports this error together with its entry. This arm only satisfies the
            // type.
            TreeError::Taken(_) | TreeError::ThroughLink => ArchiveError::NotTar,
        }
    }
}

/// A limit that was exceeded during decompression, wrapped in an `io::Error`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Past {
    #[error("ratio {0}")]
    Ratio(u64),
    #[error("gzip")]
    Gzip,
}
