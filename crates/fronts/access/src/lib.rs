//! Who may call a function from outside of the node.
//!
//! A function with the access mode `key` or `basic` is called only with a key, one with `jwt` only
//! with a token of its issuer, one with `mtls` only by a client with a certificate, one with
//! `webhook` only by a service that signs its requests, and one with `local` only from the node's
//! own machine, and not by a web page of another site. [`KeyRing`] has what the node keeps of all
//! keys, [`Guard`] decides about one request, and [`Guarded`] is the layer over an invoker that
//! every front calls. The keys and the time come from outside; this crate must not know where keys
//! are stored, and what HTTP or CoAP is. Start with [`Guard::admit`].
//!
//! The files:
//!
//! - `ring.rs`: what is kept of keys, and what they open
//! - `guard.rs`, `guarded.rs`: the decision about one request, and the layer
//! - `guesses.rs`: slows down wrong keys
//! - `meters.rs`, `bounded.rs`: rates, and calls at once
//! - `jwt/`, `issuers/`: tokens, and the keys that verify them
//! - `webhook/`: signatures of webhooks
//! - `pages.rs`: web pages of other sites
//! - `refusals.rs`: tells the owner what was refused

#![forbid(unsafe_code)]

mod bounded;
mod credentials;
mod guard;
mod guarded;
mod guesses;
pub mod issuers;
pub mod jwt;
mod meters;
mod metrics;
mod pages;
mod refusals;
mod ring;
pub mod webhook;

use mote_spec::Access;

pub use guard::{Guard, UseSecret};
pub use guarded::Guarded;
pub use metrics::RefusalMetrics;
pub use ring::{Key, KeyRing, NewKey, is_pattern, psk_of};

/// Whether a function with this mode knows each of its callers by a name that nobody else can use.
pub fn knows_callers(mode: Access) -> bool {
    matches!(mode, Access::Key | Access::Basic | Access::Jwt | Access::Mtls)
}
