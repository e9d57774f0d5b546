//! Certificates that openssl makes for a test.

use std::path::Path;
use std::process::Command;

use crate::{repository, skip};

/// Returns a folder with authorities (for example `plant.crt`), certificates of clients, and a
/// revocation list. If openssl cannot make them here, reports `test` as skipped.
pub fn certificates(test: &str) -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().expect("a folder");
    let script = repository().join("tests/fixtures/tls/certificates.sh");
    let made = Command::new("bash").arg(script).current_dir(folder.path()).output();
    if !made.is_ok_and(|made| made.status.success()) {
        skip(test, "openssl makes no certificates here");
        return None;
    }
    Some(folder)
}

/// Joins these files of a folder into one file.
pub fn join(folder: &Path, names: &[&str], to: &Path) {
    let read = |name: &&str| std::fs::read_to_string(folder.join(name)).expect("a file");
    // The rename replaces the file in one step, so that the node never reads a partial file.
    let part = to.with_extension("part");
    std::fs::write(&part, names.iter().map(read).collect::<String>()).expect("written");
    std::fs::rename(part, to).expect("in place");
}
