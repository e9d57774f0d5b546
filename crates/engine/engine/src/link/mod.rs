//! The connections to the programs that answer inside a sandbox: workers that speak the worker
//! protocol, and servers that speak HTTP.

pub(crate) mod action_image;
pub(crate) mod body_channel;
pub mod fields;
pub(crate) mod server;
pub(crate) mod server_h2;
pub(crate) mod server_link;
pub(crate) mod server_message;
pub(crate) mod server_meter;
pub(crate) mod websocket;
pub(crate) mod worker;
