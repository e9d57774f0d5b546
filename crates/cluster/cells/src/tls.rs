//! The cluster's key.
//!
//! All cells share one key pair, which is derived from the key of the cluster. Both sides of a
//! connection present its public key and accept no other. A handshake therefore succeeds only if
//! both sides know the key of the cluster.

use std::fmt;
use std::path::Path;

use crate::raw_keys::{Error, KeyPair};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Shortest key. A cell shows its public key to everyone who connects, so it must be impossible to
/// guess the key from it.
const KEY_BYTES_MIN: usize = 32;
const KEY_BYTES_MAX: usize = 4_096;

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the key of the cells, {path}: {source}")]
    Unreadable { path: String, source: std::io::Error },
    /// The key is too short or too long.
    #[error("the key of the cells has {0} bytes; it needs {KEY_BYTES_MIN} to {KEY_BYTES_MAX}")]
    Length(usize),
    /// The TLS library does not accept the key.
    #[error("the key of the cells cannot be used: {0}")]
    Unusable(#[from] Error),
}

#[derive(Clone)]
pub struct CellKey {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

impl fmt::Debug for CellKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CellKey")
    }
}

impl CellKey {
    /// Reads the key from a file. White space at both ends is ignored.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let text = std::fs::read(path).map_err(|source| {
            let path = path.display().to_string();
            KeyError::Unreadable { path, source }
        })?;
        Self::new(text.trim_ascii())
    }

    pub fn new(secret: &[u8]) -> Result<Self, KeyError> {
        if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&secret.len()) {
            return Err(KeyError::Length(secret.len()));
        }
        let own = KeyPair::derive("mote cells, Ed25519, 1", secret)?;
        let theirs = own.public();
        Ok(Self { connector: own.connector(theirs)?, acceptor: own.acceptor(theirs)? })
    }

    pub(crate) fn connector(&self) -> &TlsConnector {
        &self.connector
    }

    pub(crate) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw_keys::{is_other_key, no_name};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    async fn shake(one: &[u8], other: &[u8]) -> (bool, bool) {
        let one = CellKey::new(one).unwrap();
        let other = CellKey::new(other).unwrap();
        let (near, far) = tokio::io::duplex(64 << 10);
        let client = async {
            let mut stream = one.connector().connect(no_name(), near).await?;
            stream.write_all(b"hello").await?;
            stream.flush().await?;
            // With TLS 1.3 the client learns only now whether the server has accepted it.
            stream.read_u8().await
        };
        let server = async {
            let mut stream = other.acceptor().accept(far).await?;
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
    async fn both_sides_need_the_same_key() {
        let a = [7; 32];
        let b = [8; 32];
        assert_eq!(shake(&a, &a).await, (true, true));
        assert_eq!(shake(&a, &b).await, (false, false));
    }

    #[test]
    fn short_keys_are_refused() {
        assert!(matches!(CellKey::new(&[1; 31]), Err(KeyError::Length(31))));
        assert!(CellKey::new(&[1; 32]).is_ok());
    }
}
