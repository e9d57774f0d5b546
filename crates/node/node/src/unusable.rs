//! Errors about settings that the node cannot use. `mote up` explains them.

use std::io;
use std::net::SocketAddr;

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub(crate) struct AddressError {
    /// The setting that contains the address.
    pub(crate) key: &'static str,
    pub(crate) address: SocketAddr,
    #[source]
    pub(crate) source: io::Error,
    /// Other settings whose addresses are in use as well.
    pub(crate) others: Vec<(&'static str, SocketAddr)>,
}

/// A setting names something that the node cannot use, so another start would fail in the same way.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {text}")]
pub(crate) struct SettingError {
    pub(crate) key: &'static str,
    pub(crate) text: String,
}

/// Makes the error for a setting that the node cannot use.
pub(super) fn unusable(key: &'static str, text: String) -> anyhow::Error {
    SettingError { key, text }.into()
}

/// Makes the error for an address on which the node cannot listen.
pub(super) fn busy(key: &'static str, address: SocketAddr, error: io::Error) -> anyhow::Error {
    AddressError { key, address, source: error, others: Vec::new() }.into()
}
