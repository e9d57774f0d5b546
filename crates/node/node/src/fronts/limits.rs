//! The limits of the HTTP fronts, which depend on how many files this process may open, and the
//! number of threads that serve their connections.

use mote_http::http;

// The constants below are shares of the files that may be open: a front may use one part in this
// many for its connections. Together, the fronts use at most two thirds. The rest is for instances,
// for the connections of functions, for the APIs of other platforms, and for the management API,
// which clients of the fronts must not block.

/// The share of the node's own HTTP front.
pub const HTTP_FILES_SHARE: usize = 3;
/// The share of the node's own HTTP front over TLS.
pub const HTTPS_FILES_SHARE: usize = 6;
/// The share of each of tinyFaaS' fronts over TCP.
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
    // The node's own front may have all streams. Another front may have fewer, by the ratio of the
    // shares, as with connections.
    let streams_max = all.streams_max * HTTP_FILES_SHARE / share;
    http::Config { connections_max, connections_per_address_max, streams_max, ..all }
}

/// On machines with many cores, the data path has one thread for this many cores, because functions
/// and their clients need the other cores.
const CORES_PER_THREAD: usize = 4;

/// The number of threads of the data path. If `asked` is 0, it depends on the number of cores. The
/// first thread also runs the CoAP front and the engine's other tasks. On few cores, a second
/// thread takes more time from functions and clients than it saves
/// (docs/decisions/0004-threads.md).
pub fn data_threads(asked: usize, cores: usize) -> usize {
    match asked {
        0 if cores < CORES_PER_THREAD * 2 => 1,
        0 => (cores / CORES_PER_THREAD).min(mote_engine::THREADS_MAX),
        asked => asked,
    }
}
