//! The first messages of a handshake (RFC 6347, 4.2.1). A client must show that it receives
//! datagrams at its address before the program stores anything for it.
//!
//! The program answers a first hello with a cookie. It can check a cookie without having stored it.
//! The library can do the same, but only with a state for each client, so the cookies are made
//! here. The library must still see a handshake from its beginning. [`Hello::without_cookie`]
//! reconstructs the first hello of the client for this purpose. Pure, except for the secret.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use dimpl::CryptoError;
use dimpl::crypto::rust_crypto::default_provider;
use dimpl::crypto::{CryptoProvider, HashAlgorithm, HmacProvider};

pub(crate) const COOKIE_BYTES: usize = 32;
/// The length of a period. A cookie is valid in the period in which it was made and in the next
/// one.
const PERIOD: Duration = Duration::from_secs(60);

const RECORD_BYTES: usize = 13;
const MESSAGE_BYTES: usize = 12;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const HELLO_VERIFY_REQUEST: u8 = 3;
const RANDOM_BYTES: usize = 32;
const PSK_SUITE: [u8; 2] = [0xc0, 0xa8];
/// The length of a hello's version and random bytes.
const BEFORE_SESSION_ID: usize = 2 + RANDOM_BYTES;

/// A client's hello that fills the first record of a datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hello<'a> {
    /// The record's number.
    sequence: &'a [u8],
    /// The message's number: 0 for the first hello of a client, 1 for a hello with a cookie.
    pub(crate) number: u16,
    /// The message without its head.
    body: &'a [u8],
    /// The position of the cookie's length in `body`.
    cookie_at: usize,
}

impl<'a> Hello<'a> {
    /// Reads the hello at the start of a datagram. Returns `None` for all other datagrams. A hello
    /// in several records is not accepted, because it would have to be stored before its sender is
    /// known.
    pub(crate) fn parse(datagram: &'a [u8]) -> Option<Self> {
        let (head, rest) = datagram.split_at_checked(RECORD_BYTES)?;
        let is_hello_record = head[0] == HANDSHAKE && head[1] == 0xfe && head[3..5] == [0, 0];
        let length = usize::from(u16::from_be_bytes([head[11], head[12]]));
        let message = rest.get(..length).filter(|_| is_hello_record)?;
        let (message, body) = message.split_at_checked(MESSAGE_BYTES)?;
        let number_of = |at: usize| {
            usize::from(message[at]) << 16
                | usize::from(message[at + 1]) << 8
                | usize::from(message[at + 2])
        };
        let is_whole =
            number_of(1) == body.len() && number_of(6) == 0 && number_of(9) == body.len();
        if message[0] != CLIENT_HELLO || !is_whole {
            return None;
        }
        let cookie_at = BEFORE_SESSION_ID + 1 + usize::from(*body.get(BEFORE_SESSION_ID)?);
        let cookie_bytes = usize::from(*body.get(cookie_at)?);
        body.get(cookie_at + 1..cookie_at + 1 + cookie_bytes)?;
        let number = u16::from_be_bytes([message[4], message[5]]);
        Some(Self { sequence: &head[5..11], number, body, cookie_at })
    }

    /// The cookie that the client sends back. Empty in its first hello.
    pub(crate) fn cookie(&self) -> &'a [u8] {
        let length = usize::from(self.body[self.cookie_at]);
        &self.body[self.cookie_at + 1..][..length]
    }

    /// The random bytes. They differ between two handshakes of a client.
    pub(crate) fn random(&self) -> &'a [u8] {
        &self.body[2..BEFORE_SESSION_ID]
    }

    /// Whether the client offers the library's cipher suite with a pre-shared key,
    /// `TLS_PSK_WITH_AES_128_CCM_8` (RFC 6655, 5).
    pub(crate) fn offers_psk(&self) -> bool {
        let after_cookie = &self.body[self.cookie_at + 1 + self.cookie().len()..];
        let Some((length, rest)) = after_cookie.split_first_chunk::<2>() else { return false };
        let suites = rest.get(..usize::from(u16::from_be_bytes(*length))).unwrap_or_default();
        suites.chunks_exact(2).any(|suite| suite == PSK_SUITE)
    }

    /// The request to repeat the hello with a cookie (HelloVerifyRequest). It is shorter than any
    /// hello, so that forged addresses cannot use the program to flood a third party.
    pub(crate) fn verify_request(&self, cookie: &[u8; COOKIE_BYTES]) -> Vec<u8> {
        let mut body = vec![0xfe, 0xff, COOKIE_BYTES as u8];
        body.extend_from_slice(cookie);
        // The record repeats the number of the client's record, because the program does not know
        // how many records it has sent (RFC 6347, 4.2.1).
        record(self.sequence, HELLO_VERIFY_REQUEST, self.number, &body)
    }

    /// The hello in the form in which the client sent it before it had a cookie.
    pub(crate) fn without_cookie(&self) -> Vec<u8> {
        let mut body = self.body[..self.cookie_at].to_vec();
        body.push(0);
        body.extend_from_slice(&self.body[self.cookie_at + 1 + self.cookie().len()..]);
        record(&[0; 6], CLIENT_HELLO, 0, &body)
    }
}

/// Builds a record with one whole handshake message.
fn record(sequence: &[u8], kind: u8, number: u16, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    let record_length = (MESSAGE_BYTES + body.len()) as u16;
    let mut out = vec![HANDSHAKE, 0xfe, 0xfd, 0, 0];
    out.extend_from_slice(sequence);
    out.extend_from_slice(&record_length.to_be_bytes());
    out.push(kind);
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&[0; 3]);
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(body);
    out
}

/// Makes and checks cookies.
pub(crate) struct Cookies {
    secret: [u8; 32],
    hmac: &'static dyn HmacProvider,
}

impl Cookies {
    /// Only a holder of the secret can make valid cookies.
    pub(crate) fn new(secret: [u8; 32]) -> Self {
        Self { secret, hmac: default_provider().hmac_provider }
    }

    /// Makes the cookie for a hello from this address. `uptime` is the time since a fixed moment.
    pub(crate) fn make(&self, peer: SocketAddr, hello: &Hello<'_>, uptime: Duration) -> [u8; 32] {
        self.of_period(peer, hello, uptime.as_secs() / PERIOD.as_secs())
    }

    /// Whether the hello has a cookie that was made for it recently.
    pub(crate) fn is_valid(&self, peer: SocketAddr, hello: &Hello<'_>, uptime: Duration) -> bool {
        let period = uptime.as_secs() / PERIOD.as_secs();
        // The comparison need not take a constant time. A wrong cookie can be tried only once, and
        // the time of its comparison says nothing about the cookie of another hello.
        [period, period.saturating_sub(1)]
            .iter()
            .any(|period| self.of_period(peer, hello, *period) == hello.cookie())
    }

    fn of_period(&self, peer: SocketAddr, hello: &Hello<'_>, period: u64) -> [u8; 32] {
        let mut input = period.to_be_bytes().to_vec();
        match peer.ip() {
            IpAddr::V4(ip) => input.extend_from_slice(&ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => input.extend_from_slice(&ip.octets()),
        }
        input.extend_from_slice(&peer.port().to_be_bytes());
        input.extend_from_slice(hello.random());
        // A key and an input of these lengths are always valid.
        self.hmac.hmac_sha256(&self.secret, &input).expect("HMAC takes every input")
    }
}

thread_local! {
    /// The cookie of the hello that the library is processing.
    static CHECKED: Cell<Option<[u8; COOKIE_BYTES]>> = const { Cell::new(None) };
}

/// Calls `give`. During this call the library accepts this cookie, which was checked before.
pub(crate) fn with_checked_cookie<T>(cookie: &[u8], give: impl FnOnce() -> T) -> T {
    CHECKED.set(cookie.try_into().ok());
    let given = give();
    CHECKED.set(None);
    given
}

/// The library's cryptography with the cookies of this module. In DTLS 1.2 the library uses this
/// HMAC only for its cookies.
pub(crate) fn provider() -> CryptoProvider {
    CryptoProvider { hmac_provider: &CheckedCookie, ..default_provider() }
}

#[derive(Debug)]
struct CheckedCookie;

impl HmacProvider for CheckedCookie {
    fn hmac(
        &self,
        hash: HashAlgorithm,
        key: &[u8],
        data: &[u8],
        out: &mut [u8],
    ) -> Result<usize, CryptoError> {
        match (CHECKED.get(), out.get_mut(..COOKIE_BYTES)) {
            (Some(cookie), Some(place)) if data.len() == RANDOM_BYTES => {
                place.copy_from_slice(&cookie);
                Ok(COOKIE_BYTES)
            }
            _ => default_provider().hmac_provider.hmac(hash, key, data, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(number: u16, cookie: &[u8], random: u8) -> Vec<u8> {
        let mut body = vec![0xfe, 0xfd];
        body.extend_from_slice(&[random; 32]);
        body.push(0);
        body.push(cookie.len() as u8);
        body.extend_from_slice(cookie);
        body.extend_from_slice(&[0, 2, 0xc0, 0xa8, 1, 0]);
        record(&[0, 0, 0, 0, 0, number as u8], CLIENT_HELLO, number, &body)
    }

    #[test]
    fn a_cookie_is_for_one_address_one_hello_and_a_short_time() {
        let cookies = Cookies::new([7; 32]);
        let here = "192.0.2.1:5".parse().unwrap();
        let there = "192.0.2.1:6".parse().unwrap();
        let first = hello(0, b"", 1);
        let first = Hello::parse(&first).unwrap();
        let at = Duration::from_secs(90);
        assert!(!cookies.is_valid(here, &first, at));
        let cookie = cookies.make(here, &first, at);
        let second = hello(1, &cookie, 1);
        let second = Hello::parse(&second).unwrap();
        assert_eq!(second.cookie(), cookie);
        for (seconds, is_valid) in [(90, true), (119, true), (179, true), (180, false), (30, false)]
        {
            let then = Duration::from_secs(seconds);
            assert_eq!(cookies.is_valid(here, &second, then), is_valid, "{seconds}");
        }
        assert!(!cookies.is_valid(there, &second, at));
        assert!(!Cookies::new([8; 32]).is_valid(here, &second, at));
        let other = hello(1, &cookie, 2);
        assert!(!cookies.is_valid(here, &Hello::parse(&other).unwrap(), at));
        let request = first.verify_request(&cookie);
        assert!(request.len() < RECORD_BYTES + MESSAGE_BYTES + 60, "{}", request.len());
    }

    #[test]
    fn a_hello_is_the_same_without_its_cookie() {
        let first = hello(0, b"", 1);
        let second = hello(1, &[9; 32], 1);
        assert_eq!(Hello::parse(&second).unwrap().without_cookie(), first);
    }

    #[test]
    fn what_a_client_offers() {
        let with = hello(1, &[9; 32], 1);
        assert!(Hello::parse(&with).unwrap().offers_psk());
        let mut without = with.clone();
        let suite = without.len() - 4;
        without[suite..suite + 2].copy_from_slice(&[0xc0, 0x2b]);
        assert!(!Hello::parse(&without).unwrap().offers_psk());
        // The list claims to be longer than the message.
        let mut long = with.clone();
        long[suite - 1] = 200;
        assert!(!Hello::parse(&long).unwrap().offers_psk());
    }

    #[test]
    fn other_datagrams_are_no_hello() {
        let whole = hello(1, &[9; 32], 1);
        assert!(Hello::parse(&whole).is_some());
        for length in 0..whole.len() {
            assert!(Hello::parse(&whole[..length]).is_none(), "{length}");
        }
        // Changes the kind, the version, the epoch, the message, its length, and a fragment.
        for at in [0, 1, 4, 13, 14, 16, 19, 21, 24] {
            let mut other = whole.clone();
            other[at] ^= 1;
            assert!(Hello::parse(&other).is_none(), "{at}");
        }
    }
}
