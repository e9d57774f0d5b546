//! A connection that always has more work for the front does not keep the thread. Another task of
//! the same runtime gets its turn after a bounded number of requests or pieces.

#![allow(clippy::unwrap_used)]

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mote_core::body::Body;
use mote_core::turn::TURN_ITEMS_MAX;
use mote_core::{Fault, Invocation, Invoker, Phases, Reply, RouteInfo, Routed};
use mote_http::http::{Config, REFUSALS_IN_A_ROW_MAX, Stopper, listen, serve};
use mote_spec::FunctionName;
use parking_lot::Mutex;
use support::raw_http::Server;

/// A node with one function, `now`, which answers without waiting. At each look-up of a request and
/// at each end of a body, the node records how often the other task has run.
#[derive(Clone, Default)]
struct Ticks {
    ticks: Arc<AtomicU64>,
    at_route: Arc<Mutex<Vec<u64>>>,
    at_end: Arc<Mutex<Vec<u64>>>,
}

#[derive(Clone)]
struct Now(FunctionName);

impl Routed for Now {
    fn info(&self) -> RouteInfo<'_> {
        RouteInfo::new(&self.0, 30_000, 1 << 20)
    }
}

impl Invoker for Ticks {
    type Route = Now;

    fn route(&self, name: &str, _: impl FnOnce() -> Option<u64>) -> Option<Now> {
        self.at_route.lock().push(self.ticks.load(Ordering::SeqCst));
        (name == "now").then(|| Now(FunctionName::new("now").unwrap()))
    }

    fn routes(&self) -> Vec<Now> {
        Vec::new()
    }

    async fn invoke(&self, _: &Now, invocation: Invocation) -> Result<Reply, Fault> {
        let length = invocation.body.collect(1 << 20).await.unwrap().len();
        self.at_end.lock().push(self.ticks.load(Ordering::SeqCst));
        let body = Body::whole(length.to_string());
        Ok(Reply { status: 200, headers: Default::default(), body, phases: Phases::default() })
    }
}

/// Sends `bytes` at once, before the front begins to read. Then reads to the end of the connection
/// while another task counts its own turns.
fn flood(bytes: Vec<u8>) -> Ticks {
    let invoker = Ticks::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let front = invoker.clone();
    let ticks = invoker.ticks.clone();
    runtime.block_on(async move {
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let (sent, is_sent) = std::sync::mpsc::channel();
        let client = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.write_all(&bytes).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            sent.send(()).unwrap();
            let mut read = Vec::new();
            let _ = stream.read_to_end(&mut read);
            read
        });
        is_sent.recv().unwrap();
        let stopper = Stopper::default();
        let serving = tokio::spawn(serve(listener, front, Config::default(), stopper.clone()));
        let other = tokio::spawn(async move {
            loop {
                ticks.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        });
        let read = tokio::task::spawn_blocking(move || client.join().unwrap()).await.unwrap();
        assert!(read.starts_with(b"HTTP/1.1 "), "{}", String::from_utf8_lossy(&read));
        other.abort();
        stopper.stop();
        serving.await.unwrap().unwrap();
    });
    invoker
}

/// The largest number of events that happened while the other task did not run.
fn longest_turn(events: &[u64]) -> usize {
    events.chunk_by(|a, b| a == b).map(<[u64]>::len).max().unwrap_or(0)
}

#[test]
fn pipelined_requests_let_others_run() {
    for (path, served) in [("nobody", REFUSALS_IN_A_ROW_MAX as usize), ("now", 1_500)] {
        let one = format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n");
        let seen = flood(one.repeat(1_500).into_bytes());
        let looked_up = seen.at_route.lock().clone();
        assert_eq!(looked_up.len(), served, "requests of /{path} that were answered");
        let longest = longest_turn(&looked_up);
        // The runtime may poll one of two ready tasks twice in a row, so the bound is higher than
        // one turn.
        let most = 4 * TURN_ITEMS_MAX as usize;
        assert!(longest <= most, "/{path}: {longest} requests while another task waited");
    }
}

#[test]
fn a_body_in_tiny_chunks_lets_others_run() {
    let chunks = 300_000;
    let head = "POST /now HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let seen = flood([head, &"1\r\nx\r\n".repeat(chunks), "0\r\n\r\n"].concat().into_bytes());
    let from = seen.at_route.lock()[0];
    let to = seen.at_end.lock()[0];
    let turns = (to - from) as usize;
    // Up to 64 chunks become one piece, and the runtime may poll one of two ready tasks twice in a
    // row.
    assert!(
        turns >= chunks / (2 * 64 * 64),
        "{turns} turns of another task while {chunks} chunks were read"
    );
}

#[test]
fn requests_without_an_invocation_end_the_connection_unless_others_come_between() {
    let server = Server::start(Config::default());
    let mut client = server.client();
    for _ in 0..3 {
        for _ in 1..REFUSALS_IN_A_ROW_MAX {
            let answer = client.call("GET /nobody HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!((answer.status, answer.closes()), (404, false));
        }
        assert_eq!(client.call("GET /echo HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    }
    for n in 1..=REFUSALS_IN_A_ROW_MAX {
        let answer = client.call("PUT /get-only HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!((answer.status, answer.closes()), (405, n == REFUSALS_IN_A_ROW_MAX));
    }
    assert!(client.is_over());
}
