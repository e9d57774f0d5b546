//! A mistake in a spec.

/// One mistake in a spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct SpecError {
    /// The setting, as in the manifest: `limits.memory`.
    pub field: &'static str,
    /// What is wrong, and which values are allowed.
    pub problem: String,
}
