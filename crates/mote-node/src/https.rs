//! TLS of the HTTP front and of the APIs for operators: the certificates, and how they are renewed.

use std::sync::Arc;

use anyhow::Result;
use mote_api::harmless;
use mote_gateway::http;
use mote_tls::{Acceptor, Acme, Certificates, ClientAuthorities};
use tokio::runtime::Handle;

use crate::config::Config;
use crate::front_limits::{HTTPS_FILES_SHARE, http_config};
use crate::unusable::unusable;

/// The default folder of certificates, in the data folder.
const CERTIFICATES_FOLDER: &str = "certificates";
/// The folder of the certificate that is ordered, in the data folder.
const ACME_FOLDER: &str = "acme";

/// The certificates, if the front is on, or if other machines reach an API for operators. Blocks.
pub(crate) fn certificates(config: &Config) -> Result<Option<Arc<Certificates>>> {
    let apis =
        [config.admin, config.compat.openfaas, config.compat.openwhisk, config.compat.nuclio];
    let apis = apis.into_iter().chain([config.compat.tinyfaas.as_ref().map(|one| one.management)]);
    let reached = apis.flatten().find(|address| !address.ip().is_loopback());
    let Some(address) = config.https.or(reached) else { return Ok(None) };
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    // A machine may have a name that no certificate can contain, for example with an underscore.
    if machine.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)) {
        names.splice(0..0, [machine.clone(), format!("{machine}.local")]);
    }
    let own_address = address.ip().to_string();
    if !address.ip().is_unspecified() && !names.contains(&own_address) {
        names.push(own_address);
    }
    let acme = acme(config)?;
    // A folder that somebody has named is expected to have certificates.
    let is_default = config.certificates == config.data.join(CERTIFICATES_FOLDER);
    let own_names = is_default.then_some(&names[..]);
    let (certificates, faults) = Certificates::open(&config.certificates, acme, own_names)
        .map_err(|error| unusable("certificates", harmless(&error.to_string()).to_string()))?;
    for fault in faults {
        tracing::warn!("a certificate is not used: {fault}");
    }
    Ok(Some(Arc::new(certificates)))
}

/// The folder of the certificate that is ordered, if one is. Blocks.
fn acme(config: &Config) -> Result<Option<Arc<Acme>>> {
    if config.acme.is_none() {
        return Ok(None);
    }
    let program = mote_companion::errand::program(mote_tls::ACME_PROGRAM)?;
    if !program.is_file() {
        let text = format!("the program {} is missing; install it there", program.display());
        return Err(unusable("acme", text));
    }
    let folder = config.data.join(ACME_FOLDER);
    mote_companion::own_folder::make(&folder, config.uid_base - 3)
        .map_err(|error| unusable("acme", format!("{}: {error}", folder.display())))?;
    Ok(Some(Arc::new(Acme::new(folder))))
}

/// Keeps the certificates as the files are, and orders one if the node is to, for as long as the node
/// runs.
pub(crate) fn keep(
    config: &Config,
    certificates: Arc<Certificates>,
    clients: Option<Arc<ClientAuthorities>>,
    runtime: &Handle,
) {
    if let Some(order) = &config.acme {
        let mut words = vec!["--uid".into(), (config.uid_base - 3).to_string().into()];
        words.extend_from_slice(order);
        runtime.spawn(mote_tasks::boxed(mote_tls::keep_ordered(certificates.clone(), words)));
    }
    runtime.spawn(mote_tasks::boxed(mote_tls::keep_renewed(certificates, clients)));
}

/// The authorities of clients, if there are any. Blocks.
pub(crate) fn client_authorities(config: &Config) -> Result<Option<Arc<ClientAuthorities>>> {
    let Some(file) = &config.client_ca else { return Ok(None) };
    let opened = ClientAuthorities::open(file)
        .map_err(|error| unusable("client_ca", harmless(&error.to_string()).to_string()))?;
    Ok(Some(Arc::new(opened)))
}

/// The limits of the front, and its side of TLS.
pub(crate) fn front_config(
    certificates: &Arc<Certificates>,
    clients: Option<Arc<ClientAuthorities>>,
) -> Result<http::Config> {
    let tls = Some(certificates.server(&["h2", "http/1.1"], clients)?);
    Ok(http::Config { tls, names_of: Some(mote_tls::names), ..http_config(HTTPS_FILES_SHARE) })
}

/// The TLS of the APIs for operators, whose clients may also speak plain HTTP.
pub(crate) fn of_apis(certificates: Option<&Arc<Certificates>>) -> Result<Option<Acceptor>> {
    Ok(certificates.map(|all| Acceptor::new(all, &["http/1.1"])).transpose()?)
}
