//! Certificates that the program `mote-acme` orders from an authority (ACME, RFC 8555), and the
//! answers to the authority's challenges.
//!
//! The program and the node share a folder. The program writes certificates and answers to the
//! folder, and the node reads them.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mote_process::companion::Role;
use mote_process::companion::errand::logged_answer;
use mote_process::companion::own_folder;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::ClientHello;
use tokio_rustls::rustls::sign::CertifiedKey;

/// The ALPN protocol of a handshake in which an authority checks a challenge (RFC 8737, 3).
pub(crate) const PROTOCOL: &[u8] = b"acme-tls/1";
/// How long one run of the program may take. The program ends by itself a little earlier.
const PATIENCE: Duration = Duration::from_secs(330);
/// The pause after a run that did not name one, and the longest pause.
pub(crate) const PAUSE_UNTOLD: Duration = Duration::from_secs(600);
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// The longest answer to a challenge, in bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 10;

/// The folder that the node shares with the program.
#[derive(Debug)]
pub struct Acme {
    folder: PathBuf,
    /// The arguments of the program.
    words: Vec<OsString>,
    /// Whether the program is running. While the program is not running, no authority sends
    /// challenges, so the node does not look for files.
    runs: AtomicBool,
}

impl Acme {
    /// Shares this folder with the program. The folder is made if it is missing, and given to the
    /// user `uid`. `order` is the part of the program's arguments that says what to order. Fails if
    /// the program is not installed. Blocks.
    pub fn open(folder: PathBuf, uid: u32, order: Vec<OsString>) -> io::Result<Self> {
        // If a file cannot be read now, the settings are wrong.
        for (flag, value) in order.iter().zip(order.iter().skip(1)) {
            let of_setting = [("--ca", "acme_ca"), ("--external-account", "acme_external_account")];
            let setting = of_setting.into_iter().find(|(word, _)| flag == word);
            if let Some((_, setting)) = setting {
                let wrong = |error| format!("{setting}: {}: {error}", Path::new(value).display());
                fs::File::open(value).map_err(|error| io::Error::other(wrong(error)))?;
            }
        }
        own_folder::make(&folder, uid)
            .map_err(|error| io::Error::other(format!("{}: {error}", folder.display())))?;
        let mut words: Vec<OsString> = vec!["order".into(), "--folder".into()];
        words.push(folder.clone().into());
        words.extend(["--uid".into(), uid.to_string().into()]);
        words.extend(order);
        Ok(Self { folder, words, runs: AtomicBool::new(false) })
    }

    /// The folder of the certificate in use. `None` before the first certificate has been ordered.
    pub(crate) fn live(&self) -> Option<PathBuf> {
        // The program writes one of the two folders and then makes the link point to it.
        let used = fs::read_link(self.folder.join("live")).ok()?;
        let used = used.to_str().filter(|name| ["a", "b"].contains(name))?;
        Some(self.folder.join(used))
    }

    /// Opens a file below the folder. `None` if the path is not below the folder. The program has
    /// fewer rights than the node, so the node follows no links, does not wait for pipes, and opens
    /// no files of other owners.
    pub(crate) fn open_own(&self, path: &Path) -> Option<io::Result<fs::File>> {
        let path = path.strip_prefix(&self.folder).ok()?;
        let open = || {
            let folder = fs::File::open(&self.folder)?;
            let owner = folder.metadata()?.uid();
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let file = rustix::fs::openat2(folder, path, flags, Mode::empty(), within)?;
            let file = fs::File::from(file);
            let about = file.metadata()?;
            if about.is_file() && about.nlink() == 1 && about.uid() == owner {
                return Ok(file);
            }
            let text = format!(
                "the file does not belong to user {owner}, or it is a link or a special file"
            );
            Err(io::Error::other(text))
        };
        Some(open())
    }

    /// The answer to an authority's HTTP request, found by the part of the path after
    /// `/.well-known` (RFC 8555, 8.3). Reads a small file.
    pub fn over_http(&self, path: &str) -> Option<Vec<u8>> {
        let token = path.strip_prefix("/acme-challenge/")?;
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !token.bytes().all(is_token) {
            return None;
        }
        self.answer("http-01", token)
    }

    /// The certificate for an authority's handshake with this host (RFC 8737, 3). Reads a small
    /// file.
    pub(crate) fn in_handshake(
        &self,
        host: &str,
        provider: &CryptoProvider,
    ) -> Option<Arc<CertifiedKey>> {
        // The TLS library has checked that the host of a handshake is a valid name, so it contains
        // no slash.
        let pem = self.answer("tls-alpn-01", &host.to_ascii_lowercase())?;
        let certificate = CertificateDer::from_pem_slice(&pem).ok()?;
        let key = PrivateKeyDer::from_pem_slice(&pem).ok()?;
        let key = provider.key_provider.load_private_key(key).ok()?;
        Some(Arc::new(CertifiedKey::new(vec![certificate], key)))
    }

    /// Runs the program once. Returns the time after which the program wants to run again.
    pub(crate) async fn run(&self) -> Option<Duration> {
        self.runs.store(true, Ordering::Release);
        let told = logged_answer(Role::Acme, "ACME", &self.words, PATIENCE).await;
        self.runs.store(false, Ordering::Release);
        match told {
            Ok(told) => String::from_utf8_lossy(&told).trim().parse().map(Duration::from_secs).ok(),
            Err(error) => {
                let seconds = PAUSE_UNTOLD.as_secs();
                tracing::error!(
                    "[M1216] mote-acme failed: {error}; the next try is in {seconds} s"
                );
                None
            }
        }
    }

    fn answer(&self, kind: &str, name: &str) -> Option<Vec<u8>> {
        if name.is_empty() || !self.runs.load(Ordering::Acquire) {
            return None;
        }
        let file = self.open_own(&self.folder.join(kind).join(name))?.ok()?;
        let mut answer = Vec::new();
        file.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).ok()?;
        Some(answer)
    }
}

/// Whether an authority checks a challenge in this handshake: it offers the challenge's protocol
/// and no other.
pub(crate) fn is_challenge(hello: &ClientHello<'_>) -> bool {
    hello.alpn().is_some_and(|offered| offered.eq([PROTOCOL]))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::Certificates;

    /// A folder with an ordered certificate, but without the node's own folder.
    fn ordered() -> (tempfile::TempDir, Arc<Acme>) {
        let place = tempfile::tempdir().expect("a folder");
        let folder = place.path().join("acme");
        fs::create_dir_all(folder.join("a")).expect("made");
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(["a.example".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        fs::write(folder.join("a/privkey.pem"), key.serialize_pem()).expect("written");
        fs::write(folder.join("a/fullchain.pem"), certificate.pem()).expect("written");
        symlink("a", folder.join("live")).expect("a link");
        let acme = Acme { folder, words: Vec::new(), runs: AtomicBool::new(true) };
        (place, Arc::new(acme))
    }

    fn open(place: &tempfile::TempDir, acme: &Arc<Acme>) -> (usize, String) {
        let names = ["node".to_owned()];
        let (all, faults) =
            Certificates::open(&place.path().join("own"), Some(acme.clone()), Some(&names))
                .expect("the node's own certificate is there in any case");
        let count = all.loaded.read().len();
        (count, faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn what_was_ordered_is_used_next_to_the_own_certificate() {
        let (place, acme) = ordered();
        assert_eq!(open(&place, &acme), (2, String::new()));
        // Whatever the program has put into the folder, the node starts, and reports the fault.
        let key = acme.folder.join("a/privkey.pem");
        fs::rename(&key, place.path().join("key")).expect("moved");
        for (made, expected) in [
            ("/proc/self/pagemap", "symbolic links"),
            ("/proc/kmsg", "symbolic links"),
            ("../../key", "symbolic links"),
        ] {
            symlink(made, &key).expect("a link");
            let (count, faults) = open(&place, &acme);
            assert!(count == 1 && faults.contains(expected), "{made}: {faults}");
            fs::remove_file(&key).expect("removed");
        }
        fs::hard_link(place.path().join("key"), &key).expect("a link");
        assert!(open(&place, &acme).1.contains("does not belong to user"));
        fs::remove_file(&key).expect("removed");
        let made = std::process::Command::new("mkfifo").arg(&key).status().expect("mkfifo");
        assert!(made.success() && open(&place, &acme).1.contains("does not belong to user"));
        fs::remove_file(&key).expect("removed");
        fs::File::create(&key).and_then(|file| file.set_len(2 << 20)).expect("a long file");
        assert!(open(&place, &acme).1.contains("at most 1 MiB"));
        fs::remove_file(acme.folder.join("live")).expect("removed");
        symlink("/etc", acme.folder.join("live")).expect("a link");
        assert_eq!(open(&place, &acme), (1, String::new()), "a link elsewhere is none");
    }

    #[test]
    fn answers_are_plain_files_and_only_while_the_program_runs() {
        let (place, acme) = ordered();
        let folder = acme.folder.join("http-01");
        fs::create_dir(&folder).expect("made");
        fs::write(folder.join("token-1"), "answer").expect("written");
        fs::write(place.path().join("secret"), "secret").expect("written");
        symlink(place.path().join("secret"), folder.join("linked")).expect("a link");
        fs::hard_link(place.path().join("secret"), folder.join("hard")).expect("a link");
        let ask = |path: &str| acme.over_http(path);
        assert_eq!(ask("/acme-challenge/token-1").as_deref(), Some(&b"answer"[..]));
        for path in ["/acme-challenge/", "/acme-challenge/linked", "/acme-challenge/hard", "/x", ""]
        {
            assert_eq!(ask(path), None, "{path}");
        }
        for path in
            ["/acme-challenge/../a/privkey.pem", "/acme-challenge/%2e", "/acme-challenge/a/b"]
        {
            assert_eq!(ask(path), None, "{path}");
        }
        acme.runs.store(false, Ordering::Release);
        assert_eq!(ask("/acme-challenge/token-1"), None);
    }
}
