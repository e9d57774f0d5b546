//! Settings that all handshakes share.

use std::time::Duration;

use dimpl::{Config, ConfigBuilder};

use crate::hello::provider;

/// How long a handshake may take. A client on a poor link repeats a message several times.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(30);
/// Longest datagram that is sent in a handshake.
const MTU: usize = 1_152;

/// DTLS 1.2 with these limits.
pub(crate) fn builder() -> ConfigBuilder {
    Config::builder()
        .with_crypto_provider(provider())
        .dtls13_cipher_suites(&[])
        .handshake_timeout(HANDSHAKE)
        .mtu(MTU)
}
