//! Network access of a package installation: a proxy that reaches only the registries of this node.
//!
//! While dependencies are installed, their code runs. It runs in a separate network that contains
//! only this proxy, so it never sees the node's network, its loopback interface or the local
//! network. The proxy finds the registries in the configuration that pip, npm and go read
//! themselves. A host that only the function names (`name @ https://…`) must have a public address.
//!
//! The passwords of proxies stay in this process. The passwords of an index stay in the client's
//! configuration, because the client sends them inside TLS, which this proxy does not open.
//! Therefore each client sees only its own configuration, and a client for a function in a
//! namespace sees only the part that [`credentials`] lets through.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mote_core::base64;
use mote_spec::FunctionName;
use mote_spec::hop_by_hop::{Named, is_hop_by_hop};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::packages::client::Client;
use crate::packages::credentials;

/// The proxy's address as an installation sees it.
const PROXY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 77, 0, 2), 3128);
/// Longest head of a request in bytes. Clients send a few hundred bytes, or a few thousand with
/// tokens.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Time limit for reading a head, and for making an outgoing connection.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);
/// The maximum number of simultaneous connections of one installation. npm opens 15, pip one.
const CONNECTIONS_MAX: usize = 64;
/// A message names at most this many refused destinations.
const REFUSED_MAX: usize = 5;
/// A larger file cannot be a configuration file of a package client.
const CONFIG_BYTES_MAX: u64 = 64 << 10;

/// The node's environment variables that configure a client, by their prefixes.
const VARIABLES: [(Client, &[&str]); 3] = [
    (Client::Pip, &["PIP_"]),
    (Client::Npm, &["npm_config_", "NPM_CONFIG_"]),
    (Client::Go, &["GOPROXY", "GONOSUMDB", "GOSUMDB", "GOPRIVATE", "GONOPROXY", "GOINSECURE"]),
];
/// The configuration files of a client: path below `/` or the home folder, path inside the sandbox,
/// and the variable that names the file.
const FILES: [(Client, &str, &str, Option<&str>); 5] = [
    (Client::Pip, "/etc/pip.conf", "/etc/pip.conf", None),
    (Client::Pip, ".config/pip/pip.conf", "/etc/mote/pip.conf", Some("PIP_CONFIG_FILE")),
    (Client::Pip, ".pip/pip.conf", "/etc/mote/pip.conf", Some("PIP_CONFIG_FILE")),
    // Without this variable, npm would look for the file below its prefix, which in the sandbox is
    // the folder of packages.
    (Client::Npm, "/etc/npmrc", "/etc/npmrc", Some("NPM_CONFIG_GLOBALCONFIG")),
    (Client::Npm, ".npmrc", "/etc/mote/npmrc", Some("NPM_CONFIG_USERCONFIG")),
];
/// The registries that a client uses by default, and the hosts that store their files.
const DEFAULTS: [(Client, &[&str]); 3] = [
    (Client::Pip, &["pypi.org", "files.pythonhosted.org"]),
    (Client::Npm, &["registry.npmjs.org"]),
    (Client::Go, &["proxy.golang.org", "sum.golang.org", "storage.googleapis.com"]),
];
/// The hosts to which GitHub redirects requests for an archive.
const GITHUB: [&str; 4] = [
    "codeload.github.com",
    "objects.githubusercontent.com",
    "release-assets.githubusercontent.com",
    "raw.githubusercontent.com",
];

/// A host and a port.
pub type Place = (String, u16);

/// The configuration that an installation sees, and the hosts that it may reach.
pub struct Registries {
    /// Environment variables for the client.
    pub env: Vec<(String, String)>,
    /// Configuration files for the client: the path inside the sandbox, and the text.
    pub files: Vec<(PathBuf, String)>,
    /// Places that the node's own configuration names. They may have any address.
    configured: BTreeSet<Place>,
    /// Places that the function names. Their addresses must be public.
    named: BTreeSet<Place>,
    /// Whether any public host may be reached on port 443. Go needs this, because the name of a
    /// module contains its host.
    any_public: bool,
    /// The proxy that the node itself uses, if there is one.
    upstream: Option<Upstream>,
    /// Destinations to which the proxy refused a connection.
    refused: Mutex<BTreeSet<String>>,
}

struct Upstream {
    place: Place,
    /// The value of `Proxy-Authorization`.
    authorization: Option<String>,
    /// Names of hosts that are reached without this proxy.
    except: Vec<String>,
}

impl Registries {
    /// Reads the configuration of this process's user, for a function. `named` are the places that
    /// the function names.
    pub fn of(client: Client, function: &FunctionName, named: BTreeSet<Place>) -> Self {
        let mut vars: Vec<(String, String)> = std::env::vars().collect();
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let mut texts = Vec::new();
        for (of, path, inside, variable) in FILES {
            let path = match (path.starts_with('/'), &home) {
                (true, _) => PathBuf::from(path),
                (false, Some(home)) => home.join(path),
                (false, None) => continue,
            };
            if of == client
                && let Some(text) = small_text(&path)
            {
                texts.push((inside, variable, text));
            }
        }
        if function.namespace().is_some() {
            let own = of_client(&VARIABLES, client);
            credentials::leave_out(client, own, &mut vars, &mut texts);
        }
        Self::from_parts(client, &vars, &texts, named)
    }

    fn from_parts(
        client: Client,
        vars: &[(String, String)],
        texts: &[(&str, Option<&str>, String)],
        named: BTreeSet<Place>,
    ) -> Self {
        let mut env: Vec<(String, String)> = Vec::new();
        let mut configured = BTreeSet::new();
        let mut files: Vec<(PathBuf, String)> = Vec::new();
        let prefixes = of_client(&VARIABLES, client);
        for (name, value) in vars {
            let own = prefixes.iter().any(|prefix| name.starts_with(prefix));
            if own && (name == "GOPROXY" || name == "GONOPROXY" || !is_about_proxies(name)) {
                configured.extend(places_in(value));
                env.push((name.clone(), value.clone()));
            }
        }
        for (inside, variable, text) in texts {
            let kept: Vec<&str> = text
                .lines()
                .filter(|line| !is_about_proxies(line.split('=').next().unwrap_or(line)))
                .collect();
            let kept = kept.join("\n") + "\n";
            configured.extend(places_in(&kept));
            files.retain(|(known, _)| known != Path::new(inside));
            files.push((PathBuf::from(inside), kept));
            if let Some(variable) = variable {
                env.retain(|(name, _)| name != variable);
                env.push(((*variable).to_owned(), (*inside).to_owned()));
            }
        }
        let defaults = of_client(&DEFAULTS, client).iter();
        configured.extend(defaults.map(|host| ((*host).to_owned(), 443)));
        let go_proxy = vars.iter().find(|(name, _)| name == "GOPROXY").map(|(_, value)| &**value);
        let direct = go_proxy.is_none_or(|list| list.is_empty() || list.contains("direct"));
        let proxy = format!("http://{PROXY}");
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
            env.push((name.to_owned(), proxy.clone()));
        }
        match client {
            Client::Pip => env.push(("PIP_PROXY".to_owned(), proxy)),
            Client::Npm => {
                env.push(("npm_config_proxy".to_owned(), proxy.clone()));
                env.push(("npm_config_https_proxy".to_owned(), proxy));
            }
            Client::Go => {}
        }
        Self {
            env,
            files,
            configured,
            named,
            any_public: client == Client::Go && direct,
            upstream: upstream(vars),
            refused: Mutex::default(),
        }
    }

    /// Addresses inside the installation's network at which [`Registries::serve`] listens: the
    /// proxy, and registries on this node's loopback interface, because clients reach those without
    /// a proxy.
    pub fn listen(&self) -> Vec<SocketAddrV4> {
        let own = self.configured.iter().filter_map(|(host, port)| {
            let ip = if host == "localhost" { Ipv4Addr::LOCALHOST } else { host.parse().ok()? };
            (ip.is_loopback() && *port > 0).then_some(SocketAddrV4::new(ip, *port))
        });
        let mut listen = vec![PROXY];
        listen.extend(own.filter(|address| *address != PROXY));
        listen
    }

    /// The places that were refused, for a message.
    pub fn refused(&self) -> Vec<String> {
        self.refused.lock().iter().cloned().collect()
    }

    /// Serves the listeners of [`Registries::listen`]. Never ends. Dropping the future closes
    /// everything.
    pub async fn serve(self: Arc<Self>, listeners: Vec<OwnedFd>) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut doors = JoinSet::new();
        for (listener, address) in listeners.into_iter().zip(self.listen()) {
            let Ok(listener) = adopt(listener) else { continue };
            let own = self.clone();
            let places = places.clone();
            doors.spawn(async move {
                let mut open = JoinSet::new();
                loop {
                    let Ok(place) = places.clone().acquire_owned().await else { return };
                    let Ok((inside, _)) = listener.accept().await else {
                        // The process has run out of file descriptors, so this loop waits until
                        // open connections end.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    };
                    let own = own.clone();
                    open.spawn(async move {
                        let _place = place;
                        // After an error, the client only sees its connection end. If the proxy
                        // could still answer, the client has received the reason.
                        let _ = if address == PROXY {
                            own.pass(inside).await
                        } else {
                            relay(inside, TcpStream::connect(address).await).await
                        };
                    });
                    while open.try_join_next().is_some() {}
                }
            });
        }
        while doors.join_next().await.is_some() {}
        std::future::pending::<()>().await;
    }

    fn remember_refused(&self, place: String) {
        let mut refused = self.refused.lock();
        if refused.len() < REFUSED_MAX {
            refused.insert(place);
        }
    }

    /// Serves one connection of a client.
    async fn pass(&self, mut inside: TcpStream) -> io::Result<()> {
        let read = tokio::time::timeout(STEP_TIMEOUT, read_head(&mut inside)).await;
        let (head, rest) = read.map_err(io::Error::from)??;
        let Some(request) = Request::parse(&head) else {
            return answer(&mut inside, "400 Bad Request", "not a request to a proxy").await;
        };
        let (host, port) = &request.place;
        let outside = match self.reach(&request.place).await {
            Ok(outside) => outside,
            Err(Unreached::Refused) => {
                self.remember_refused(format!("{host}:{port}"));
                let text = format!("{host}:{port} is not a package registry of this node");
                return answer(&mut inside, "403 Forbidden", &text).await;
            }
            Err(Unreached::Failed(error)) => {
                let text = format!("{host}:{port} cannot be reached: {error}");
                return answer(&mut inside, "502 Bad Gateway", &text).await;
            }
        };
        let mut outside = outside;
        if request.connect {
            inside.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
        } else {
            outside.write_all(request.forward.as_bytes()).await?;
        }
        outside.write_all(&rest).await?;
        relay(inside, Ok(outside)).await
    }

    /// Connects to a place, if the installation may reach it.
    async fn reach(&self, place: &Place) -> Result<TcpStream, Unreached> {
        let connecting = async {
            let configured = self.configured.contains(place);
            let named = self.named.contains(place) || (self.any_public && place.1 == 443);
            if !configured && !named {
                return Err(Unreached::Refused);
            }
            if let Some(upstream) = self.upstream.as_ref().filter(|up| up.is_for(&place.0)) {
                return Ok(upstream.connect(place).await?);
            }
            let mut refused = false;
            let mut failed = None;
            for address in tokio::net::lookup_host((place.0.as_str(), place.1)).await? {
                if !configured && !is_public(address.ip()) {
                    refused = true;
                    continue;
                }
                match TcpStream::connect(address).await {
                    Ok(stream) => return Ok(stream),
                    Err(error) => failed = Some(error),
                }
            }
            Err(match failed {
                Some(error) => Unreached::Failed(error),
                None if refused => Unreached::Refused,
                None => Unreached::Failed(io::Error::other("it has no address")),
            })
        };
        match tokio::time::timeout(STEP_TIMEOUT, connecting).await {
            Ok(result) => result,
            Err(_) => Err(Unreached::Failed(io::ErrorKind::TimedOut.into())),
        }
    }
}

/// Why there is no connection.
enum Unreached {
    Refused,
    Failed(io::Error),
}

impl From<io::Error> for Unreached {
    fn from(error: io::Error) -> Self {
        Unreached::Failed(error)
    }
}

impl Upstream {
    fn is_for(&self, host: &str) -> bool {
        !self
            .except
            .iter()
            .any(|name| name == "*" || host == name || host.ends_with(&format!(".{name}")))
    }

    /// Opens a tunnel through this proxy.
    async fn connect(&self, (host, port): &Place) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect((self.place.0.as_str(), self.place.1)).await?;
        let mut head = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
        if let Some(authorization) = &self.authorization {
            let _ = write!(head, "Proxy-Authorization: {authorization}\r\n");
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).await?;
        let (answer, _) = read_head(&mut stream).await?;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        if status != "200" {
            return Err(io::Error::other(format!("the node's own proxy answered {status}")));
        }
        Ok(stream)
    }
}

/// A request that a client sends to the proxy.
#[derive(Debug)]
struct Request {
    place: Place,
    connect: bool,
    /// The head that is sent to a server without TLS. It asks the server to close the connection
    /// after the answer.
    forward: String,
}

impl Request {
    fn parse(head: &str) -> Option<Self> {
        let (line, fields) = head.split_once("\r\n")?;
        let mut words = line.split(' ');
        let method = words.next()?;
        let target = words.next()?;
        let version = words.next()?;
        if method == "CONNECT" {
            let place = place(target, None)?;
            return Some(Self { place, connect: true, forward: String::new() });
        }
        let rest = target.strip_prefix("http://")?;
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let mut forward = format!("{method} {path} {version}\r\n");
        let all = || fields.split("\r\n").filter_map(|field| Some((field, field.split_once(':')?)));
        let connection = all().filter(|(_, (name, _))| name.eq_ignore_ascii_case("connection"));
        let named = Named::of(connection.map(|(_, (_, value))| value.as_bytes()));
        for (field, (name, _)) in all() {
            // The body is passed on unchanged, so the field that describes its framing stays.
            let is_framing = name.eq_ignore_ascii_case("transfer-encoding");
            let of_proxy = name.eq_ignore_ascii_case("proxy-authorization")
                || is_hop_by_hop(name.as_bytes())
                || named.contains(name.as_bytes());
            if is_framing || !of_proxy {
                let _ = write!(forward, "{field}\r\n");
            }
        }
        forward.push_str("Connection: close\r\n\r\n");
        Some(Self { place: place(authority, Some(80))?, connect: false, forward })
    }
}

/// Reads `host:port` or `[v6]:port`. A user name may come first and is ignored.
fn place(authority: &str, default_port: Option<u16>) -> Option<Place> {
    let authority = authority.rsplit('@').next()?;
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, after.strip_prefix(':'))
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = port.map_or(default_port, |port| port.parse().ok())?;
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    (!host.is_empty()).then_some((host, port))
}

/// The places of all `http://` and `https://` addresses in a text.
pub fn places_in(text: &str) -> Vec<Place> {
    let mut places = Vec::new();
    for (scheme, port) in [("http://", 80), ("https://", 443)] {
        for (at, _) in text.match_indices(scheme) {
            let rest = &text[at + scheme.len()..];
            let end = rest.find(|c: char| {
                c.is_whitespace()
                    || matches!(c, '/' | '?' | '#' | '"' | '\'' | ',' | '|' | ';' | '>')
            });
            places.extend(place(&rest[..end.unwrap_or(rest.len())], Some(port)));
        }
    }
    if places.iter().any(|(host, _)| host == "github.com") {
        places.extend(GITHUB.map(|host| (host.to_owned(), 443)));
    }
    places
}

/// The proxy that the configuration of this process names.
fn upstream(vars: &[(String, String)]) -> Option<Upstream> {
    let get = |names: &[&str]| {
        names.iter().find_map(|wanted| {
            let found = vars.iter().find(|(name, value)| name == wanted && !value.is_empty());
            found.map(|(_, value)| value.clone())
        })
    };
    let url =
        get(&["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"])?;
    let authority = url.strip_prefix("http://").unwrap_or(&url).split('/').next()?.to_owned();
    if authority.contains("://") {
        tracing::warn!("package installations support only proxies with http:// addresses");
        return None;
    }
    let authorization = authority
        .rsplit_once('@')
        .map(|(user, _)| format!("Basic {}", base64::encode(unescaped(user).as_bytes())));
    let except = get(&["NO_PROXY", "no_proxy"]).unwrap_or_default();
    let except = except.split(',').map(|name| name.trim().trim_start_matches('.').to_owned());
    let except = except.filter(|name| !name.is_empty()).collect();
    Some(Upstream { place: place(&authority, Some(80))?, authorization, except })
}

/// Decodes percent-encoding.
fn unescaped(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn of_client<T: Copy>(table: &[(Client, T)], client: Client) -> T {
    let found = table.iter().find(|(of, _)| *of == client);
    found.expect("every client has a row").1
}

/// Whether this is a setting for outgoing proxies. Only this process needs to know such settings.
fn is_about_proxies(name: &str) -> bool {
    name.to_ascii_lowercase().contains("proxy")
}

fn small_text(path: &Path) -> Option<String> {
    let meta = std::fs::metadata(path).ok()?;
    if !meta.is_file() || meta.len() > CONFIG_BYTES_MAX {
        return None;
    }
    std::fs::read_to_string(path).ok()
}

/// Whether an address belongs to the public internet.
fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            !(v4.is_loopback()
                || v4.is_private()
                || v4.is_link_local()
                || v4.is_broadcast()
                || v4.is_documentation()
                || a == 0
                || a >= 224
                || (a == 100 && b & 0xc0 == 64)
                || (a == 192 && b == 0 && c == 0)
                || (a == 198 && b & 0xfe == 18))
        }
        // Only assigned global unicast addresses are public. Ranges that map to IPv4 addresses do
        // not count as public.
        IpAddr::V6(v6) => {
            let first = v6.segments()[0];
            first & 0xe000 == 0x2000 && first != 0x2002 && v6.segments()[..2] != [0x2001, 0]
        }
    }
}

fn adopt(listener: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(listener);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Reads a head up to its empty line. Also returns the bytes that followed it.
async fn read_head(stream: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let got = stream.read(&mut buffer).await?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let from = bytes.len().saturating_sub(3);
        bytes.extend_from_slice(&buffer[..got]);
        if let Some(at) = bytes[from..].windows(4).position(|end| end == b"\r\n\r\n") {
            let rest = bytes.split_off(from + at + 4);
            let head = String::from_utf8(bytes).map_err(io::Error::other)?;
            return Ok((head, rest));
        }
        if bytes.len() > HEAD_BYTES_MAX {
            return Err(io::Error::other("a head that does not end"));
        }
    }
}

async fn answer(stream: &mut TcpStream, status: &str, text: &str) -> io::Result<()> {
    let length = text.len() + 1;
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{text}\n"
    );
    stream.write_all(answer.as_bytes()).await
}

/// Copies data in both directions until both have ended. The installation's own timeout limits
/// this.
async fn relay(mut inside: TcpStream, outside: io::Result<TcpStream>) -> io::Result<()> {
    let mut outside = outside?;
    tokio::io::copy_bidirectional(&mut inside, &mut outside).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(client: Client, vars: &[(&str, &str)], text: &str) -> Registries {
        let vars: Vec<_> =
            vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let texts = [("/etc/x", None, text.to_owned())];
        Registries::from_parts(client, &vars, &texts, BTreeSet::new())
    }

    #[test]
    fn registries_are_read_from_what_the_clients_read() {
        let has = |registries: &Registries, host: &str, port| {
            registries.configured.contains(&(host.to_owned(), port))
        };
        let pip = of(
            Client::Pip,
            &[
                ("PIP_EXTRA_INDEX_URL", "https://user:word@index.example:8443/simple"),
                ("PIP_PROXY", "http://u:secret@proxy.example:3128"),
                ("npm_config_registry", "https://npm.example"),
            ],
            "[global]\nindex-url = http://localhost:3141/simple\nproxy = http://other.example\n",
        );
        assert!(has(&pip, "index.example", 8443) && has(&pip, "localhost", 3141));
        assert!(has(&pip, "files.pythonhosted.org", 443));
        assert!(!has(&pip, "proxy.example", 3128) && !has(&pip, "other.example", 80));
        assert!(!has(&pip, "npm.example", 443));
        assert!(!pip.env.iter().any(|(_, value)| value.contains("secret")));
        assert!(!pip.files[0].1.contains("other.example"));
        assert_eq!(pip.listen()[1..], ["127.0.0.1:3141".parse().unwrap()]);
        let npm = of(
            Client::Npm,
            &[],
            "@mine:registry=https://npm.example/\n//npm.example/:_authToken=x\n",
        );
        assert!(has(&npm, "npm.example", 443) && !npm.any_public);
        assert!(of(Client::Go, &[], "").any_public);
        assert!(!of(Client::Go, &[("GOPROXY", "https://go.example")], "").any_public);
    }

    #[test]
    fn the_nodes_own_proxy_keeps_its_password() {
        let vars = [
            ("HTTPS_PROXY", "http://me:p%40ss@proxy.example:8080"),
            ("NO_PROXY", "a.example,.b.example"),
        ];
        let registries = of(Client::Pip, &vars, "");
        let upstream = registries.upstream.as_ref().expect("it is set");
        assert_eq!(upstream.place, ("proxy.example".to_owned(), 8080));
        assert_eq!(upstream.authorization.as_deref(), Some("Basic bWU6cEBzcw=="));
        assert!(upstream.is_for("pypi.org") && !upstream.is_for("x.b.example"));
        assert!(!registries.env.iter().any(|(_, value)| value.contains("proxy.example")));
    }

    #[test]
    fn requests_to_the_proxy() {
        let connect = Request::parse("CONNECT PyPI.org:443 HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!((connect.place, connect.connect), (("pypi.org".to_owned(), 443), true));
        let head = "GET http://index.example/simple/six/?a=b HTTP/1.1\r\nHost: index.example\r\n\
                    Proxy-Authorization: Basic x\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n\
                    Connection: keep-alive, x-hop\r\n\r\n";
        let plain = Request::parse(head).unwrap();
        assert_eq!(plain.place, ("index.example".to_owned(), 80));
        let expected =
            "GET /simple/six/?a=b HTTP/1.1\r\nHost: index.example\r\nConnection: close\r\n\r\n";
        assert_eq!(plain.forward, expected);
        for bad in [
            "GET / HTTP/1.1\r\n\r\n",
            "CONNECT x HTTP/1.1\r\n\r\n",
            "\r\n\r\n",
            "CONNECT :1 x\r\n\r\n",
        ] {
            assert!(Request::parse(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn private_addresses_are_not_public() {
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "192.168.1.1",
            "172.16.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in ["1.1.1.1", "151.101.0.223", "2a04:4e42::223"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }

    #[tokio::test]
    async fn only_registries_are_reached() {
        use std::io::{Read as _, Write as _};
        let registry = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = registry.local_addr().unwrap();
        let url = format!("http://{at}/simple");
        let registries = Arc::new(of(Client::Pip, &[("PIP_INDEX_URL", &url)], ""));
        let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = proxy.local_addr().unwrap();
        let serving = tokio::spawn(registries.clone().serve(vec![proxy.into()]));
        let ask = move |target: std::net::SocketAddr| {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            write!(stream, "CONNECT {target} HTTP/1.1\r\n\r\nhello").unwrap();
            let mut head = [0; 12];
            stream.read_exact(&mut head).unwrap();
            String::from_utf8_lossy(&head[9..]).into_owned()
        };
        let closed = other.local_addr().unwrap();
        let asked = tokio::task::spawn_blocking(move || (ask(at), ask(closed)));
        assert_eq!(asked.await.unwrap(), ("200".to_owned(), "403".to_owned()));
        let mut hello = [0; 5];
        registry.accept().unwrap().0.read_exact(&mut hello).unwrap();
        assert_eq!(&hello, b"hello");
        other.set_nonblocking(true).unwrap();
        assert!(other.accept().is_err(), "the other one was reached");
        assert_eq!(registries.refused(), [closed.to_string()]);
        serving.abort();
    }
}
