//! TLS of a node: the certificates of its listeners, connections with or without TLS, and the
//! client side for connections to a node's management.
//!
//! The certificates are files in one folder, each with its key, in the layouts that other tools
//! write. If the folder has no certificate, a self-signed one is made there.
//! [`Certificates::renew`] reads changed files again; existing connections keep the keys they have
//! agreed on. This crate must not know listeners, functions, or where the folder comes from.
//! [`ClientAuthorities`] checks the certificates of clients. [`Acme`] gives access to the
//! certificates that the program `mote-acme` orders from an authority. [`handover`] passes
//! certificates and client authorities on to a companion program that speaks TLS in place of the
//! node.
//!
//! The files:
//!
//! - `files.rs`, `renewing.rs`: finding certificates, and reading changed files again
//! - `authorities.rs`: certificates of clients
//! - `acme.rs`, `ordering.rs`: the folder that the node shares with `mote-acme`, and when that
//!   process runs
//! - `handover.rs`: what the broker and the process `mote-dtls` receive from the node
//! - `stream.rs`, `client.rs`: a connection with or without TLS, and the certificates that a
//!   management client trusts

#![forbid(unsafe_code)]

mod acme;
mod authorities;
mod client;
mod files;
pub mod handover;
mod ordering;
mod renewing;
mod stream;
mod unusable;

pub use acme::Acme;
pub use authorities::{ClientAuthorities, names};
pub use client::{Connector, Trust, fingerprint_in};
pub use renewing::keep_renewed;
pub use stream::{Acceptor, Stream, is_encrypted, listen, plain};
pub use unusable::Unusable;
use unusable::{bad_pem, unusable};

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use files::{Pair, SELF_SIGNED};
use parking_lot::RwLock;
use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};
use tokio::sync::watch;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::crypto::ring::{self, Ticketer};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, ServerConfig, SignatureAlgorithm};
use webpki::EndEntityCert;

#[derive(Debug)]
pub struct Certificates {
    folder: PathBuf,
    /// The source of certificates that are ordered from an authority, if any are.
    acme: Option<Arc<Acme>>,
    provider: Arc<CryptoProvider>,
    /// In the order in which they are tried. The first one is for clients that name no host. Never
    /// empty.
    loaded: RwLock<Arc<[Loaded]>>,
    /// Notifies all tasks that hand over certificates or authorities that these have changed.
    changes: watch::Sender<()>,
    /// Whether the log has named a client that is too old. Anyone can cause such a line, so it is
    /// written only once.
    told_of_old_client: AtomicBool,
}

/// One certificate in use, and the files from which it was read.
#[derive(Debug, Clone)]
struct Loaded {
    pair: Pair,
    key: Arc<CertifiedKey>,
    /// The private key as it was read, for [`handover`].
    secret: Arc<PrivateKeyDer<'static>>,
}

impl Loaded {
    /// Whether the key is an ECDSA key and the certificate has at most `bytes_max` bytes in DER.
    fn is_ecdsa(&self, bytes_max: usize) -> bool {
        let fits = self.key.cert.first().is_some_and(|it| it.len() <= bytes_max);
        fits && self.key.key.algorithm() == SignatureAlgorithm::ECDSA
    }
}

/// The result of [`Certificates::renew`].
#[derive(Debug)]
pub struct Renewed {
    /// Whether new connections receive other certificates than before.
    pub changed: bool,
    /// The files that cannot be used. Certificates that were read from them earlier stay in use.
    pub faults: Vec<Unusable>,
}

impl Certificates {
    /// Reads the certificates of `folder`, and the one that `acme` has ordered. If the folder has
    /// no certificate and `own_names` (host names and addresses) are given, makes a certificate for
    /// these names there. Fails if no certificate can be used. Otherwise also returns the files
    /// that cannot be used. Blocks.
    pub fn open(
        folder: &Path,
        acme: Option<Arc<Acme>>,
        own_names: Option<&[String]>,
    ) -> Result<(Self, Vec<Unusable>), Unusable> {
        let provider = Arc::new(ring::default_provider());
        let (mut pairs, mut faults) = files::find(folder, acme.as_deref())?;
        // Ordered certificates do not count here, because they may be unusable.
        let is_here = |path: &Path| path.starts_with(folder);
        let none = !pairs.iter().any(|pair| is_here(&pair.chain))
            && !faults.iter().any(|fault| is_here(&fault.path));
        if let (true, Some(names)) = (none, own_names) {
            make_self_signed(folder, names)?;
            (pairs, faults) = files::find(folder, acme.as_deref())?;
        }
        let mut loaded = Vec::new();
        for pair in pairs {
            match read_pair(pair, &provider, acme.as_deref()) {
                Ok(read) => loaded.push(read),
                Err(fault) => faults.push(fault),
            }
        }
        if loaded.is_empty() {
            let none = || unusable(folder, "the folder has no certificate", "docs/guides/https.md");
            return Err(faults.into_iter().next().unwrap_or_else(none));
        }
        let loaded = RwLock::new(loaded.into());
        let changes = watch::Sender::new(());
        let told_of_old_client = AtomicBool::new(false);
        let folder = folder.to_owned();
        Ok((Self { folder, acme, provider, loaded, changes, told_of_old_client }, faults))
    }

    /// Reads changed, new and removed files. Blocks.
    pub fn renew(&self) -> Renewed {
        let (pairs, mut faults) = match files::find(&self.folder, self.acme.as_deref()) {
            Ok(found) => found,
            Err(fault) => return Renewed { changed: false, faults: vec![fault] },
        };
        let before = self.loaded.read().clone();
        let former = |chain: &Path| before.iter().find(|one| one.pair.chain == chain).cloned();
        let mut loaded = Vec::new();
        for pair in pairs {
            let known = former(&pair.chain);
            if let Some(same) = known.as_ref().filter(|known| known.pair == pair) {
                loaded.push(same.clone());
                continue;
            }
            match read_pair(pair, &self.provider, self.acme.as_deref()) {
                Ok(read) => loaded.push(read),
                Err(fault) => {
                    faults.push(fault);
                    loaded.extend(known);
                }
            }
        }
        // If one file of a certificate is missing, the certificate stays in use, because the new
        // file may be about to arrive.
        for fault in &faults {
            let is_of = |one: &Loaded| one.pair.chain == fault.path || one.pair.key == fault.path;
            let Some(at) = before.iter().position(is_of) else { continue };
            if !loaded.iter().any(|one| one.pair.chain == before[at].pair.chain) {
                loaded.insert(at.min(loaded.len()), before[at].clone());
            }
        }
        if loaded.is_empty() {
            let what = "the folder has no certificate any more";
            faults.push(unusable(&self.folder, what, "the former ones stay in use"));
            return Renewed { changed: false, faults };
        }
        let changed = !loaded.iter().map(|one| &one.pair).eq(before.iter().map(|one| &one.pair));
        if changed {
            *self.loaded.write() = loaded.into();
            self.changes.send_replace(());
        }
        Renewed { changed, faults }
    }

    /// The file of the first certificate, and the certificate's SHA-256 fingerprint in the form of
    /// `openssl x509 -fingerprint -sha256`. With the fingerprint, a client can recognise a
    /// certificate that no authority has signed.
    pub fn first(&self) -> (PathBuf, String) {
        let loaded = self.loaded.read().clone();
        let Some(first) = loaded.first() else { return Default::default() };
        (first.pair.chain.clone(), client::fingerprint_text(&first.key.cert[0]))
    }

    /// Whether any certificate has an ECDSA key and at most `bytes_max` bytes in DER.
    pub fn has_ecdsa(&self, bytes_max: usize) -> bool {
        self.loaded.read().iter().any(|one| one.is_ecdsa(bytes_max))
    }

    /// The source of ordered certificates, if there is one.
    pub fn acme(&self) -> Option<Arc<Acme>> {
        self.acme.clone()
    }

    /// The settings of a listener with these certificates: TLS 1.2 and 1.3, and the protocols in
    /// `alpn` with the preferred one first. If the certificates change later, new connections use
    /// the changed ones. With `clients`, the listener asks each client for a certificate, but also
    /// serves clients that have none.
    pub fn server(
        self: &Arc<Self>,
        alpn: &[&str],
        clients: Option<Arc<ClientAuthorities>>,
    ) -> Result<Arc<ServerConfig>, rustls::Error> {
        let mut server = server(self.provider.clone(), self.clone(), alpn, clients)?;
        if self.acme.is_some() {
            server.alpn_protocols.push(acme::PROTOCOL.to_vec());
        }
        Ok(Arc::new(server))
    }
}

/// Makes the settings that [`Certificates::server`] describes.
fn server(
    provider: Arc<CryptoProvider>,
    certificates: Arc<dyn ResolvesServerCert>,
    alpn: &[&str],
    clients: Option<Arc<ClientAuthorities>>,
) -> Result<ServerConfig, rustls::Error> {
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let asks = clients.is_some();
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(clients),
        None => builder.with_no_client_auth(),
    };
    let mut server = builder.with_cert_resolver(certificates);
    server.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    if asks {
        // A resumed session would keep a client certificate that was revoked meanwhile, so sessions
        // cannot be resumed.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
    } else {
        // With tickets, returning clients skip the key exchange, and the node stores nothing.
        server.ticketer = Ticketer::new()?;
    }
    Ok(server)
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let (Some(acme), true) = (&self.acme, acme::is_challenge(&hello)) {
            return acme.in_handshake(hello.server_name()?, &self.provider);
        }
        let loaded = self.loaded.read().clone();
        let chosen = chosen(loaded.iter().map(|one| &one.key), &hello);
        if !self.told_of_old_client.load(Relaxed)
            && let Some(lacks) = chosen.as_ref().and_then(|key| self.lacks(&hello, key))
        {
            self.told_of_old_client.store(true, Relaxed);
            tracing::warn!(
                "a TLS client cannot connect, because it {lacks}; docs/guides/https.md says more, \
                 and further clients are not logged"
            );
        }
        chosen
    }
}

impl Certificates {
    /// The feature that an old client lacks, if this keeps the client from connecting.
    fn lacks(&self, hello: &ClientHello<'_>, key: &CertifiedKey) -> Option<&'static str> {
        let known = self.provider.cipher_suites.iter().map(|suite| suite.suite());
        if !known.into_iter().any(|suite| hello.cipher_suites().contains(&suite)) {
            return Some("offers no cipher suite with AES-GCM or ChaCha20 (only CBC or older)");
        }
        let can_use = key.key.choose_scheme(hello.signature_schemes()).is_some();
        (!can_use).then_some("accepts no certificate of this kind, for example only RSA")
    }
}

/// Chooses a certificate. The first choice is valid for the host that the client names and of a
/// kind that the client accepts. The next choices are the first one that is valid for the host, the
/// first one of an accepted kind, and the first one of all.
fn chosen<'a>(
    mut keys: impl Iterator<Item = &'a Arc<CertifiedKey>> + Clone,
    hello: &ClientHello<'_>,
) -> Option<Arc<CertifiedKey>> {
    let accepts =
        |key: &&'a Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
    let named = hello.server_name().and_then(|name| {
        let name = ServerName::try_from(name).ok()?;
        let valid = keys.clone().filter(|key| is_for(&key.cert[0], &name));
        valid.clone().find(accepts).or_else(|| valid.into_iter().next())
    });
    named.or_else(|| keys.clone().find(accepts)).or_else(|| keys.next()).cloned()
}

fn is_for(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    EndEntityCert::try_from(certificate)
        .is_ok_and(|certificate| certificate.verify_is_valid_for_subject_name(name).is_ok())
}

/// Reads the content of a file, up to the limit that [`files::find`] has checked.
fn read(file: &Path, acme: Option<&Acme>) -> io::Result<Vec<u8>> {
    let opened = acme.and_then(|acme| acme.open_own(file));
    let opened = opened.unwrap_or_else(|| fs::File::open(file))?;
    let mut content = Vec::new();
    opened.take(files::FILE_BYTES_MAX).read_to_end(&mut content)?;
    Ok(content)
}

fn read_pair(
    pair: Pair,
    provider: &CryptoProvider,
    acme: Option<&Acme>,
) -> Result<Loaded, Unusable> {
    let Pair { chain: chain_file, key: key_file, .. } = &pair;
    let text = |file| read(file, acme).map_err(|error| bad_pem(file, &pem::Error::Io(error)));
    let chain = CertificateDer::pem_slice_iter(&text(chain_file)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| bad_pem(chain_file, &error))?;
    let Some(first) = chain.first() else {
        return Err(bad_pem(chain_file, &pem::Error::NoItemsFound));
    };
    EndEntityCert::try_from(first).map_err(|error| {
        let what = format!("the first certificate cannot be used: {error}");
        unusable(chain_file, what, "it must be of X.509 version 3, and complete")
    })?;
    let text = text(key_file)?;
    if text.windows(9).any(|part| part == b"ENCRYPTED") {
        let hint = "write it without a password: openssl pkey -in FILE -out NEW";
        return Err(unusable(key_file, "the key is encrypted", hint));
    }
    let secret = PrivateKeyDer::from_pem_slice(&text).map_err(|error| bad_pem(key_file, &error))?;
    let key = provider.key_provider.load_private_key(secret.clone_key()).map_err(|_| {
        let hint = "use ECDSA (P-256, P-384), Ed25519, or RSA with 2,048 bits or more";
        unusable(key_file, "keys of this kind are not supported", hint)
    })?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        // If the public half of a key cannot be determined, the key is used without this check.
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
        Err(_) => {
            let what = format!("this is not the key of {}", chain_file.display());
            let hint = "the certificate of the node must be the first one in its file";
            return Err(unusable(key_file, what, hint));
        }
    }
    Ok(Loaded { pair, key: Arc::new(certified), secret: Arc::new(secret) })
}

/// Makes a self-signed certificate. Its clients compare the fingerprint, so it is valid at any time
/// to which the clock of a small machine may be set.
fn make_self_signed(folder: &Path, names: &[String]) -> Result<(), Unusable> {
    let failed = |error: rcgen::Error| {
        let what = format!("no certificate was made: {error}");
        unusable(folder, what, "name the folder of a certificate with certificates")
    };
    let mut params = CertificateParams::new(names.to_vec()).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, names.first().map_or("mote", |name| name));
    params.not_before = date_time_ymd(1975, 1, 1);
    params.not_after = date_time_ymd(4096, 1, 1);
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    let hint = "give the node the right to write there";
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| unusable(folder, error, hint))?;
    // The certificate is written last and appears as a whole. After a power cut, an incomplete pair
    // does not count as a pair and is made again.
    for (ending, text) in [("key", key.serialize_pem()), ("crt", certificate.pem())] {
        let path = folder.join(format!("{SELF_SIGNED}.{ending}"));
        let fresh = path.with_extension("new");
        let written = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&fresh, &path));
        written.map_err(|error| unusable(&path, error, hint))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The position of the certificate for a host.
    fn place(certificates: &Certificates, name: &str) -> Option<usize> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        certificates.loaded.read().iter().position(|one| is_for(&one.key.cert[0], &name))
    }

    fn own(folder: &Path, names: &[&str]) -> Certificates {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let (certificates, faults) = Certificates::open(folder, None, Some(&names)).unwrap();
        assert!(faults.is_empty(), "{faults:?}");
        certificates
    }

    /// The only fault that a renewal finds. The renewal changes nothing.
    fn fault(certificates: &Certificates) -> String {
        let renewed = certificates.renew();
        assert_eq!((renewed.changed, renewed.faults.len()), (false, 1), "{renewed:?}");
        renewed.faults[0].to_string()
    }

    #[test]
    fn an_empty_folder_gets_a_certificate_and_keeps_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tls");
        let refused = Certificates::open(&path, None, None).unwrap_err().to_string();
        assert!(refused.contains("the folder has no certificate"), "{refused}");
        let first = own(&path, &["node-7", "127.0.0.1"]);
        assert_eq!(place(&first, "node-7"), Some(0));
        assert_eq!(place(&first, "127.0.0.1"), Some(0));
        assert_eq!(place(&first, "elsewhere"), None);
        let second = own(&path, &["node-8"]);
        assert_eq!(first.first(), second.first());
        assert_eq!(first.first().1.len(), 95);
        let renewed = first.renew();
        assert!(!renewed.changed && renewed.faults.is_empty());
        // As after a power cut, only a part of the pair is left.
        fs::remove_file(path.join("self-signed.crt")).unwrap();
        assert_ne!(own(&path, &["node-8"]).first().1, first.first().1);
    }

    #[test]
    fn changed_files_are_read_and_bad_ones_leave_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().join("here");
        let there = folder.path().join("there");
        let certificates = own(&here, &["a.example"]);
        let other = own(&there, &["z.example"]);
        for ending in ["key", "crt"] {
            let from = there.join(format!("{SELF_SIGNED}.{ending}"));
            fs::copy(from, here.join(format!("z.{ending}"))).unwrap();
        }
        let renewed = certificates.renew();
        assert!(renewed.changed && renewed.faults.is_empty(), "{renewed:?}");
        assert_eq!(certificates.first().1, other.first().1, "the node's own one is the last");
        assert_eq!(place(&certificates, "z.example"), Some(0));
        assert_eq!(place(&certificates, "a.example"), Some(1));

        let key = here.join("self-signed.key");
        fs::copy(here.join("z.key"), &key).unwrap();
        assert!(fault(&certificates).contains("self-signed.key: this is not the key of"));
        for (text, expected) in [
            ("no key", "the file has no private key in PEM"),
            ("-----BEGIN ENCRYPTED PRIVATE KEY-----", "the key is encrypted"),
            ("-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----", "not supported"),
            ("-----BEGIN PRIVATE KEY-----\nMAA=\n", "not complete PEM"),
        ] {
            fs::write(&key, text).unwrap();
            let said = fault(&certificates);
            assert!(said.contains(expected), "{said}");
        }
        fs::remove_file(&key).unwrap();
        assert!(fault(&certificates).contains("self-signed.key: the file is missing"));
        assert_eq!(place(&certificates, "a.example"), Some(1), "it stays in use");
        // The first certificate stays in use as well, and keeps its position.
        fs::rename(here.join("z.key"), here.join("away")).unwrap();
        assert!(!certificates.renew().changed);
        assert_eq!(place(&certificates, "z.example"), Some(0));
        fs::rename(here.join("away"), here.join("z.key")).unwrap();
        certificates.renew();
        assert_eq!(place(&certificates, "z.example"), Some(0));
        // A node that starts now uses the other certificate and reports the fault.
        let (started, faults) = Certificates::open(&here, None, None).unwrap();
        assert_eq!((place(&started, "a.example"), faults.len()), (None, 1));
        // A fault in one file does not keep other files from being renewed.
        let fresh = own(&folder.path().join("fresh"), &["z.example"]);
        for ending in ["key", "crt"] {
            let from = folder.path().join(format!("fresh/{SELF_SIGNED}.{ending}"));
            fs::copy(from, here.join(format!("z.{ending}"))).unwrap();
        }
        assert!(certificates.renew().changed);
        assert_eq!(certificates.first().1, fresh.first().1);
        fs::remove_file(here.join("self-signed.crt")).unwrap();
        assert!(certificates.renew().changed);
        assert_eq!(place(&certificates, "a.example"), None);
        fs::write(
            here.join("z.crt"),
            "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        )
        .unwrap();
        assert!(fault(&certificates).contains("X.509 version 3"));
        fs::remove_file(here.join("z.crt")).unwrap();
        assert!(fault(&certificates).contains("no certificate any more"));
    }

    #[test]
    fn folders_of_other_tools_and_odd_files() {
        let folder = tempfile::tempdir().unwrap();
        let certificates = own(&folder.path().join("source"), &["a.example"]);
        let source = |ending: &str| folder.path().join(format!("source/{SELF_SIGNED}.{ending}"));
        let live = folder.path().join("live");
        let site = live.join("a.example");
        fs::create_dir_all(&site).unwrap();
        fs::create_dir_all(live.join("empty.crt")).unwrap();
        fs::copy(source("crt"), site.join("fullchain.pem")).unwrap();
        fs::copy(source("key"), site.join("privkey.pem")).unwrap();
        fs::copy(source("crt"), site.join("cert.pem")).unwrap();
        for path in [&live, &site] {
            let (found, faults) = Certificates::open(path, None, None).unwrap();
            assert!(faults.is_empty(), "{faults:?}");
            assert_eq!(found.first().1, certificates.first().1);
        }
        // Reading the first file would never end, and reading the second one would use too much
        // memory.
        std::os::unix::fs::symlink("/dev/zero", live.join("zero.crt")).unwrap();
        fs::write(live.join("zero.key"), "").unwrap();
        fs::File::create(live.join("long.pem"))
            .unwrap()
            .set_len(files::FILE_BYTES_MAX + 1)
            .unwrap();
        let (_, faults) = Certificates::open(&live, None, None).unwrap();
        assert_eq!(faults.len(), 2, "{faults:?}");
    }
}
