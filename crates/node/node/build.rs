//! Compresses the files of the dashboard and lists them in a table. The files are in the repository,
//! so this build needs no JavaScript tools.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

fn main() -> io::Result<()> {
    let variable = |name| env::var(name).map_err(io::Error::other);
    let dist = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("../../../dashboard/dist");
    let out = PathBuf::from(variable("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", dist.display());
    let mut files = Vec::new();
    list(&dist, &mut files)?;
    files.sort();
    let mut table = String::from("&[\n");
    for (number, file) in files.iter().enumerate() {
        let name = file.strip_prefix(&dist).map_err(io::Error::other)?;
        let name = name.to_str().ok_or_else(|| io::Error::other("a name is not UTF-8"))?;
        let content = fs::read(file)?;
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&content)?;
        let place = out.join(format!("dashboard-{number}.gz"));
        fs::write(&place, packed.finish()?)?;
        let tag = base16ct::lower::encode_string(&Sha256::digest(&content)[..8]);
        writeln!(
            table,
            "    File {{ name: {name:?}, tag: \"\\\"{tag}\\\"\", gzip: include_bytes!({place:?}) }},"
        )
        .map_err(io::Error::other)?;
    }
    table.push_str("]\n");
    fs::write(out.join("dashboard.rs"), table)
}

fn list(folder: &Path, into: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => list(&path, into)?,
            false => into.push(path),
        }
    }
    Ok(())
}
