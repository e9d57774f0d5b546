//! TLS 1.3 in which each side proves that it has the key that the other side expects.
//!
//! Each side of a connection presents a public Ed25519 key (RFC 7250) and accepts exactly one key.
//! A handshake therefore succeeds only between the two intended parties, and everything after it is
//! encrypted. There are no certificates or names, and no dates that could expire.
//!
//! This module must not know who the parties are or where their keys come from.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key,
};
use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig,
    SignatureScheme,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub use tokio_rustls::rustls::Error;

/// The bytes before the 32 bytes of a private Ed25519 key in PKCS#8 (RFC 8410).
const PKCS8_HEAD: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
/// The bytes before the 32 bytes of a public key in a SubjectPublicKeyInfo.
const SPKI_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

/// The public half of a key. Its text form is 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Reads the text form.
    pub fn from_text(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 2 * bytes.len() || !text.is_ascii() {
            return None;
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    fn der(self) -> CertificateDer<'static> {
        CertificateDer::from([SPKI_HEAD.as_slice(), &self.0].concat())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// A key pair. Debug output does not show it, and the private half cannot be read back.
#[derive(Clone)]
pub struct KeyPair {
    own: Arc<CertifiedKey>,
    public: PublicKey,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({})", self.public)
    }
}

impl KeyPair {
    /// Derives a key pair from a secret. The same secret gives unrelated pairs for different
    /// `purpose`s. The secret must be random, because everyone who sees the public key could try to
    /// guess it.
    pub fn derive(purpose: &str, secret: &[u8]) -> Result<Self, Error> {
        let mut hash = Sha256::new();
        hash.update(purpose.as_bytes());
        hash.update([0]);
        hash.update(secret);
        let mut pkcs8 = PKCS8_HEAD.to_vec();
        pkcs8.extend_from_slice(&hash.finalize());
        let own = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8))?;
        let no_key = || Error::General("no public key".to_owned());
        let der = own.public_key().ok_or_else(no_key)?;
        let public = der.strip_prefix(SPKI_HEAD.as_slice()).and_then(|key| key.try_into().ok());
        let public = PublicKey(public.ok_or_else(no_key)?);
        let own = Arc::new(CertifiedKey::new(vec![public.der()], own));
        Ok(Self { own, public })
    }

    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Connects to the party with the key `theirs`.
    pub fn connector(&self, theirs: PublicKey) -> Result<TlsConnector, Error> {
        let provider = Arc::new(ring::default_provider());
        let expected = Arc::new(Expected::new(theirs, &provider));
        let own = Arc::new(AlwaysResolvesClientRawPublicKeys::new(self.own.clone()));
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(expected)
            .with_client_cert_resolver(own);
        client.enable_sni = false;
        client.resumption = Resumption::disabled();
        Ok(TlsConnector::from(Arc::new(client)))
    }

    /// Accepts connections from the party with the key `theirs`.
    pub fn acceptor(&self, theirs: PublicKey) -> Result<TlsAcceptor, Error> {
        let provider = Arc::new(ring::default_provider());
        let expected = Arc::new(Expected::new(theirs, &provider));
        let own = Arc::new(AlwaysResolvesServerRawPublicKeys::new(self.own.clone()));
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(expected)
            .with_cert_resolver(own);
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(TlsAcceptor::from(Arc::new(server)))
    }
}

/// A name, because TLS requires one. The name is neither sent nor compared.
pub fn no_name() -> ServerName<'static> {
    ServerName::try_from("peer").expect("it is a valid name")
}

/// Whether a handshake failed because the other side has another key or no key.
pub fn is_other_key(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(
        inner,
        Some(
            Error::InvalidCertificate(_)
                | Error::AlertReceived(_)
                | Error::NoCertificatesPresented
                | Error::PeerIncompatible(_)
        )
    )
}

/// Accepts exactly one key.
#[derive(Debug)]
struct Expected {
    public: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Expected {
    fn new(public: PublicKey, provider: &CryptoProvider) -> Self {
        let algorithms = provider.signature_verification_algorithms;
        Self { public: public.der(), algorithms }
    }

    fn check(&self, theirs: &CertificateDer<'_>) -> Result<(), Error> {
        if *theirs == self.public {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn check_signature(
        &self,
        message: &[u8],
        theirs: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check(theirs)?;
        let public = SubjectPublicKeyInfoDer::from(theirs.as_ref());
        verify_tls13_signature_with_raw_key(message, &public, signature, &self.algorithms)
    }

    fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken here".to_owned()))
    }
}

impl ServerCertVerifier for Expected {
    fn verify_server_cert(
        &self,
        theirs: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(theirs).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        theirs: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, theirs, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Expected {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        theirs: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(theirs).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        theirs: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, theirs, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Lets a client and a server shake hands. Each has a key and expects the key in `expected`.
    /// Returns whether each side succeeded.
    async fn shake(client: &KeyPair, server: &KeyPair, expected: [PublicKey; 2]) -> (bool, bool) {
        let (near, far) = tokio::io::duplex(64 << 10);
        let (connector, acceptor) =
            (client.connector(expected[0]).unwrap(), server.acceptor(expected[1]).unwrap());
        let client = async {
            let mut stream = connector.connect(no_name(), near).await?;
            stream.write_all(b"hello").await?;
            stream.flush().await?;
            // With TLS 1.3 the client learns only now whether the server has accepted it.
            stream.read_u8().await
        };
        let server = async {
            let mut stream = acceptor.accept(far).await?;
            let mut text = [0; 5];
            stream.read_exact(&mut text).await?;
            stream.write_u8(text[0]).await?;
            stream.flush().await
        };
        let (client, server) = tokio::join!(client, server);
        for error in client.as_ref().err().into_iter().chain(server.as_ref().err()) {
            assert!(is_other_key(error), "{error:?}");
        }
        (client.is_ok(), server.is_ok())
    }

    #[tokio::test]
    async fn each_side_needs_the_key_that_the_other_expects() {
        let [a, b, c] = ["a", "b", "c"].map(|of| KeyPair::derive(of, &[7; 32]).unwrap());
        assert_eq!(shake(&a, &b, [b.public(), a.public()]).await, (true, true));
        assert_eq!(shake(&a, &c, [b.public(), a.public()]).await, (false, false));
        let (_, accepted) = shake(&c, &b, [b.public(), a.public()]).await;
        assert!(!accepted);
    }

    #[test]
    fn a_public_key_has_a_text_form() {
        let key = KeyPair::derive("test", &[1; 32]).unwrap().public();
        let text = key.to_string();
        assert_eq!((text.len(), PublicKey::from_text(&text)), (64, Some(key)));
        for wrong in ["", "00", &text[1..], &text.replace(char::is_numeric, "x")] {
            assert_eq!(PublicKey::from_text(wrong), None, "{wrong}");
        }
    }
}
