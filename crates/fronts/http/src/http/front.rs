//! The state shared by all connections of one front: limits, the signal to stop, and counters.

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

/// The default limit of connections at once. One address may have three quarters of them, because a
/// proxy in front of the node needs many. At either limit, a new connection takes the place of an
/// idle one.
const CONNECTIONS_MAX: usize = 16_384;

/// One in this many connections is reserved for callers with a key, a token or a certificate.
const RESERVE_PART: usize = 8;

/// The default limit of open HTTP/2 streams on all connections together. One address may have half
/// of them. A waiting stream costs the node about 4.5 KB, so all of them cost about 45 MB.
const STREAMS_MAX: usize = 10_000;

/// The number of connections whose TLS handshake may be incomplete at once. Each of these
/// connections holds up to 64 KiB of data from its client. At the limit, the address with the most
/// incomplete handshakes loses its oldest one.
const HANDSHAKES_MAX: usize = 1_024;

/// Time and count limits of the front. If a phase exceeds its time limit, the connection ends.
#[derive(Debug, Clone)]
pub struct Config {
    /// The longest time from the first byte of a head to its last.
    pub head_timeout: Duration,
    /// The longest silence inside a request body.
    pub body_idle_timeout: Duration,
    /// The longest silence before the first request and between requests.
    pub keep_alive_timeout: Duration,
    /// How long a client may read nothing of its answer.
    pub write_timeout: Duration,
    /// How long a request may continue to arrive after the node has begun to stop. An invocation
    /// that has begun may instead use the whole time that the stop may take.
    pub arrival_grace: Duration,
    /// How long an idle kept connection may still begin a request after the node has begun to stop.
    /// The answer to that request closes the connection. Closing the connection at once would lose
    /// a request that the client has just sent.
    pub last_request_grace: Duration,
    /// The limit of connections at once. A further connection takes the place of one that is idle
    /// or has not sent a request, from the address with the most such connections. If no connection
    /// is idle, the new client receives a 503.
    pub connections_max: usize,
    /// The limit of connections from one address. A further connection takes the place of another
    /// one from the same address.
    pub connections_per_address_max: usize,
    /// The limit of open HTTP/2 streams on all connections together. One address may have half of
    /// them. Further streams are refused.
    pub streams_max: usize,
    /// Additional runtimes that serve connections, besides the runtime that accepts them. The
    /// runtime with the fewest connections gets the next one. Each runtime should have its own
    /// thread.
    pub helpers: Vec<Handle>,
    /// If set, every connection begins with a TLS handshake, which must complete within
    /// `head_timeout`.
    pub tls: Option<Arc<ServerConfig>>,
    /// Reads the names in a client certificate, with the most specific name first. If `None`,
    /// client certificates are ignored.
    pub names_of: Option<fn(&CertificateDer<'_>) -> Vec<String>>,
    /// Answers requests that concern the machine rather than a function (RFC 8615).
    pub well_known: Option<WellKnown>,
    /// The trusted proxies in front of the node.
    pub proxies: Option<Arc<Proxies>>,
    /// The access log, which receives one line per request.
    pub access_log: Option<AccessLog>,
    /// Limits that this front's connections share with those of other fronts. If `None`, the front
    /// has its own.
    pub bounds: Option<Bounds>,
}

/// The resources that connections share, with the limits of the [`Config`]. A clone is another
/// handle to the same resources.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Connections, counted by the address of the client.
    pub(crate) connections: Seats<IpAddr>,
    pub(crate) unsent: Unsent,
    pub(crate) streams: Shares<IpAddr>,
    pub(crate) gathering: Gathering<IpAddr>,
    pub(crate) websockets: WebSockets,
    pub(crate) handshakes: Seats<IpAddr>,
}

impl Bounds {
    /// Makes the shared limits that this configuration describes.
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
    /// `answer` receives the part of the path after `/.well-known`. It runs on the thread of the
    /// data path, so it must not block.
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

/// Tells all connections to end. A busy connection ends after its current or next answer, and an
/// idle one after [`Config::last_request_grace`].
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

    /// Resolves `grace` after the node begins to stop. Requests that have not completely arrived
    /// by then are given up.
    pub(crate) async fn given_up(&self, grace: Duration) {
        self.stopped().await;
        tokio::time::sleep(grace).await;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.0.stopping.load(Ordering::Acquire)
    }

    /// Resolves when [`Stopper::stop`] is called, or at once if it has already been called.
    pub(crate) fn stopped(&self) -> Stopped {
        // The notification is created before the flag is read. In the opposite order, the front
        // would miss a stop between the two steps.
        let notified = Box::pin(self.0.notify.clone().notified_owned());
        Stopped { already: self.is_stopping(), notified }
    }
}

/// The wait of one connection for the signal to stop. It may be polled again after it has resolved.
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

/// The number of answer bytes of the whole front that HTTP/2 clients have not yet taken.
pub(crate) type Unsent = Arc<AtomicUsize>;

/// The state shared by all connections.
pub(crate) struct HttpFront<I> {
    pub(crate) invoker: I,
    pub(crate) config: Config,
    pub(crate) stopper: Stopper,
    pub(crate) unsent: Unsent,
    /// Open HTTP/2 streams, counted by the address of the client.
    pub(crate) streams: Shares<IpAddr>,
    /// Bodies that calls wait for, counted by the address of the client.
    pub(crate) gathering: Gathering<IpAddr>,
    pub(crate) websockets: WebSockets,
    pub(crate) connections: Seats<IpAddr>,
    /// Incomplete TLS handshakes, counted by the address of the client.
    pub(crate) handshakes: Seats<IpAddr>,
    /// When the log last said that connections were ended to make room for others. 0 if it has not
    /// said so yet.
    pub(crate) noted_ns: AtomicU64,
}
