//! The listener that the management API opens when a browser needs one.
//!
//! Without the setting `admin`, the API has only its Unix socket, which browsers cannot use. The
//! listener is on loopback, and stays open until the node stops, so that pages in browsers keep
//! working.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use mote_outgoing::OpenPorts;
use mote_platforms::compat::Bound;
use tokio::sync::mpsc;

/// The usual port. If it is taken, any free port is used.
const PORT: u16 = 6684;

pub(crate) struct OnDemand {
    address: tokio::sync::Mutex<Option<SocketAddr>>,
    serve: mpsc::Sender<Bound>,
    bound: parking_lot::Mutex<Option<mpsc::Receiver<Bound>>>,
}

impl Default for OnDemand {
    fn default() -> Self {
        let (serve, bound) = mpsc::channel(1);
        Self { address: Default::default(), serve, bound: Some(bound).into() }
    }
}

impl OnDemand {
    /// The address of the listener, which is opened if there is none. Neither the node's own
    /// requests nor those of its functions may reach the listener, so its port is added to `ports`.
    pub(super) async fn address(&self, ports: &OpenPorts) -> io::Result<SocketAddr> {
        let mut address = self.address.lock().await;
        if let Some(address) = *address {
            return Ok(address);
        }
        let at = |port| Bound::new((Ipv4Addr::LOCALHOST, port).into());
        let bound = match at(PORT).await {
            Ok(bound) => bound,
            Err(_) => at(0).await?,
        };
        let opened = bound.address();
        ports.open(opened.port());
        let stopping = |_| io::Error::other("the node is stopping");
        self.serve.send(bound).await.map_err(stopping)?;
        tracing::info!(address = %opened, "the management API also listens on loopback, for browsers");
        *address = Some(opened);
        Ok(opened)
    }

    /// Receives the listener when it is opened. There is one receiver.
    pub(super) fn opened(&self) -> Option<mpsc::Receiver<Bound>> {
        self.bound.lock().take()
    }
}
