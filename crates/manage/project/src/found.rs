//! The result of inferring a function's contract from its files, in the form of a manifest.

use mote_spec::manifest::FunctionManifest;
use mote_spec::toml_reader::Lined;

pub(super) struct Found {
    /// The keys that the files imply.
    pub(super) function: FunctionManifest,
    /// The evidence for those keys, as text for people.
    pub(super) why: String,
}

/// Wraps a value that comes from no line of a file.
pub(super) fn implied<T>(value: T) -> Option<Lined<T>> {
    Some(Lined { value, line: 0 })
}
