//! The HTTP front: our own parser reads HTTP/1.1 strictly, and hyper reads HTTP/2 (used with prior
//! knowledge, or chosen during the TLS handshake). rustls encrypts the connections.

mod answer;
pub mod chunked;
mod client;
mod compress;
mod connection;
mod files;
mod fission;
mod front;
mod h2;
mod h2_activity;
mod h2_answer;
mod h2_body;
mod h2_meter;
pub mod head;
mod input;
mod listener;
mod logged;
mod proxies;
mod request_body;
mod route;
mod rules;
mod silence;
mod socket;
pub mod target;
mod websocket;
mod websocket_messages;
mod websocket_shares;

pub use front::{Bounds, Config, Stopper, WellKnown};
pub use listener::{listen, serve};
pub use proxies::{Proxies, ProxyWord};
pub use route::REFUSALS_IN_A_ROW_MAX;
