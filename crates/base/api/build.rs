//! Compresses the OpenAPI document, so that programs are smaller. Few clients ask for the document, so
//! decompressing it costs little.

use std::path::Path;
use std::{env, fs, io};

/// The level that `miniz_oxide` calls its best compression.
const LEVEL: u8 = 10;

fn main() -> io::Result<()> {
    let variable = |name| env::var(name).map_err(io::Error::other);
    let document =
        Path::new(&variable("CARGO_MANIFEST_DIR")?).join("../../../docs/reference/openapi.json");
    println!("cargo::rerun-if-changed={}", document.display());
    let packed = miniz_oxide::deflate::compress_to_vec(&fs::read(document)?, LEVEL);
    fs::write(Path::new(&variable("OUT_DIR")?).join("openapi.deflate"), packed)
}
