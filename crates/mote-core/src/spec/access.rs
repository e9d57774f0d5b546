//! Who may call a function from outside of the node.

use serde::{Deserialize, Serialize};

/// Who may call a function. Calls that come about inside of the node are not asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Everyone.
    #[default]
    Public,
    /// Callers with a key that opens the function.
    Key,
    /// Everyone; a key is checked if one is sent, and names the caller. For what the node itself
    /// answers.
    #[serde(skip)]
    KeyIfSent,
}

impl Access {
    /// The word of the manifest.
    pub fn as_str(self) -> &'static str {
        if self == Access::Key { "key" } else { "public" }
    }

    pub(super) fn is_public(&self) -> bool {
        *self == Access::Public
    }
}
