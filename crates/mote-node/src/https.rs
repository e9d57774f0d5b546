//! TLS of the HTTP front and of the APIs for operators: the certificates, and how they are renewed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use mote_api::harmless;
use mote_gateway::http;
use mote_tls::{Acceptor, Certificates, ClientAuthorities};

use crate::config::Config;
use crate::front_limits::{HTTPS_FILES_SHARE, http_config};
use crate::store_work::blocking;
use crate::unusable::unusable;

/// The default folder of certificates, in the data folder.
const CERTIFICATES_FOLDER: &str = "certificates";

/// How often the files of certificates are looked at. A tool that renews them does so weeks before
/// the old ones end.
const LOOK: Duration = Duration::from_secs(10);

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
    // A folder that somebody has named is expected to have certificates.
    let is_default = config.certificates == config.data.join(CERTIFICATES_FOLDER);
    let own_names = is_default.then_some(&names[..]);
    let (certificates, faults) = Certificates::open(&config.certificates, own_names)
        .map_err(|error| unusable("certificates", harmless(&error.to_string()).to_string()))?;
    for fault in faults {
        tracing::warn!("a certificate is not used: {fault}");
    }
    Ok(Some(Arc::new(certificates)))
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

/// Reads changed certificates again, for as long as the node runs.
pub(crate) async fn keep_renewed(
    certificates: Arc<Certificates>,
    clients: Option<Arc<ClientAuthorities>>,
) {
    let (mut told, mut told_of_clients) = (String::new(), String::new());
    loop {
        tokio::time::sleep(LOOK).await;
        if let Some(clients) = clients.clone() {
            renew_clients(clients, &mut told_of_clients).await;
        }
        let own = certificates.clone();
        let Ok(renewed) = blocking(move || own.renew()).await else { continue };
        if renewed.changed {
            let (file, fingerprint) = certificates.first();
            let first = file.display();
            tracing::info!(%first, fingerprint, "certificates were read again");
        }
        // The same faults are logged only once.
        let faults: Vec<_> = renewed.faults.iter().map(ToString::to_string).collect();
        let faults = faults.join("; ");
        if !faults.is_empty() && faults != told {
            tracing::warn!("a changed certificate is not used, what was there before is: {faults}");
        }
        told = faults;
    }
}

/// The same for the authorities of clients. `told` is the last fault, which is logged only once.
async fn renew_clients(clients: Arc<ClientAuthorities>, told: &mut String) {
    let fault = match blocking(move || clients.renew()).await {
        Ok(Ok(changed)) => {
            if changed {
                tracing::info!("the authorities of clients were read again");
            }
            String::new()
        }
        Ok(Err(fault)) => fault.to_string(),
        Err(_) => return,
    };
    if !fault.is_empty() && fault != *told {
        tracing::warn!("changed authorities of clients are not used, the former ones are: {fault}");
    }
    *told = fault;
}
