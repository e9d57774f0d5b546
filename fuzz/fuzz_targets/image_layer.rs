//! Layers of container images: whatever the bytes, nothing is written outside of the layer's
//! folder, and what is inside is plain files, folders, links, and the markers of overlayfs.

#![no_main]

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

fn outer() -> &'static Path {
    static OUTER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let outer = OUTER.get_or_init(|| {
        // Memory where there is some: a disk would spend the run on fsync.
        let shm = Path::new("/dev/shm");
        let outer = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() };
        let outer = outer.expect("a folder");
        std::fs::write(outer.path().join("victim"), "untouched").expect("written");
        outer
    });
    outer.path()
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn check(folder: &Path) -> u64 {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let meta = entry.metadata().expect("a node");
        let kind = meta.file_type();
        if kind.is_dir() {
            bytes += check(&entry.path());
        } else if kind.is_char_device() {
            assert_eq!(meta.rdev(), 0, "{:?}", entry.path());
        } else {
            assert!(kind.is_file() || kind.is_symlink(), "{:?}", entry.path());
            assert_eq!(meta.mode() & 0o6000, 0, "{:?}", entry.path());
            bytes += meta.blocks() * 512;
        }
    }
    bytes
}

fuzz_target!(|data: &[u8]| {
    let outer = outer();
    let (root, aside) = (outer.join("root"), outer.join("aside"));
    for folder in [&root, &aside] {
        mote_store::remove_tree(folder).expect("removed");
        std::fs::create_dir(folder).expect("a folder");
    }
    if let Err(error) = mote_images::fuzzing::layer(data, &root, &aside) {
        assert!(!error.is_empty());
    }
    // The limit is 4 MiB and 200 nodes, each of which may need one more block.
    assert!(check(&root) <= 6 << 20, "more than the limit");
    assert_eq!(names(outer), ["aside", "root", "victim"], "written outside");
    assert_eq!(std::fs::read(outer.join("victim")).expect("a file"), b"untouched");
});
