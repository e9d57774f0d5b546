//! Limits and names that several parts of the broker share.

/// The name of the node's own user.
pub(crate) const NODE_USER: &str = "mote-node";
/// The most connections of one user. This is half of all connections, as with sessions.
pub(crate) const CONNECTIONS_OF_USER_MAX: usize = 500;
/// Room for connections of the node itself, and for connections that are being ended for others.
pub(crate) const MORE_CONNECTIONS_MAX: usize = 200;
