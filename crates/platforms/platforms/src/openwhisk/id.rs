//! The ids of activations.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The id of an activation: 32 hexadecimal digits. The first digits are the time, so sorting ids sorts
/// activations by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Id(pub(super) u128);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for Id {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u128::from_str_radix(&text, 16).map(Self)
    }
}

impl From<Id> for Value {
    fn from(id: Id) -> Self {
        id.to_string().into()
    }
}
