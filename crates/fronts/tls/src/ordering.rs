//! Keeps the ordered certificate fresh for as long as the node runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;

use crate::Certificates;
use crate::acme::{PAUSE_MAX, PAUSE_UNTOLD};

impl Certificates {
    /// Runs the program each time it is due, for as long as the node runs. Returns at once if no
    /// certificate is ordered.
    pub async fn keep_ordered(self: Arc<Self>) {
        while let Some(acme) = &self.acme {
            let pause = acme.run().await.unwrap_or(PAUSE_UNTOLD);
            let of_all = self.clone();
            if let Ok(renewed) = spawn_blocking(move || of_all.renew()).await
                && renewed.changed
            {
                tracing::info!("new connections get the certificate that was ordered");
            }
            tokio::time::sleep(pause.clamp(Duration::from_secs(1), PAUSE_MAX)).await;
        }
    }
}
