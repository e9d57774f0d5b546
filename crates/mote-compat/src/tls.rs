//! TLS of the node's own requests: the certificate of whoever is asked has to lead to a root that
//! the machine trusts.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore};

use crate::outgoing::OutgoingError;

/// The machine's roots, read when the first request needs them. They stay until the node ends.
static CONFIG: OnceCell<Arc<ClientConfig>> = OnceCell::const_new();

/// Agrees on keys with `host` over `stream`, and checks its certificate.
pub(crate) async fn connect(
    host: &str,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, OutgoingError> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| OutgoingError::Address("no certificate can be of the URL's host"))?;
    let config = CONFIG.get_or_try_init(config).await?.clone();
    TlsConnector::from(config).connect(name, stream).await.map_err(|error| {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        match inner {
            Some(Error::InvalidCertificate(reason)) => {
                OutgoingError::Certificate(host.to_owned(), reason.to_string())
            }
            _ => OutgoingError::Exchange(format!("TLS: {error}")),
        }
    })
}

async fn config() -> Result<Arc<ClientConfig>, OutgoingError> {
    // Reads some hundred certificates from files.
    let made = tokio::task::spawn_blocking(|| {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        let (taken, _) = roots.add_parsable_certificates(found.certs);
        if taken == 0 {
            return Err(OutgoingError::NoRoots);
        }
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map(|builder| builder.with_root_certificates(roots).with_no_client_auth())
            .map(Arc::new)
            .map_err(|error| OutgoingError::Exchange(format!("TLS: {error}")))
    });
    made.await.map_err(|error| OutgoingError::Connect(io::Error::other(error)))?
}
