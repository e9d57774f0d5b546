//! Who may call a function from outside of the node.

use serde::{Deserialize, Serialize};

/// Who may call a function. Calls that come about inside of the node are not asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// The manifest does not say: the setting `access` of the node holds. A route never has it.
    #[default]
    Unset,
    /// Callers on the node's machine.
    Local,
    /// Everyone.
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
        match self {
            Access::Unset => "unset",
            Access::Local => "local",
            Access::Public | Access::KeyIfSent => "public",
            Access::Key => "key",
        }
    }

    /// This mode, or `default` if the manifest does not say.
    #[must_use]
    pub fn or(self, default: Access) -> Access {
        if self == Access::Unset { default } else { self }
    }

    pub(super) fn is_unset(&self) -> bool {
        *self == Access::Unset
    }
}
