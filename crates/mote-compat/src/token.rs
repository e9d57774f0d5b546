//! The token of the management API and of the APIs of other platforms: it recognizes clients that
//! send it and slows down those that guess.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::node::Admission;

/// Wrong tokens from one address within [`GUESS_WINDOW`] before it must wait.
const GUESSES_MAX: u32 = 30;
const GUESS_WINDOW: Duration = Duration::from_secs(60);
/// Most addresses that are remembered.
const ADDRESSES_MAX: usize = 4_096;

/// The token of the TCP address. Only its hash is kept, so that a comparison takes the same time
/// for a similar token.
pub struct Token {
    hash: [u8; 32],
    guesses: Mutex<HashMap<IpAddr, (u32, Instant)>>,
}

impl Token {
    /// Reads the token file, or makes one with 256 random bits that only its owner can read.
    pub fn load_or_create(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text.trim().to_owned(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let mut bytes = [0; 32];
                std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
                let text = data_encoding::HEXLOWER.encode(&bytes);
                let mut file = std::fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(path)?;
                std::io::Write::write_all(&mut file, format!("{text}\n").as_bytes())?;
                text
            }
            Err(error) => return Err(error),
        };
        if text.len() < 32 {
            return Err(std::io::Error::other("the token must have at least 32 characters"));
        }
        Ok(Self { hash: Sha256::digest(&text).into(), guesses: Mutex::default() })
    }

    fn is(&self, text: &str) -> bool {
        <[u8; 32]>::from(Sha256::digest(text)) == self.hash
    }

    /// Whether `given`, sent from `address`, is the token; counts wrong ones.
    pub fn admits(&self, address: IpAddr, given: Option<&str>) -> Admission {
        if given.is_some_and(|given| given.len() <= 1_024 && self.is(given.trim())) {
            Admission::Admitted
        } else if self.may_guess(address, true) {
            Admission::Refused
        } else {
            Admission::TooManyTries
        }
    }

    /// Counts a wrong token; `false` when this address must wait.
    fn may_guess(&self, address: IpAddr, wrong: bool) -> bool {
        let now = Instant::now();
        let mut guesses = self.guesses.lock();
        if guesses.len() >= ADDRESSES_MAX {
            guesses.retain(|_, (_, since)| now.duration_since(*since) < GUESS_WINDOW);
        }
        let (count, since) = guesses.entry(address).or_insert((0, now));
        if now.duration_since(*since) >= GUESS_WINDOW {
            (*count, *since) = (0, now);
        }
        *count += u32::from(wrong);
        *count <= GUESSES_MAX
    }
}
