//! TLS connections to a broker.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore};

use crate::state::Problem;

/// The contents (PEM) of the secrets that a trigger names.
#[derive(Debug, Default)]
pub(crate) struct Pem {
    /// The authorities that may have signed the broker's certificate. `None` means the authorities
    /// that the machine trusts.
    pub(crate) ca: Option<String>,
    /// The client's certificate and its key.
    pub(crate) client: Option<(String, String)>,
}

/// Performs the TLS handshake with the broker `host` over `stream`, and checks the broker's
/// certificate.
pub(crate) async fn connect(
    host: &str,
    stream: TcpStream,
    pem: Pem,
) -> Result<TlsStream<TcpStream>, Problem> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| Problem::Tls(format!("{host} cannot have a certificate")))?;
    // If the trigger names no authorities, this reads some hundred certificates from files, so it
    // runs on a blocking thread.
    let config = tokio::task::spawn_blocking(move || config(&pem)).await;
    let config = config.map_err(|_| Problem::Tls("cannot read certificates".to_owned()))??;
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|error| problem(&error).unwrap_or_else(|| Problem::Unreachable(error.to_string())))
}

/// If TLS is the reason for the error, returns the problem. A broker refuses a client's certificate
/// only after the client's part of the handshake is complete, so such an error can also come from a
/// later read or write.
pub(crate) fn problem(error: &std::io::Error) -> Option<Problem> {
    let inner = error.get_ref()?.downcast_ref::<Error>()?;
    Some(Problem::Tls(inner.to_string()))
}

fn config(pem: &Pem) -> Result<ClientConfig, Problem> {
    let wrong = |text: &str| Problem::Tls(text.to_owned());
    let mut roots = RootCertStore::empty();
    match &pem.ca {
        Some(text) => {
            for certificate in certificates(text, "ca")? {
                roots.add(certificate).map_err(|error| Problem::Tls(format!("ca: {error}")))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        }
    }
    if roots.is_empty() {
        return Err(wrong("this machine has no root certificates; name one with ca"));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Problem::Tls(error.to_string()))?
        .with_root_certificates(roots);
    match &pem.client {
        None => Ok(builder.with_no_client_auth()),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
                .map_err(|_| wrong("the secret of key holds no private key (PEM)"))?;
            builder
                .with_client_auth_cert(certificates(certificate, "certificate")?, key)
                .map_err(|error| Problem::Tls(format!("certificate and key: {error}")))
        }
    }
}

fn certificates(text: &str, key: &str) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(Problem::Tls(format!("the secret of {key} holds no certificate (PEM)"))),
    }
}
