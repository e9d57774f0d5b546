//! What the files of a function say of its contract, in the form of a manifest.

use mote_api::manifest::FunctionManifest;
use mote_api::toml_reader::Lined;

/// What the files say.
pub(super) struct Found {
    /// Keys that the files imply.
    pub(super) function: FunctionManifest,
    /// What gave it away.
    pub(super) why: String,
}

/// A value that stands in no file.
pub(super) fn implied<T>(value: T) -> Option<Lined<T>> {
    Some(Lined { value, line: 0 })
}
