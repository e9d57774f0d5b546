//! Certificates that cannot be used.

use std::path::{Path, PathBuf};

use tokio_rustls::rustls::pki_types::pem;

/// Why a certificate cannot be used: which file, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}; {hint}", path.display())]
pub struct Unusable {
    pub(crate) path: PathBuf,
    what: String,
    hint: &'static str,
}

pub(crate) fn unusable(path: &Path, what: impl ToString, hint: &'static str) -> Unusable {
    Unusable { path: path.to_owned(), what: what.to_string(), hint }
}

pub(crate) fn bad_pem(file: &Path, error: &pem::Error) -> Unusable {
    match error {
        pem::Error::Io(error) => {
            unusable(file, format!("the file cannot be read: {error}"), "check its permissions")
        }
        pem::Error::NoItemsFound => {
            let is_key = file.extension().is_some_and(|ending| ending == "key")
                || file.file_name().is_some_and(|name| name == "privkey.pem");
            let what = if is_key { "private key" } else { "certificate" };
            unusable(file, format!("the file has no {what} in PEM"), "docs/guides/https.md")
        }
        _ => unusable(file, "the file is not complete PEM", "write it again"),
    }
}
