//! Certificates that the program `mote-acme` orders from an authority (ACME, RFC 8555), and the
//! authority's questions on the way there.
//!
//! The program and the node share a folder: the program puts certificates and answers there, and the
//! node reads them.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mote_companion::errand::logged_answer;
use mote_tasks::blocking;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::ClientHello;
use tokio_rustls::rustls::sign::CertifiedKey;

use crate::Certificates;

/// The protocol of a handshake in which an authority asks (RFC 8737, 3).
pub(crate) const PROTOCOL: &[u8] = b"acme-tls/1";
/// The program, next to the one of the node.
pub const PROGRAM: &str = "mote-acme";
/// How long a run of it may take; it ends itself a little earlier.
const PATIENCE: Duration = Duration::from_secs(330);
/// The pause after a run that told none, and the longest one.
const PAUSE_UNTOLD: Duration = Duration::from_secs(600);
const PAUSE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// The longest answer to a question, in bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 10;

/// The folder that the node shares with the program.
#[derive(Debug)]
pub struct Acme {
    folder: PathBuf,
    /// Whether the program runs. Otherwise nobody has questions, and no file is looked for.
    runs: AtomicBool,
}

impl Acme {
    /// Shares this folder.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, runs: AtomicBool::new(false) }
    }

    /// The folder of the certificate in use; it exists once there is one.
    pub(crate) fn live(&self) -> PathBuf {
        self.folder.join("live")
    }

    /// The answer to a request of an authority, by the part of its path behind `/.well-known`
    /// (RFC 8555, 8.3). Reads a small file.
    pub fn over_http(&self, path: &str) -> Option<Vec<u8>> {
        let token = path.strip_prefix("/acme-challenge/")?;
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !token.bytes().all(is_token) {
            return None;
        }
        self.answer("http-01", token)
    }

    /// The certificate for the handshake of an authority with this host (RFC 8737, 3). Reads a small
    /// file.
    pub(crate) fn in_handshake(
        &self,
        host: &str,
        provider: &CryptoProvider,
    ) -> Option<Arc<CertifiedKey>> {
        // A host of a handshake has been checked to be a name, and has no slash.
        let pem = self.answer("tls-alpn-01", &host.to_ascii_lowercase())?;
        let certificate = CertificateDer::from_pem_slice(&pem).ok()?;
        let key = PrivateKeyDer::from_pem_slice(&pem).ok()?;
        let key = provider.key_provider.load_private_key(key).ok()?;
        Some(Arc::new(CertifiedKey::new(vec![certificate], key)))
    }

    fn answer(&self, kind: &str, name: &str) -> Option<Vec<u8>> {
        if name.is_empty() || !self.runs.load(Ordering::Acquire) {
            return None;
        }
        // The program has fewer rights than the node, so the node follows no link that is in the
        // folder, and waits for no pipe.
        let folder = fs::File::open(&self.folder).ok()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let path = Path::new(kind).join(name);
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let file = rustix::fs::openat2(folder, path, flags, Mode::empty(), within).ok()?;
        let file = fs::File::from(file);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut answer = Vec::new();
        file.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).ok()?;
        Some(answer)
    }
}

/// Whether an authority asks in this handshake: it offers its protocol, and no other.
pub(crate) fn is_challenge(hello: &ClientHello<'_>) -> bool {
    hello.alpn().is_some_and(|offered| offered.eq([PROTOCOL]))
}

/// Runs the program whenever it wants to be run, for as long as the node runs. `order` is the rest of
/// its command line.
pub async fn keep_ordered(certificates: Arc<Certificates>, order: Vec<OsString>) {
    let Some(acme) = certificates.acme.clone() else { return };
    let mut words: Vec<OsString> = vec!["order".into(), "--folder".into()];
    words.push(acme.folder.clone().into());
    words.extend(order);
    loop {
        acme.runs.store(true, Ordering::Release);
        let told = logged_answer(PROGRAM, "ACME", &words, PATIENCE).await;
        acme.runs.store(false, Ordering::Release);
        let pause = match told {
            Ok(told) => String::from_utf8_lossy(&told).trim().parse().map(Duration::from_secs).ok(),
            Err(error) => {
                tracing::error!("[M1216] {PROGRAM} has failed: {error}");
                None
            }
        };
        let of_all = certificates.clone();
        if let Ok(renewed) = blocking(move || of_all.renew()).await
            && renewed.changed
        {
            tracing::info!("new connections get the certificate that was ordered");
        }
        let pause = pause.unwrap_or(PAUSE_UNTOLD);
        tokio::time::sleep(pause.clamp(Duration::from_secs(1), PAUSE_MAX)).await;
    }
}
