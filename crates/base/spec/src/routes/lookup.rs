//! A front's question which function answers at a host and a path, and the answer to it.

use crate::name::FunctionName;

/// The routes that are searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Among {
    /// Routes with a host.
    Hosts,
    /// Routes without a host whose path begins with the name of their own function. The first
    /// segment of the request's path must be this name.
    BelowName,
    /// All routes without a host.
    Everywhere,
}

/// A request whose route is searched.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The routes that are searched.
    pub among: Among,
    /// The value of the field `Host`.
    pub host: &'a [u8],
    /// The first segment of the path.
    pub first: &'a [u8],
    /// The rest of the path after the first segment; `/` if nothing follows.
    pub path: &'a [u8],
    /// The method of the request. For a CORS preflight request, the method that it asks about.
    pub method: &'a [u8],
}

/// What was found for a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// No route matches this host and path.
    Nothing,
    /// Routes match the host and the path, but they accept only these methods.
    OtherMethod(Vec<String>),
    /// A function, and the parameters of its route in the form of a query (`id=17&path=a/b`).
    /// Values keep the encoding that they have in the path. In addition, `&`, `=` and `+` are
    /// percent-encoded.
    Function(FunctionName, Vec<u8>),
    /// A redirect of this function: the address to which the client is sent, and the status.
    Redirect(FunctionName, Vec<u8>, u16),
}
