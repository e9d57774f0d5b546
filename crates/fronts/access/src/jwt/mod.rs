//! JSON Web Tokens (RFC 7519) and the key sets that verify them (RFC 7517).
//!
//! [`KeySet`] is read from the text of an issuer, [`verify`] decides about one token at one moment,
//! and [`check`] says whether the rules of a function can be obeyed. Signatures are verified by
//! `ring`. Everything that a caller or an issuer sends is read strictly: a member that occurs twice,
//! padding, or a byte too many is a reason to refuse. The time comes from outside. This module must not
//! know where keys come from, what a request is, and how a refusal is answered. Start with [`verify`].

mod json;
mod jwks;
mod rules;
mod token;

pub use json::parse as parse_json;
pub use jwks::{KeySet, SET_BYTES_MAX};
pub use rules::{DISCOVERY_PATH, address, check};
pub use token::{Refused, SKEW_S, TOKEN_BYTES_MAX, Verified, verify};
