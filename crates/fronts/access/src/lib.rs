//! Decides who may call a function from outside the node.
//!
//! The access mode of a function says who may call it:
//!
//! - `key` and `basic`: only callers with a key
//! - `jwt`: only callers with a token of the function's issuer
//! - `mtls`: only clients with a certificate
//! - `webhook`: only services that sign their requests
//! - `local`: only callers on the node's own machine, and no web pages of other sites
//!
//! [`KeyRing`] holds what the node keeps of all keys. [`Guard`] decides about one request.
//! [`Guarded`] is the layer over an invoker that every front calls. The keys and the time are
//! passed in from outside. This crate must not know where keys are stored, or what HTTP and CoAP
//! are. Start with [`Guard::admit`].
//!
//! The files:
//!
//! - `ring.rs`: what the node keeps of keys, and which functions a key opens
//! - `guard.rs`, `guarded.rs`: the decision about one request, and the layer over an invoker
//! - `guesses.rs`: slows down clients that send wrong keys
//! - `meters.rs`, `bounded.rs`: rates, and the number of simultaneous calls
//! - `jwt/`, `issuers/`: tokens, and the keys that verify them
//! - `webhook/`: signatures of webhooks
//! - `pages.rs`: requests that browsers send for web pages of other sites
//! - `refusals.rs`: counts and logs refused requests

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

/// Whether a function with this mode knows each caller by a name that no other caller can use.
pub fn knows_callers(mode: Access) -> bool {
    matches!(mode, Access::Key | Access::Basic | Access::Jwt | Access::Mtls)
}
