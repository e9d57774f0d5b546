//! A small node for tests of the fronts. Its functions echo, wait, stream or fail, and it records
//! the requests that they received.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use mote_core::body::{Body, BodyError, BodySource};
use mote_core::invocation::{headers, put_header};
use mote_core::{Fault, Invocation, Invoker, Phases, Reply, RouteInfo, Routed};
use mote_spec::{CoapResource, FunctionName};
use parking_lot::Mutex;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};
use tokio::sync::{Notify, Semaphore};

/// One invocation, as a function received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saw {
    pub method: String,
    pub path: String,
    pub query: String,
    pub headers: Vec<(String, String)>,
    pub body: Result<Bytes, BodyError>,
}

#[derive(Default)]
pub struct State {
    /// The number of invocations that have begun.
    pub calls: AtomicU64,
    /// The number of invocations that were dropped before their end.
    pub cancelled: AtomicU64,
    /// Notified when an invocation starts, is cancelled or ends.
    pub changed: Notify,
    pub saw: Mutex<Vec<Saw>>,
    /// For each look-up, the key that would have chosen a revision.
    pub keys: Mutex<Vec<Option<u64>>>,
    /// The number of chunks of streamed answers that exist now, and the largest number that existed
    /// at once.
    pub held: Arc<AtomicU64>,
    pub held_max: Arc<AtomicU64>,
    /// The number of streamed answers that were dropped, whether at their end or earlier.
    pub streams_over: Arc<AtomicU64>,
    pub largest_chunk: AtomicU64,
    pub sink_bytes: AtomicU64,
}

#[derive(Clone)]
pub struct Fake {
    pub state: Arc<State>,
    /// The functions `slow` and `sink` wait for a permit.
    pub permits: Arc<Semaphore>,
    routes: Arc<Vec<Route>>,
}

#[derive(Clone)]
pub struct Route {
    name: FunctionName,
    methods: Vec<String>,
    body_bytes_max: u64,
    timeout_ms: u64,
    coap: CoapResource,
}

impl Routed for Route {
    fn info(&self) -> RouteInfo<'_> {
        RouteInfo {
            takes_whole_bodies: self.name.as_str() == "whole",
            methods: &self.methods,
            coap: &self.coap,
            ..RouteInfo::new(&self.name, self.timeout_ms, self.body_bytes_max)
        }
    }
}

impl Default for Fake {
    fn default() -> Self {
        let route = |name: &str| Route {
            name: FunctionName::new(name).unwrap(),
            methods: Vec::new(),
            body_bytes_max: 6 << 20,
            timeout_ms: 30_000,
            coap: CoapResource::default(),
        };
        let mut routes: Vec<_> = [
            "big", "boom", "bytes", "count", "echo", "get-only", "large", "number", "small",
            "sink", "slow", "status", "stall", "stream", "whole",
        ]
        .map(route)
        .to_vec();
        for route in &mut routes {
            match route.name.as_str() {
                "get-only" => route.methods = vec!["GET".into()],
                "small" => route.body_bytes_max = 10,
                "sink" | "large" => route.body_bytes_max = 64 << 20,
                "stall" => route.timeout_ms = 200,
                "number" => {
                    route.coap = CoapResource {
                        title: Some("a \"number\"".into()),
                        resource_type: Some("temperature-c core.n".into()),
                        content_format: Some(50),
                    };
                }
                _ => {}
            }
        }
        Self {
            state: Arc::default(),
            permits: Arc::new(Semaphore::new(0)),
            routes: Arc::new(routes),
        }
    }
}

impl Fake {
    pub fn calls(&self) -> u64 {
        self.state.calls.load(Ordering::SeqCst)
    }

    /// Takes the recorded invocations, so that the next call returns only later ones.
    pub fn take_saw(&self) -> Vec<Saw> {
        std::mem::take(&mut self.state.saw.lock())
    }

    /// Waits on an ordinary thread until `done` returns true.
    pub fn wait(&self, what: &str, done: impl Fn(&State) -> bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let waited = runtime.block_on(async {
            let limit = tokio::time::Duration::from_secs(20);
            tokio::time::timeout(limit, async {
                loop {
                    let changed = self.state.changed.notified();
                    if done(&self.state) {
                        break;
                    }
                    // Some of the awaited changes send no notification, so the state is also
                    // checked at intervals.
                    let pause = tokio::time::Duration::from_millis(20);
                    let _ = tokio::time::timeout(pause, changed).await;
                }
            })
            .await
        });
        waited.unwrap_or_else(|_| panic!("waited 20 s in vain for: {what}"));
    }
}

/// Counts the invocation as cancelled on drop, unless it has come to its end.
struct Running(Arc<State>, bool);

impl Drop for Running {
    fn drop(&mut self) {
        if !self.1 {
            self.0.cancelled.fetch_add(1, Ordering::SeqCst);
        }
        self.0.changed.notify_waiters();
    }
}

fn end(guard: &mut Option<Running>) {
    if let Some(running) = guard {
        running.1 = true;
    }
}

/// Returns `n` from a query like `n=5`.
fn number(query: &str) -> usize {
    query.split('&').find_map(|part| part.strip_prefix("n=")).map_or(0, |n| n.parse().unwrap())
}

/// The byte at position `at` of every generated body.
pub fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

pub fn pattern_bytes(length: usize) -> Vec<u8> {
    (0..length).map(pattern).collect()
}

impl Invoker for Fake {
    type Route = Route;

    fn route(&self, name: &str, key: impl FnOnce() -> Option<u64>) -> Option<Route> {
        self.state.keys.lock().push(key());
        self.routes.iter().find(|route| route.name.as_str() == name).cloned()
    }

    fn routes(&self) -> Vec<Route> {
        self.routes.as_ref().clone()
    }

    async fn invoke(&self, route: &Route, invocation: Invocation) -> Result<Reply, Fault> {
        let state = self.state.clone();
        let call = state.calls.fetch_add(1, Ordering::SeqCst) + 1;
        state.changed.notify_waiters();
        let mut guard = Some(Running(state.clone(), false));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let head = invocation.head;
        let query = text(head.query());
        let fault = |error: &BodyError| match error {
            BodyError::TooLarge(limit) => Fault::BodyTooLarge { limit_bytes: *limit },
            _ => Fault::BodyIncomplete,
        };
        let fields = headers(head.headers()).map(|(name, value)| (text(name), text(value)));
        let mut saw = Saw {
            method: text(head.method()),
            path: text(head.path()),
            query: query.clone(),
            headers: fields.collect(),
            body: Ok(Bytes::new()),
        };
        let mut block = Vec::new();
        let mut status = 200;
        let body = match route.name.as_str() {
            "slow" => {
                self.permits.acquire().await.unwrap().forget();
                Body::whole(format!("slow {call}"))
            }
            "boom" => panic!("a function double panics"),
            "big" => {
                if query.contains("located") {
                    put_header(
                        &mut block,
                        b"location",
                        "/one-long-segment-of-a-path".repeat(100).as_bytes(),
                    );
                }
                Body::whole(pattern_bytes(number(&query)))
            }
            "stream" => self.stream(number(&query), None),
            "bytes" => self.stream(number(&query), Some(number(&query) as u64)),
            "stall" => Body::Stream { source: Box::new(Stalled(guard.take())), length: None },
            "status" => {
                status = saw.path[1..].parse().unwrap();
                Body::whole("body")
            }
            "count" => {
                block = Vec::new();
                put_header(&mut block, b"cache-control", b"max-age=0");
                Body::whole(call.to_string())
            }
            "number" => {
                put_header(&mut block, b"content-type", b"application/json");
                Body::whole("7")
            }
            "sink" => {
                let mut body = invocation.body;
                let mut total = 0;
                self.permits.acquire().await.unwrap().forget();
                while let Some(chunk) = body.chunk().await {
                    match chunk {
                        Ok(chunk) => {
                            total += chunk.len() as u64;
                            state.largest_chunk.fetch_max(chunk.len() as u64, Ordering::SeqCst);
                        }
                        Err(error) => {
                            let fault = fault(&error);
                            saw.body = Err(error);
                            state.saw.lock().push(saw);
                            end(&mut guard);
                            return Err(fault);
                        }
                    }
                }
                state.sink_bytes.store(total, Ordering::SeqCst);
                Body::whole(total.to_string())
            }
            _ => {
                saw.body = invocation.body.collect(64 << 20).await;
                let body = match &saw.body {
                    Ok(body) => body.clone(),
                    Err(error) => {
                        let fault = fault(error);
                        state.saw.lock().push(saw);
                        end(&mut guard);
                        return Err(fault);
                    }
                };
                let mut out = BytesMut::new();
                out.put_slice(format!("{} {} {}\n", saw.method, saw.path, saw.query).as_bytes());
                for (name, value) in &saw.headers {
                    out.put_slice(format!("{name}: {value}\n").as_bytes());
                    // The answer has the type and tag of the request.
                    if matches!(name.as_str(), "content-type" | "x-etag") {
                        let name = name.strip_prefix("x-").unwrap_or(name);
                        put_header(&mut block, name.as_bytes(), value.as_bytes());
                    }
                }
                out.put_u8(b'\n');
                out.put_slice(&body);
                Body::whole(out.freeze())
            }
        };
        state.saw.lock().push(saw);
        end(&mut guard);
        Ok(Reply { status, headers: block.into(), body, phases: Phases::default() })
    }
}

impl Fake {
    fn stream(&self, bytes: usize, length: Option<u64>) -> Body {
        let source = Streaming {
            at: 0,
            end: bytes,
            held: self.state.held.clone(),
            held_max: self.state.held_max.clone(),
            over: self.state.streams_over.clone(),
        };
        Body::Stream { source: Box::new(source), length }
    }
}

/// A body that never continues. Its invocation counts as running until the body is dropped.
struct Stalled(Option<Running>);

impl BodySource for Stalled {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let _ = &self.0;
        Poll::Pending
    }
}

struct Streaming {
    at: usize,
    end: usize,
    held: Arc<AtomicU64>,
    held_max: Arc<AtomicU64>,
    over: Arc<AtomicU64>,
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.over.fetch_add(1, Ordering::SeqCst);
    }
}

/// A chunk that counts itself while it exists.
struct Chunk(Vec<u8>, Arc<AtomicU64>);

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

impl BodySource for Streaming {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.at == self.end {
            return Poll::Ready(None);
        }
        let next = (self.at + (64 << 10)).min(self.end);
        let bytes = (self.at..next).map(pattern).collect();
        self.at = next;
        let held = self.held.fetch_add(1, Ordering::SeqCst) + 1;
        self.held_max.fetch_max(held, Ordering::SeqCst);
        Poll::Ready(Some(Ok(Bytes::from_owner(Chunk(bytes, self.held.clone())))))
    }
}

/// A seeded random generator. The same seed gives the same run.
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// The seed from `MOTE_TEST_SEED`, or a fixed one. The caller prints it.
pub fn seed() -> u64 {
    std::env::var("MOTE_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x6d6f_7465)
}
