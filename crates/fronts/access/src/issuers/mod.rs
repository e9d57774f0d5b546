//! The issuers of tokens that functions accept.
//!
//! [`Issuers::check`] decides about the token of one request, without waiting: it has the keys of the
//! issuers in memory, and remembers the tokens that it has verified. [`Issuers::run`] is the one task
//! that fetches keys and fetches them again. This module must not know functions, fronts and requests.
//! Start with `issuer.rs`, which says when keys are fetched and how long they are used.

mod fetch;
mod issuer;
mod known;
mod verified;

pub use known::{Issuers, Rejected};
