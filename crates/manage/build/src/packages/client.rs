//! The programs that install packages.

/// A package client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// pip.
    Pip,
    /// npm.
    Npm,
    /// The `go` command.
    Go,
}
