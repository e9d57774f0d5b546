//! The target of a run, and the request that is sent to it.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 over TCP with persistent connections.
    Http,
    /// CoAP over UDP with confirmable messages.
    Coap,
}

impl Protocol {
    /// The name of the protocol in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Coap => "coap",
        }
    }
}

/// The parts of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The protocol that the URL's scheme names.
    pub protocol: Protocol,
    /// The host and port as written, for the `Host` field.
    pub authority: String,
    /// The path and query, beginning with `/`.
    pub path: String,
}

/// A URL that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The scheme is not `http` or `coap`.
    #[error("{0}:// is not supported, only http:// and coap:// are")]
    Scheme(String),
    /// The text does not have the form `SCHEME://HOST[:PORT][/PATH]`.
    #[error("not a URL such as http://HOST:PORT/PATH")]
    Form,
}

impl Target {
    /// Reads a URL.
    ///
    /// # Errors
    /// Fails if the URL has another scheme, no host, a user name, a fragment, or a character that a
    /// URL cannot contain.
    pub fn parse(url: &str) -> Result<Self, TargetError> {
        let (scheme, rest) = url.split_once("://").ok_or(TargetError::Form)?;
        let protocol = match scheme.to_ascii_lowercase().as_str() {
            "http" => Protocol::Http,
            "coap" => Protocol::Coap,
            other if !other.is_empty() && other.bytes().all(|b| b.is_ascii_alphanumeric()) => {
                return Err(TargetError::Scheme(other.to_owned()));
            }
            _ => return Err(TargetError::Form),
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let is_clean = rest.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
        if authority.is_empty() || authority.contains('@') || !is_clean {
            return Err(TargetError::Form);
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let target = Self { protocol, authority: authority.to_owned(), path };
        target.host_and_port().ok_or(TargetError::Form)?;
        Ok(target)
    }

    fn host_and_port(&self) -> Option<(&str, u16)> {
        let default = match self.protocol {
            Protocol::Http => 80,
            Protocol::Coap => 5683,
        };
        let bracket = self.authority.rfind(']').map_or(0, |at| at + 1);
        let (host, port) = match self.authority[bracket..].split_once(':') {
            Some((rest, port)) => {
                (&self.authority[..bracket + rest.len()], port.parse::<u16>().ok()?)
            }
            None => (self.authority.as_str(), default),
        };
        let host = host.strip_prefix('[').map_or(Some(host), |host| host.strip_suffix(']'))?;
        (!host.is_empty()).then_some((host, port))
    }

    /// Resolves the host and returns its first address. Blocks.
    ///
    /// # Errors
    /// Fails if the host has no address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        let (host, port) = self.host_and_port().ok_or(io::ErrorKind::InvalidInput)?;
        (host, port)
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address"))
    }

    pub fn url(&self) -> String {
        format!("{}://{}{}", self.protocol.name(), self.authority, self.path)
    }
}

/// The request that every operation sends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The method in upper case.
    pub method: String,
    /// The fields as written. CoAP supports only `Content-Type` and `Accept`, with the numbers of
    /// the CoAP registry as values.
    pub headers: Vec<(String, String)>,
    /// The body, which may be empty.
    pub body: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let check = |url: &str, expected: Option<(&str, u16, &str)>| {
            let target = Target::parse(url).ok();
            let got = target.as_ref().map(|target| {
                let (host, port) = target.host_and_port().expect("was checked");
                (host, port, target.path.as_str())
            });
            assert_eq!(got, expected, "{url}");
        };
        check("http://a", Some(("a", 80, "/")));
        check("HTTP://a:6683/f?x=1", Some(("a", 6683, "/f?x=1")));
        check("coap://a?x", Some(("a", 5683, "/?x")));
        check("coap://[::1]:5/x", Some(("::1", 5, "/x")));
        check("coap://[::1]", Some(("::1", 5683, "/")));
        for wrong in [
            "http://",
            "a/b",
            "http://u@h/",
            "http://h:x/",
            "http://h/a b",
            "http://h/#x",
            "http://:80/",
            "http://[::1/",
            "http://h:99999/",
            "://h/",
        ] {
            check(wrong, None);
        }
        assert_eq!(Target::parse("https://h/"), Err(TargetError::Scheme("https".to_owned())));
    }
}
