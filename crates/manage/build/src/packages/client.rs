//! The programs that install packages.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    Pip,
    Npm,
    Go,
}
