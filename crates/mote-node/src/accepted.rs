//! The journal of a running node: where its file is, and calls that earlier versions accepted.

use std::sync::Arc;

use bytes::Bytes;
use mote_compat::journal::Runner;
use mote_compat::queue::Later;
use mote_core::accept::Accept as _;
use mote_journal::Journal;
use mote_store::Store;
use tokio::task::spawn_blocking;

/// The file of the journal in the data directory.
pub(crate) const FILE_NAME: &str = "journal.db";

/// Opens the journal if there is one, and moves calls into it that a version before it kept in the
/// store. Errors are logged: the node serves all the same, and what it accepted stays on disk.
pub(crate) async fn take_up(journal: &Journal, store: &Arc<Store>) {
    match journal.take_up().await {
        Ok(0) => {}
        Ok(waiting) => tracing::info!(waiting, "accepted invocations from before the restart run"),
        Err(error) => tracing::error!(%error, "cannot open the journal of accepted invocations"),
    }
    if let Err(error) = move_old_calls(journal, store).await {
        tracing::error!(%error, "cannot read calls that an earlier version accepted; they are kept");
    }
}

async fn move_old_calls(journal: &Journal, store: &Arc<Store>) -> anyhow::Result<()> {
    let reader = store.clone();
    let old = spawn_blocking(move || reader.calls()).await??;
    for (number, _) in old {
        let reader = store.clone();
        let Some(record) = spawn_blocking(move || reader.call(number)).await?? else { continue };
        let record = Bytes::from(record);
        if Runner::of(&record) == Some(Runner::Activation) {
            journal.keep_activation(record.to_vec()).await?;
        } else if let Some(later) = Later::decode(&record) {
            journal.accept(later.into_deferred()).await?;
        } else {
            tracing::error!(number, "cannot parse an accepted call; it is kept");
            continue;
        }
        // A crash before this line makes the call run twice, never not at all.
        let writer = store.clone();
        spawn_blocking(move || writer.remove_call(number)).await??;
    }
    Ok(())
}
