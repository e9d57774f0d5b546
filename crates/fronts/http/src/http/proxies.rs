//! Proxies in front of the node, and what they say about the clients behind them.
//!
//! Only statements of a trusted proxy count. Proxies append to whatever a client has written into a
//! field, so a list is read from its end.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use mote_core::destination::Networks;
use mote_core::invocation::{Head, headers};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

/// How proxies name their client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProxyWord {
    /// In the field `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// In the field `Forwarded` (RFC 7239).
    Forwarded,
    /// In a header at the beginning of each connection (HAProxy's PROXY protocol, versions 1 and
    /// 2).
    ProxyProtocol,
}

/// The trusted proxies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    networks: Networks,
    word: ProxyWord,
}

/// A function that reads the address in one list entry.
type Read = fn(&str) -> Option<IpAddr>;

/// Stands for a client whose address the proxy does not tell. This address never counts as the
/// local machine.
const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// The longest header of version 1, the fixed part of a header of version 2, and the longest header
/// of version 2.
const VERSION_1_BYTES_MAX: usize = 107;
const VERSION_2_BYTES: usize = 16;
const VERSION_2_BYTES_MAX: usize = 2_048;

impl Proxies {
    /// The proxies in these networks, which name their clients by `word`.
    pub fn new(networks: Networks, word: ProxyWord) -> Self {
        Self { networks, word }
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.networks.has(address.to_canonical())
    }

    /// Whether a connection from this address begins with a PROXY protocol header.
    pub(crate) fn sends_header(&self, peer: IpAddr) -> bool {
        self.word == ProxyWord::ProxyProtocol && self.trusts(peer)
    }

    /// Whether requests from this address have a field that names their client.
    pub(crate) fn sends_field(&self, peer: IpAddr) -> bool {
        self.word != ProxyWord::ProxyProtocol && self.trusts(peer)
    }

    /// The client of a request, if [`Self::sends_field`]: the last address that does not belong to
    /// a trusted proxy. `None` if the field is missing, because the proxy itself made the request.
    pub(crate) fn client(&self, head: &Head) -> Option<IpAddr> {
        let (wanted, read): (&[u8], Read) = match self.word {
            ProxyWord::Forwarded => (b"forwarded", of_element),
            _ => (b"x-forwarded-for", address),
        };
        let fields: Vec<_> = headers(head.headers())
            .filter(|(name, _)| *name == wanted)
            .map(|(_, value)| value)
            .collect();
        let mut found = None;
        for field in fields.into_iter().rev() {
            // Bytes that are not UTF-8 are not an address, either.
            let Ok(field) = str::from_utf8(field) else { return Some(UNKNOWN) };
            for entry in field.rsplit(',') {
                match read(entry) {
                    None => return Some(UNKNOWN),
                    Some(address) if !self.trusts(address) => return Some(address),
                    trusted => found = trusted,
                }
            }
        }
        found
    }
}

/// Reads an address with or without a port: `192.0.2.7`, `192.0.2.7:80`, `2001:db8::1`,
/// `[2001:db8::1]:80`.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim_ascii();
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    text.parse()
        .ok()
        .or_else(with_port)
        .or_else(bracketed)
        .map(|address: IpAddr| address.to_canonical())
}

/// Reads the address in an element of `Forwarded`, such as `proto=https;for="[2001:db8::1]:80"`.
fn of_element(element: &str) -> Option<IpAddr> {
    let mut pairs = element.split(';').filter_map(|pair| pair.split_once('='));
    let (_, node) = pairs.find(|(name, _)| name.trim_ascii().eq_ignore_ascii_case("for"))?;
    let node = node.trim_ascii();
    address(node.strip_prefix('"').and_then(|node| node.strip_suffix('"')).unwrap_or(node))
}

/// Reads the PROXY protocol header from the beginning of a connection, and nothing after it.
/// Returns the client, or `None` if the proxy itself made the connection, for example to check
/// whether the node is up.
pub(crate) async fn read_header(stream: &mut TcpStream) -> io::Result<Option<IpAddr>> {
    let mut bytes = Vec::with_capacity(VERSION_1_BYTES_MAX);
    let more = |length: usize, bytes: &mut Vec<u8>| {
        let from = bytes.len();
        bytes.resize(length, 0);
        from
    };
    // The shortest header of version 1 has 15 bytes: `PROXY UNKNOWN\r\n`.
    let from = more(VERSION_2_BYTES - 1, &mut bytes);
    stream.read_exact(&mut bytes[from..]).await?;
    if bytes.starts_with(b"PROXY ") {
        while !bytes.ends_with(b"\r\n") {
            if bytes.len() >= VERSION_1_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            bytes.push(stream.read_u8().await?);
        }
        return client_of_header(&bytes);
    }
    bytes.push(stream.read_u8().await?);
    let length = VERSION_2_BYTES + usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
    if !bytes.starts_with(ppp::v2::PROTOCOL_PREFIX) || length > VERSION_2_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let from = more(length, &mut bytes);
    stream.read_exact(&mut bytes[from..]).await?;
    client_of_header(&bytes)
}

fn client_of_header(bytes: &[u8]) -> io::Result<Option<IpAddr>> {
    use ppp::v1::Addresses as One;
    use ppp::v2::{Addresses as Two, Command};
    let client = match ppp::HeaderResult::parse(bytes) {
        ppp::HeaderResult::V1(Ok(header)) => match header.addresses {
            One::Tcp4(both) => both.source_address.into(),
            One::Tcp6(both) => both.source_address.into(),
            One::Unknown => UNKNOWN,
        },
        ppp::HeaderResult::V2(Ok(header)) if header.command == Command::Local => return Ok(None),
        ppp::HeaderResult::V2(Ok(header)) => match header.addresses {
            Two::IPv4(both) => both.source_address.into(),
            Two::IPv6(both) => both.source_address.into(),
            _ => UNKNOWN,
        },
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    Ok(Some(client.to_canonical()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(word: ProxyWord) -> Proxies {
        let networks = Networks::parse("127.0.0.1, 10.0.0.0/8, fd00::/8").expect("networks");
        Proxies::new(networks, word)
    }

    /// The client of a request with these fields, or `own` if the proxy itself made the request.
    fn client(word: ProxyWord, fields: &[(&str, &str)]) -> String {
        let mut head = Head::builder(b"GET", b"/", b"");
        for (name, value) in fields {
            head.header(name.as_bytes(), value.as_bytes());
        }
        proxies(word).client(&head.finish()).map_or("own".to_owned(), |address| address.to_string())
    }

    #[test]
    fn the_last_address_that_is_no_proxy_is_the_client() {
        let of = |value: &str| client(ProxyWord::XForwardedFor, &[("x-forwarded-for", value)]);
        assert_eq!(client(ProxyWord::XForwardedFor, &[]), "own");
        assert_eq!(client(ProxyWord::XForwardedFor, &[("forwarded", "for=192.0.2.1")]), "own");
        assert_eq!(of("192.0.2.7"), "192.0.2.7");
        assert_eq!(of("127.0.0.1, 192.0.2.7"), "192.0.2.7", "what the client wrote does not count");
        assert_eq!(of("192.0.2.7, 10.1.2.3 , 127.0.0.1"), "192.0.2.7");
        assert_eq!(of("10.1.2.3,10.4.5.6"), "10.1.2.3", "a client within the proxies' network");
        assert_eq!(of("192.0.2.7:4711"), "192.0.2.7");
        assert_eq!(of("2001:db8::7"), "2001:db8::7");
        assert_eq!(of("[2001:db8::7]:80"), "2001:db8::7");
        assert_eq!(of("[2001:db8::7]"), "2001:db8::7");
        assert_eq!(of("::ffff:192.0.2.7"), "192.0.2.7");
        for odd in [
            "unknown",
            "",
            "192.0.2.7, unknown",
            "localhost",
            "192.0.2.7 192.0.2.8",
            "\"127.0.0.1\"",
        ] {
            assert_eq!(of(odd), "0.0.0.0", "{odd}");
        }
        let two = [("x-forwarded-for", "192.0.2.1"), ("x-forwarded-for", "192.0.2.2, 10.0.0.1")];
        assert_eq!(client(ProxyWord::XForwardedFor, &two), "192.0.2.2");
    }

    #[test]
    fn the_field_of_rfc_7239() {
        let of = |value: &str| client(ProxyWord::Forwarded, &[("forwarded", value)]);
        assert_eq!(of("for=192.0.2.43"), "192.0.2.43");
        assert_eq!(
            of("proto=https; For=\"[2001:db8:cafe::17]:4711\";by=10.0.0.1"),
            "2001:db8:cafe::17"
        );
        assert_eq!(of("for=127.0.0.1, for=192.0.2.43, for=10.0.0.9;by=10.0.0.1"), "192.0.2.43");
        for odd in ["for=unknown", "for=_hidden", "by=10.0.0.1", "for", "for=\"192.0.2.1"] {
            assert_eq!(of(odd), "0.0.0.0", "{odd}");
        }
        let other = client(ProxyWord::Forwarded, &[("x-forwarded-for", "192.0.2.1")]);
        assert_eq!(other, "own", "only one field counts");
    }

    #[test]
    fn only_trusted_proxies_are_asked() {
        let fields = proxies(ProxyWord::XForwardedFor);
        let header = proxies(ProxyWord::ProxyProtocol);
        for (address, expected) in [
            ("127.0.0.1", true),
            ("::ffff:10.1.2.3", true),
            ("fd12::1", true),
            ("127.0.0.2", false),
            ("2002:7f00:1::", false),
            ("::1", false),
        ] {
            let address: IpAddr = address.parse().expect("an address");
            assert_eq!(fields.sends_field(address), expected, "{address}");
            assert_eq!(header.sends_header(address), expected, "{address}");
            assert!(!fields.sends_header(address) && !header.sends_field(address));
        }
    }

    /// The content of the header, and how many bytes remain after it.
    async fn read(bytes: &[u8]) -> (String, usize) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let near =
            TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connects");
        let (mut far, _) = listener.accept().await.expect("accepts");
        let mut near = near;
        tokio::io::AsyncWriteExt::write_all(&mut near, bytes).await.expect("written");
        drop(near);
        let said = match read_header(&mut far).await {
            Ok(client) => client.map_or("own".to_owned(), |address| address.to_string()),
            Err(error) => return (error.kind().to_string(), 0),
        };
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).await.expect("read");
        (said, rest.len())
    }

    #[tokio::test]
    async fn headers_of_both_versions_are_read_and_nothing_else() {
        let v2 = |command: u8, family: u8, addresses: &[u8]| {
            let mut bytes = ppp::v2::PROTOCOL_PREFIX.to_vec();
            bytes.extend([0x20 | command, family]);
            bytes.extend((addresses.len() as u16).to_be_bytes());
            bytes.extend(addresses);
            bytes.extend(b"GET");
            bytes
        };
        let four = [192, 0, 2, 7, 127, 0, 0, 1, 0x12, 0x34, 0, 80];
        let more = [&four[..], &[0x03, 0, 4, 1, 2, 3, 4]].concat();
        let mut six = [0; 36];
        six[..2].copy_from_slice(&[0x20, 0x01]);
        six[15] = 9;
        for (bytes, expected) in [
            (b"PROXY TCP4 192.0.2.7 127.0.0.1 4660 80\r\nGET".to_vec(), "192.0.2.7"),
            (b"PROXY TCP6 2001:db8::7 ::1 4660 80\r\nGET".to_vec(), "2001:db8::7"),
            (b"PROXY UNKNOWN\r\nGET".to_vec(), "0.0.0.0"),
            (b"PROXY UNKNOWN whatever there is\r\nGET".to_vec(), "0.0.0.0"),
            (v2(1, 0x11, &four), "192.0.2.7"),
            (v2(1, 0x11, &more), "192.0.2.7"),
            (v2(1, 0x21, &six), "2001::9"),
            (v2(1, 0x31, &[0; 216]), "0.0.0.0"),
            (v2(0, 0x00, &[]), "own"),
        ] {
            assert_eq!(read(&bytes).await, (expected.to_owned(), 3), "{bytes:?}");
        }
        let long = [b"PROXY TCP4 ".to_vec(), vec![b'1'; 200]].concat();
        let mut huge = v2(1, 0x11, &four);
        huge[14] = 0xff;
        for bytes in [
            b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.7 127.0.0.1 x 80\r\n".to_vec(),
            b"PROXY TCP4 localhost 127.0.0.1 1 80\r\n".to_vec(),
            long,
            huge,
            v2(1, 0x11, &four[..8]),
            b"\r\n\r\n\0\r\nQUIT\n\x11\x11\0\0".to_vec(),
        ] {
            assert_eq!(read(&bytes).await.0, "invalid data", "{bytes:?}");
        }
        assert_eq!(read(b"PROXY").await.0, "unexpected end of file");
    }
}
