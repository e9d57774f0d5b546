//! Hands the node's certificates with their private keys, and the client authorities, to a
//! companion program that speaks TLS in place of the node.
//!
//! The node writes a message to the program's standard input when the program starts and after each
//! change, so no key is in an argument, a variable or a file of the program. A message consists of
//! its length in four bytes and of parts, each of which also begins with its length. The first part
//! holds the authorities (empty if there are none). One part for each certificate follows, and
//! consists of the private key and the chain as parts.

use std::io::{self, Read};
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, ServerConfig};

use crate::{Certificates, ClientAuthorities, chosen, server};

/// The longest message. The file of the authorities may use half of it.
const MESSAGE_BYTES_MAX: usize = 32 << 20;
/// The name of the authorities in the program's log.
const CLIENT_CA: &str = "client_ca";

/// The node's side.
#[derive(Debug, Clone)]
pub struct Handover {
    certificates: Arc<Certificates>,
    clients: Option<Arc<ClientAuthorities>>,
}

impl Handover {
    /// Hands over these certificates and authorities.
    pub fn new(certificates: Arc<Certificates>, clients: Option<Arc<ClientAuthorities>>) -> Self {
        Self { certificates, clients }
    }

    /// The client authorities, if there are any.
    pub fn clients(&self) -> Option<Arc<ClientAuthorities>> {
        self.clients.clone()
    }

    /// The first certificate that has an ECDSA key and at most `bytes_max` bytes, together with its
    /// key, both in DER.
    pub fn ecdsa(&self, bytes_max: usize) -> Option<(Vec<u8>, Vec<u8>)> {
        let loaded = self.certificates.loaded.read().clone();
        let one = loaded.iter().find(|one| one.is_ecdsa(bytes_max))?;
        Some((one.key.cert.first()?.to_vec(), one.secret.secret_der().to_vec()))
    }

    /// Notifies when the message has changed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.certificates.changes.subscribe()
    }

    /// The message with the current certificates and authorities. Certificates that do not fit into
    /// the longest message are left out.
    pub fn message(&self) -> Vec<u8> {
        let mut parts = Vec::new();
        push(&mut parts, &self.clients.as_ref().map(|clients| clients.text()).unwrap_or_default());
        for one in self.certificates.loaded.read().iter() {
            let mut certificate = Vec::new();
            push(&mut certificate, one.secret.secret_der());
            one.key.cert.iter().for_each(|part| push(&mut certificate, part));
            if parts.len() + certificate.len() + 4 > MESSAGE_BYTES_MAX {
                let first_without = one.pair.chain.display();
                tracing::warn!(%first_without, "there are more certificates than can be handed over");
                break;
            }
            push(&mut parts, &certificate);
        }
        let mut message = Vec::with_capacity(parts.len() + 4);
        push(&mut message, &parts);
        message
    }
}

/// Certificates with their keys.
type Keys = Arc<[Arc<CertifiedKey>]>;

/// The program's side: what the node has handed over.
#[derive(Debug)]
pub struct Received {
    provider: Arc<CryptoProvider>,
    keys: RwLock<Keys>,
    clients: Option<Arc<ClientAuthorities>>,
}

impl Received {
    /// Reads the first message.
    pub fn new(message: &[u8]) -> io::Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let (clients, keys) = parts(message, &provider)?;
        let clients = match clients {
            [] => None,
            text => {
                let clients = ClientAuthorities::of_text(CLIENT_CA, text);
                Some(Arc::new(clients.map_err(io::Error::other)?))
            }
        };
        Ok(Self { provider, keys: RwLock::new(keys), clients })
    }

    /// Replaces the content by that of a later message, for new connections. After an error,
    /// nothing has changed.
    pub fn replace(&self, message: &[u8]) -> io::Result<()> {
        let (text, keys) = parts(message, &self.provider)?;
        if let Some(clients) = &self.clients {
            clients.replace(text).map_err(io::Error::other)?;
        }
        *self.keys.write() = keys;
        Ok(())
    }

    /// The settings of a listener, as described at [`Certificates::server`].
    pub fn server(self: &Arc<Self>, alpn: &[&str]) -> Result<Arc<ServerConfig>, rustls::Error> {
        let server = server(self.provider.clone(), self.clone(), alpn, self.clients.clone())?;
        Ok(Arc::new(server))
    }
}

impl ResolvesServerCert for Received {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let keys = self.keys.read().clone();
        chosen(keys.iter(), &hello)
    }
}

/// Reads a message and returns it without its length. Blocks until a message has arrived. Fails if
/// the input ends.
pub fn read_message(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(garbled());
    }
    let mut message = vec![0; length];
    input.read_exact(&mut message)?;
    Ok(message)
}

/// Splits a message into the text of the authorities and the certificates with their keys.
fn parts<'a>(mut message: &'a [u8], provider: &CryptoProvider) -> io::Result<(&'a [u8], Keys)> {
    let clients = take(&mut message)?;
    let mut keys = Vec::new();
    while !message.is_empty() {
        keys.push(Arc::new(certified(take(&mut message)?, provider)?));
    }
    Ok((clients, keys.into()))
}

fn certified(mut parts: &[u8], provider: &CryptoProvider) -> io::Result<CertifiedKey> {
    let secret = PrivateKeyDer::try_from(take(&mut parts)?).map_err(io::Error::other)?;
    let key = provider.key_provider.load_private_key(secret.clone_key());
    let key = key.map_err(io::Error::other)?;
    let mut chain = Vec::new();
    while !parts.is_empty() {
        chain.push(CertificateDer::from(take(&mut parts)?.to_vec()));
    }
    if chain.is_empty() {
        return Err(garbled());
    }
    Ok(CertifiedKey::new(chain, key))
}

/// Appends a part. The total length of all parts fits into four bytes.
fn push(into: &mut Vec<u8>, part: &[u8]) {
    into.extend_from_slice(&(part.len() as u32).to_be_bytes());
    into.extend_from_slice(part);
}

/// Takes a part from the beginning.
fn take<'a>(from: &mut &'a [u8]) -> io::Result<&'a [u8]> {
    let (length, rest) = from.split_first_chunk::<4>().ok_or_else(garbled)?;
    let length = u32::from_be_bytes(*length) as usize;
    let (part, rest) = rest.split_at_checked(length).ok_or_else(garbled)?;
    *from = rest;
    Ok(part)
}

fn garbled() -> io::Error {
    io::Error::other("a message about certificates is not complete")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A certificate for a name, and its key, both in PEM.
    fn pem(name: &str) -> (String, String) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new([name.to_owned()]).expect("a name");
        (params.self_signed(&key).expect("a certificate").pem(), key.serialize_pem())
    }

    /// The certificate of a client authority, in PEM.
    fn authority() -> String {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.self_signed(&key).expect("a certificate").pem()
    }

    /// A folder with a certificate for each name, and the handover of these certificates.
    fn node(names: &[&str], clients: Option<&str>) -> (tempfile::TempDir, Handover) {
        let folder = tempfile::tempdir().expect("a folder");
        for name in names {
            let (certificate, key) = pem(name);
            fs::write(folder.path().join(format!("{name}.crt")), certificate).expect("written");
            fs::write(folder.path().join(format!("{name}.key")), key).expect("written");
        }
        let (all, faults) = Certificates::open(folder.path(), None, None).expect("certificates");
        assert!(faults.is_empty(), "{faults:?}");
        let clients = clients.map(|text| {
            let file = folder.path().join("authorities");
            fs::write(&file, text).expect("written");
            Arc::new(ClientAuthorities::open(&file).expect("authorities"))
        });
        (folder, Handover::new(Arc::new(all), clients))
    }

    fn chains(received: &Received) -> Vec<CertificateDer<'static>> {
        received.keys.read().iter().map(|key| key.cert[0].clone()).collect()
    }

    /// The message of a node, in the form that its program reads.
    fn message(handover: &Handover) -> Vec<u8> {
        read_message(&mut &handover.message()[..]).expect("a message")
    }

    #[test]
    fn a_program_receives_what_its_node_has() {
        let authority = authority();
        let (folder, handover) = node(&["a.example", "b.example"], Some(&authority));
        let own = || -> Vec<_> {
            handover.certificates.loaded.read().iter().map(|one| one.key.cert[0].clone()).collect()
        };
        let changes = handover.changes();
        let first = message(&handover);
        let received = Arc::new(Received::new(&first).expect("received"));
        assert_eq!(chains(&received), own());
        let clients = received.clients.clone().expect("authorities");
        assert_eq!(&*clients.text(), authority.as_bytes());
        assert!(received.server(&["mqtt"]).is_ok());

        assert!(!changes.has_changed().expect("the node runs"));
        fs::remove_file(folder.path().join("a.example.crt")).expect("removed");
        assert!(handover.certificates.renew().changed);
        assert!(changes.has_changed().expect("the node runs"));
        assert_eq!(own().len(), 1);
        let second = message(&handover);
        received.replace(&second).expect("received");
        assert_eq!(chains(&received), own());
        assert!(Received::new(&first[..0]).is_err());
    }

    #[test]
    fn what_is_not_complete_replaces_nothing() {
        let authority = authority();
        let (_folder, handover) = node(&["a.example", "b.example"], Some(&authority));
        let whole = message(&handover);
        let received = Received::new(&whole).expect("received");
        let before = chains(&received);
        let framed = handover.message();
        for end in 0..framed.len() {
            assert!(read_message(&mut &framed[..end]).is_err(), "{end}");
        }
        assert!(read_message(&mut &[0xff; 8][..]).is_err(), "longer than any message");
        // A message that ends between two certificates can be read, but a node never sends one.
        let refused = (0..whole.len()).filter(|end| received.replace(&whole[..*end]).is_err());
        assert_eq!(refused.count(), whole.len() - 2);
        received.replace(&whole).expect("received");
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0xff;
            // Whatever the message says, reading ends and stays within the bounds of the message.
            let _ = Received::new(&changed);
        }
        assert_eq!(chains(&received), before);
    }

    #[test]
    fn certificates_beyond_the_longest_message_are_left_out() {
        let (_folder, handover) = node(&["a.example"], None);
        let one = handover.certificates.loaded.read()[0].clone();
        let count = MESSAGE_BYTES_MAX / message(&handover).len() + 1_000;
        *handover.certificates.loaded.write() = vec![one; count].into();
        let received = parts_of(&message(&handover));
        assert!((count / 2..count).contains(&received), "{received} of {count}");
    }

    /// The number of certificates in a message.
    fn parts_of(mut message: &[u8]) -> usize {
        take(&mut message).expect("authorities");
        std::iter::from_fn(|| (!message.is_empty()).then(|| take(&mut message))).flatten().count()
    }
}
