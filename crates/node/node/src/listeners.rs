//! The sockets of the node's own listeners. The node binds them, or the service manager hands them
//! over.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use mote_http::http;
use mote_process::service_manager::Sockets;
use tokio::net::{TcpListener, UdpSocket, UnixListener};

use crate::config::Config;
use crate::unusable::{AddressError, busy, unusable};

/// The sockets on which the node serves.
pub(crate) struct Listeners {
    pub(crate) http: Option<TcpListener>,
    pub(crate) https: Option<TcpListener>,
    pub(crate) coap: Option<UdpSocket>,
    pub(crate) coap_tcp: Option<TcpListener>,
    pub(crate) coap_dtls: Option<std::net::UdpSocket>,
    pub(crate) coap_tls: Option<TcpListener>,
    pub(crate) management: UnixListener,
    /// Whether the node made the management socket. If it did, it removes the socket when it stops.
    pub(crate) owns_management: bool,
    pub(crate) admin: Option<TcpListener>,
}

impl Listeners {
    /// Takes the sockets that the service manager handed over, and binds the others. The address of
    /// a given socket replaces the listener's setting.
    pub(crate) async fn open(config: &mut Config, given: Sockets) -> Result<Self> {
        let is_given = [given.http.is_some(), given.https.is_some(), given.coap.is_some()];
        match Self::open_all(config, given).await {
            Err(error) => Err(with_others(error, config, is_given)),
            opened => opened,
        }
    }

    async fn open_all(config: &mut Config, given: Sockets) -> Result<Self> {
        let http = front("http", given.http, &mut config.http)?;
        let https = front("https", given.https, &mut config.https)?;
        let coap = match given.coap {
            Some(given) => {
                replace("coap", &mut config.coap, given.local_addr()?);
                Some(UdpSocket::from_std(given)?)
            }
            None => match config.coap {
                Some(address) => {
                    Some(UdpSocket::bind(address).await.map_err(|e| busy("coap", address, e))?)
                }
                None => None,
            },
        };
        let coap_tcp = front("coap_tcp", given.coap_tcp, &mut config.coap_tcp)?;
        let coap_tls = front("coap_tls", given.coap_tls, &mut config.coap_tls)?;
        let coap_dtls = match (given.coap_dtls, config.coap_dtls) {
            (Some(given), _) => {
                replace("coap_dtls", &mut config.coap_dtls, given.local_addr()?);
                Some(given)
            }
            (None, Some(address)) => {
                let bound = std::net::UdpSocket::bind(address);
                Some(bound.map_err(|error| busy("coap_dtls", address, error))?)
            }
            (None, None) => None,
        };
        let owns_management = given.management.is_none();
        let management = match given.management {
            Some((given, path)) => {
                config.socket = path;
                UnixListener::from_std(given)?
            }
            None => bind_socket(&config.socket)?,
        };
        let admin = front("admin", None, &mut config.admin)?;
        Ok(Self {
            http,
            https,
            coap,
            coap_tcp,
            coap_dtls,
            coap_tls,
            management,
            owns_management,
            admin,
        })
    }
}

/// Adds all other addresses that are in use to the error about one address, so that the owner can
/// change all of them at once.
fn with_others(mut error: anyhow::Error, config: &Config, is_given: [bool; 3]) -> anyhow::Error {
    let Some(busy) = error.downcast_mut::<AddressError>() else { return error };
    if busy.source.kind() != std::io::ErrorKind::AddrInUse {
        return error;
    }
    let [http, https, coap] = is_given;
    let wanted = [
        ("http", config.http.filter(|_| !http), false),
        ("https", config.https.filter(|_| !https), false),
        ("coap", config.coap.filter(|_| !coap), true),
        ("coap_tcp", config.coap_tcp, false),
        ("coap_tls", config.coap_tls, false),
        ("coap_dtls", config.coap_dtls, true),
        ("admin", config.admin, false),
    ];
    for (key, address, is_udp) in wanted {
        let Some(address) = address.filter(|_| key != busy.key) else { continue };
        let bound = if is_udp {
            std::net::UdpSocket::bind(address).map(drop)
        } else {
            std::net::TcpListener::bind(address).map(drop)
        };
        if bound.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse) {
            busy.others.push((key, address));
        }
    }
    error
}

/// Replaces a listener's setting by the address of the given socket.
fn replace(key: &str, setting: &mut Option<SocketAddr>, given: SocketAddr) {
    if *setting != Some(given) {
        let setting = setting.map_or("off".to_owned(), |address| address.to_string());
        tracing::info!(key, setting, %given, "the service manager's socket replaces the setting");
    }
    *setting = Some(given);
}

/// Returns the TCP socket of a front or of the management API: the given one, or a new one.
fn front(
    key: &'static str,
    given: Option<std::net::TcpListener>,
    setting: &mut Option<SocketAddr>,
) -> Result<Option<TcpListener>> {
    if let Some(given) = given {
        replace(key, setting, given.local_addr()?);
        return Ok(Some(TcpListener::from_std(given)?));
    }
    let Some(address) = *setting else { return Ok(None) };
    Ok(Some(http::listen(address).map_err(|error| busy(key, address, error))?))
}

/// Binds the management socket. Replaces a socket that a killed node left behind. This is safe,
/// because the lock on the store has shown that no other node uses this data folder.
fn bind_socket(path: &Path) -> Result<UnixListener> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    let shown = path.display();
    let unusable = |text: String| unusable("socket", text);
    if let Some(folder) = path.parent() {
        let cannot =
            |error| unusable(format!("cannot create the folder {}: {error}", folder.display()));
        std::fs::create_dir_all(folder).map_err(cannot)?;
    }
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(unusable(format!("{shown}: {error}"))),
        // A file of any other type does not come from a node, so it is not removed.
        Ok(found) if !found.file_type().is_socket() => {
            return Err(unusable(format!("{shown} exists and is not a socket")));
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(unusable(format!("another node answers on the socket {shown}")));
        }
        Ok(_) => {
            let _ = std::fs::remove_file(path);
        }
    }
    let listener = UnixListener::bind(path)
        .map_err(|error| unusable(format!("cannot create the socket {shown}: {error}")))?;
    // Peer credentials decide who may connect. The mode only makes the attempts of other users fail
    // earlier.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}
