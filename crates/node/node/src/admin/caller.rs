//! The origin of a connection to the management API.

use std::net::IpAddr;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Caller {
    /// A local process of this user; `None` if the kernel did not name the user.
    Local(Option<u32>),
    /// An address on the network, and whether the connection is encrypted.
    Remote(IpAddr, bool),
}

impl Caller {
    /// The address in the record of acts.
    pub(super) fn from(self) -> String {
        match self {
            Caller::Local(_) => "socket".to_owned(),
            Caller::Remote(address, _) => address.to_string(),
        }
    }

    pub(super) fn is_encrypted(self) -> bool {
        matches!(self, Caller::Remote(_, true))
    }
}
