//! Answers the calls of a `mote` function that is written in Rust.
//!
//! ```no_run
//! use mote_function::{serve, Answer, Event};
//!
//! fn main() {
//!     serve(|event: Event| Answer::text(format!("hello {}", event.query())))
//! }
//! ```
//!
//! For each call, the handler runs on a separate thread, with as many calls at once as
//! `concurrency` in `mote.toml` permits (64 by default). The handler's output goes to the
//! function's log; [`Event::log`] adds a level and the call. `src/worker.rs` speaks the worker
//! protocol.

mod answer;
mod event;
mod services;
mod wire;
mod worker;

pub use answer::{Answer, IntoAnswer};
pub use event::{Event, Level, Trigger};
pub use services::{CallOptions, Entry, Error, Kv, NotifyOptions, Publish, PutOptions, Reply};

/// Answers calls with `handler` until the node ends the instance. Never returns.
///
/// If the handler panics or returns an error, its call fails with status 500.
pub fn serve<H, A>(handler: H) -> !
where
    H: Fn(Event) -> A + Send + Sync + 'static,
    A: IntoAnswer,
{
    worker::run(Box::new(move |event| handler(event).into_answer()))
}
