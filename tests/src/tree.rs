//! The crates of this repository, according to their manifests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The folders of all crates, by package name.
pub fn packages() -> BTreeMap<String, PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let entries = |folder: &Path| {
        let entries = std::fs::read_dir(folder).expect("a folder of crates");
        entries.map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>()
    };
    let mut found = BTreeMap::new();
    for folder in entries(&crates).iter().flat_map(|district| entries(district)) {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        let mut lines = manifest.lines();
        let name = lines.find_map(|line| line.strip_prefix("name = ")).expect("a name");
        found.insert(name.trim_matches('"').to_owned(), folder);
    }
    found
}

/// The folder of a crate.
pub fn package(name: &str) -> Option<PathBuf> {
    packages().remove(name)
}
