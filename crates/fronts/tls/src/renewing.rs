//! Reads changed certificates again while the node runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;

use crate::{Certificates, ClientAuthorities};

/// How often the certificate files are checked. A renewal tool replaces certificates weeks before
/// the old ones expire.
const LOOK: Duration = Duration::from_secs(10);

/// Reads changed files again, for as long as the node runs. Logs what was read and what cannot be
/// used.
pub async fn keep_renewed(
    certificates: Arc<Certificates>,
    clients: Option<Arc<ClientAuthorities>>,
) {
    let mut told = String::new();
    let mut told_of_clients = String::new();
    loop {
        tokio::time::sleep(LOOK).await;
        if let Some(clients) = clients.clone()
            && renew_clients(clients, &mut told_of_clients).await
        {
            certificates.changes.send_replace(());
        }
        let own = certificates.clone();
        let Ok(renewed) = spawn_blocking(move || own.renew()).await else { continue };
        if renewed.changed {
            let (file, fingerprint) = certificates.first();
            let first = file.display();
            tracing::info!(%first, fingerprint, "certificates were read again");
        }
        // The same faults are not logged twice in a row.
        let faults: Vec<_> = renewed.faults.iter().map(ToString::to_string).collect();
        let faults = faults.join("; ");
        if !faults.is_empty() && faults != told {
            tracing::warn!("a changed certificate is not used, what was there before is: {faults}");
        }
        told = faults;
    }
}

/// Reads changed client authorities again. Returns whether they have changed. `told` is the last
/// fault that was logged, so that a lasting fault is logged only once.
async fn renew_clients(clients: Arc<ClientAuthorities>, told: &mut String) -> bool {
    let (changed, fault) = match spawn_blocking(move || clients.renew()).await {
        Ok(Ok(changed)) => (changed, String::new()),
        Ok(Err(fault)) => (false, fault.to_string()),
        Err(_) => return false,
    };
    if changed {
        tracing::info!("the authorities of clients were read again");
    }
    if !fault.is_empty() && fault != *told {
        tracing::warn!("changed authorities of clients are not used, the former ones are: {fault}");
    }
    *told = fault;
    changed
}
