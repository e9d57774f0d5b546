//! JSON Web Tokens (RFC 7519) and the key sets that verify them (RFC 7517).
//!
//! [`KeySet`] is read from the text of an issuer. [`verify`] decides about one token at a given
//! time. [`check`] says whether the rules of a function can be applied. `ring` verifies the
//! signatures. Texts of callers and issuers are read strictly: a member that occurs twice, padding,
//! or an extra byte is a reason to refuse. The time is passed in from outside. This module must not
//! know where keys come from, what a request is, or how a refusal is answered. Start with
//! [`verify`].

mod json;
mod jwks;
mod rules;
mod token;

pub use json::parse as parse_json;
pub use jwks::{KeySet, SET_BYTES_MAX};
pub use rules::{DISCOVERY_PATH, address, check};
pub use token::{Refused, SKEW_S, TOKEN_BYTES_MAX, Verified, verify};
