//! The messages between a node and `mote-dtls`, the program that terminates the node's DTLS
//! sessions.
//!
//! Each message is one packet of a Unix socket that preserves packet boundaries (`SOCK_SEQPACKET`).
//! The first byte tells the kind of the message. Numbers are big-endian. This module must not know
//! sockets, CoAP or DTLS.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The longest message, in bytes. A longer list of keys is sent in several messages.
pub const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// The limit of sessions at once. At the limit, the program ends a session before it opens another.
/// Each session takes about 10 KiB there (measured with 1,000 sessions).
pub const SESSIONS_MAX: usize = 4_096;
/// The maximum number of sessions that the node keeps at once. This also counts new sessions whose
/// certificate the node has not yet accepted, and the old sessions that these will replace.
pub const SESSIONS_OF_NODE_MAX: usize = SESSIONS_MAX + 1_024;
/// The longest identity of a session, in bytes. It is longer than any identity made from a caller's
/// name.
pub const IDENTITY_BYTES_MAX: usize = 512;

/// The longest certificate of the node or of a client, in bytes.
pub const CERTIFICATE_BYTES_MAX: usize = 4 << 10;

const DATAGRAM: u8 = 1;
const OPENED: u8 = 2;
const CLOSED: u8 = 3;
const KEYS: u8 = 4;
const CERTIFICATE: u8 = 5;
const OPENED_BY_CERTIFICATE: u8 = 6;
const ACCEPTED: u8 = 7;

/// A pre-shared key (RFC 4279). Client and node use it to authenticate each other.
#[derive(Clone, PartialEq, Eq)]
pub struct Psk {
    /// The identity that the client sends in its handshake, at most 65,535 bytes.
    pub identity: String,
    /// The key, at most 65,535 bytes.
    pub key: Vec<u8>,
    /// The time from which the key is no longer valid, in milliseconds since 1970.
    pub expires_unix_ms: Option<u64>,
}

impl std::fmt::Debug for Psk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Psk").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// The certificate with which the node proves its identity, and the private key.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ServerCertificate {
    /// The certificate (X.509, DER).
    pub certificate: Vec<u8>,
    /// The private key of the certificate, on a NIST curve (PKCS#8 or SEC1, DER).
    pub key: Vec<u8>,
    /// Whether clients must also present a certificate.
    pub asks_clients: bool,
}

impl std::fmt::Debug for ServerCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerCertificate")
            .field("asks_clients", &self.asks_clients)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// A datagram of a session. Sent in both directions.
    Datagram {
        session: u32,
        /// The decrypted bytes.
        bytes: &'a [u8],
    },
    /// To the node: a client has proved its identity.
    Opened {
        /// A number that no other current session has.
        session: u32,
        /// The address of the client.
        peer: SocketAddr,
        /// The identity of the client's pre-shared key.
        identity: &'a str,
    },
    /// To the node: a client without a pre-shared key has opened a session. The client has proved
    /// that it holds the private key of its certificate, but the certificate's signature has not
    /// been checked yet.
    OpenedByCertificate {
        /// A number that no other current session has.
        session: u32,
        /// The address of the client.
        peer: SocketAddr,
        /// The certificate (X.509, DER); empty if the client has none.
        certificate: &'a [u8],
    },
    /// To the program: a client's certificate is signed by an authority that the node trusts.
    Accepted { session: u32 },
    /// To the node: the session has ended. To the program: end the session.
    Closed { session: u32 },
    /// To the program: a part of the list of all valid keys. The program begins to use a list when
    /// the last part has arrived.
    Keys {
        /// Whether this part begins a list.
        is_first: bool,
        /// Whether this part ends a list.
        is_last: bool,
        keys: Vec<Psk>,
    },
    /// To the program: the certificate for new sessions. With `None`, only pre-shared keys are
    /// accepted.
    Certificate {
        own: Option<ServerCertificate>,
        /// Whether to end the sessions of clients with certificates, because the trusted
        /// authorities have changed.
        ends_sessions: bool,
    },
}

/// A message that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the message cannot be read")
    }
}

impl std::error::Error for Malformed {}

impl<'a> Message<'a> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Datagram { session, bytes } => {
                datagram_head(out, *session);
                out.extend_from_slice(bytes);
            }
            Self::Opened { session, peer, identity } => {
                opened_head(out, OPENED, *session, *peer);
                out.extend_from_slice(identity.as_bytes());
            }
            Self::OpenedByCertificate { session, peer, certificate } => {
                opened_head(out, OPENED_BY_CERTIFICATE, *session, *peer);
                out.extend_from_slice(certificate);
            }
            Self::Accepted { session } => {
                out.push(ACCEPTED);
                out.extend_from_slice(&session.to_be_bytes());
            }
            Self::Closed { session } => {
                out.push(CLOSED);
                out.extend_from_slice(&session.to_be_bytes());
            }
            Self::Keys { is_first, is_last, keys } => {
                out.push(KEYS);
                out.push(u8::from(*is_first) | u8::from(*is_last) << 1);
                for key in keys {
                    put(out, key.identity.as_bytes());
                    put(out, &key.key);
                    let expires = key.expires_unix_ms.unwrap_or(u64::MAX);
                    out.extend_from_slice(&expires.to_be_bytes());
                }
            }
            Self::Certificate { own, ends_sessions } => {
                out.push(CERTIFICATE);
                out.push(u8::from(*ends_sessions));
                if let Some(own) = own {
                    out.push(u8::from(own.asks_clients));
                    put(out, &own.certificate);
                    put(out, &own.key);
                }
            }
        }
    }

    /// Reads one message.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut rest = Rest(bytes);
        match rest.byte()? {
            DATAGRAM => Ok(Self::Datagram { session: rest.u32()?, bytes: rest.0 }),
            OPENED => {
                let (session, peer) = rest.opened_head()?;
                let identity = std::str::from_utf8(rest.0).map_err(|_| Malformed)?;
                Ok(Self::Opened { session, peer, identity })
            }
            OPENED_BY_CERTIFICATE => {
                let (session, peer) = rest.opened_head()?;
                Ok(Self::OpenedByCertificate { session, peer, certificate: rest.0 })
            }
            ACCEPTED => Ok(Self::Accepted { session: rest.u32()? }),
            CLOSED => Ok(Self::Closed { session: rest.u32()? }),
            CERTIFICATE => {
                let ends_sessions = rest.byte()? != 0;
                if rest.0.is_empty() {
                    return Ok(Self::Certificate { own: None, ends_sessions });
                }
                let asks_clients = rest.byte()? != 0;
                let certificate = rest.part()?.to_vec();
                let key = rest.part()?.to_vec();
                let own = Some(ServerCertificate { certificate, key, asks_clients });
                Ok(Self::Certificate { own, ends_sessions })
            }
            KEYS => {
                let flags = rest.byte()?;
                let mut keys = Vec::new();
                while !rest.0.is_empty() {
                    let identity = std::str::from_utf8(rest.part()?).map_err(|_| Malformed)?;
                    let key = rest.part()?.to_vec();
                    let expires = u64::from_be_bytes(rest.array()?);
                    keys.push(Psk {
                        identity: identity.to_owned(),
                        key,
                        expires_unix_ms: (expires != u64::MAX).then_some(expires),
                    });
                }
                Ok(Self::Keys { is_first: flags & 1 != 0, is_last: flags & 2 != 0, keys })
            }
            _ => Err(Malformed),
        }
    }
}

/// Appends the head of a [`Message::Datagram`], which precedes the bytes of the datagram.
pub fn datagram_head(out: &mut Vec<u8>, session: u32) {
    out.push(DATAGRAM);
    out.extend_from_slice(&session.to_be_bytes());
}

fn opened_head(out: &mut Vec<u8>, kind: u8, session: u32, peer: SocketAddr) {
    out.push(kind);
    out.extend_from_slice(&session.to_be_bytes());
    out.extend_from_slice(&peer.port().to_be_bytes());
    let ip = match peer.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    out.extend_from_slice(&ip.octets());
}

/// The messages that replace all keys that the program knows.
pub fn all_keys(keys: impl IntoIterator<Item = Psk>) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for key in keys {
        let length = key.identity.len() + key.key.len() + 12;
        // A key too large for any message is left out.
        if length > MESSAGE_BYTES_MAX / 2 {
            continue;
        }
        if bytes + length > MESSAGE_BYTES_MAX / 2 {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += length;
        parts.last_mut().expect("there is always a part").push(key);
    }
    let count = parts.len();
    let encode = |(at, keys)| {
        let mut out = Vec::new();
        Message::Keys { is_first: at == 0, is_last: at + 1 == count, keys }.encode(&mut out);
        out
    };
    parts.into_iter().enumerate().map(encode).collect()
}

/// The address under which a front knows a session. It is the client's address, with the session
/// number in the IPv6 flow information. So a front that distinguishes peers by address also
/// distinguishes successive sessions of one client address.
pub fn address_of(session: u32, peer: SocketAddr) -> SocketAddr {
    let ip = match peer.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    SocketAddrV6::new(ip, peer.port(), session, 0).into()
}

/// The session number in an address made by [`address_of`].
pub fn session_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V6(address) => address.flowinfo(),
        SocketAddr::V4(_) => 0,
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&bytes[..usize::from(length)]);
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// Reads the number of a session and the address of its client.
    fn opened_head(&mut self) -> Result<(u32, SocketAddr), Malformed> {
        let session = self.u32()?;
        let port = self.u16()?;
        let ip = Ipv6Addr::from(self.array::<16>()?);
        // A client that uses IPv4 is given its IPv4 address.
        Ok((session, SocketAddr::new(IpAddr::V6(ip).to_canonical(), port)))
    }

    fn part(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u16()?;
        self.take(usize::from(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(Message::parse(&bytes).as_ref(), Ok(message));
        for length in 0..bytes.len() {
            // A truncated message parses as another message or fails, but never panics.
            let _ = Message::parse(&bytes[..length]);
        }
    }

    fn psk(number: u32) -> Psk {
        let expires_unix_ms = number.is_multiple_of(2).then_some(u64::from(number));
        Psk { identity: format!("name-{number}.0a"), key: vec![7; 32], expires_unix_ms }
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        check(&Message::Datagram { session: 7, bytes: b"\x40\x01\0\0" });
        check(&Message::Datagram { session: u32::MAX, bytes: b"" });
        for peer in ["192.0.2.1:5684", "[2001:db8::1]:1"] {
            let peer = peer.parse().expect("an address");
            check(&Message::Opened { session: 1, peer, identity: "shop.01234567" });
            check(&Message::OpenedByCertificate { session: 1, peer, certificate: b"" });
            check(&Message::OpenedByCertificate { session: 1, peer, certificate: b"0\x82" });
        }
        check(&Message::Closed { session: 0 });
        check(&Message::Accepted { session: 1 });
        check(&Message::Keys { is_first: true, is_last: false, keys: vec![psk(1), psk(2)] });
        let own =
            ServerCertificate { certificate: vec![1; 600], key: vec![2; 138], asks_clients: true };
        for own in [None, Some(ServerCertificate::default()), Some(own)] {
            for ends_sessions in [false, true] {
                check(&Message::Certificate { own: own.clone(), ends_sessions });
            }
        }
        assert_eq!(Message::parse(b""), Err(Malformed));
        assert_eq!(Message::parse(b"\x09"), Err(Malformed));
    }

    #[test]
    fn a_long_list_of_keys_has_several_parts() {
        for count in [0, 1, 10_000] {
            let messages = all_keys((0..count).map(psk));
            let mut all = Vec::new();
            for (at, bytes) in messages.iter().enumerate() {
                assert!(bytes.len() <= MESSAGE_BYTES_MAX);
                let Ok(Message::Keys { is_first, is_last, keys }) = Message::parse(bytes) else {
                    panic!("not keys")
                };
                assert_eq!((is_first, is_last), (at == 0, at + 1 == messages.len()));
                all.extend(keys);
            }
            assert!(all.into_iter().eq((0..count).map(psk)));
        }
    }

    #[test]
    fn two_sessions_of_an_address_differ() {
        for peer in ["192.0.2.1:5684", "[2001:db8::1]:1"] {
            let peer: SocketAddr = peer.parse().expect("an address");
            assert_ne!(address_of(1, peer), address_of(2, peer));
            let address = address_of(9, peer);
            assert_eq!(session_of(address), 9);
            assert_eq!(address.ip().to_canonical(), peer.ip());
        }
    }
}
