//! The folders that a function has besides its code and `/tmp`: one that it writes to, and folders
//! of the host that it only reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where a function finds the folder to which it writes.
pub const DATA_DIR: &str = "/data";
/// The folder that contains the folders of the host.
pub const HOST_FOLDERS_DIR: &str = "/mnt";
/// The smallest data folder. A smaller file system would consist mostly of its own records.
pub const DATA_BYTES_MIN: u64 = 16 << 20;
/// The largest data folder.
pub const DATA_BYTES_MAX: u64 = 1 << 40;
/// The maximum number of folders of the host.
pub const HOST_FOLDERS_MAX: usize = 16;
/// The maximum number of bytes of a path of the host.
const PATH_BYTES_MAX: usize = 1024;

/// The folders of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// The size of the folder at [`DATA_DIR`], which all instances of the function share and which
    /// outlives them. `None` if the function has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bytes: Option<u64>,
    /// Folders of the host that the function may read. Maps the name below [`HOST_FOLDERS_DIR`] to
    /// the path on the host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub host_folders: BTreeMap<String, String>,
}

impl Files {
    /// Whether the function has neither folder.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The first rule that the folders break: the key, and what it must be.
    pub(crate) fn mistake(&self) -> Option<(&'static str, &'static str)> {
        if self.data_bytes.is_some_and(|bytes| !(DATA_BYTES_MIN..=DATA_BYTES_MAX).contains(&bytes))
        {
            return Some(("files.data", "16MiB to 1024GiB"));
        }
        if self.host_folders.len() > HOST_FOLDERS_MAX {
            return Some(("files", "at most 16 folders of the host"));
        }
        if !self.host_folders.keys().all(|name| is_folder_name(name)) {
            return Some(("files", FOLDER_NAME_RULE));
        }
        let mut paths = self.host_folders.values();
        (!paths.all(|path| is_host_path(path))).then_some(("files", HOST_PATH_RULE))
    }
}

/// The rule for names of folders, in words for people.
pub const FOLDER_NAME_RULE: &str =
    "a name of a folder is 1 to 63 characters of a-z, 0-9, - and _, and is not data";
/// The rule for paths of the host, in words for people.
pub const HOST_PATH_RULE: &str =
    "a folder of the host is an absolute path without . and .., at most 1,024 bytes";

/// Whether `name` can be the name of a folder of the host inside. `data` is the other key of the
/// section.
pub fn is_folder_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    (1..=63).contains(&name.len()) && name != "data" && name.bytes().all(allowed)
}

/// Whether `path` is a path of the host in its plain form: absolute, without empty parts, `.` and
/// `..`.
pub fn is_host_path(path: &str) -> bool {
    let plain = |part: &str| !matches!(part, "" | "." | "..");
    path.len() <= PATH_BYTES_MAX
        && !path.contains('\0')
        && path.strip_prefix('/').is_some_and(|rest| rest.split('/').all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_paths_are_plain() {
        for path in ["/srv/models", "/a", "/a b/c.d"] {
            assert!(is_host_path(path), "{path}");
        }
        for path in ["", "/", "srv", "/srv/", "//srv", "/srv/../etc", "/./a", "/a\0b"] {
            assert!(!is_host_path(path), "{path:?}");
        }
        assert!(!is_host_path(&format!("/{}", "a".repeat(PATH_BYTES_MAX))));
    }

    #[test]
    fn names_cannot_lead_elsewhere() {
        for name in ["models", "a-b_c", "0"] {
            assert!(is_folder_name(name), "{name}");
        }
        for name in ["", "data", "..", "a/b", "A", "a.b", "\u{e4}"] {
            assert!(!is_folder_name(name), "{name:?}");
        }
    }
}
