//! The contract of the management API, which the node, the command line and every other client of
//! `mote` follow.
//!
//! The crate contains wire types ([`types`]), the error body and the catalogue of codes
//! ([`error`]), exit codes ([`exit`]), the manifest `mote.toml` ([`manifest`]), the OpenAPI
//! document ([`openapi`]) and a client ([`client`]). It must not know how a function is run or
//! stored, and uses none of our other crates.
//!
//! Start with [`types`], then [`paths`] for the addresses.

pub mod cells;
pub mod client;
mod cluster;
mod endpoint;
pub mod error;
pub mod exit;
mod explanations;
pub mod invocations;
pub mod journals;
pub mod keys;
pub mod kv;
pub mod manifest;
pub mod mqtt;
pub mod namespaces;
pub mod openapi;
pub mod openwhisk;
pub mod operators;
pub mod paths;
pub mod quantity;
mod reach;
pub mod text;
pub mod time;
pub mod toml_reader;
pub mod types;

pub use client::{Client, ClientError};
pub use error::{Problem, explain};
pub use manifest::Manifest;
pub use text::harmless;
pub use time::Timestamp;

/// Name of the first entry of a deployed tar: the function's spec as JSON.
///
/// The node reads this entry before unpacking, and it never becomes part of the code. Without it the
/// node reads `mote.toml` in the tar and guesses the rest, as the command line does.
pub const SPEC_ENTRY: &str = ".mote/spec.json";

/// The candidate that is most similar to `text`, if it is similar enough for a typing error.
pub fn nearest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (text.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(text, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_find_their_word_and_strangers_find_nothing() {
        for (text, expected) in
            [("timeot", Some("timeout")), ("memroy", Some("memory")), ("banana", None), ("x", None)]
        {
            assert_eq!(nearest(text, ["timeout", "memory", "cpu"]), expected, "{text}");
        }
    }
}
