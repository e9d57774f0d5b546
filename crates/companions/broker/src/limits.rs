//! What several parts of the broker must know of its users and connections.

/// The name of the node's own user.
pub(crate) const NODE_USER: &str = "mote-node";
/// Connections of one user: half of all, as of sessions.
pub(crate) const CONNECTIONS_OF_USER_MAX: usize = 500;
/// Connections of the node itself, and those that are ending for others.
pub(crate) const MORE_CONNECTIONS_MAX: usize = 200;
