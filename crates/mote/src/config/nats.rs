//! The settings of NATS.

use std::path::PathBuf;

use mote_node::NatsServers;

use super::Check;

pub(super) const REPLICAS_MAX: u8 = 5;
const PORT: u16 = 4222;
const WANTED: &str = "nats://HOST:PORT, tls://HOST:PORT, several with commas, or off";

/// Why an address is refused.
#[derive(Debug, PartialEq, Eq)]
enum Wrong {
    Form,
    /// Everybody who can list processes or read the settings would see them.
    Credentials,
}

/// An address of a server with its port, for example `nats://10.0.0.1:4222`.
fn server(text: &str) -> Result<String, Wrong> {
    let text = text.trim();
    let (scheme, rest) = text.split_once("://").ok_or(Wrong::Form)?;
    if rest.contains('@') {
        return Err(Wrong::Credentials);
    }
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    // The colons of an IPv6 address are in brackets.
    let port_at = match rest.rfind(']') {
        Some(end) => rest[end..].find(':').map(|at| end + at),
        None => rest.find(':'),
    };
    let (host, port) = match port_at {
        Some(at) => (&rest[..at], rest[at + 1..].parse().map_err(|_| Wrong::Form)?),
        None => (rest, PORT),
    };
    let is_host = !host.is_empty()
        && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._[]:".contains(c))
        && (host.starts_with('[') == host.ends_with(']'));
    if !["nats", "tls"].contains(&scheme) || !is_host || port == 0 {
        return Err(Wrong::Form);
    }
    Ok(format!("{scheme}://{host}:{port}"))
}

impl Check<'_> {
    /// The NATS servers, if there are any.
    pub(super) fn nats(&mut self) -> Option<NatsServers> {
        let mut file = |key: &str, none: &str| {
            let path = self.given(key).map(PathBuf::from);
            let shown = path.as_ref().map_or(none.to_owned(), |path| path.display().to_string());
            self.settle(key, shown);
            path
        };
        let credentials = file("nats_credentials", "none");
        let authorities = file("nats_ca", "the system's certificates");
        let given = self.given("nats_replicas");
        let replicas = given.as_deref().map_or(Ok(1), str::parse::<u8>);
        let replicas = replicas.ok().filter(|replicas| (1..=REPLICAS_MAX).contains(replicas));
        if replicas.is_none() {
            let wanted = format!("a whole number from 1 to {REPLICAS_MAX}");
            self.fault("nats_replicas", &wanted, None);
        }
        let replicas = replicas.unwrap_or(1);
        self.settle("nats_replicas", replicas.to_string());
        let given = self.given("nats").filter(|text| text != "off");
        let Some(given) = given else {
            self.settle("nats", "off".to_owned());
            return None;
        };
        let servers = given.split(',').map(server).collect::<Result<Vec<_>, _>>();
        match servers {
            Ok(servers) => {
                self.settle("nats", servers.join(","));
                Some(NatsServers { servers, credentials, authorities, replicas })
            }
            Err(wrong) => {
                // The text may have a password, which is not repeated.
                let hint = (wrong == Wrong::Credentials).then(|| {
                    self.settle("nats", "an address with credentials".to_owned());
                    "put USER:PASSWORD into a file, and its path into nats_credentials".to_owned()
                });
                self.fault("nats", WANTED, hint);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_scheme_a_host_and_a_port() {
        let ok = |text: &str| server(text).expect("an address");
        assert_eq!(ok("nats://10.0.0.1"), "nats://10.0.0.1:4222");
        assert_eq!(ok(" tls://nats.example:4443/"), "tls://nats.example:4443");
        assert_eq!(ok("nats://[::1]:4222"), "nats://[::1]:4222");
        assert_eq!(ok("nats://[::1]"), "nats://[::1]:4222");
        for wrong in ["", "a:4222", "http://a", "nats://", "nats://a:b", "nats://a:0", "nats://a b"]
        {
            assert_eq!(server(wrong), Err(Wrong::Form), "{wrong}");
        }
        assert_eq!(server("nats://user:secret@a"), Err(Wrong::Credentials));
    }
}
