//! Doors for `fuzz/`.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::layer::{Budget, unpack};
use crate::{Limits, Platform};

/// Reads a manifest or an index, and a configuration, from the same bytes.
pub fn documents(json: &[u8]) {
    let (platform, limits) = (Platform::host(), Limits::default());
    let _ = crate::documents::read(json, "fuzz", None, &platform, &limits);
    if let Ok(read) = crate::config::read(json) {
        assert!(read.config.work_dir.starts_with('/'));
        assert!(read.config.env.iter().all(|(name, _)| !name.is_empty()));
    }
}

/// Unpacks a layer into `root`.
pub fn layer(mut bytes: &[u8], root: &Path, aside: &Path) -> Result<u64, String> {
    let budget = Budget { bytes: AtomicU64::new(4 << 20), entries: AtomicU64::new(200) };
    unpack(&mut bytes, root, aside, &budget, &AtomicBool::new(false))
        .map(|contents| contents.bytes)
        .map_err(|error| error.to_string())
}
