//! The HTTP front: HTTP/1.1 read strictly by our own parser, HTTP/2 (prior knowledge) by hyper.

mod answer;
pub mod chunked;
mod connection;
mod front;
mod h2;
mod h2_meter;
pub mod head;
mod input;
mod listener;
mod request_body;
mod route;
pub mod target;

pub use front::{Config, Stopper};
pub use listener::{listen, serve};
pub use route::REFUSALS_IN_A_ROW_MAX;
