//! The HTTP front over TLS: its certificates, and how they are renewed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use mote_gateway::http;
use mote_tls::Certificates;

use crate::config::Config;
use crate::front_limits::{HTTPS_FILES_SHARE, http_config};
use crate::store_work::blocking;
use crate::unusable::unusable;

/// How often the files of certificates are looked at. A tool that renews them does so weeks before
/// the old ones end.
const LOOK: Duration = Duration::from_secs(10);

/// The certificates, if the front is on. Blocks.
pub(crate) fn certificates(config: &Config) -> Result<Option<Arc<Certificates>>> {
    let Some(address) = config.https else { return Ok(None) };
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    // A name of a machine that is no name of a host would make the certificate impossible.
    if machine.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)) {
        names.splice(0..0, [machine.clone(), format!("{machine}.local")]);
    }
    if !address.ip().is_unspecified() && !address.ip().is_loopback() {
        names.push(address.ip().to_string());
    }
    let certificates = Certificates::open(&config.certificates, &names)
        .map_err(|error| unusable("certificates", error.to_string()))?;
    Ok(Some(Arc::new(certificates)))
}

/// The limits of the front, and its side of TLS.
pub(crate) fn front_config(certificates: &Arc<Certificates>) -> Result<http::Config> {
    let tls = Some(certificates.server(&["h2", "http/1.1"])?);
    Ok(http::Config { tls, ..http_config(HTTPS_FILES_SHARE) })
}

/// Reads changed certificates again, for as long as the node runs.
pub(crate) async fn keep_renewed(certificates: Arc<Certificates>) {
    let mut last = String::new();
    loop {
        tokio::time::sleep(LOOK).await;
        let own = certificates.clone();
        let said = match blocking(move || own.renew()).await {
            Ok(Ok(false)) => String::new(),
            Ok(Ok(true)) => {
                let fingerprint = certificates.fingerprint();
                tracing::info!(fingerprint, "certificates were read again");
                String::new()
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => continue,
        };
        // A fault that stays is told once.
        if !said.is_empty() && said != last {
            tracing::warn!("changed certificates are not used, the former ones are: {said}");
        }
        last = said;
    }
}
