//! Settings that the node cannot use, as errors that `mote up` explains.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub(crate) struct AddressError {
    /// The setting it comes from.
    pub(crate) key: &'static str,
    pub(crate) address: SocketAddr,
    #[source]
    pub(crate) source: io::Error,
    /// Further settings whose address is in use.
    pub(crate) others: Vec<(&'static str, SocketAddr)>,
}

/// A setting names something that the node cannot use; another start would fail in the same way.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {text}")]
pub(crate) struct SettingError {
    /// The setting.
    pub(crate) key: &'static str,
    /// What is wrong with it.
    pub(crate) text: String,
}

/// Makes an error for such a setting.
pub(super) fn unusable(key: &'static str, text: String) -> anyhow::Error {
    SettingError { key, text }.into()
}

/// An address that cannot be used, as an error with a remedy.
pub(super) fn busy(key: &'static str, address: SocketAddr, error: io::Error) -> anyhow::Error {
    AddressError { key, address, source: error, others: Vec::new() }.into()
}

/// Where a program lies that the setting `key` needs, next to that of the node.
pub(super) fn companion(key: &'static str, name: &str) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find the program of the node")?;
    let program = program.with_file_name(name);
    if !program.is_file() {
        let text = format!("the program {} is missing; install it there", program.display());
        return Err(unusable(key, text));
    }
    Ok(program)
}
