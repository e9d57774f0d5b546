//! TLS for the node's own requests. The server's certificate must lead to a root certificate that
//! the machine trusts.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio::task::JoinError;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore};

/// The machine's root certificates. They are read when the first request needs them, and kept until
/// the node ends.
static CONFIG: OnceCell<Arc<ClientConfig>> = OnceCell::const_new();

/// The reason why TLS with a host failed.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The host is neither a name nor an address.
    #[error("the URL's host cannot have a certificate")]
    Host,
    /// The certificate does not prove that the server is the requested host.
    #[error("the certificate of {0} is not valid: {1}")]
    Certificate(String, String),
    /// The machine has no root certificates to check against.
    #[error("this machine has no root certificates: install ca-certificates, or set SSL_CERT_FILE")]
    NoRoots,
    /// Reading the root certificates did not finish.
    #[error("cannot connect")]
    Roots(#[source] JoinError),
    /// The exchange failed.
    #[error("the exchange failed: TLS: {0}")]
    Exchange(String),
}

impl TlsError {
    /// Whether another attempt would fail in the same way.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Host | Self::Certificate(..) | Self::NoRoots)
    }
}

/// Performs the TLS handshake with `host` over `stream`, and checks the host's certificate.
pub(crate) async fn connect(
    host: &str,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, TlsError> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Host)?;
    let config = CONFIG.get_or_try_init(config).await?.clone();
    TlsConnector::from(config).connect(name, stream).await.map_err(|error| {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        match inner {
            Some(Error::InvalidCertificate(reason)) => {
                TlsError::Certificate(host.to_owned(), reason.to_string())
            }
            _ => TlsError::Exchange(error.to_string()),
        }
    })
}

async fn config() -> Result<Arc<ClientConfig>, TlsError> {
    // Blocks, because it reads some hundred certificates from files.
    let made = tokio::task::spawn_blocking(|| {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        let (taken, _) = roots.add_parsable_certificates(found.certs);
        if taken == 0 {
            return Err(TlsError::NoRoots);
        }
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map(|builder| builder.with_root_certificates(roots).with_no_client_auth())
            .map(Arc::new)
            .map_err(|error| TlsError::Exchange(error.to_string()))
    });
    made.await.map_err(TlsError::Roots)?
}
