//! Finds certificates and their keys in a folder.
//!
//! A certificate `NAME.crt` or `NAME.pem` has its key in `NAME.key`. A folder within the folder has
//! `fullchain.pem` with `privkey.pem` (certbot), or `tls.crt` with `tls.key` (a secret of Kubernetes).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::{Unusable, unusable};

const IN_FOLDERS: [(&str, &str); 2] = [("fullchain.pem", "privkey.pem"), ("tls.crt", "tls.key")];

/// When each file was changed, and how long it is.
pub(crate) type Stamp = Vec<(PathBuf, Option<SystemTime>, u64)>;

pub(crate) struct Files {
    /// Certificates with their keys, in the order of their names.
    pub(crate) pairs: Vec<(PathBuf, PathBuf)>,
    pub(crate) stamp: Stamp,
}

impl Files {
    /// The certificates in `folder`; none if it does not exist. Blocks.
    pub(crate) fn find(folder: &Path) -> Result<Self, Unusable> {
        let mut pairs = Vec::new();
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self { pairs, stamp: Stamp::new() });
            }
            Err(error) => return Err(unusable(folder, error)),
        };
        let mut paths = Vec::new();
        for entry in entries {
            paths.push(entry.map_err(|error| unusable(folder, error))?.path());
        }
        paths.sort();
        for path in paths {
            // Kubernetes keeps former versions in hidden folders.
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
                continue;
            }
            if path.is_dir() {
                let found = IN_FOLDERS.map(|(chain, key)| (path.join(chain), path.join(key)));
                pairs.extend(found.into_iter().find(|(chain, _)| chain.exists()));
            } else if path.extension().is_some_and(|ending| ending == "crt" || ending == "pem") {
                let key = path.with_extension("key");
                pairs.push((path, key));
            }
        }
        let mut stamp = Stamp::new();
        for (chain, key) in &pairs {
            if !key.exists() {
                let shown = key.display();
                return Err(unusable(chain, format!("there is no key for it: {shown} is missing")));
            }
            for file in [chain, key] {
                let about = fs::metadata(file).map_err(|error| unusable(file, error))?;
                stamp.push((file.clone(), about.modified().ok(), about.len()));
            }
        }
        Ok(Self { pairs, stamp })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}
