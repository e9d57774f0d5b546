//! The client side: connections to a node, and the certificates that they trust.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// The length of a SHA-256 hash in bytes.
const FINGERPRINT_BYTES: usize = 32;

/// Which certificates a client trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Certificates of the authorities that the machine trusts.
    System,
    /// Certificates of the authorities in this file (PEM).
    Authorities(PathBuf),
    /// Only the certificate with this SHA-256 fingerprint, whatever names and times it contains.
    Fingerprint([u8; FINGERPRINT_BYTES]),
}

impl Trust {
    /// Reads a fingerprint in the form that [`crate::Certificates::first`] and `openssl x509
    /// -fingerprint -sha256` write. The colons may be missing.
    pub fn fingerprint(text: &str) -> Option<Self> {
        // openssl writes `sha256 Fingerprint=` before the fingerprint, and other tools write
        // `sha256:`.
        let text = text.rsplit_once('=').map_or(text, |(_, rest)| rest).trim();
        let named =
            ["sha256:", "SHA256:", "SHA-256 "].iter().find_map(|name| text.strip_prefix(name));
        let digits: String = named.unwrap_or(text).chars().filter(|digit| *digit != ':').collect();
        if digits.len() != 2 * FINGERPRINT_BYTES || !digits.is_ascii() {
            return None;
        }
        let mut bytes = [0; FINGERPRINT_BYTES];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self::Fingerprint(bytes))
    }
}

/// The SHA-256 fingerprint, written as two digits for each byte with colons between them.
pub(crate) fn fingerprint_text(certificate: &[u8]) -> String {
    let mut text = String::with_capacity(3 * FINGERPRINT_BYTES - 1);
    for byte in Sha256::digest(certificate) {
        let separator = if text.is_empty() { "" } else { ":" };
        let _ = write!(text, "{separator}{byte:02X}");
    }
    text
}

/// Extracts the fingerprint from the error text about an untrusted certificate
/// ([`Connector::connect`]).
pub fn fingerprint_in(reason: &str) -> Option<&str> {
    let (_, rest) = reason.rsplit_once(SEEN)?;
    rest.strip_suffix(')').filter(|text| Trust::fingerprint(text).is_some())
}

/// The text before the fingerprint in such an error text.
const SEEN: &str = " (SHA-256 ";

/// Makes TLS connections to nodes.
#[derive(Clone)]
pub struct Connector(TlsConnector);

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
    }
}

impl Connector {
    /// A connector that trusts these certificates. An error names the file that cannot be used.
    /// Blocks.
    pub fn new(trust: &Trust) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let verifier = match trust {
            Trust::Fingerprint(fingerprint) => Kind::Fingerprint(*fingerprint),
            Trust::System => {
                let found = rustls_native_certs::load_native_certs();
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() {
                    // No certificate can be trusted. The error of each connection says how to
                    // change that.
                    Kind::Nobody
                } else {
                    Kind::Authorities(verifier(roots, &provider)?)
                }
            }
            Trust::Authorities(path) => Kind::Authorities(verifier(authorities(path)?, &provider)?),
        };
        let verifier = Verifier { kind: verifier, provider: provider.clone() };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Performs the TLS handshake with the node at the other end, whose name or address is `host`.
    /// An untrusted certificate causes an error of the kind `InvalidData`, whose text contains the
    /// fingerprint.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        self.0.connect(name, stream).await.map_err(|error| {
            match error.get_ref().and_then(|inner| inner.downcast_ref()) {
                Some(Error::General(reason)) => {
                    io::Error::new(io::ErrorKind::InvalidData, reason.clone())
                }
                Some(Error::InvalidMessage(_)) => {
                    io::Error::other("it does not speak TLS: write http:// instead of https://")
                }
                Some(other) => io::Error::other(format!("TLS: {other}")),
                None => error,
            }
        })
    }
}

fn authorities(path: &Path) -> Result<RootCertStore, String> {
    let shown = path.display();
    let mut roots = RootCertStore::empty();
    let found = CertificateDer::pem_file_iter(path).map_err(|error| format!("{shown}: {error}"))?;
    for certificate in found {
        let certificate = certificate.map_err(|error| format!("{shown}: {error}"))?;
        roots.add(certificate).map_err(|error| format!("{shown}: {error}"))?;
    }
    if roots.is_empty() { Err(format!("{shown} has no certificate in PEM")) } else { Ok(roots) }
}

fn verifier(
    roots: RootCertStore,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, String> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| error.to_string())
}

/// Checks a certificate, and puts its fingerprint into the error if the certificate is refused.
#[derive(Debug)]
struct Verifier {
    kind: Kind,
    provider: Arc<CryptoProvider>,
}

#[derive(Debug)]
enum Kind {
    Authorities(Arc<WebPkiServerVerifier>),
    Fingerprint([u8; FINGERPRINT_BYTES]),
    Nobody,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let seen = || fingerprint_text(certificate);
        let reason = match &self.kind {
            Kind::Fingerprint(wanted) if Sha256::digest(certificate)[..] == wanted[..] => {
                return Ok(ServerCertVerified::assertion());
            }
            Kind::Fingerprint(_) => "it is another one than the one with the given fingerprint",
            Kind::Nobody => "this machine trusts no authority",
            Kind::Authorities(inner) => {
                match inner.verify_server_cert(certificate, intermediates, name, ocsp, now) {
                    Ok(verified) => return Ok(verified),
                    Err(Error::InvalidCertificate(error)) => match error {
                        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                            "it has expired"
                        }
                        CertificateError::NotValidYet
                        | CertificateError::NotValidYetContext { .. } => "it is not valid yet",
                        CertificateError::NotValidForName
                        | CertificateError::NotValidForNameContext { .. } => {
                            "it is for another host"
                        }
                        _ => "no authority that is trusted here has signed it",
                    },
                    Err(error) => return Err(error),
                }
            }
        };
        Err(Error::General(format!("{reason}{SEEN}{})", seen())))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Acceptor, Certificates, is_encrypted};
    use std::future::pending;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn fingerprints_are_read_as_they_are_written() {
        let text = fingerprint_text(b"certificate");
        let reason = format!("it has expired{SEEN}{text})");
        assert_eq!(fingerprint_in(&reason), Some(&*text));
        assert_eq!(fingerprint_in("it has expired (SHA-256 AB)"), None);
        let read = Trust::fingerprint(&text).unwrap();
        assert_eq!(Trust::fingerprint(&text.replace(':', "").to_lowercase()), Some(read.clone()));
        for before in ["sha256 Fingerprint=", "SHA-256 ", "sha256:"] {
            assert_eq!(Trust::fingerprint(&format!("{before}{text}")), Some(read.clone()));
        }
        for wrong in ["", "AB", &text[..92], &text.replace(['A', '0'], "G"), "é"] {
            assert_eq!(Trust::fingerprint(wrong), None, "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_node_is_trusted_by_fingerprint_or_authority_and_plain_clients_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["localhost".to_owned()];
        let (certificates, _) = Certificates::open(folder.path(), None, Some(&names)).unwrap();
        let certificates = Arc::new(certificates);
        let (file, fingerprint) = certificates.first();
        let acceptor = Acceptor::new(&certificates, &["http/1.1"]).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream, || Some(pending())).await else {
                    continue;
                };
                let told: &[u8] = if is_encrypted(&stream) { b"tls" } else { b"plain" };
                let _ = stream.write_all(told).await;
                let _ = stream.shutdown().await;
            }
        });
        let ask = async |trust: Trust, host: &str| {
            let stream = TcpStream::connect(address).await.unwrap();
            let mut stream = Connector::new(&trust).unwrap().connect(host, stream).await?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await?;
            Ok::<_, io::Error>(text)
        };
        let trusted = Trust::fingerprint(&fingerprint).unwrap();
        assert_eq!(ask(trusted.clone(), "elsewhere").await.unwrap(), "tls");
        assert_eq!(ask(trusted, "127.0.0.1").await.unwrap(), "tls");
        let authority = Trust::Authorities(file);
        assert_eq!(ask(authority.clone(), "localhost").await.unwrap(), "tls");
        let refused = ask(authority, "elsewhere").await.unwrap_err();
        assert!(refused.to_string().contains("it is for another host"), "{refused}");
        let other = Trust::fingerprint(&fingerprint_text(b"another")).unwrap();
        let refused = ask(other, "localhost").await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        assert!(refused.to_string().contains(&fingerprint), "{refused}");

        let mut plain = TcpStream::connect(address).await.unwrap();
        plain.write_all(b"GET").await.unwrap();
        let mut text = String::new();
        plain.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "plain");
        assert!(Connector::new(&Trust::Authorities("/missing".into())).is_err());
    }
}
