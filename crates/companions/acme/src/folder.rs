//! The folder of this program: the certificate, the account, the answers to challenges, and the
//! record of failed orders.
//!
//! `live` is a link to the folder of the certificate in use. The link is replaced by one rename, so
//! the certificate and the key in it always belong together.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair, PublicKeyData as _};
use serde::{Deserialize, Serialize};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

const LIVE: &str = "live";
const CHAIN: &str = "fullchain.pem";
const KEY: &str = "privkey.pem";
const DIRECTORY: &str = "directory";
const RECORD: &str = "record.json";
/// More bytes than a certificate takes together with its chain and its key.
const PROBE_BYTES: usize = 64 << 10;
/// The folders of the answers, which the node reads: one for answers over HTTP, and one for answers
/// in a handshake.
const CHALLENGES: [&str; 2] = ["http-01", "tls-alpn-01"];

/// What the program remembers between runs.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    /// The kind of challenge that last succeeded.
    pub(crate) challenge: Option<String>,
    /// The times of the last failed orders, in seconds since 1970.
    pub(crate) failures: Vec<i64>,
    /// How many times in a row the authority could not be reached.
    pub(crate) unreachable: u32,
    /// The contact that the account has at the authority.
    pub(crate) contact: Option<String>,
}

impl Record {
    /// Records a failed order.
    pub(crate) fn failed(&mut self, now_s: i64) {
        self.failures.push(now_s);
        let excess = self.failures.len().saturating_sub(20);
        self.failures.drain(..excess);
    }

    /// The seconds until another order may fail without exceeding `most` failures within an hour.
    pub(crate) fn pause_s(&self, now_s: i64, most: usize) -> u64 {
        // Times in the future were written by another clock and do not count.
        let last_hour = (now_s - 3_599)..=now_s;
        let recent: Vec<_> = self.failures.iter().filter(|at| last_hour.contains(at)).collect();
        let Some(oldest) = recent.len().checked_sub(most).and_then(|at| recent.get(at)) else {
            return 0;
        };
        u64::try_from(*oldest + 3_600 - now_s).unwrap_or(0)
    }
}

/// A certificate in the folder.
#[derive(Debug)]
pub(crate) struct Present {
    pub(crate) der: CertificateDer<'static>,
    pub(crate) not_before_s: i64,
    pub(crate) not_after_s: i64,
    /// The host names and addresses in the certificate, sorted.
    pub(crate) names: Vec<String>,
}

impl Present {
    /// Whether the certificate covers exactly these names.
    pub(crate) fn is_for(&self, names: &[String]) -> bool {
        let mut names = names.to_vec();
        names.sort_unstable();
        names.dedup();
        names == self.names
    }

    fn read(folder: &Path) -> Option<Self> {
        let text = |file| fs::read_to_string(folder.join(file)).ok();
        Self::of(&text(CHAIN)?, &text(KEY)?)
    }

    /// Reads a chain and the key of its first certificate (PEM). `None` if they are not valid or do
    /// not belong together.
    pub(crate) fn of(chain: &str, key: &str) -> Option<Self> {
        let key = KeyPair::from_pem(key).ok()?;
        let mut all = CertificateDer::pem_slice_iter(chain.as_bytes());
        let der = all.next()?.ok()?;
        all.collect::<Result<Vec<_>, _>>().ok()?;
        let (not_before_s, not_after_s, names) = {
            let (_, read) = X509Certificate::from_der(&der).ok()?;
            if read.public_key().raw != key.subject_public_key_info() {
                return None;
            }
            let others = read.subject_alternative_name().ok()??;
            let mut names: Vec<_> = others.value.general_names.iter().map(name).collect();
            names.sort_unstable();
            let valid = read.validity();
            (valid.not_before.timestamp(), valid.not_after.timestamp(), names)
        };
        Some(Self { der, not_before_s, not_after_s, names })
    }
}

/// A name in the form in which settings contain it. A name of another kind becomes a text that no
/// setting contains.
fn name(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(name) => name.to_ascii_lowercase(),
        GeneralName::IPAddress(bytes) => {
            let four = <[u8; 4]>::try_from(*bytes).map(std::net::IpAddr::from);
            let either = four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(std::net::IpAddr::from));
            either.map_or_else(|_| format!("{bytes:?}"), |address| address.to_string())
        }
        other => format!("{other:?}"),
    }
}

#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Opens the folder at this path, and removes the answers of an earlier run.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let folder = Self(path.to_owned());
        folder.clear_challenges();
        Ok(folder)
    }

    /// The certificate in use, if it comes from the authority with this directory.
    pub(crate) fn present(&self, directory: &str) -> Option<Present> {
        let live = self.0.join(LIVE);
        let of = fs::read_to_string(live.join(DIRECTORY)).ok()?;
        if of != directory { None } else { Present::read(&live) }
    }

    /// Stores a certificate and its key (PEM), and puts them into use.
    pub(crate) fn put(&self, directory: &str, chain: &str, key: &str) -> io::Result<()> {
        let (next, folder) = self.unused()?;
        for (file, text) in [(KEY, key), (CHAIN, chain), (DIRECTORY, directory)] {
            write(&folder.join(file), text.as_bytes())?;
        }
        fs::File::open(&folder)?.sync_all()?;
        let link = self.0.join("live.new");
        let _ = fs::remove_file(&link);
        symlink(next, &link)?;
        fs::rename(&link, self.0.join(LIVE))?;
        fs::File::open(&self.0)?.sync_all()
    }

    /// Stores the answer to an authority's request for `/.well-known/acme-challenge/TOKEN` (RFC
    /// 8555, 8.3).
    pub(crate) fn answer_over_http(&self, token: &str, answer: &str) -> io::Result<()> {
        if !is_token(token) {
            return Err(io::Error::other("the authority sent an invalid token"));
        }
        self.challenge(CHALLENGES[0], token, answer.as_bytes())
    }

    /// Stores a certificate with `digest` for an authority's handshake with the host `sni` (RFC
    /// 8737, 3). `name` is the host name or address that is being proved.
    pub(crate) fn answer_in_handshake(
        &self,
        sni: &str,
        name: &str,
        digest: &[u8],
    ) -> io::Result<()> {
        let mut params = CertificateParams::new([name.to_owned()]).map_err(io::Error::other)?;
        params.distinguished_name = DistinguishedName::new();
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.self_signed(&key).map_err(io::Error::other)?;
        let both = certificate.pem() + &key.serialize_pem();
        self.challenge(CHALLENGES[1], sni, both.as_bytes())
    }

    fn challenge(&self, kind: &str, name: &str, content: &[u8]) -> io::Result<()> {
        let folder = self.0.join(kind);
        fs::create_dir_all(&folder)?;
        write(&folder.join(name), content)
    }

    /// Checks that a certificate can be written to the folder. Must be called before a certificate
    /// is ordered.
    pub(crate) fn probe(&self) -> io::Result<()> {
        let (_, folder) = self.unused()?;
        write(&folder.join("probe"), &[b' '; PROBE_BYTES])?;
        fs::remove_dir_all(folder)
    }

    /// Makes an empty folder for the next certificate. Returns the folder and its name.
    fn unused(&self) -> io::Result<(&'static str, PathBuf)> {
        let used = fs::read_link(self.0.join(LIVE)).ok();
        let next = if used.as_deref() == Some(Path::new("a")) { "b" } else { "a" };
        let folder = self.0.join(next);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir(&folder)?;
        Ok((next, folder))
    }

    /// Removes the answers to all challenges.
    pub(crate) fn clear_challenges(&self) {
        for kind in CHALLENGES {
            let _ = fs::remove_dir_all(self.0.join(kind));
        }
    }

    /// Reads the record. A damaged record counts as empty.
    pub(crate) fn record(&self) -> Record {
        let text = fs::read(self.0.join(RECORD)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Writes the record.
    pub(crate) fn write_record(&self, record: &Record) -> io::Result<()> {
        write(&self.0.join(RECORD), &serde_json::to_vec(record)?)
    }

    /// The file with the account at an authority.
    pub(crate) fn account(&self, directory: &str) -> PathBuf {
        let plain = |byte: u8| match byte {
            b'.' | b'-' | b'a'..=b'z' | b'0'..=b'9' => char::from(byte).to_string(),
            other => format!("_{other:02x}"),
        };
        let name: String =
            directory.bytes().map(plain).collect::<String>().chars().take(200).collect();
        self.0.join(format!("account-{name}.json"))
    }
}

/// Whether a text has only the characters of a token (RFC 8555, 8.3), so that it can be used as a
/// file name.
fn is_token(text: &str) -> bool {
    (1..=200).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

/// Writes a file that appears as a whole and that only its owner can read.
pub(crate) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    // No challenge has a name that begins with this prefix.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fresh = path.with_file_name(format!(".new-{name}"));
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(names: &[&str]) -> (String, String) {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(names).expect("names");
        (params.self_signed(&key).expect("a certificate").pem(), key.serialize_pem())
    }

    #[test]
    fn a_certificate_is_replaced_whole() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(place.path()).expect("open");
        assert!(folder.present("https://one").is_none());
        for names in [&["b.example", "a.example"][..], &["c.example"], &["192.0.2.7", "::1"]] {
            let (chain, key) = certificate(names);
            assert!(Present::of(&chain, &certificate(names).1).is_none(), "the key of another");
            folder.probe().expect("room");
            folder.put("https://one", &chain, &key).expect("put");
            let present = folder.present("https://one").expect("there");
            let given: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            assert!(present.is_for(&given), "{:?}", present.names);
            assert!(!present.is_for(&given[..given.len() - 1]));
            assert!(present.not_before_s < present.not_after_s);
        }
        assert!(folder.present("https://two").is_none(), "of another authority");
        fs::write(place.path().join("live/privkey.pem"), "no key").expect("write");
        assert!(folder.present("https://one").is_none(), "without its key it is of no use");
        // A leftover from a crash does no harm.
        symlink("nowhere", place.path().join("live.new")).expect("a link");
        let (chain, key) = certificate(&["d.example"]);
        folder.put("https://one", &chain, &key).expect("put");
        assert!(folder.present("https://one").is_some());
    }

    #[test]
    fn answers_are_there_until_they_are_cleared() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(place.path()).expect("open");
        folder.answer_over_http("abc_-1", "abc_-1.key").expect("put");
        assert_eq!(fs::read(place.path().join("http-01/abc_-1")).expect("read"), b"abc_-1.key");
        for token in ["", "../up", "a/b", "a.b", &"x".repeat(201)] {
            assert!(folder.answer_over_http(token, "x").is_err(), "{token}");
        }
        folder.answer_in_handshake("a.example", "a.example", &[7; 32]).expect("put");
        let pem = fs::read(place.path().join("tls-alpn-01/a.example")).expect("read");
        let der = CertificateDer::from_pem_slice(&pem).expect("a certificate");
        let (_, read) = X509Certificate::from_der(&der).expect("of X.509");
        let extension =
            read.extensions().iter().find(|one| one.oid.to_id_string() == "1.3.6.1.5.5.7.1.31");
        let extension = extension.expect("the digest is there");
        assert!(extension.critical && extension.value.ends_with(&[7; 32]));
        folder.clear_challenges();
        assert!(
            !place.path().join("http-01").exists() && !place.path().join("tls-alpn-01").exists()
        );
    }

    #[test]
    fn failures_are_remembered_for_an_hour() {
        let mut record = Record::default();
        for at in [1_000, 2_000, 3_000, 4_000] {
            assert_eq!(record.pause_s(at, 4), 0);
            record.failed(at);
        }
        assert_eq!(record.pause_s(4_100, 4), 500);
        assert_eq!(record.pause_s(4_600, 4), 0);
        assert_eq!(record.pause_s(0, 4), 0, "another clock");
        for at in 0..100 {
            record.failed(at);
        }
        assert_eq!(record.failures.len(), 20);
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(place.path()).expect("open");
        folder.write_record(&record).expect("write");
        assert_eq!(folder.record(), record);
        fs::write(place.path().join(RECORD), "{").expect("write");
        assert_eq!(folder.record(), Record::default());
    }
}
