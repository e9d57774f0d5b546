//! Rust twins of workloads behind a plain HTTP server: the same parameters, fields and `check` as
//! the Python versions, so that the cost of an interpreter can be told from that of a platform.
//! Compiled to WebAssembly, the program serves one call: the query is in `MOTE_QUERY`, and the
//! answer is its standard output.
//!
//! `WORKLOAD` names the one that is served, `PORT` where (0: the system chooses, and the port is
//! printed), `THREADS` how many calls run at once.

mod aes;
mod disk;
mod http;
mod matrix;
mod python_random;
mod work;

use std::collections::HashMap;

use serde_json::{Map, Value, json};

/// Parameters of a call.
pub(crate) type Params = HashMap<String, String>;
/// Fields of an answer.
pub(crate) type Fields = Map<String, Value>;

/// Why a call has no result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The caller's.
    Missing(String),
    /// The work was not done, or wrongly.
    Check(String),
    /// The machine's.
    Io(std::io::Error),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// A whole number above zero.
pub(crate) fn number(params: &Params, name: &str) -> Result<usize, Failure> {
    let text = params.get(name).map(String::as_str).unwrap_or_default();
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(Failure::Missing(format!("{name}: a whole number above 0, and not '{text}'"))),
    }
}

/// Fails the call unless the work shows what it must.
pub(crate) fn require(holds: bool, what: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::Check(what())) }
}

/// Seconds since a moment.
pub(crate) fn since(moment: std::time::Instant) -> f64 {
    moment.elapsed().as_secs_f64()
}

/// Status and body of a call.
pub(crate) fn respond(name: &str, params: &Params) -> (u16, Value) {
    let started = http::monotonic_ns();
    let (status, mut body) = match work::run(name, params) {
        Ok(mut fields) => match fields.remove("text") {
            // Its answer is a text alone.
            Some(text) => return (200, text),
            None => (200, fields),
        },
        Err(failure) => {
            let (status, text) = match failure {
                Failure::Missing(text) => (400, text),
                Failure::Check(text) => (500, format!("check failed: {text}")),
                Failure::Io(error) => (500, error.to_string()),
            };
            (status, Fields::from_iter([("error".to_owned(), json!(text))]))
        }
    };
    let given = |name: &str| json!(params.get(name).map(String::as_str).unwrap_or_default());
    for (field, value) in [
        ("test_name", json!(name)),
        ("start_time", given("start_time")),
        ("uuid", given("uuid")),
        ("workload_version", json!(1)),
        ("start_ns", json!(started)),
        ("end_ns", json!(http::monotonic_ns())),
        ("worker", json!(http::worker())),
    ] {
        body.insert(field.to_owned(), value);
    }
    (status, Value::Object(body))
}

fn main() -> std::io::Result<()> {
    let of = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let name = of("WORKLOAD", "");
    if !work::NAMES.contains(&name.as_str()) {
        eprintln!("WORKLOAD: one of {}", work::NAMES.join(", "));
        std::process::exit(2);
    }
    #[cfg(target_os = "wasi")]
    {
        let (status, body) = respond(&name, &http::parameters(&of("MOTE_QUERY", "")));
        println!("{}", http::text(&body));
        std::process::exit(i32::from(status != 200))
    }
    #[cfg(not(target_os = "wasi"))]
    {
        let number = |name: &str, default: &str| of(name, default).parse::<u16>().unwrap_or(0);
        http::serve(&name, number("PORT", "0"), number("THREADS", "4").max(1))
    }
}
