//! Uploaded archives: whatever the bytes, nothing is written outside the store, a refused upload
//! leaves nothing behind, and an accepted one is plain files, folders and links that stay inside.

#![no_main]

use std::collections::HashSet;
use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use mote_store::{ArchiveLimits, Store};

struct Place {
    outer: tempfile::TempDir,
    store: Store,
}

fn place() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        // Memory where there is some: a disk would spend the run on fsync.
        let shm = Path::new("/dev/shm");
        let outer = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() };
        let outer = outer.expect("a folder");
        let store = Store::open(&outer.path().join("store")).expect("a store");
        Place { outer, store }
    })
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn check(root: &Path, folder: &Path) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            check(root, &entry.path());
        } else if kind.is_symlink() {
            // A link may hang, but where it leads must be inside.
            if let Ok(target) = entry.path().canonicalize() {
                assert!(target.starts_with(root), "{target:?} is outside");
            }
        } else {
            assert!(kind.is_file(), "{:?}", entry.path());
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Place { outer, store } = place();
    let limits = ArchiveLimits {
        entries: 100,
        bytes: 1 << 20,
        ratio: 100,
        set_aside: Some(".mote/spec.json".into()),
    };
    let code = store.root().join("code");
    match store.stage_archive(data, &limits) {
        Ok(staged) => {
            let root = staged.path.canonicalize().expect("its folder");
            check(&root, &root);
            assert!(staged.bytes <= limits.bytes);
            drop(staged);
            store.collect_garbage(&HashSet::new()).expect("garbage");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    assert_eq!(names(&code), Vec::<String>::new(), "left behind");
    assert_eq!(names(outer.path()), ["store"], "written outside");
});
