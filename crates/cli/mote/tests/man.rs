//! Checks the manual pages in docs/man, which packages install. A test writes them, so that the binary
//! does not contain the code for that. After an intended change, run `MOTE_BLESS=1 cargo test -p mote
//! --test man`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;

type Pages = BTreeMap<String, String>;

/// Reads the files of a folder by name.
fn read(folder: &Path) -> Pages {
    let Ok(entries) = std::fs::read_dir(folder) else { return Pages::new() };
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    entries.map(|entry| entry.unwrap().path()).map(|path| (name(&path), read(&path))).collect()
}

#[test]
fn the_manual_pages_are_fresh() {
    let fresh = tempfile::tempdir().unwrap();
    clap_mangen::generate_to(mote_cli::command(), fresh.path()).unwrap();
    let fresh = read(fresh.path());
    assert!(fresh.contains_key("mote.1") && fresh.contains_key("mote-up.1"));
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/man"));
    if std::env::var_os("MOTE_BLESS").is_some() {
        let _ = std::fs::remove_dir_all(folder);
        std::fs::create_dir_all(folder).unwrap();
        for (name, text) in &fresh {
            std::fs::write(folder.join(name), text).unwrap();
        }
    }
    let stored = read(folder);
    assert!(
        fresh.keys().eq(stored.keys()),
        "docs/man does not have one page for each verb; MOTE_BLESS=1 rewrites it"
    );
    for (name, text) in &fresh {
        assert!(stored[name] == *text, "docs/man/{name} is stale; MOTE_BLESS=1 rewrites it");
    }
}
