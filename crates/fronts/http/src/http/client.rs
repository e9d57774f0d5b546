//! What TLS reveals about the client of a connection.

use std::sync::Arc;

use mote_core::invocation::Head;
use tokio_rustls::rustls::ServerConnection;

use super::front::Config;
use super::route::SCHEME_FIELD;

/// The client of a connection with TLS.
#[derive(Clone)]
pub(crate) struct TlsClient {
    /// The names in the client's certificate, which is signed by an authority that the node trusts.
    names: Option<Arc<Vec<String>>>,
}

impl TlsClient {
    /// The client of a connection whose handshake is complete.
    pub(super) fn of(session: &ServerConnection, config: &Config) -> Self {
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        let names = certificate.zip(config.names_of).map(|(one, names_of)| Arc::new(names_of(one)));
        Self { names }
    }

    /// Records in the head of a request how the client is connected.
    pub(super) fn mark(&self, head: &mut Head) {
        head.replace_header(SCHEME_FIELD, b"https");
        head.set_certificate(self.names.clone());
    }
}
