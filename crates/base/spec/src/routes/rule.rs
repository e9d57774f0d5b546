//! Hosts and paths at which a function answers in addition to `/NAME`.

use serde::{Deserialize, Serialize};

/// One route of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteRule {
    /// The host that clients call, in lower case and without a port, or `*.` and what it ends with;
    /// with `None`, every host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The path: fixed segments, `{name}` for any one segment, and at the end `{name...}` or
    /// `*` for any number of them, also none.
    pub path: String,
    /// The methods that it accepts; an empty list accepts all. `GET` includes `HEAD`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Where clients are sent instead of to the function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<Redirect>,
}

/// An answer that sends clients to another address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redirect {
    /// A path, or a URL with `http` or `https`; `{name}` in its path is the parameter of this name.
    pub to: String,
    /// The status: 301, 302, 303, 307 or 308.
    pub status: u16,
}
