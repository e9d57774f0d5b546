//! The setting that names the authorities of clients' certificates.

use std::path::PathBuf;

use super::Check;

impl Check<'_> {
    /// The file with the authorities of clients' certificates. Only TLS and DTLS listeners ask for
    /// such certificates.
    pub(super) fn client_ca(&mut self, has_tls: bool) -> Option<PathBuf> {
        if self.given("client_ca").is_none() {
            self.settle("client_ca", "none".to_owned());
            return None;
        }
        let file = self.path("client_ca", PathBuf::new());
        if !has_tls {
            let hint = "turn on https, coap_tls, coap_dtls or mqtt_tls".to_owned();
            self.fault("client_ca", "only with https, coap_tls, coap_dtls or mqtt_tls", Some(hint));
        }
        Some(file)
    }
}
