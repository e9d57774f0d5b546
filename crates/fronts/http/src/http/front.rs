//! The state that the connections of one front share: its limits, the request to stop, and shared
//! counters.

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::access_log::AccessLog;
use crate::gathering::Gathering;
use mote_core::seats::Seats;
use mote_core::shares::Shares;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::proxies::Proxies;
use super::websocket_shares::WebSockets;

/// Connections at once, unless configured. One address may have three quarters: a proxy in front of
/// the node needs many. At either limit, a new connection takes the place of an idle one.
const CONNECTIONS_MAX: usize = 16_384;

/// The part of the connections that callers without a key, a token or a certificate leave free.
const RESERVE_PART: usize = 8;

/// Streams of HTTP/2 that are open at once on all connections, unless configured. One address may
/// have half. A waiting stream itself costs the node about 4.5 KB, so all of them cost about 45 MB.
const STREAMS_MAX: usize = 10_000;

/// Connections whose handshake of TLS is not complete. Each holds what its client has sent of it, up
/// to 64 KiB. At the limit, the oldest handshake of the address with the most of them ends.
const HANDSHAKES_MAX: usize = 1_024;

/// Time and count limits of the front. A phase that takes longer ends the connection.
#[derive(Debug, Clone)]
pub struct Config {
    /// The time from the first byte of a head to its last.
    pub head_timeout: Duration,
    /// The longest silence inside a request body.
    pub body_idle_timeout: Duration,
    /// The longest silence before the first request, and between requests.
    pub keep_alive_timeout: Duration,
    /// How long a client may take nothing of its answer.
    pub write_timeout: Duration,
    /// How long a request may continue to arrive once the node stops. An invocation that has begun
    /// has the time of the stop.
    pub arrival_grace: Duration,
    /// How long a kept connection that is idle may still begin a request once the node stops. The
    /// answer to that request closes the connection. Closing it at once would lose a request that
    /// its client has just sent.
    pub last_request_grace: Duration,
    /// Connections at once. A further one takes the place of one that is idle or has sent no request,
    /// of the address with the most of these. If no connection is idle, it receives a 503.
    pub connections_max: usize,
    /// Connections of one address at once. A further one takes the place of another of this address.
    pub connections_per_address_max: usize,
    /// Streams of HTTP/2 that are open at once on all connections; one address may have half. A
    /// further one is refused.
    pub streams_max: usize,
    /// Further runtimes that serve connections, next to the runtime that accepts them: the one with
    /// the fewest gets the next. Each should have a thread of its own.
    pub helpers: Vec<Handle>,
    /// With it, every connection begins with a handshake of TLS, which has `head_timeout`.
    pub tls: Option<Arc<ServerConfig>>,
    /// Reads the names in the certificate of a client, the most telling one first. Without it, nothing
    /// asks what certificate a client has.
    pub names_of: Option<fn(&CertificateDer<'_>) -> Vec<String>>,
    /// Answers what somebody asks of the machine rather than of a function (RFC 8615).
    pub well_known: Option<WellKnown>,
    /// Proxies in front of the node.
    pub proxies: Option<Arc<Proxies>>,
    /// Gets a line for each request.
    pub access_log: Option<AccessLog>,
    /// What the connections share with those of other fronts; without it, they share it with nobody.
    pub bounds: Option<Bounds>,
}

/// What connections share, so that together they use no more of it than the [`Config`] permits. A
/// clone is another handle to the same.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Connections, by the address of the client.
    pub(crate) connections: Seats<IpAddr>,
    pub(crate) unsent: Unsent,
    pub(crate) streams: Shares<IpAddr>,
    pub(crate) gathering: Gathering<IpAddr>,
    pub(crate) websockets: WebSockets,
    pub(crate) handshakes: Seats<IpAddr>,
}

impl Bounds {
    /// The bounds of the connections with this configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            connections: Seats::with_reserve(
                config.connections_max,
                config.connections_per_address_max,
                config.connections_max / RESERVE_PART,
            ),
            unsent: Unsent::default(),
            streams: Shares::new(config.streams_max, (config.streams_max / 2).max(1)),
            gathering: Gathering::default(),
            websockets: WebSockets::new(config.connections_max),
            handshakes: Seats::new(HANDSHAKES_MAX, HANDSHAKES_MAX),
        }
    }
}

/// Answers requests for addresses below `/.well-known`.
#[derive(Clone)]
pub struct WellKnown(Arc<AnswerTo>);

type AnswerTo = dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync;

impl WellKnown {
    /// `answer` gets the part of the path that follows. It runs on the thread of the data path, so it
    /// must not wait.
    pub fn new(answer: impl Fn(&str) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(answer))
    }

    /// The answer for a path, if there is one.
    pub(crate) fn answer(&self, path: &str) -> Option<Vec<u8>> {
        (self.0)(path)
    }
}

impl fmt::Debug for WellKnown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WellKnown")
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            head_timeout: Duration::from_secs(10),
            body_idle_timeout: Duration::from_secs(30),
            keep_alive_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(30),
            arrival_grace: Duration::from_secs(5),
            last_request_grace: Duration::from_secs(1),
            connections_max: CONNECTIONS_MAX,
            connections_per_address_max: CONNECTIONS_MAX / 4 * 3,
            streams_max: STREAMS_MAX,
            helpers: Vec::new(),
            tls: None,
            names_of: None,
            well_known: None,
            proxies: None,
            access_log: None,
            bounds: None,
        }
    }
}

/// Tells all connections to end: each of them after its current or next answer, and idle ones after
/// [`Config::last_request_grace`].
#[derive(Clone, Default)]
pub struct Stopper(Arc<StopState>);

#[derive(Default)]
struct StopState {
    stopping: AtomicBool,
    notify: Arc<Notify>,
}

impl Stopper {
    /// Begins to end all connections.
    pub fn stop(&self) {
        self.0.stopping.store(true, Ordering::Release);
        self.0.notify.notify_waiters();
    }

    /// Resolves when the node was asked to stop and requests that had not completely arrived then
    /// have had `grace`.
    pub(crate) async fn given_up(&self, grace: Duration) {
        self.stopped().await;
        tokio::time::sleep(grace).await;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.0.stopping.load(Ordering::Acquire)
    }

    /// Resolves once [`Stopper::stop`] is called, or has been called before.
    pub(crate) fn stopped(&self) -> Stopped {
        // The notification is created before the flag is read. In the other order, neither of them
        // would show a stop in between.
        let notified = Box::pin(self.0.notify.clone().notified_owned());
        Stopped { already: self.is_stopping(), notified }
    }
}

/// The request to stop, as one connection waits for it. It may be polled again after it has
/// resolved.
pub(crate) struct Stopped {
    already: bool,
    notified: Pin<Box<OwnedNotified>>,
}

impl Future for Stopped {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.already { Poll::Ready(()) } else { self.notified.as_mut().poll(cx) }
    }
}

/// Bytes of answers that wait for HTTP/2 clients to take them, of a whole front.
pub(crate) type Unsent = Arc<AtomicUsize>;

/// The state that all connections share.
pub(crate) struct HttpFront<I> {
    pub(crate) invoker: I,
    pub(crate) config: Config,
    pub(crate) stopper: Stopper,
    pub(crate) unsent: Unsent,
    /// Streams of HTTP/2 that are open, by the address of the client.
    pub(crate) streams: Shares<IpAddr>,
    /// Bodies that calls wait for, by the address of the client.
    pub(crate) gathering: Gathering<IpAddr>,
    pub(crate) websockets: WebSockets,
    pub(crate) connections: Seats<IpAddr>,
    /// Handshakes of TLS that are not complete, by the address of the client.
    pub(crate) handshakes: Seats<IpAddr>,
    /// When the log last said that connections ended for others; 0 before that.
    pub(crate) noted_ns: AtomicU64,
}
