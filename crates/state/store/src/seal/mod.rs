//! Encryption of the secrets that a node keeps, in its store and in its memory.
//!
//! [`Keys`] are read from files or from credentials of systemd. The first key encrypts, and all of
//! them decrypt. [`Secrets`] holds the encrypted values in memory and decrypts a value when it is
//! needed. This module knows neither the store nor functions. Start reading at `secrets.rs`.

mod keys;
mod locked;
mod secrets;

pub use keys::{
    KEY_BYTES_MAX, KEY_BYTES_MIN, KeyError, KeySource, Keys, SecretError, make_key_file,
};
pub use locked::forbid_core_files;
pub use secrets::Secrets;
pub use zeroize::Zeroizing;
