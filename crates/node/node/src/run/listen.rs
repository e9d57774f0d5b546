//! Binds every address of a node before the node changes anything for its functions.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use mote_cells::Cells;
use mote_http::access_log::{AccessLog, Destination};
use mote_process::service_manager::Sockets;
use mote_tls::{Acceptor, Certificates, ClientAuthorities};
use tokio::net::TcpListener;

use super::data_path::DataPath;
use crate::addresses::Addresses;
use crate::config::Config;
use crate::listeners::Listeners;
use crate::unusable::unusable;
use crate::{cells, compat, https};

/// The bound sockets of a node, and the certificates that its listeners present to clients.
pub(super) struct Listening {
    pub(super) sockets: Listeners,
    /// The access log of the HTTP fronts.
    pub(super) access_log: Option<AccessLog>,
    pub(super) certificates: Option<Arc<Certificates>>,
    /// The authorities that sign clients' certificates.
    pub(super) clients: Option<Arc<ClientAuthorities>>,
    /// The TLS settings of the management API and of other platforms' APIs.
    pub(super) tls: Option<Acceptor>,
    pub(super) cells: Option<Cells>,
    pub(super) platforms: compat::Listeners,
}

/// Takes the sockets that the service manager handed over, and binds the others. The address of a
/// given socket replaces the listener's setting in `config`.
pub(super) async fn listen(
    config: &mut Config,
    given: Sockets,
    data_path: &DataPath,
) -> Result<Listening> {
    let access_log = access_log(config)?;
    let sockets = Listeners::open(config, given).await?;
    let certificates = https::certificates(config)?;
    let clients = https::client_authorities(config)?;
    let tls = https::of_apis(certificates.as_ref())?;
    let cells = match &config.cell {
        Some(settings) => Some(cells::start(settings, &data_path.engine).await?),
        None => None,
    };
    let platforms = compat::Listeners::bind(&config.compat, tls.as_ref()).await?;
    Ok(Listening { sockets, access_log, certificates, clients, tls, cells, platforms })
}

fn access_log(config: &Config) -> Result<Option<AccessLog>> {
    if let Some((Destination::File(path), _)) = &config.access_log
        && std::path::absolute(path)?.starts_with(std::path::absolute(&config.data)?)
    {
        let text = "a file in the data folder, which the node keeps for itself".to_owned();
        return Err(unusable("access_log", text));
    }
    let open = |(to, format): &(_, _)| AccessLog::open(to, *format);
    let access_log = config.access_log.as_ref().map(open).transpose();
    access_log.map_err(|error| unusable("access_log", error.to_string()))
}

impl Listening {
    /// The addresses to which the sockets are bound.
    pub(super) fn addresses(&self) -> Addresses {
        let Listeners { http, https, coap, coap_tcp, coap_dtls, coap_tls, admin, .. } =
            &self.sockets;
        Addresses {
            http: bound(http),
            https: bound(https),
            coap: coap.as_ref().and_then(|socket| socket.local_addr().ok()),
            coap_tcp: bound(coap_tcp),
            coap_dtls: coap_dtls.as_ref().and_then(|socket| socket.local_addr().ok()),
            coap_tls: bound(coap_tls),
            admin: bound(admin),
            certificates: self.certificates.clone(),
            compat: self.platforms.addresses(),
        }
    }

    /// The TCP ports on which the node listens. The node's own requests must not reach them.
    pub(super) fn tcp_ports(&self) -> impl Iterator<Item = u16> {
        let Listeners { http, https, coap_tcp, coap_tls, admin, .. } = &self.sockets;
        let own = [http, https, admin, coap_tcp, coap_tls].into_iter().filter_map(bound);
        let cells = self.cells.iter().map(|cells| cells.address().port());
        self.platforms.ports().chain(own.map(|at| at.port())).chain(cells)
    }
}

fn bound(listener: &Option<TcpListener>) -> Option<SocketAddr> {
    listener.as_ref().and_then(|listener| listener.local_addr().ok())
}
