//! The addresses at which clients reach a node.

use std::net::SocketAddr;
use std::sync::Arc;

use mote_tls::Certificates;

/// The addresses to which the listeners are bound, and the certificates that they present.
pub(crate) struct Addresses {
    pub(crate) http: Option<SocketAddr>,
    pub(crate) https: Option<SocketAddr>,
    pub(crate) coap: Option<SocketAddr>,
    pub(crate) coap_tcp: Option<SocketAddr>,
    pub(crate) coap_dtls: Option<SocketAddr>,
    pub(crate) coap_tls: Option<SocketAddr>,
    /// The management API, if the setting `admin` names an address.
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) certificates: Option<Arc<Certificates>>,
    /// The platform and the address of each API for other platforms' clients.
    pub(crate) compat: Vec<(&'static str, String)>,
}

impl Addresses {
    /// Whether a client without a pre-shared key gets a session over DTLS.
    pub(crate) fn shows_certificate_over_dtls(&self) -> bool {
        let mut certificates = self.certificates.iter();
        self.coap_dtls.is_some()
            && certificates.any(|all| crate::fronts::dtls::has_certificate(all))
    }
}
