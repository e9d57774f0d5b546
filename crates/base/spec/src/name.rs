//! The name of a function. It is one DNS label, as Kubernetes and OpenFaaS require, or two labels,
//! of which the second one is the namespace of the function.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Longest label in bytes (RFC 1123).
pub const LABEL_BYTES_MAX: usize = 63;
/// Longest name in bytes: two labels and the dot between them.
pub const NAME_BYTES_MAX: usize = LABEL_BYTES_MAX * 2 + 1;
/// The word for the namespace of functions whose names have no dot. No other namespace may have
/// this name.
pub const DEFAULT_NAMESPACE: &str = "default";

/// A function's name. It is a label of 1 to 63 of `a-z 0-9 -`, without `-` at the ends. Unless the
/// function is in the default namespace, a dot and the label of the namespace follow. Cloning is
/// cheap.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FunctionName(Arc<str>);

/// Why a text is not a function name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NameError {
    /// A character or a length is wrong.
    #[error(
        "name: 1\u{2013}63 characters of a\u{2013}z, 0\u{2013}9 and -, not beginning or ending with -"
    )]
    Label,
    /// The name contains the word for the default namespace, which must be left out.
    #[error("name: functions of the default namespace have names without .default")]
    Default,
}

impl FunctionName {
    /// Checks `text` and makes it a name.
    pub fn new(text: &str) -> Result<Self, NameError> {
        match split(text) {
            (_, Some(DEFAULT_NAMESPACE)) => Err(NameError::Default),
            _ if is_valid(text) => Ok(Self(text.into())),
            _ => Err(NameError::Label),
        }
    }

    /// The name without its namespace.
    pub fn label(&self) -> &str {
        split(&self.0).0
    }

    /// The namespace; `None` is the default one.
    pub fn namespace(&self) -> Option<&str> {
        split(&self.0).1
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Splits a function's name into the part before its dot and its namespace, which is `None` for the
/// default one.
pub fn split(name: &str) -> (&str, Option<&str>) {
    match name.split_once('.') {
        Some((label, namespace)) => (label, Some(namespace)),
        None => (name, None),
    }
}

/// The full form of a name within `namespace`.
pub fn joined(label: &str, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!("{label}.{namespace}"),
        None => label.to_owned(),
    }
}

/// The name under which the node keeps something of `namespace` that is not a function, such as a
/// secret. The names of such things may contain dots, but no slash.
pub fn kept<'a>(name: &'a str, namespace: Option<&str>) -> Cow<'a, str> {
    match namespace {
        Some(namespace) => Cow::Owned(format!("{namespace}/{name}")),
        None => Cow::Borrowed(name),
    }
}

/// The full form of a name that occurs in the code of another function. `name` and `of`, the name of
/// that other function, are `NAME` or `NAME@TAG`. A name without a namespace means a function in the
/// namespace of `of`. Returns `None` if the name is in another namespace.
pub fn beside<'a>(name: &'a str, of: &str) -> Option<Cow<'a, str>> {
    let base = |name: &'_ str| name.find('@').unwrap_or(name.len());
    let namespace = split(&of[..base(of)]).1;
    let (written, tag) = name.split_at(base(name));
    match (split(written).1, namespace) {
        (None, None) => Some(Cow::Borrowed(name)),
        (None, Some(own)) => Some(Cow::Owned(format!("{written}.{own}{tag}"))),
        (Some(other), own) => (own == Some(other)).then_some(Cow::Borrowed(name)),
    }
}

/// The namespace of a thing that the node keeps under this name, and the thing's name in that
/// namespace. The reverse of [`kept`].
pub fn of_kept(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((namespace, name)) if is_label(namespace) => (Some(namespace), name),
        _ => (None, name),
    }
}

/// Whether `text` could be a function's name.
pub fn is_valid(text: &str) -> bool {
    let (label, namespace) = split(text);
    is_label(label) && namespace.is_none_or(|name| is_label(name) && name != DEFAULT_NAMESPACE)
}

/// Whether `text` could be a function's name within its namespace, or the name of a namespace.
pub fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= LABEL_BYTES_MAX
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
            ("a.b", true),
            ("a.b.c", false),
            ("a.", false),
            (".b", false),
            ("a.-b", false),
            ("a.default", false),
            ("default", true),
            ("a_b", false),
            ("\u{1f600}", false),
            (too_long.as_str(), false),
        ] {
            assert_eq!(FunctionName::new(text).is_ok(), valid, "{text:?}");
        }
    }

    #[test]
    fn parts_of_names() {
        let name = FunctionName::new("hello.plant").expect("a name");
        assert_eq!((name.label(), name.namespace()), ("hello", Some("plant")));
        let plain = FunctionName::new("hello").expect("a name");
        assert_eq!((plain.label(), plain.namespace()), ("hello", None));
        assert_eq!(joined("hello", Some("plant")), "hello.plant");
        assert_eq!(FunctionName::new("a.default"), Err(NameError::Default));
        assert_eq!(of_kept(&kept("db.password", Some("plant"))), (Some("plant"), "db.password"));
        assert_eq!(of_kept(&kept("db.password", None)), (None, "db.password"));
        assert_eq!(of_kept("../x"), (None, "../x"));
    }

    #[test]
    fn functions_name_others_of_their_namespace() {
        for (name, of, full) in [
            ("b", "a", Some("b")),
            ("b@blue", "a@green", Some("b@blue")),
            ("b", "a.plant", Some("b.plant")),
            ("b@blue", "a.plant@green", Some("b.plant@blue")),
            ("b.plant", "a.plant", Some("b.plant")),
            ("b.other", "a.plant", None),
            ("b.plant", "a", None),
            ("b.plant.x", "a.plant", None),
        ] {
            assert_eq!(beside(name, of).as_deref(), full, "{name} of {of}");
        }
    }
}
