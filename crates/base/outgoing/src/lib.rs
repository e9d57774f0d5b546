//! Requests that the node itself sends: results of accepted invocations, downloads of archives that
//! a client names by address, and queries for the keys of a token issuer. The requests use
//! HTTP/1.1, plain or over TLS, are limited in time and size, and do not follow redirects.
//!
//! This crate must not know about functions, nor which part of the node makes a request. Start with
//! [`Outgoing`], which says where requests may go. `tls.rs` has the certificate authorities that
//! are trusted.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::Connection;
pub use hyper::header::{HeaderName, HeaderValue};
pub use hyper::{HeaderMap, Method, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

pub use crate::tls::TlsError;

mod tls;

/// Longest time for one request and its answer; for an answer that is read in pieces, the longest
/// time until its head or its next piece.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The addresses that the node's own requests (callbacks, archives) may reach. A caller names the
/// address, and services on this machine or its network may trust the node. So by default only
/// public internet addresses are permitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Reach {
    /// Only addresses of the internet.
    #[default]
    Public,
    /// Also addresses of private networks.
    Network,
    /// All addresses, including those of this machine and its links, but never the node's own
    /// listeners.
    Machine,
}

impl std::str::FromStr for Reach {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "public" => Ok(Self::Public),
            "network" => Ok(Self::Network),
            "machine" => Ok(Self::Machine),
            _ => Err(()),
        }
    }
}

impl Reach {
    /// The strictest setting that permits an address; `None` for an address that does not belong to
    /// a single host.
    fn needed(ip: IpAddr) -> Option<Self> {
        let (own, private, other) = match canonical(ip) {
            IpAddr::V4(ip) => {
                let [a, b, ..] = ip.octets();
                let shared = a == 100 && b & 0xc0 == 64; // RFC 6598
                (
                    ip.is_loopback() || a == 0 || ip.is_link_local(),
                    ip.is_private() || shared,
                    ip.is_multicast() || ip.is_broadcast(),
                )
            }
            IpAddr::V6(ip) => (
                ip.is_loopback() || ip.is_unspecified() || ip.is_unicast_link_local(),
                ip.is_unique_local() || ip.segments()[0] & 0xffc0 == 0xfec0,
                ip.is_multicast(),
            ),
        };
        match (own, private, other) {
            (.., true) => None,
            (true, ..) => Some(Self::Machine),
            (_, true, _) => Some(Self::Network),
            _ => Some(Self::Public),
        }
    }
}

/// The address at which a packet to `ip` arrives. This differs from `ip` if `ip` only carries an
/// IPv4 address: mapped, compatible, or translated (RFC 4291, 2.5.5; RFC 6052).
fn canonical(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip.to_canonical() else { return ip.to_canonical() };
    match v6.segments() {
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => v4(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        _ => IpAddr::V6(v6),
    }
}

fn v4(high: u16, low: u16) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
}

/// The rule for the requests that the node itself sends.
#[derive(Debug, Clone, Default)]
pub struct Outgoing {
    /// The addresses that the requests may reach.
    pub reach: Reach,
    /// TCP ports on which the node listens. Requests never reach these ports on this machine,
    /// whatever `reach` permits, because the management APIs trust clients on this machine.
    pub own_ports: Arc<[u16]>,
    /// Further ports that must not be reached: the ones that the node opens and closes while it
    /// runs.
    pub open_ports: OpenPorts,
}

/// TCP ports that a node opens and closes while it runs. A clone is another handle to the same set.
#[derive(Debug, Clone, Default)]
pub struct OpenPorts(Arc<Mutex<BTreeSet<u16>>>);

impl OpenPorts {
    /// Records that the node listens on this port.
    pub fn open(&self, port: u16) {
        self.lock().insert(port);
    }

    /// Records that the node no longer listens on this port.
    pub fn close(&self, port: u16) {
        self.lock().remove(&port);
    }

    /// Whether the node listens on this port.
    pub fn contains(&self, port: u16) -> bool {
        self.lock().contains(&port)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outgoing {
    /// The rule for requests that a function (or `NAME@TAG`) causes. Requests of a function in a
    /// namespace may reach only addresses of the internet.
    pub fn of(&self, function: &str) -> Self {
        let is_in_namespace = function.contains('.');
        let reach = if is_in_namespace { Reach::Public } else { self.reach };
        Self { reach, ..self.clone() }
    }

    /// Checks that the node may connect to an address to which a name resolved.
    fn check(&self, address: SocketAddr) -> Result<(), OutgoingError> {
        match Reach::needed(address.ip()) {
            Some(Reach::Machine) => self.check_own(address),
            Some(needed) if needed <= self.reach => Ok(()),
            _ => Err(OutgoingError::NotAllowed(address.ip())),
        }
    }

    /// Checks a URL before its name is resolved: it must be a valid URL, and if it contains an
    /// address, the address must be permitted.
    pub fn check_url(&self, url: &str) -> Result<(), OutgoingError> {
        let uri = check(url)?;
        let port = uri.port_u16().unwrap_or(if is_secure(&uri) { 443 } else { 80 });
        match host(&uri).parse() {
            Ok(ip) => self.check(SocketAddr::new(ip, port)),
            Err(_) => Ok(()),
        }
    }

    /// Checks that requests may reach an address of this machine.
    fn check_own(&self, address: SocketAddr) -> Result<(), OutgoingError> {
        let port = address.port();
        if self.own_ports.contains(&port) || self.open_ports.contains(port) {
            return Err(OutgoingError::Own(address));
        }
        if self.reach < Reach::Machine {
            return Err(OutgoingError::NotAllowed(address.ip()));
        }
        Ok(())
    }
}

/// Why a request received no answer.
#[derive(Debug, thiserror::Error)]
pub enum OutgoingError {
    /// The address cannot be used.
    #[error("{0}")]
    Address(&'static str),
    /// The address is not permitted.
    #[error("{0} is not a public address: the node's setting `outgoing` must permit it")]
    NotAllowed(IpAddr),
    /// The node itself listens there.
    #[error("{0} is an address of the node itself")]
    Own(SocketAddr),
    /// No connection could be made.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// TLS with the server failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The exchange failed.
    #[error("the exchange failed: {0}")]
    Exchange(String),
    /// The body of the answer is longer than the caller reads.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    /// The request took too long.
    #[error("no answer within {} s", TIMEOUT.as_secs())]
    Timeout,
}

impl OutgoingError {
    /// Whether another attempt would fail in the same way.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Address(_) | Self::NotAllowed(_) | Self::Own(_) => true,
            Self::Tls(error) => error.is_final(),
            Self::Connect(_) | Self::Exchange(_) | Self::TooLong(_) | Self::Timeout => false,
        }
    }
}

/// Checks the form of a URL, before anything is accepted.
pub fn check(url: &str) -> Result<Uri, OutgoingError> {
    let uri: Uri = url.parse().map_err(|_| OutgoingError::Address("not a URL"))?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        _ => return Err(OutgoingError::Address("not an http or https URL")),
    }
    match uri.host() {
        Some(host) if !host.is_empty() => Ok(uri),
        _ => Err(OutgoingError::Address("the URL names no host")),
    }
}

/// Sends one request; returns the status, fields and body of the answer. A body above `limit_bytes`
/// is refused.
pub async fn send(
    method: Method,
    uri: &Uri,
    fields: HeaderMap,
    body: Bytes,
    outgoing: &Outgoing,
    limit_bytes: usize,
) -> Result<(u16, HeaderMap, Bytes), OutgoingError> {
    let sent = async {
        let answer = open(method, uri, fields, body, outgoing).await?;
        let (status, fields) = (answer.status, answer.fields.clone());
        Ok((status, fields, answer.rest(limit_bytes).await?))
    };
    tokio::time::timeout(TIMEOUT, sent).await.map_err(|_| OutgoingError::Timeout)?
}

/// Sends one request; returns the head of the answer, and its body in pieces. Each step may take as
/// long as a whole request of [`send`]; the caller limits the number and size of the pieces.
pub async fn open(
    method: Method,
    uri: &Uri,
    fields: HeaderMap,
    body: Bytes,
    outgoing: &Outgoing,
) -> Result<Answer, OutgoingError> {
    let opened = async {
        let (stream, reach) = connect(uri, outgoing).await?;
        // Both kinds of stream share one type, so that the code of an exchange is compiled only
        // once.
        let stream: Box<dyn Stream> = if is_secure(uri) {
            Box::new(tls::connect(host(uri), stream).await?)
        } else {
            Box::new(stream)
        };
        exchange(stream, reach, method, uri, fields, body).await
    };
    tokio::time::timeout(TIMEOUT, opened).await.map_err(|_| OutgoingError::Timeout)?
}

fn is_secure(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https")
}

/// The host. The brackets around an IPv6 address are removed.
fn host(uri: &Uri) -> &str {
    uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}

/// A connection, either plain or with TLS.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

async fn exchange(
    stream: Box<dyn Stream>,
    reach: Reach,
    method: Method,
    uri: &Uri,
    fields: HeaderMap,
    body: Bytes,
) -> Result<Answer, OutgoingError> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let mut request = hyper::Request::builder().method(method).uri(target);
    if let Some(all) = request.headers_mut() {
        *all = fields;
        if let Some(host) = uri.authority().and_then(|host| host.as_str().rsplit('@').next())
            && let Ok(host) = host.parse()
        {
            all.insert("host", host);
        }
    }
    let request = request.body(Full::new(body)).map_err(failed)?;
    let mut connection = Box::pin(connection);
    let mut is_open = true;
    let mut response = std::pin::pin!(sender.send_request(request));
    let response = tokio::select! {
        response = &mut response => response,
        // The connection may end together with the last byte of the answer.
        _ = connection.as_mut() => {
            is_open = false;
            response.await
        }
    };
    let (head, body) = response.map_err(failed)?.into_parts();
    Ok(Answer {
        status: head.status.as_u16(),
        fields: head.headers,
        reach,
        body,
        connection: is_open.then_some(connection),
    })
}

fn failed(error: impl std::fmt::Display) -> OutgoingError {
    OutgoingError::Exchange(error.to_string())
}

/// The future that moves the bytes of an exchange.
type Exchange = Connection<TokioIo<Box<dyn Stream>>, Full<Bytes>>;

/// An answer whose head has arrived. Dropping it closes the connection.
pub struct Answer {
    pub status: u16,
    pub fields: HeaderMap,
    /// The strictest setting that permits the server's address.
    pub reach: Reach,
    body: Incoming,
    /// `None` when it has ended.
    connection: Option<Pin<Box<Exchange>>>,
}

impl Answer {
    /// Returns the next piece of the body, or `None` at its end. A body that ends too early is an
    /// error.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, OutgoingError> {
        let Self { body, connection, .. } = self;
        let read = async {
            loop {
                let frame = match connection {
                    None => body.frame().await,
                    Some(running) => tokio::select! {
                        frame = body.frame() => frame,
                        _ = running.as_mut() => {
                            *connection = None;
                            continue;
                        }
                    },
                };
                match frame {
                    None => return Ok(None),
                    Some(Err(error)) => return Err(failed(error)),
                    // Anything else is trailers.
                    Some(Ok(frame)) => {
                        if let Ok(data) = frame.into_data() {
                            return Ok(Some(data));
                        }
                    }
                }
            }
        };
        tokio::time::timeout(TIMEOUT, read).await.map_err(|_| OutgoingError::Timeout)?
    }

    /// Returns the whole body. A body above `limit_bytes` is refused.
    pub async fn rest(mut self, limit_bytes: usize) -> Result<Bytes, OutgoingError> {
        let mut all = BytesMut::new();
        while let Some(piece) = self.piece().await? {
            if all.len() + piece.len() > limit_bytes {
                return Err(OutgoingError::TooLong(limit_bytes));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }
}

/// Connects to the first permitted address of a host. The connection uses the very address that was
/// checked, so the name cannot resolve to a different one in between. Also returns the strictest
/// setting that permits this address.
async fn connect(uri: &Uri, outgoing: &Outgoing) -> Result<(TcpStream, Reach), OutgoingError> {
    let port = uri.port_u16().unwrap_or(if is_secure(uri) { 443 } else { 80 });
    let found: Vec<SocketAddr> =
        tokio::net::lookup_host((host(uri), port)).await.map_err(OutgoingError::Connect)?.collect();
    let mut last = None;
    for address in found {
        if let Err(error) = outgoing.check(address) {
            last = Some(error);
            continue;
        }
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // An address of this machine that is not loopback can be recognised only now,
                // because both ends of the connection then have the same address.
                let local = stream.local_addr().map_err(OutgoingError::Connect)?;
                if local.ip() == address.ip() {
                    outgoing.check_own(address)?;
                    return Ok((stream, Reach::Machine));
                }
                return Ok((stream, Reach::needed(address.ip()).unwrap_or(Reach::Machine)));
            }
            Err(error) => last = Some(OutgoingError::Connect(error)),
        }
    }
    Err(last.unwrap_or_else(|| OutgoingError::Connect(io::ErrorKind::NotFound.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert!(check("http://127.0.0.1:8080/x").is_ok());
        assert!(check("https://a/").is_ok());
        for url in ["ftp://a/", "/x", "", "a b", "http://"] {
            assert!(check(url).is_err(), "{url}");
        }
        let needed = |ip: &str| Reach::needed(ip.parse().expect("an address"));
        for ip in [
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "169.254.1.1",
            "fe80::1",
            "::ffff:127.0.0.1",
            "::ffff:0.0.0.0",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
        ] {
            assert_eq!(needed(ip), Some(Reach::Machine), "{ip}");
        }
        for ip in [
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.4",
            "100.64.0.1",
            "fd00::1",
            "fec0::1",
            "::ffff:10.0.0.1",
            "64:ff9b::c0a8:104",
        ] {
            assert_eq!(needed(ip), Some(Reach::Network), "{ip}");
        }
        for ip in ["192.0.2.1", "172.32.0.1", "100.128.0.1", "2001:db8::1"] {
            assert_eq!(needed(ip), Some(Reach::Public), "{ip}");
        }
        for ip in ["224.0.0.1", "255.255.255.255", "ff02::1"] {
            assert_eq!(needed(ip), None, "{ip}");
        }
    }

    #[tokio::test]
    async fn what_may_be_reached_is_said_by_the_setting_and_never_the_node_itself() {
        let socket = std::net::TcpListener::bind("0.0.0.0:0").expect("a port");
        let port = socket.local_addr().expect("bound").port();
        let try_all = |outgoing: Outgoing| async move {
            let mut all = Vec::new();
            for host in ["127.0.0.1", "127.0.0.2", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]"] {
                let uri = check(&format!("http://{host}:{port}/wipe")).expect("fine");
                all.push(connect(&uri, &outgoing).await.map(|_| ()));
            }
            all
        };
        for reach in [Reach::Public, Reach::Network] {
            for tried in try_all(Outgoing { reach, ..Default::default() }).await {
                assert!(matches!(tried, Err(OutgoingError::NotAllowed(_))), "{tried:?}");
            }
        }
        let all = try_all(Outgoing { reach: Reach::Machine, ..Default::default() }).await;
        assert!(all.iter().all(Result::is_ok), "{all:?}");
        let reach = Reach::Machine;
        let own = Outgoing { reach, own_ports: [1, port].into(), ..Default::default() };
        let opened = Outgoing { reach, ..Default::default() };
        opened.open_ports.open(port);
        for tried in try_all(own).await.into_iter().chain(try_all(opened.clone()).await) {
            assert!(matches!(tried, Err(OutgoingError::Own(_))), "{tried:?}");
        }
        opened.open_ports.close(port);
        assert!(try_all(opened).await.iter().all(Result::is_ok));
    }
}
