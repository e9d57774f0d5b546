//! What an image may need.

use std::time::Duration;

/// The most that one image may need.
#[derive(Debug, Clone)]
pub struct Limits {
    pub layers: usize,
    /// Bytes of all compressed layers together.
    pub packed_bytes: u64,
    /// Bytes of all files together.
    pub bytes: u64,
    /// Files, folders and links of all layers together.
    pub entries: u64,
    /// The longest time for a pull.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            layers: 128, // Docker has the same limit
            packed_bytes: 8 << 30,
            bytes: 16 << 30,
            entries: 500_000, // four times as many as in images with all of Python's science
            time: Duration::from_secs(30 * 60),
        }
    }
}
