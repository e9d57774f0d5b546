//! Accepts connections, limits their number, and ends them when the node stops.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mote_core::Invoker;
use mote_core::seats::{Seat, Standing};
use mote_core::shares::{Exceeded, address_owner};
use mote_core::turn::TURN_ITEMS_MAX;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;

use super::client::TlsClient;
use super::connection;
use super::front::{Bounds, Config, HttpFront, Stopper};
use super::proxies::{Proxies, read_header};
use super::socket::Socket;
use crate::ids::now_ns;

/// The number of connections that the kernel completes before the front accepts them. The kernel
/// may reduce this to its own limit (`net.core.somaxconn`, usually 4096). If the backlog is full, a
/// new client is not refused but tries again after a whole second. This size holds a burst of
/// reconnecting clients; the usual 128 or 1024 does not. An entry uses memory only while it is
/// occupied.
const BACKLOG: u32 = 4096;
/// The number of connections accepted in a row before others are served. Accepting one takes some
/// 10 µs.
const ACCEPTED_IN_TURN_MAX: usize = 512;

/// The protocol in which a certificate authority checks who controls a host name.
const CHALLENGE: &[u8] = b"acme-tls/1";
/// How many accepted connections may exist beyond [`Config::connections_max`]. These are
/// connections that were just told to end, and connections from proxies that have not yet named
/// their client.
const LEAVING_MAX: usize = 64;

/// The answer to a client whose address has too many connections and none of them is idle.
const CROWDED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/problem+json\r\nretry-after: 1\r\ncontent-length: 110\r\n\
    connection: close\r\n\r\n\
    {\"title\":\"Service Unavailable\",\"status\":503,\"code\":\"M1032\",\
    \"detail\":\"too many connections from this address\"}\n";
/// The answer to a client if no connection at all is idle.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/problem+json\r\nretry-after: 1\r\ncontent-length: 92\r\n\
    connection: close\r\n\r\n\
    {\"title\":\"Service Unavailable\",\"status\":503,\"code\":\"M1032\",\
    \"detail\":\"too many connections\"}\n";

/// Listens on `address`, with room for bursts of new clients. Pass the result to [`serve`].
///
/// Called once per front, inside the runtime that serves it.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Without this, a restarted node would have to wait until the kernel forgets the connections of
    // the previous process.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections until the stopper stops. Then accepts the connections that the kernel had
/// completed before, and returns when the last connection has ended.
pub async fn serve<I: Invoker>(
    listener: TcpListener,
    invoker: I,
    config: Config,
    stopper: Stopper,
) -> std::io::Result<()> {
    let leaving_max = (config.connections_max / 16).clamp(1, LEAVING_MAX);
    let places_max = config.connections_max + leaving_max;
    let places = Arc::new(Semaphore::new(places_max));
    let bounds = config.bounds.clone().unwrap_or_else(|| Bounds::new(&config));
    let Bounds { connections, unsent, streams, gathering, websockets, handshakes } = bounds;
    let helpers = config.helpers.clone();
    // One entry for this runtime, followed by one for each helper. Each connection holds a
    // reference to the entry of the runtime that serves it.
    let threads: Vec<Arc<()>> = (0..=helpers.len()).map(|_| Arc::default()).collect();
    let front = Arc::new(HttpFront {
        invoker,
        config,
        stopper,
        unsent,
        streams,
        gathering,
        websockets,
        connections,
        handshakes,
        noted_ns: AtomicU64::new(0),
    });
    let begin = |stream: TcpStream, peer: SocketAddr, place: OwnedSemaphorePermit| {
        // A connection of such a proxy counts for the client that its header names.
        let is_named = front.config.proxies.as_ref().is_some_and(|one| one.sends_header(peer.ip()));
        let mut seat = None;
        if !is_named {
            match front.sit(&stream, peer.ip()) {
                Some(taken) => seat = Some(taken),
                None => return,
            }
        }
        // Of several runtimes with the fewest connections, the first is chosen, so that a lone
        // client is served on the runtime of the first instance.
        let all = 0..threads.len();
        let thread = all.min_by_key(|at| Arc::strong_count(&threads[*at])).unwrap_or(0);
        let place = (place, threads[thread].clone());
        let front = front.clone();
        match thread.checked_sub(1).map(|helper| &helpers[helper]) {
            None => {
                tokio::spawn(async move {
                    handle(stream, peer.ip(), seat, &front).await;
                    drop(place);
                });
            }
            // The socket is registered again, because the runtime that serves the connection must
            // receive its events.
            Some(helper) => {
                helper.spawn(async move {
                    match stream.into_std().and_then(TcpStream::from_std) {
                        Ok(stream) => handle(stream, peer.ip(), seat, &front).await,
                        Err(error) => tracing::warn!(%error, "cannot serve an HTTP connection"),
                    }
                    drop(place);
                });
            }
        }
    };
    let mut stopped = front.stopper.stopped();
    let mut accepted_in_turn = 0;
    loop {
        // A burst of new clients must not delay the requests of other clients for a long time. The
        // limit grows with the number of open connections. With a small fixed limit, new clients of
        // a slow machine would wait for seconds, because served clients send their next request at
        // once.
        let open = places_max - places.available_permits();
        if accepted_in_turn >= (open / 2).clamp(TURN_ITEMS_MAX as usize, ACCEPTED_IN_TURN_MAX) {
            accepted_in_turn = 0;
            tokio::task::yield_now().await;
        }
        accepted_in_turn += 1;
        if front.stopper.is_stopping() {
            break;
        }
        let place = tokio::select! {
            () = &mut stopped => break,
            place = places.clone().acquire_owned() => place.map_err(std::io::Error::other)?,
        };
        let (stream, peer) = tokio::select! {
            () = &mut stopped => break,
            accepted = accept(&listener) => accepted,
        };
        begin(stream, peer, place);
    }
    // When the listener is closed, the kernel resets the connections that still wait, even if their
    // clients have already sent a request. The runtime may not have been notified of these
    // connections, so this loop asks the listener directly. The loop has a limit, because new
    // clients must not keep the node from stopping.
    let listener = listener.into_std()?;
    for _ in 0..BACKLOG {
        let Ok(place) = places.clone().try_acquire_owned() else { break };
        let Ok((stream, peer)) = listener.accept() else { break };
        if stream.set_nonblocking(true).is_ok()
            && let Ok(stream) = TcpStream::from_std(stream)
        {
            let _ = stream.set_nodelay(true);
            begin(stream, peer, place);
        }
    }
    drop(listener);
    // When all places are free again, all connections have ended.
    let _ = places.acquire_many(places_max as u32).await;
    Ok(())
}

/// The shortest time between two log lines about connections ended to make room for others.
const NOTE_PAUSE_NS: u64 = 60_000_000_000;

impl<I: Invoker> HttpFront<I> {
    /// Logs that a connection had to end to make room for another. At most one line a minute tells
    /// the operator.
    fn note_ended(&self, address: IpAddr) {
        let now = now_ns();
        let last = self.noted_ns.load(Ordering::Relaxed);
        if (last == 0 || now.saturating_sub(last) >= NOTE_PAUSE_NS)
            && self
                .noted_ns
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            let (of_address, all) =
                (self.connections.taken_by(&address_owner(address)), self.connections.taken());
            tracing::warn!(
                %address, of_address, all,
                "idle HTTP connections end, because new ones need their places"
            );
        }
    }

    /// Takes a seat for a connection from `address`. If no seat is free, the connection has to be
    /// closed. The client receives the reason if it can be sent without waiting.
    fn sit(&self, stream: &TcpStream, address: IpAddr) -> Option<Arc<Seat<IpAddr>>> {
        match self.connections.take(address_owner(address)) {
            Ok(seat) => Some(Arc::new(seat)),
            Err(why) => {
                if self.config.tls.is_none() {
                    let _ = stream.try_write(if why == Exceeded::Share { CROWDED } else { FULL });
                }
                None
            }
        }
    }
}

/// Serves one connection until it ends or its seat is given to another connection.
async fn handle<I: Invoker>(
    mut stream: TcpStream,
    peer: IpAddr,
    seat: Option<Arc<Seat<IpAddr>>>,
    front: &HttpFront<I>,
) {
    let mut address = peer;
    let mut via = None;
    if let Some(proxies) = &front.config.proxies {
        via = Some(proxies).filter(|proxies| proxies.sends_field(peer));
        if proxies.sends_header(peer) {
            let header = read_header(&mut stream);
            let read = tokio::select! {
                read = tokio::time::timeout(front.config.head_timeout, header) => read,
                () = front.stopper.given_up(front.config.arrival_grace) => return,
            };
            match read {
                Ok(Ok(client)) => address = client.unwrap_or(peer),
                Ok(Err(error)) => {
                    return tracing::debug!(%error, %peer, "no header of the PROXY protocol");
                }
                Err(_) => return tracing::debug!(%peer, "no header of the PROXY protocol in time"),
            }
        }
    }
    let Some(seat) = seat.or_else(|| front.sit(&stream, address)) else { return };
    if via.is_some() {
        // The operator has named this proxy as trusted, and the proxy speaks for all of its
        // clients.
        let _ = seat.prove(Standing::Proven);
    }
    let ended = pin!(seat.ended());
    tokio::select! {
        biased;
        () = open(stream, address, via, &seat, front) => {}
        () = ended => front.note_ended(address),
    }
}

/// Performs the TLS handshake, if the front uses TLS, and serves the connection to its end.
async fn open<I: Invoker>(
    stream: TcpStream,
    address: IpAddr,
    via: Option<&Arc<Proxies>>,
    seat: &Arc<Seat<IpAddr>>,
    front: &HttpFront<I>,
) {
    let socket = match &front.config.tls {
        None => Socket::Plain(stream),
        Some(tls) => {
            let Ok(place) = front.handshakes.take(address_owner(address)) else { return };
            let handshake = TlsAcceptor::from(tls.clone()).accept(stream);
            let opened = tokio::select! {
                opened = tokio::time::timeout(front.config.head_timeout, handshake) => opened,
                () = front.stopper.given_up(front.config.arrival_grace) => return,
                () = place.ended() => {
                    return tracing::debug!(%address, "TLS handshake ended: others needed its place");
                }
            };
            match opened {
                // The handshake itself has answered the authority's challenge (RFC 8737, 3).
                Ok(Ok(session)) if session.get_ref().1.alpn_protocol() == Some(CHALLENGE) => return,
                Ok(Ok(session)) => {
                    let client = TlsClient::of(session.get_ref().1, &front.config);
                    Socket::tls(session, client)
                }
                Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
                Err(_) => return tracing::debug!("TLS handshake took too long"),
            }
        }
    };
    connection::serve(socket, address, via, seat, front).await;
}

/// Accepts the next connection. If the process has no free file descriptors, waits until one is
/// available, because that state is temporary.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // An answer leaves in one write, so delaying it would only add 40 ms.
                let _ = stream.set_nodelay(true);
                return (stream, peer);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
