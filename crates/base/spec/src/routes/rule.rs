//! The type of a route: a host and a path at which a function answers in addition to `/NAME`.

use serde::{Deserialize, Serialize};

/// One route of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteRule {
    /// The host that clients call, in lower case and without a port. `*.` and an ending stand for
    /// all hosts below the ending. `None` stands for every host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The path. A segment is fixed text, or `{name}` for any one segment. At the end, `{name...}`
    /// or `*` stands for any number of segments, including none.
    pub path: String,
    /// The methods that the route accepts. An empty list accepts all methods. `GET` includes
    /// `HEAD`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// If set, clients are sent to another address, and the function is not called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<Redirect>,
}

/// An answer that sends clients to another address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redirect {
    /// A path, or a URL with `http` or `https`. `{name}` in the path stands for the parameter with
    /// this name.
    pub to: String,
    /// The status: 301, 302, 303, 307 or 308.
    pub status: u16,
}
