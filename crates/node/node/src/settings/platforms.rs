//! The settings of other platforms' APIs, and checks that their addresses differ from the node's
//! own.

use std::net::{IpAddr, SocketAddr};

use crate::config::{PlatformApis, TinyFaas};

use super::Check;

const OPENFAAS_PORT: u16 = 8080;
const TINYFAAS_PORT: u16 = 8080;
const TINYFAAS_HTTP_PORT: u16 = 8000;
const TINYFAAS_COAP_PORT: u16 = 5683;
const TINYFAAS_GRPC_PORT: u16 = 9000;
const NUCLIO_PORT: u16 = 8070;
const OPENWHISK_PORT: u16 = 3233;

impl Check<'_> {
    /// The addresses of other platforms' APIs.
    pub(super) fn compat(&mut self, host: IpAddr, lan: bool) -> PlatformApis {
        let at = |port| SocketAddr::new(host, port);
        let openfaas = self.offered("openfaas", at(OPENFAAS_PORT), lan);
        let nuclio = self.offered("nuclio", at(NUCLIO_PORT), lan);
        let openwhisk = self.offered("openwhisk", at(OPENWHISK_PORT), lan);
        let tinyfaas =
            self.offered("tinyfaas", at(TINYFAAS_PORT), lan).map(|management| TinyFaas {
                management,
                http: self.address("tinyfaas_http", Some(at(TINYFAAS_HTTP_PORT)), lan),
                coap: self.address("tinyfaas_coap", Some(at(TINYFAAS_COAP_PORT)), lan),
                grpc: self.address("tinyfaas_grpc", Some(at(TINYFAAS_GRPC_PORT)), lan),
            });
        if tinyfaas.is_none() {
            for key in ["tinyfaas_http", "tinyfaas_coap", "tinyfaas_grpc"] {
                self.settle(key, "off".to_owned());
            }
        }
        PlatformApis { openfaas, tinyfaas, nuclio, openwhisk }
    }

    /// The address of the CoAP front. If the setting is missing and tinyFaaS uses the usual port,
    /// the front is off.
    pub(super) fn coap(
        &mut self,
        usual: SocketAddr,
        lan: bool,
        compat: &PlatformApis,
    ) -> Option<SocketAddr> {
        let theirs = compat.tinyfaas.as_ref().and_then(|tinyfaas| tinyfaas.coap);
        if self.given("coap").is_none() && theirs.is_some_and(|at| at.port() == usual.port()) {
            self.settle("coap", "off".to_owned());
            return None;
        }
        let coap = self.address("coap", Some(usual), lan);
        if coap.is_some_and(|coap| coap.port() != 0 && theirs == Some(coap)) {
            self.fault("coap", "not the address of tinyfaas_coap", None);
        }
        coap
    }

    /// Checks that no two listeners have the same address. Port 0 never conflicts, because the
    /// system then chooses a free port.
    pub(super) fn distinct(
        &mut self,
        own: &[(&'static str, Option<SocketAddr>)],
        compat: &PlatformApis,
    ) {
        let mut all = own.to_vec();
        all.push(("openfaas", compat.openfaas));
        if let Some(tinyfaas) = &compat.tinyfaas {
            all.push(("tinyfaas", Some(tinyfaas.management)));
            all.push(("tinyfaas_http", tinyfaas.http));
            all.push(("tinyfaas_grpc", tinyfaas.grpc));
        }
        all.push(("nuclio", compat.nuclio));
        all.push(("openwhisk", compat.openwhisk));
        all.retain(|(_, address)| address.is_some_and(|address| address.port() != 0));
        for (at, (key, address)) in all.iter().enumerate() {
            let taken = all[..at].iter().find(|(_, other)| other == address);
            match taken {
                Some(("http", _)) => self.fault(key, "not the address of the HTTP front", None),
                Some((other, _)) => self.fault(key, &format!("not the address of {other}"), None),
                None => {}
            }
        }
    }

    /// The address of a listener that is off by default. The word `on` stands for the usual
    /// address.
    pub(super) fn offered(
        &mut self,
        key: &str,
        usual: SocketAddr,
        reach: bool,
    ) -> Option<SocketAddr> {
        match self.given(key).as_deref() {
            None | Some("off" | "false") => {
                self.settle(key, "off".to_owned());
                None
            }
            Some("on" | "true") => {
                self.settle(key, usual.to_string());
                Some(usual)
            }
            Some(_) => self.address(key, Some(usual), reach),
        }
    }
}
