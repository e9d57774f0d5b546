//! Checks the JSON Schema of `mote.toml` in docs/reference, which packages install. After an intended
//! change, run `MOTE_BLESS=1 cargo test -p mote --test manifest_schema`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

#[test]
fn the_schema_of_manifests_is_fresh() {
    let fresh = serde_json::to_string_pretty(&mote_spec::manifest::schema()).unwrap() + "\n";
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/reference"));
    let path = folder.join("mote.schema.json");
    if std::env::var_os("MOTE_BLESS").is_some() {
        std::fs::write(&path, &fresh).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap();
    assert!(stored == fresh, "docs/reference/mote.schema.json is stale; MOTE_BLESS=1 rewrites it");
}
