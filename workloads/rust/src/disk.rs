//! Files of a call: private, and gone with it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A fresh folder, removed when it is dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let random = random_bytes(8)?.iter().fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
        let path = std::env::temp_dir().join(format!("work-{number}-{random:x}"));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Bytes that do not compress, from the kernel.
pub(crate) fn random_bytes(count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Type of the file system a path lies on.
pub(crate) fn file_system(path: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut best = (0, "unknown");
    for line in table.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let mounted = left.split(' ').nth(4).unwrap_or_default();
        if path.starts_with(mounted) && mounted.len() >= best.0 {
            best = (mounted.len(), right.split(' ').next().unwrap_or_default());
        }
    }
    best.1.to_owned()
}
