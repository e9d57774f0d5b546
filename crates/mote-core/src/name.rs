//! The name of a function: one DNS label, as Kubernetes and OpenFaaS require for theirs.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Longest name in bytes (RFC 1123 label).
pub const NAME_BYTES_MAX: usize = 63;

/// A function's name: 1 to 63 of `a-z 0-9 -`, no `-` at the ends. Cloning it is cheap.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FunctionName(Arc<str>);

/// Why a text is not a function name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "name: 1\u{2013}63 characters of a\u{2013}z, 0\u{2013}9 and -, not beginning or ending with -"
)]
pub struct NameError;

impl FunctionName {
    /// Checks `text` and makes it a name.
    pub fn new(text: &str) -> Result<Self, NameError> {
        if is_valid(text) { Ok(Self(text.into())) } else { Err(NameError) }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether `text` could be a function's name.
pub fn is_valid(text: &str) -> bool {
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= NAME_BYTES_MAX
        && bytes[0] != b'-'
        && bytes[bytes.len() - 1] != b'-'
        && bytes.iter().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

impl TryFrom<String> for FunctionName {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        Self::new(&text)
    }
}

impl From<FunctionName> for String {
    fn from(name: FunctionName) -> String {
        name.0.as_ref().to_owned()
    }
}

impl std::borrow::Borrow<str> for FunctionName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let longest = "a".repeat(63);
        let too_long = "a".repeat(64);
        for (text, valid) in [
            ("hello", true),
            ("a", true),
            ("9to5", true),
            ("a--b", true),
            (longest.as_str(), true),
            ("", false),
            ("-x", false),
            ("x-", false),
            ("Foo", false),
            ("a.b", false),
            ("a_b", false),
            ("\u{1f600}", false),
            (too_long.as_str(), false),
        ] {
            assert_eq!(FunctionName::new(text).is_ok(), valid, "{text:?}");
        }
    }
}
