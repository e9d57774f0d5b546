//! The certificates with which a node's listeners speak TLS.
//!
//! They are the files of one folder, each certificate with its key, in the layouts that other tools
//! write. If the folder has none, a self-signed certificate is made there. [`Certificates::renew`]
//! reads changed files again; connections that exist keep what they have agreed on. It must not know
//! listeners, functions, or where the folder comes from.

#![forbid(unsafe_code)]

mod files;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use files::{Files, Stamp};
use parking_lot::RwLock;
use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};
use sha2::{Digest, Sha256};
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::crypto::ring::{self, Ticketer};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, ServerConfig};
use webpki::EndEntityCert;

/// The name of the certificate that a node makes for itself, without the ending.
const SELF_SIGNED: &str = "self-signed";

/// Why the certificates cannot be used: which file, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct Unusable {
    path: PathBuf,
    what: String,
}

fn unusable(path: &Path, what: impl ToString) -> Unusable {
    Unusable { path: path.to_owned(), what: what.to_string() }
}

/// The certificates of a node.
#[derive(Debug)]
pub struct Certificates {
    folder: PathBuf,
    provider: Arc<CryptoProvider>,
    loaded: RwLock<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    /// In the order of their files' names; the first one is for clients that name no host.
    keys: Arc<[Arc<CertifiedKey>]>,
    stamp: Stamp,
}

impl Certificates {
    /// Reads the certificates of `folder`. If it has none, makes a self-signed one for `names` (host
    /// names and addresses). Blocks.
    pub fn open(folder: &Path, names: &[String]) -> Result<Self, Unusable> {
        let provider = Arc::new(ring::default_provider());
        let mut files = Files::find(folder)?;
        if files.is_empty() {
            make_self_signed(folder, names)?;
            files = Files::find(folder)?;
        }
        let loaded = RwLock::new(Loaded::read(files, &provider)?);
        Ok(Self { folder: folder.to_owned(), provider, loaded })
    }

    /// Reads the files again if one of them has changed, and tells whether it has. After an error the
    /// former certificates stay in use. Blocks.
    pub fn renew(&self) -> Result<bool, Unusable> {
        let files = Files::find(&self.folder)?;
        if files.stamp == self.loaded.read().stamp {
            return Ok(false);
        }
        if files.is_empty() {
            return Err(unusable(&self.folder, "the folder has no certificate any more"));
        }
        let loaded = Loaded::read(files, &self.provider)?;
        *self.loaded.write() = loaded;
        Ok(true)
    }

    /// The SHA-256 fingerprint of the first certificate, as `openssl x509 -fingerprint -sha256` writes
    /// it, with which a client can recognise a certificate that nobody has signed.
    pub fn fingerprint(&self) -> String {
        let keys = self.loaded.read().keys.clone();
        let digest = keys.first().map(|key| Sha256::digest(&key.cert[0])).unwrap_or_default();
        let mut text = String::with_capacity(95);
        for byte in digest {
            let separator = if text.is_empty() { "" } else { ":" };
            let _ = write!(text, "{separator}{byte:02X}");
        }
        text
    }

    /// Settings of a listener with these certificates: TLS 1.2 and 1.3, and the protocols in `alpn`,
    /// the preferred one first. Later changes of the certificates apply to its new connections.
    pub fn server(self: &Arc<Self>, alpn: &[&str]) -> Result<Arc<ServerConfig>, rustls::Error> {
        let mut server = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        server.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        // Clients that come again save the key exchange of their session, and the node keeps nothing.
        server.ticketer = Ticketer::new()?;
        Ok(Arc::new(server))
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let keys = self.loaded.read().keys.clone();
        let named = hello.server_name().and_then(|name| {
            let name = ServerName::try_from(name).ok()?;
            keys.iter().find(|key| is_for(&key.cert[0], &name)).cloned()
        });
        named.or_else(|| keys.first().cloned())
    }
}

fn is_for(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    EndEntityCert::try_from(certificate)
        .is_ok_and(|certificate| certificate.verify_is_valid_for_subject_name(name).is_ok())
}

impl Loaded {
    fn read(files: Files, provider: &CryptoProvider) -> Result<Self, Unusable> {
        let keys = files.pairs.iter().map(|(chain, key)| read_pair(chain, key, provider));
        Ok(Self { keys: keys.collect::<Result<_, _>>()?, stamp: files.stamp })
    }
}

fn read_pair(
    chain_file: &Path,
    key_file: &Path,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, Unusable> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(chain_file)
        .map_err(|error| unusable(chain_file, error))?
        .collect();
    let chain = chain.map_err(|error| unusable(chain_file, error))?;
    if chain.is_empty() {
        return Err(unusable(chain_file, "the file has no certificate (PEM)"));
    }
    let key = PrivateKeyDer::from_pem_file(key_file).map_err(|error| {
        unusable(key_file, format!("the file has no private key (PEM): {error}"))
    })?;
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(|error| unusable(key_file, format!("the private key cannot be used: {error}")))?;
    let pair = CertifiedKey::new(chain, key);
    match pair.keys_match() {
        // A key whose public half cannot be told is used as it is.
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
        Err(_) => {
            let chain = chain_file.display();
            return Err(unusable(key_file, format!("this is not the key of {chain}")));
        }
    }
    Ok(Arc::new(pair))
}

/// Makes a certificate that is its own authority. It is valid for any time that the clock of a small
/// machine may have, because its clients compare the fingerprint.
fn make_self_signed(folder: &Path, names: &[String]) -> Result<(), Unusable> {
    let failed =
        |error: rcgen::Error| unusable(folder, format!("no certificate was made: {error}"));
    let mut params = CertificateParams::new(names.to_vec()).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, names.first().map_or("mote", |name| name));
    params.not_before = date_time_ymd(1975, 1, 1);
    params.not_after = date_time_ymd(4096, 1, 1);
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| unusable(folder, error))?;
    // The certificate is last, because a key without one is no pair.
    for (ending, text) in [("key", key.serialize_pem()), ("crt", certificate.pem())] {
        let path = folder.join(format!("{SELF_SIGNED}.{ending}"));
        let written = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
        written.map_err(|error| unusable(&path, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(certificates: &Certificates, name: &str) -> Option<usize> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        certificates.loaded.read().keys.iter().position(|key| is_for(&key.cert[0], &name))
    }

    #[test]
    fn an_empty_folder_gets_a_certificate_and_keeps_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tls");
        let wanted = ["node-7".to_owned(), "127.0.0.1".to_owned()];
        let first = Certificates::open(&path, &wanted).unwrap();
        assert_eq!(names(&first, "node-7"), Some(0));
        assert_eq!(names(&first, "127.0.0.1"), Some(0));
        assert_eq!(names(&first, "elsewhere"), None);
        let second = Certificates::open(&path, &wanted).unwrap();
        assert_eq!(first.fingerprint(), second.fingerprint());
        assert_eq!(first.fingerprint().len(), 95);
        assert!(!first.renew().unwrap());
    }

    #[test]
    fn changed_files_are_read_and_bad_ones_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (here, there) = (folder.path().join("here"), folder.path().join("there"));
        let certificates = Certificates::open(&here, &["a.example".to_owned()]).unwrap();
        let other = Certificates::open(&there, &["b.example".to_owned()]).unwrap();
        let before = certificates.fingerprint();
        for ending in ["key", "crt"] {
            let name = format!("b.{ending}");
            fs::copy(there.join(format!("{SELF_SIGNED}.{ending}")), here.join(name)).unwrap();
        }
        assert!(certificates.renew().unwrap());
        assert_eq!(certificates.fingerprint(), other.fingerprint(), "b comes before self-signed");
        assert_eq!(names(&certificates, "a.example"), Some(1));
        assert_eq!(names(&certificates, "b.example"), Some(0));

        // The key of another certificate.
        fs::copy(here.join("b.key"), here.join("self-signed.key")).unwrap();
        let refused = certificates.renew().unwrap_err().to_string();
        assert!(refused.contains("self-signed.key: this is not the key of"), "{refused}");
        assert_eq!(names(&certificates, "a.example"), Some(1), "the former ones stay in use");
        fs::write(here.join("self-signed.key"), "no key").unwrap();
        let refused = certificates.renew().unwrap_err().to_string();
        assert!(refused.contains("no private key"), "{refused}");
        fs::remove_file(here.join("self-signed.key")).unwrap();
        let refused = certificates.renew().unwrap_err().to_string();
        assert!(refused.contains("self-signed.crt: there is no key"), "{refused}");
        fs::remove_file(here.join("self-signed.crt")).unwrap();
        assert!(certificates.renew().unwrap());
        assert_ne!(certificates.fingerprint(), before);
        fs::write(here.join("b.crt"), "-----BEGIN CERTIFICATE-----\nAAAA").unwrap();
        assert!(certificates.renew().is_err());
    }
}
