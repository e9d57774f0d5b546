//! TLS of the fronts, the broker and the APIs for operators: the certificates and their renewal.

use std::ffi::OsString;
use std::sync::Arc;

use anyhow::Result;
use mote_api::harmless;
use mote_coap::{StreamConfig, StreamTls};
use mote_http::http;
use mote_tls::{Acceptor, Acme, Certificates, ClientAuthorities};

use crate::config::Config;
use crate::fronts::limits::{HTTPS_FILES_SHARE, http_config};
use crate::unusable::unusable;

/// The default folder of certificates, in the data folder.
const CERTIFICATES_FOLDER: &str = "certificates";
/// The folder for the certificate that the node orders, in the data folder.
const ACME_FOLDER: &str = "acme";

/// The certificates, needed if a TLS listener is on or if other machines reach an API for
/// operators. Blocks.
pub(crate) fn certificates(config: &Config) -> Result<Option<Arc<Certificates>>> {
    let apis =
        [config.admin, config.compat.openfaas, config.compat.openwhisk, config.compat.nuclio];
    let apis = apis.into_iter().chain([config.compat.tinyfaas.as_ref().map(|one| one.management)]);
    let reached = apis.flatten().find(|address| !address.ip().is_loopback());
    let Some(address) = config.first_tls().or(reached) else { return Ok(None) };
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    // A certificate cannot contain every machine name. For example, it cannot contain an
    // underscore.
    if machine.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)) {
        names.splice(0..0, [machine.clone(), format!("{machine}.local")]);
    }
    let own_address = address.ip().to_string();
    if !address.ip().is_unspecified() && !names.contains(&own_address) {
        names.push(own_address);
    }
    let folder = config.data.join(ACME_FOLDER);
    let open = |order: &Vec<OsString>| Acme::open(folder, config.uid_base - 3, order.clone());
    let acme = config.acme.as_ref().map(open).transpose();
    let acme = acme.map_err(|error| unusable("acme", error.to_string()))?;
    // The node makes its own certificate only in the default folder. A folder that somebody has
    // named must contain certificates.
    let is_default = config.certificates == config.data.join(CERTIFICATES_FOLDER);
    let own_names = is_default.then_some(&names[..]);
    let (certificates, faults) =
        Certificates::open(&config.certificates, acme.map(Arc::new), own_names)
            .map_err(|error| unusable("certificates", harmless(&error.to_string()).to_string()))?;
    for fault in faults {
        tracing::warn!("a certificate is not used: {fault}");
    }
    Ok(Some(Arc::new(certificates)))
}

/// The authorities that sign clients' certificates, if there are any. Blocks.
pub(crate) fn client_authorities(config: &Config) -> Result<Option<Arc<ClientAuthorities>>> {
    let Some(file) = &config.client_ca else { return Ok(None) };
    let opened = ClientAuthorities::open(file)
        .map_err(|error| unusable("client_ca", harmless(&error.to_string()).to_string()))?;
    Ok(Some(Arc::new(opened)))
}

/// Answers an authority that checks over HTTP whether the node owns a name.
pub(crate) fn well_known(certificates: &Arc<Certificates>) -> Option<http::WellKnown> {
    let acme = certificates.acme()?;
    Some(http::WellKnown::new(move |path| acme.over_http(path)))
}

/// The limits of an HTTP front, and its TLS settings.
pub(crate) fn front_config(
    config: &Config,
    certificates: &Arc<Certificates>,
    clients: Option<Arc<ClientAuthorities>>,
) -> Result<http::Config> {
    let tls = Some(certificates.server(&["h2", "http/1.1"], clients)?);
    Ok(http::Config {
        tls,
        names_of: Some(mote_tls::names),
        well_known: well_known(certificates),
        proxies: config.proxies.clone(),
        ..http_config(HTTPS_FILES_SHARE)
    })
}

/// The limits of the CoAP front over TLS, and its TLS settings.
pub(crate) fn coap_config(
    certificates: &Arc<Certificates>,
    clients: Option<Arc<ClientAuthorities>>,
) -> Result<StreamConfig> {
    let server = certificates.server(&[mote_coap::ALPN], clients)?;
    let tls = Some(StreamTls { server, names_of: mote_tls::names });
    Ok(StreamConfig { tls, ..Default::default() })
}

/// The TLS settings of the APIs for operators. Clients may also speak plain HTTP there.
pub(crate) fn of_apis(certificates: Option<&Arc<Certificates>>) -> Result<Option<Acceptor>> {
    Ok(certificates.map(|all| Acceptor::new(all, &["http/1.1"])).transpose()?)
}
