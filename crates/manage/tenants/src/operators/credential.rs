//! What identifies the sender of a request, and the random texts that are given to senders.

use std::io::{self, Read as _};

use sha2::{Digest as _, Sha256};

/// Identifies what an admitted request contained, so that it can be checked again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    Token(TokenKey),
    Session(SessionKey),
}

/// The SHA-256 of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenKey(pub(crate) [u8; 32]);

impl TokenKey {
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }
}

/// The SHA-256 of a session's secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionKey(pub(crate) [u8; 32]);

impl SessionKey {
    pub(crate) fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret).into())
    }
}

/// Whose rights a session has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Maker {
    /// The holder of this token.
    Token(TokenKey),
    /// A user that may use the management socket and may do everything.
    User(u32),
}

/// 256 random bits as hexadecimal digits.
pub(crate) fn random_text() -> io::Result<String> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(base16ct::lower::encode_string(&bytes))
}
