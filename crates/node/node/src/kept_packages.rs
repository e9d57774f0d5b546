//! Packages that outlive a developer's node. They have one folder for each key, as in the store.
//!
//! Nothing depends on these folders. If a folder cannot be read or written, the packages are
//! installed instead.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

/// The folders are removed when they hold more than this.
const BYTES_MAX: u64 = 4 << 30;

/// Copies the packages with this key into an empty folder. Returns whether they are there.
pub(crate) async fn fetch(kept: &Path, key: &str, into: &Path) -> bool {
    let from = kept.join(key);
    from.is_dir() && copy(&from, into).await
}

/// Keeps the packages in a folder under this key.
pub(crate) async fn keep(kept: PathBuf, key: String, from: PathBuf) {
    let to = kept.join(&key);
    if to.is_dir() || std::fs::create_dir_all(&kept).is_err() {
        return;
    }
    let at = kept.clone();
    let emptied = tokio::task::spawn_blocking(move || {
        if mote_store::bytes_below(&at, BYTES_MAX) > BYTES_MAX {
            let _ = mote_store::remove_tree(&at);
            let _ = std::fs::create_dir_all(&at);
        }
    });
    let _ = emptied.await;
    // The folder gets its final name only when it is complete.
    let Ok(staging) = tempfile::Builder::new().prefix(".new-").tempdir_in(&kept) else { return };
    if copy(&from, staging.path()).await {
        let _ = std::fs::rename(staging.keep(), to);
    }
}

/// Copies the content of a folder, with its links and modes. If the file system can share blocks
/// between the two files, no data is copied.
async fn copy(from: &Path, to: &Path) -> bool {
    let copied = Command::new("cp")
        .args(["-a", "--reflink=auto", "--"])
        .arg(from.join("."))
        .arg(to)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .status();
    copied.await.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn packages_are_kept_by_their_key() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at("installed/bin")).unwrap();
        fs::write(at("installed/bin/tool"), "x").unwrap();
        std::os::unix::fs::symlink("bin/tool", at("installed/link")).unwrap();
        fs::create_dir_all(at("empty")).unwrap();
        assert!(!fetch(&at("kept"), "a-1", &at("empty")).await);
        keep(at("kept"), "a-1".into(), at("installed")).await;
        assert!(fetch(&at("kept"), "a-1", &at("empty")).await);
        assert_eq!(fs::read_to_string(at("empty/link")).unwrap(), "x");
        assert!(!fetch(&at("kept"), "a-2", &at("empty")).await);
        let names = fs::read_dir(at("kept")).unwrap().count();
        assert_eq!(names, 1, "nothing else is left");
    }
}
