//! Writes files of the user.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces a file in such a way that after a crash, either the old file or the new one is there.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let mut options = OpenOptions::new();
    // If an interrupted command has left such a file, it may have a different mode.
    let _ = std::fs::remove_file(&new);
    let mut file = options.write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.token");
        std::fs::write(folder.path().join("a.token.new"), "left").unwrap();
        for text in ["one", "two"] {
            replace(&path, text.as_bytes(), 0o600).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
