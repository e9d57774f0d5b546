//! The issuers of tokens that functions accept.
//!
//! [`Issuers::check`] decides about the token of one request without waiting, because it holds the
//! issuers' keys and the verified tokens in memory. [`Issuers::run`] is the only task that fetches
//! keys. This module must not know functions, fronts or requests. Start with `issuer.rs`, which
//! says when keys are fetched and how long they are used.

mod fetch;
mod issuer;
mod known;
mod verified;

pub use known::{Issuers, Rejected};
