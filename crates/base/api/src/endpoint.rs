//! The address of a node's management API.

use std::path::PathBuf;

/// The error for a text that is not the address of a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a node address: {0}")]
pub struct NotAnAddress(pub String);

/// The address of a node.
#[derive(Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// The management socket on this machine.
    Unix(PathBuf),
    /// An address on the network, with a token.
    Tcp {
        /// `host:port`.
        authority: String,
        /// Whether the connection uses TLS.
        tls: bool,
        /// The token that is sent as `Authorization: Bearer`.
        token: Option<String>,
    },
}

impl Endpoint {
    /// Reads an address. It is `https://host:port`, `http://host:port`, `unix:/path`, the path of a
    /// socket, or `host:port` of this machine, which is reached without TLS. An address on another
    /// machine must say `https` or `http`, so that nobody sends readable data over the network just
    /// by omitting a word.
    pub fn parse(text: &str, token: Option<String>) -> Result<Self, NotAnAddress> {
        let has_port = text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let is_here = is_here(text);
        if has_port && !text.contains('/') && !is_here {
            return Err(NotAnAddress(text.to_owned()));
        }
        let is_authority = has_port && is_here;
        let secured = text.strip_prefix("https://");
        let plain = text.strip_prefix("http://").or(is_authority.then_some(text));
        if let Some(rest) = secured.or(plain) {
            let tls = secured.is_some();
            let authority = rest.trim_end_matches('/');
            if authority.is_empty() || authority.contains(['/', '@', '?', '#', ' ']) {
                return Err(NotAnAddress(text.to_owned()));
            }
            let port = if tls { 443 } else { 80 };
            let with_port =
                authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            let authority =
                if with_port { authority.to_owned() } else { format!("{authority}:{port}") };
            return Ok(Self::Tcp { authority, tls, token });
        }
        let path = text.strip_prefix("unix:").unwrap_or(text);
        if path.is_empty() || path.contains("://") {
            return Err(NotAnAddress(text.to_owned()));
        }
        Ok(Self::Unix(PathBuf::from(path)))
    }
}

/// Returns whether `host:port` is on this machine.
fn is_here(authority: &str) -> bool {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

impl Endpoint {
    /// Returns whether others on the network can read what is sent to this address.
    pub fn is_readable(&self) -> bool {
        matches!(self, Self::Tcp { authority, tls: false, .. } if !is_here(authority))
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "{}", path.display()),
            Endpoint::Tcp { authority, tls: false, .. } => write!(f, "http://{authority}"),
            Endpoint::Tcp { authority, tls: true, .. } => write!(f, "https://{authority}"),
        }
    }
}

impl std::fmt::Debug for Endpoint {
    /// Formats the address without its token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let tcp = |authority: &str| Endpoint::Tcp {
            authority: authority.to_owned(),
            tls: false,
            token: None,
        };
        let secured = |authority: &str| Endpoint::Tcp {
            authority: authority.to_owned(),
            tls: true,
            token: None,
        };
        for (text, expected) in [
            ("/run/mote.sock", Some(Endpoint::Unix("/run/mote.sock".into()))),
            ("unix:m.sock", Some(Endpoint::Unix("m.sock".into()))),
            ("http://pi4:6680", Some(tcp("pi4:6680"))),
            ("http://pi4/", Some(tcp("pi4:80"))),
            ("127.0.0.1:6680", Some(tcp("127.0.0.1:6680"))),
            ("[::1]:6680", Some(tcp("[::1]:6680"))),
            ("localhost:6680", Some(tcp("localhost:6680"))),
            ("pi4:6680", None),
            ("10.0.0.7:6680", None),
            ("./pi4:6680", Some(Endpoint::Unix("./pi4:6680".into()))),
            ("https://pi4", Some(secured("pi4:443"))),
            ("https://10.0.0.7:6680/", Some(secured("10.0.0.7:6680"))),
            ("https://", None),
            ("http://", None),
            ("http://a@b", None),
            ("http://a/b", None),
            ("", None),
        ] {
            assert_eq!(Endpoint::parse(text, None).ok(), expected, "{text}");
        }
    }

    #[test]
    fn a_token_is_never_shown() {
        let endpoint = Endpoint::parse("http://pi4:1", Some("s3cret".into())).unwrap();
        assert!(!format!("{endpoint:?} {endpoint}").contains("s3cret"));
    }
}
