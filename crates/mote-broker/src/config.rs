//! What the node tells the broker on its standard input: one line of JSON.

use std::net::SocketAddr;

use serde::Deserialize;

/// Everything that the broker needs to know.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// Where devices connect without TLS.
    pub(crate) listen: SocketAddr,
    /// Where devices connect with TLS. If there is such a listener, a message with certificates
    /// follows (`mote_tls::handover`), and further ones whenever they change.
    pub(crate) tls: Option<SocketAddr>,
    /// Clients without a user name.
    pub(crate) anonymous: Anonymous,
    /// The password of the node's own user.
    pub(crate) password: String,
    /// The user id that the broker takes if it was started as root.
    pub(crate) uid: u32,
}

/// Which clients may connect without a user name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Anonymous {
    /// None.
    Off,
    /// Those of this machine.
    Loopback,
    /// All.
    All,
}
