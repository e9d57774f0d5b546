//! Requests of the node's own: callbacks with the result of an accepted call, and archives that a
//! client names by address. HTTP/1.1, plain or over TLS; bounded in time and size; no redirects are
//! followed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::http::{HeaderMap, Method, Uri};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::tls;

/// Longest time for one request, its answer included.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Which addresses may be reached for somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Any: who asks is on this machine, or manages it.
    Any,
    /// None that only this machine reaches: the management of other platforms may listen there
    /// without credentials, and whoever calls a function from outside must not be led to it.
    Beyond,
}

/// Why a request of ours was not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutgoingError {
    /// The address cannot be used.
    #[error("{0}")]
    Address(&'static str),
    /// It is not to be reached for this caller.
    #[error("{0} is reached by this machine only")]
    NotAllowed(IpAddr),
    /// Nobody could be reached.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// Whoever answered is not shown to be the host that was asked.
    #[error("the certificate of {0} is refused: {1}")]
    Certificate(String, String),
    /// Nothing could be checked.
    #[error("this machine has no root certificates: install ca-certificates, or set SSL_CERT_FILE")]
    NoRoots,
    /// The exchange broke.
    #[error("the exchange failed: {0}")]
    Exchange(String),
    /// It took too long.
    #[error("no answer within {} s", TIMEOUT.as_secs())]
    Timeout,
}

impl OutgoingError {
    /// Whether another try would meet the same.
    pub(crate) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Address(_) | Self::NotAllowed(_) | Self::Certificate(..) | Self::NoRoots
        )
    }
}

/// Checks an address before anything is promised.
pub(crate) fn check(url: &str) -> Result<Uri, OutgoingError> {
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

/// Sends one request; returns status and body, the body refused past `limit_bytes`.
pub(crate) async fn send(
    method: Method,
    uri: &Uri,
    fields: HeaderMap,
    body: Bytes,
    reach: Reach,
    limit_bytes: usize,
) -> Result<(u16, Bytes), OutgoingError> {
    let sent = async {
        let stream = connect(uri, reach).await?;
        if is_secure(uri) {
            let stream = tls::connect(host(uri), stream).await?;
            exchange(stream, method, uri, fields, body, limit_bytes).await
        } else {
            exchange(stream, method, uri, fields, body, limit_bytes).await
        }
    };
    tokio::time::timeout(TIMEOUT, sent).await.map_err(|_| OutgoingError::Timeout)?
}

fn is_secure(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https")
}

/// The host without the brackets of an address.
fn host(uri: &Uri) -> &str {
    uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    method: Method,
    uri: &Uri,
    fields: HeaderMap,
    body: Bytes,
    limit_bytes: usize,
) -> Result<(u16, Bytes), OutgoingError> {
    let failed = |error: &dyn std::fmt::Display| OutgoingError::Exchange(error.to_string());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed(&error))?;
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
    let request = request.body(Full::new(body)).map_err(|error| failed(&error))?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), limit_bytes).collect().await;
        Ok((status, body.map_err(|error| failed(&error))?.to_bytes()))
    };
    let mut connection = std::pin::pin!(connection);
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // The connection may end with the last byte of the answer.
        _ = connection.as_mut() => answer.await,
    }
}

async fn connect(uri: &Uri, reach: Reach) -> Result<TcpStream, OutgoingError> {
    let port = uri.port_u16().unwrap_or(if is_secure(uri) { 443 } else { 80 });
    let found: Vec<SocketAddr> =
        tokio::net::lookup_host((host(uri), port)).await.map_err(OutgoingError::Connect)?.collect();
    let mut last = None;
    for address in found {
        if reach == Reach::Beyond && is_own(address.ip()) {
            last = Some(OutgoingError::NotAllowed(address.ip()));
            continue;
        }
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(OutgoingError::Connect(error)),
        }
    }
    Err(last.unwrap_or_else(|| OutgoingError::Connect(io::ErrorKind::NotFound.into())))
}

/// Whether only this machine, or its link, reaches an address.
fn is_own(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_unspecified() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unspecified() || ip.is_unicast_link_local(),
    }
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
        for ip in ["127.0.0.1", "::1", "0.0.0.0", "169.254.1.1", "fe80::1", "::ffff:127.0.0.1"] {
            assert!(is_own(ip.parse().expect("an address")), "{ip}");
        }
        assert!(!is_own("192.168.1.4".parse().expect("an address")));
    }

    #[tokio::test]
    async fn who_calls_from_outside_does_not_reach_this_machines_own() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = socket.local_addr().expect("bound");
        for scheme in ["http", "https"] {
            let uri = check(&format!("{scheme}://{address}/wipe")).expect("fine");
            let (post, none) = (Method::POST, Bytes::new());
            let sent = send(post, &uri, HeaderMap::new(), none, Reach::Beyond, 1_024).await;
            assert!(matches!(sent, Err(OutgoingError::NotAllowed(_))), "{sent:?}");
        }
    }
}
