//! What the files of a function reveal about its contract, in the form of a manifest.

use mote_spec::manifest::FunctionManifest;
use mote_spec::toml_reader::Lined;

/// The result of examining the files.
pub(super) struct Found {
    /// Keys that the files imply.
    pub(super) function: FunctionManifest,
    /// The evidence for it, as text for people.
    pub(super) why: String,
}

/// A value that no file contains.
pub(super) fn implied<T>(value: T) -> Option<Lined<T>> {
    Some(Lined { value, line: 0 })
}
