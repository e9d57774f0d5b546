//! What calls have in common, whoever serves them.

use std::sync::OnceLock;
use std::time::Instant;

use crate::Params;
#[cfg(not(target_os = "wasi"))]
pub(crate) use server::serve;

#[cfg(not(target_os = "wasi"))]
#[path = "server.rs"]
mod server;

/// Nanoseconds of a clock that only goes forward, comparable within this process.
pub(crate) fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// A name for this process. It contains the address of a static variable, because processes in
/// different sandboxes may have the same process id.
pub(crate) fn worker() -> String {
    static HERE: u8 = 0;
    // A WebAssembly program has no process id.
    let process = if cfg!(target_os = "wasi") { 0 } else { std::process::id() };
    format!("{process}-{:x}", &raw const HERE as usize)
}

/// An answer as it is sent: a text as it is, everything else as JSON.
pub(crate) fn text(body: &serde_json::Value) -> String {
    body.as_str().map_or_else(|| body.to_string(), str::to_owned)
}

/// Parameters of a query.
pub(crate) fn parameters(query: &str) -> Params {
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match (first, after.get(..2).and_then(hex)) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (byte, _) => {
                bytes.push(if *byte == b'+' { b' ' } else { *byte });
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let found = parameters("number=10&link=http%3A%2F%2Fa+b&odd=%zz");
        assert_eq!(found["number"], "10");
        assert_eq!(found["link"], "http://a b");
        assert_eq!(found["odd"], "%zz");
    }
}
