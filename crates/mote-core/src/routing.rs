//! Which function answers at a host and a path: the question of a front, and the answer.

use crate::name::FunctionName;

/// The routes among which one is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Among {
    /// Those for certain hosts.
    Hosts,
    /// Those for all hosts that begin with the first segment of the path.
    BelowName,
    /// All those for all hosts.
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
    /// The method, or the one that a browser asks about.
    pub method: &'a [u8],
}

/// What the routes say about a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// No route has this host and path.
    Nothing,
    /// Routes have them, with these methods only.
    OtherMethod(Vec<String>),
    /// This function, and the parameters as a query (`id=17&path=a/b`), percent-encoded.
    Function(FunctionName, Vec<u8>),
    /// Another address, with its status, that this function names.
    Redirect(FunctionName, Vec<u8>, u16),
}
