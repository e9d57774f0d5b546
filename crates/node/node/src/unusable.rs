//! Settings that the node cannot use, as errors that `mote up` explains.

use std::io;
use std::net::SocketAddr;

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
    pub(crate) key: &'static str,
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
