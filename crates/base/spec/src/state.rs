//! The state that a node keeps for a function: the namespaces of state that the function may use,
//! and their size.

/// Default quota for the keys and values of one namespace, in bytes.
pub const QUOTA_BYTES_DEFAULT: u64 = 16 << 20;
/// Largest quota that a manifest may set.
pub const QUOTA_BYTES_MAX: u64 = 1 << 30;
/// The maximum number of shared namespaces of one function.
pub const SHARED_MAX: usize = 16;

/// The state that a function may use in its node, in addition to its own namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateRules {
    /// Names of shared namespaces that the function may use.
    pub shared: Vec<String>,
    /// The quota of a namespace in bytes, when this function writes to it.
    pub quota_bytes: u64,
}

impl Default for StateRules {
    fn default() -> Self {
        Self { shared: Vec::new(), quota_bytes: QUOTA_BYTES_DEFAULT }
    }
}
