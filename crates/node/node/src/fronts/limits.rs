//! The limits of the HTTP fronts, derived from the number of files that this process may open, and the
//! threads that serve their connections.

use mote_http::http;

// The parts of the open files that a node may use for the connections of its fronts, two thirds
// together. The rest is for instances, for what functions connect to, for the APIs of other platforms
// and for the management API, which clients of the fronts must not block.

/// The part of the own HTTP front.
pub const HTTP_FILES_SHARE: usize = 3;
/// The part of the same front over TLS.
pub const HTTPS_FILES_SHARE: usize = 6;
/// The part of each of tinyFaaS' fronts over TCP.
pub const TINYFAAS_FILES_SHARE: usize = 12;

/// The limits of an HTTP front that may use one part in `share` of the files that this process may
/// open.
pub fn http_config(share: usize) -> http::Config {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let files = files.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    let all = http::Config::default();
    let connections_max = all.connections_max.min(files / share).max(1);
    let connections_per_address_max =
        all.connections_per_address_max.min((connections_max / 4 * 3).max(1));
    // As with the connections, the node's own front may have all of them and other fronts their
    // share.
    let streams_max = all.streams_max * HTTP_FILES_SHARE / share;
    http::Config { connections_max, connections_per_address_max, streams_max, ..all }
}

/// Cores for each thread of the data path on machines with many: functions and their clients need
/// the others.
const CORES_PER_THREAD: usize = 4;

/// Threads of the data path; if `asked` is 0, the number of cores decides. The first one also runs
/// the CoAP front and the engine's other tasks. On few cores, a second one takes more from the
/// functions and the clients than it gains (docs/decisions/0004-threads.md).
pub fn data_threads(asked: usize, cores: usize) -> usize {
    match asked {
        0 if cores < CORES_PER_THREAD * 2 => 1,
        0 => (cores / CORES_PER_THREAD).min(mote_engine::THREADS_MAX),
        asked => asked,
    }
}
