//! The keys that encrypt secrets, and where they come from.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};
use zeroize::Zeroizing;

use crate::seal::locked::Locked;

/// Smallest content of a key in bytes, not counting the line end after it.
pub const KEY_BYTES_MIN: usize = 32;
/// Largest content of a key in bytes.
pub const KEY_BYTES_MAX: usize = 4096;

/// The first byte of an encrypted value.
const FORMAT: u8 = 1;
/// Length of the id that tells keys apart.
const ID_BYTES: usize = 8;
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;
/// How many bytes longer an encrypted value is than its text: format, key id, nonce and tag.
pub(crate) const OVERHEAD_BYTES: usize = 1 + ID_BYTES + NONCE_LEN + 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    File(PathBuf),
    /// The name of a credential that systemd gives to the service (systemd.exec(5), "Credentials").
    Credential(String),
    /// A key that is stored nowhere, and that is lost when the process ends.
    Memory,
}

impl FromStr for KeySource {
    type Err = &'static str;

    /// Reads `credential:NAME` or a path.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        match text.strip_prefix("credential:") {
            Some("" | "." | "..") => Err("credential: has no name"),
            Some(name) if name.contains('/') => Err("the name of a credential has no /"),
            Some(name) => Ok(Self::Credential(name.to_owned())),
            None if text.is_empty() => Err("empty"),
            None => Ok(Self::File(text.into())),
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Credential(name) => write!(f, "credential:{name}"),
            Self::Memory => f.write_str("a key in memory"),
        }
    }
}

/// Why a key cannot be used. The message names the key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The key's file cannot be read or written.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
    /// The key's file does not exist.
    #[error("{} is missing; make a key: {}", .0.display(), make(.0))]
    Missing(PathBuf),
    /// The path is a folder, a pipe or something else that is not a file.
    #[error("{0} is not a file")]
    NoFile(PathBuf),
    /// The key has too few or too many bytes.
    #[error("{} has {} bytes; a key has {} to {}; make one: {}", .0.display(), .1, KEY_BYTES_MIN, KEY_BYTES_MAX, make(.0))]
    Length(PathBuf, usize),
    /// Everyone can read or write the file.
    #[error("{0}: every user of this machine can read or write it; run: chmod o= {0}")]
    Open(PathBuf),
    /// The service manager passed no credentials to the node.
    #[error("credential:{0}: systemd gave no credentials to this process (LoadCredential=)")]
    NoCredentials(String),
}

/// The command that makes a key, for messages.
fn make(path: &Path) -> String {
    format!("(umask 077; head -c 48 /dev/urandom | base64 >{})", path.display())
}

/// Why a secret cannot be read. The message names the secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// There is no such secret.
    #[error("this node has no secret {0}")]
    Missing(String),
    /// None of the node's keys encrypted the secret.
    #[error("the secret {0} is encrypted with a key that this node does not have")]
    OtherKey(String),
    /// The secret was changed after it was encrypted.
    #[error("the secret {0} is damaged")]
    Damaged(String),
}

/// The keys of a node. Their bytes stay out of swap and core files.
#[derive(Debug)]
pub struct Keys {
    first: Key,
    others: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    id: [u8; ID_BYTES],
    cipher: Locked<LessSafeKey>,
}

impl Keys {
    /// Reads the keys. `first` encrypts. Blocks.
    pub fn load(first: &KeySource, others: &[KeySource]) -> Result<Self, KeyError> {
        let others = others.iter().map(Key::load).collect::<Result<_, _>>()?;
        Ok(Self { first: Key::load(first)?, others })
    }

    /// Reads one more key, which is used only to decrypt. Blocks.
    pub fn add(&mut self, source: &KeySource) -> Result<(), KeyError> {
        self.others.push(Key::load(source)?);
        Ok(())
    }

    /// Makes a key that is stored nowhere, for tests.
    pub fn random() -> Self {
        Self { first: Key::derive(&*random_bytes::<KEY_BYTES_MIN>()), others: Vec::new() }
    }

    /// Encrypts the value of a secret. The result is bound to the name: if it is moved to another
    /// name, it cannot be decrypted.
    pub(crate) fn seal(&self, name: &str, value: &str) -> Vec<u8> {
        let nonce = random_bytes::<NONCE_LEN>();
        let mut sealed = Vec::with_capacity(OVERHEAD_BYTES + value.len());
        sealed.push(FORMAT);
        sealed.extend(self.first.id);
        sealed.extend(*nonce);
        let start = sealed.len();
        sealed.extend(value.as_bytes());
        let aad = Aad::from(name.as_bytes());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let tag = self.first.cipher.seal_in_place_separate_tag(nonce, aad, &mut sealed[start..]);
        // Encryption fails only for values of more than 256 GiB.
        sealed.extend(tag.expect("a value of at most 64 KiB").as_ref());
        sealed
    }

    /// Decrypts the value of a secret.
    pub(crate) fn open(&self, name: &str, sealed: &[u8]) -> Result<Zeroizing<String>, SecretError> {
        let damaged = || SecretError::Damaged(name.to_owned());
        let (&format, rest) = sealed.split_first().ok_or_else(damaged)?;
        let (id, rest) = rest.split_first_chunk::<ID_BYTES>().ok_or_else(damaged)?;
        let (nonce, rest) = rest.split_first_chunk::<NONCE_LEN>().ok_or_else(damaged)?;
        if format != FORMAT {
            return Err(damaged());
        }
        let key = std::iter::once(&self.first).chain(&self.others).find(|key| key.id == *id);
        let key = key.ok_or_else(|| SecretError::OtherKey(name.to_owned()))?;
        let mut text = Zeroizing::new(rest.to_vec());
        let aad = Aad::from(name.as_bytes());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let length = match key.cipher.open_in_place(nonce, aad, &mut text) {
            Ok(value) => value.len(),
            Err(_) => return Err(damaged()),
        };
        let value = std::str::from_utf8(&text[..length]).map_err(|_| damaged())?;
        Ok(Zeroizing::new(value.to_owned()))
    }

    /// Whether the first key encrypted this value.
    pub(crate) fn is_current(&self, sealed: &[u8]) -> bool {
        sealed.get(1..=ID_BYTES) == Some(&self.first.id[..])
    }
}

impl Key {
    fn load(source: &KeySource) -> Result<Self, KeyError> {
        let path = match source {
            KeySource::Memory => return Ok(Self::derive(&*random_bytes::<KEY_BYTES_MIN>())),
            KeySource::File(path) => path.clone(),
            KeySource::Credential(name) => {
                let folder = std::env::var_os("CREDENTIALS_DIRECTORY")
                    .ok_or_else(|| KeyError::NoCredentials(name.clone()))?;
                Path::new(&folder).join(name)
            }
        };
        let io = |error| KeyError::Io(path.clone(), error);
        // Opening must not wait for the other end if the path is a pipe.
        let opened = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(&path);
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(KeyError::Missing(path));
            }
            opened => opened.map_err(io)?,
        };
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(KeyError::NoFile(path));
        }
        if metadata.permissions().mode() & 0o006 != 0 {
            return Err(KeyError::Open(path));
        }
        let mut content = Zeroizing::new(Vec::with_capacity(KEY_BYTES_MAX + 3));
        file.take(KEY_BYTES_MAX as u64 + 3).read_to_end(&mut content).map_err(io)?;
        while let [rest @ .., b'\n' | b'\r'] = content.as_slice() {
            let length = rest.len();
            content.truncate(length);
        }
        if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&content.len()) {
            return Err(KeyError::Length(path, content.len()));
        }
        Ok(Self::derive(&content))
    }

    /// Derives the key from the content of the file with HKDF and SHA-256 (RFC 5869).
    fn derive(content: &[u8]) -> Self {
        let secret = Salt::new(HKDF_SHA256, b"mote secrets").extract(content);
        let mut id = [0; ID_BYTES];
        let derived = secret.expand(&[b"id"], Id).and_then(|id_of| id_of.fill(&mut id));
        derived.expect("8 bytes can be derived");
        let cipher = secret.expand(&[b"ChaCha20-Poly1305"], &CHACHA20_POLY1305);
        let cipher = LessSafeKey::new(UnboundKey::from(cipher.expect("32 bytes can be derived")));
        Self { id, cipher: Locked::new(cipher) }
    }
}

/// The length of an id, in the form that `ring` expects.
struct Id;
impl KeyType for Id {
    fn len(&self) -> usize {
        ID_BYTES
    }
}

fn random_bytes<const N: usize>() -> Zeroizing<[u8; N]> {
    let mut bytes = Zeroizing::new([0; N]);
    SystemRandom::new().fill(&mut *bytes).expect("the kernel has random numbers");
    bytes
}

/// Creates a file with a new key that only its owner can read, and makes the file durable. An
/// existing file is not changed. Only one process may do this at a time. Blocks.
pub fn make_key_file(path: &Path) -> Result<(), KeyError> {
    let io = |error| KeyError::Io(path.to_owned(), error);
    if path.try_exists().map_err(io)? {
        return Ok(());
    }
    // The key is written under another name first, so that a crash leaves no partial key.
    let new = path.with_extension("new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(io)?;
    let mut text = Zeroizing::new(String::with_capacity(2 * KEY_BYTES_MIN + 1));
    for byte in *random_bytes::<KEY_BYTES_MIN>() {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
        }
    }
    text.push('\n');
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io)?;
    std::fs::rename(&new, path).map_err(io)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &tempfile::TempDir, name: &str, content: &[u8], mode: u32) -> KeySource {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        KeySource::File(path)
    }

    #[test]
    fn a_value_opens_under_its_own_name_and_key_only() {
        let keys = Keys::random();
        for value in ["", "s3cret", &"x".repeat(64 << 10)] {
            let sealed = keys.seal("a", value);
            assert_eq!(sealed.len(), OVERHEAD_BYTES + value.len());
            assert_eq!(keys.open("a", &sealed).unwrap().as_str(), value);
            assert!(matches!(keys.open("b", &sealed), Err(SecretError::Damaged(_))));
            let other = Keys::random().open("a", &sealed);
            assert!(matches!(other, Err(SecretError::OtherKey(_))));
            for at in [0, 9, sealed.len() - 1] {
                let mut changed = sealed.clone();
                changed[at] ^= 1;
                assert!(matches!(keys.open("a", &changed), Err(SecretError::Damaged(_))), "{at}");
                assert!(matches!(keys.open("a", &sealed[..at]), Err(SecretError::Damaged(_))));
            }
        }
        let again = [keys.seal("a", "s3cret"), keys.seal("a", "s3cret")];
        assert_ne!(again[0], again[1], "equal values look different");
        let shows = |sealed: &Vec<u8>| sealed.windows(6).any(|part| part == b"s3cret");
        assert!(!again.iter().any(shows));
    }

    #[test]
    fn the_first_key_encrypts_and_all_decrypt() {
        let dir = tempfile::tempdir().unwrap();
        let old = file(&dir, "old", &[b'o'; 32], 0o600);
        let new = file(&dir, "new", format!("{}\r\n", "n".repeat(40)).as_bytes(), 0o640);
        let before = Keys::load(&old, &[]).unwrap();
        let sealed = before.seal("a", "value");
        assert!(before.is_current(&sealed));
        let mut added = Keys::load(&new, &[]).unwrap();
        assert!(matches!(added.open("a", &sealed), Err(SecretError::OtherKey(_))));
        added.add(&old).unwrap();
        assert_eq!(added.open("a", &sealed).unwrap().as_str(), "value");
        let both = Keys::load(&new, std::slice::from_ref(&old)).unwrap();
        assert_eq!(both.open("a", &sealed).unwrap().as_str(), "value");
        assert!(!both.is_current(&sealed));
        let sealed = both.seal("a", "value");
        assert!(matches!(before.open("a", &sealed), Err(SecretError::OtherKey(_))));
        // The end of the line is not part of a key.
        let same = file(&dir, "same", "n".repeat(40).as_bytes(), 0o600);
        assert_eq!(Keys::load(&same, &[]).unwrap().open("a", &sealed).unwrap().as_str(), "value");
    }

    #[test]
    fn keys_that_cannot_be_used_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let said = |source: &KeySource| Keys::load(source, &[]).unwrap_err().to_string();
        let short = file(&dir, "short", b"0123456789012345678901234567890\n", 0o600);
        assert!(said(&short).contains("short has 31 bytes; a key has 32 to 4096; make one: ("));
        let long = file(&dir, "long", &[b'x'; 5000], 0o600);
        assert!(said(&long).contains("long has 4099 bytes"), "{}", said(&long));
        let open = file(&dir, "open", &[b'x'; 32], 0o644);
        assert!(said(&open).contains("every user of this machine can read or write it"));
        let missing = KeySource::File(dir.path().join("missing"));
        assert!(said(&missing).contains("missing is missing; make a key: (umask 077; "));
        let folder = KeySource::File(dir.path().to_owned());
        assert!(said(&folder).ends_with(" is not a file"));
        assert!("credential:a/b".parse::<KeySource>().is_err());
        assert!("credential:".parse::<KeySource>().is_err());
        assert_eq!("credential:key".parse::<KeySource>().unwrap().to_string(), "credential:key");
    }

    #[test]
    fn a_made_key_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secrets.key");
        make_key_file(&path).unwrap();
        let content = std::fs::read(&path).unwrap();
        assert_eq!(content.len(), 65);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        make_key_file(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), content);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        Keys::load(&KeySource::File(path), &[]).unwrap();
    }
}
