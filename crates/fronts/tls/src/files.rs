//! Finds certificates and their keys in a folder.
//!
//! A certificate `NAME.crt` or `NAME.pem` has its key in `NAME.key`. The folder, or a folder within
//! it, may contain `fullchain.pem` with `privkey.pem` (certbot). A folder within it may contain
//! `tls.crt` with `tls.key` (a Kubernetes secret).

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::acme::Acme;
use crate::unusable::{Unusable, unusable};

/// The file name, without ending, of the certificate that a node makes for itself.
pub(crate) const SELF_SIGNED: &str = "self-signed";
const CERTBOT: (&str, &str) = ("fullchain.pem", "privkey.pem");
const KUBERNETES: (&str, &str) = ("tls.crt", "tls.key");
/// What to do if an ordered certificate cannot be used.
pub(crate) const ORDER_ANEW: &str = "remove the folder to have another one ordered";
/// A longer file cannot be a certificate, and reading it would use much memory.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;

/// Values that change when the file changes: its inode number, its change time (seconds and
/// nanoseconds), and its length.
pub(crate) type Stamp = (u64, i64, i64, u64);

/// The files of a certificate and of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) stamp: [Stamp; 2],
}

/// The pairs in `folder` in the order of their names, then the pair of `acme`, and last the node's
/// own certificate. Also returns the files that are not complete pairs. If the folder does not
/// exist, `folder` contributes no pairs. Blocks.
pub(crate) fn find(
    folder: &Path,
    acme: Option<&Acme>,
) -> Result<(Vec<Pair>, Vec<Unusable>), Unusable> {
    let ordered =
        acme.and_then(Acme::live).map(|live| (live.join(CERTBOT.0), live.join(CERTBOT.1)));
    let entries = match fs::read_dir(folder) {
        Ok(entries) => Some(entries),
        Err(error) if error.kind() == io::ErrorKind::NotFound && ordered.is_none() => {
            return Ok(Default::default());
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(unusable(folder, error, "give the node the right to read it")),
    };
    let mut named = Vec::new();
    if let Some(own) = in_folder(folder, CERTBOT) {
        named.push(own);
    } else {
        for entry in entries.into_iter().flatten() {
            let path = entry.map_err(|error| unusable(folder, error, "check the disk"))?.path();
            named.extend(at(path));
        }
    }
    // The node's own certificate comes last, because it is for clients for which no other
    // certificate fits.
    let is_own = |chain: &Path| chain.file_stem().is_some_and(|name| name == SELF_SIGNED);
    named.sort_unstable_by(|a, b| is_own(&a.0).cmp(&is_own(&b.0)).then_with(|| a.cmp(b)));
    let others = named.partition_point(|pair| !is_own(&pair.0));
    named.splice(others..others, ordered);
    let mut pairs = Vec::new();
    let mut faults = Vec::new();
    for (chain, key) in named {
        let stamp = |file: &Path| match acme.and_then(|acme| acme.open_own(file)) {
            Some(opened) => {
                let about = opened.and_then(|file| file.metadata());
                let about = about.map_err(|error| unusable(file, error, ORDER_ANEW))?;
                stamp_of(file, &about, FILE_BYTES_MAX)
            }
            None => stamp(file, FILE_BYTES_MAX, "NAME.crt needs its key in NAME.key"),
        };
        match stamp(&chain).and_then(|chain| Ok([chain, stamp(&key)?])) {
            Ok(stamp) => pairs.push(Pair { chain, key, stamp }),
            Err(fault) => faults.push(fault),
        }
    }
    Ok((pairs, faults))
}

/// The certificate at a path in the folder, and the path of its key.
fn at(path: PathBuf) -> Option<(PathBuf, PathBuf)> {
    // Kubernetes keeps previous versions in hidden folders.
    if path.file_name()?.as_encoded_bytes().starts_with(b".") {
        return None;
    }
    if path.is_dir() {
        return in_folder(&path, CERTBOT).or_else(|| in_folder(&path, KUBERNETES));
    }
    let is_certificate = path.extension().is_some_and(|ending| ending == "crt" || ending == "pem");
    is_certificate.then(|| (path.clone(), path.with_extension("key")))
}

fn in_folder(folder: &Path, (chain, key): (&str, &str)) -> Option<(PathBuf, PathBuf)> {
    let pair = (folder.join(chain), folder.join(key));
    (pair.0.exists() && pair.1.exists()).then_some(pair)
}

/// The stamp of a file of at most `bytes_max` bytes. `if_missing` is the hint in the error if the
/// file does not exist. Blocks.
pub(crate) fn stamp(
    file: &Path,
    bytes_max: u64,
    if_missing: &'static str,
) -> Result<Stamp, Unusable> {
    let about = fs::metadata(file).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            return unusable(file, "the file is missing", if_missing);
        }
        unusable(file, error, "give the node the right to read it")
    })?;
    stamp_of(file, &about, bytes_max)
}

fn stamp_of(file: &Path, about: &Metadata, bytes_max: u64) -> Result<Stamp, Unusable> {
    if !about.is_file() || about.len() > bytes_max {
        let what = format!("this is not a file of at most {} MiB", bytes_max >> 20);
        return Err(unusable(file, what, "put certificates and keys in PEM there"));
    }
    Ok((about.ino(), about.ctime(), about.ctime_nsec(), about.len()))
}
