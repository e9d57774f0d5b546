//! The HTTP front: HTTP/1.1 read strictly by our own parser, HTTP/2 (prior knowledge) by hyper.

mod answer;
pub mod chunked;
mod connection;
mod h2;
mod h2_meter;
pub mod head;
mod listener;
mod request_body;
pub mod target;

pub use connection::REFUSALS_IN_A_ROW_MAX;
pub use listener::{Config, Stopper, listen, serve};
