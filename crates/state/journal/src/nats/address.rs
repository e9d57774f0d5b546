//! The addresses of NATS servers, in the form that settings use.

/// The port that applies if an address names none.
const PORT: u16 = 4222;

/// Why an address is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrongAddress {
    /// The address does not have the form `nats://HOST:PORT` or `tls://HOST:PORT`.
    Form,
    /// The address contains credentials. Everybody who can list processes or read the settings
    /// would see them.
    Credentials,
}

/// Checks the address of a server and adds the port, for example `nats://10.0.0.1:4222`.
pub fn address(text: &str) -> Result<String, WrongAddress> {
    let text = text.trim();
    let (scheme, rest) = text.split_once("://").ok_or(WrongAddress::Form)?;
    if rest.contains('@') {
        return Err(WrongAddress::Credentials);
    }
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    // The colons inside the brackets of an IPv6 address do not separate a port.
    let port_at = match rest.rfind(']') {
        Some(end) => rest[end..].find(':').map(|at| end + at),
        None => rest.find(':'),
    };
    let (host, port) = match port_at {
        Some(at) => (&rest[..at], rest[at + 1..].parse().map_err(|_| WrongAddress::Form)?),
        None => (rest, PORT),
    };
    let is_host = !host.is_empty()
        && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._[]:".contains(c))
        && (host.starts_with('[') == host.ends_with(']'));
    if !["nats", "tls"].contains(&scheme) || !is_host || port == 0 {
        return Err(WrongAddress::Form);
    }
    Ok(format!("{scheme}://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_scheme_a_host_and_a_port() {
        let ok = |text: &str| address(text).expect("an address");
        assert_eq!(ok("nats://10.0.0.1"), "nats://10.0.0.1:4222");
        assert_eq!(ok(" tls://nats.example:4443/"), "tls://nats.example:4443");
        assert_eq!(ok("nats://[::1]:4222"), "nats://[::1]:4222");
        assert_eq!(ok("nats://[::1]"), "nats://[::1]:4222");
        for wrong in ["", "a:4222", "http://a", "nats://", "nats://a:b", "nats://a:0", "nats://a b"]
        {
            assert_eq!(address(wrong), Err(WrongAddress::Form), "{wrong}");
        }
        assert_eq!(address("nats://user:secret@a"), Err(WrongAddress::Credentials));
    }
}
