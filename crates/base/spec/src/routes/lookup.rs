//! Which function answers at a host and a path: the question of a front, and the answer.

use crate::name::FunctionName;

/// The routes among which one is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Among {
    /// Routes that name a host.
    Hosts,
    /// Routes without a host of the function that the first segment names, which begin with its name.
    BelowName,
    /// All routes without a host.
    Everywhere,
}

/// A request for which a route is searched.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Among which routes.
    pub among: Among,
    /// The value of `Host`.
    pub host: &'a [u8],
    /// First segment of the path.
    pub first: &'a [u8],
    /// What follows it: `/` if nothing does.
    pub path: &'a [u8],
    /// The method of the request; for a CORS preflight, the method that it asks about.
    pub method: &'a [u8],
}

/// What the routes say about a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// No route has this host and path.
    Nothing,
    /// Routes match the host and the path, but only with these methods.
    OtherMethod(Vec<String>),
    /// This function, and the parameters as a query (`id=17&path=a/b`). Values keep the encoding of the
    /// path; `&`, `=` and `+` are percent-encoded in addition.
    Function(FunctionName, Vec<u8>),
    /// Another address, with its status, that this function names.
    Redirect(FunctionName, Vec<u8>, u16),
}
