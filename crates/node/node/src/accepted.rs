//! The journals of a running node: where their files are, and how the journal gets the calls that
//! earlier versions accepted.

use std::sync::Arc;

use bytes::Bytes;
use mote_core::accept::Accept as _;
use mote_journal::nats::Nats;
use mote_journal::{Journal, Journals};
use mote_outgoing::Outgoing;
use mote_platforms::compat::journal::Runner;
use mote_platforms::compat::queue::Later;
use mote_schedule::Schedules;
use mote_store::Store;
use tokio::runtime::Handle;

use crate::config::Config;
use crate::services::Runs;
use crate::store_work::blocking;

/// The file of the journal in the data directory.
pub(crate) const FILE_NAME: &str = "journal.db";

/// The folder for the files of journals that this node runs in place of other nodes.
const OTHERS: &str = "journals";

/// Invocations that run while no caller waits for them.
pub(crate) struct Accepted {
    /// Invocations that run after their callers have received an answer.
    pub(crate) journals: Journals,
    /// The runs of chains.
    pub(crate) runs: Runs,
    /// The schedules of the live revisions.
    pub(crate) schedules: Schedules,
}

/// The journals of a node. The node's own journal is on disk, or in NATS if the journal has a name.
/// Opens nothing yet.
pub(crate) fn journals(
    config: &Config,
    store: &Store,
    outgoing: Outgoing,
    nats: Option<&Nats>,
    management: &Handle,
) -> Journals {
    let path = store.root().join(FILE_NAME);
    let (Some(own), Some(nats)) = (config.journal_name.clone(), nats.cloned()) else {
        return Journals::new(Journal::new(path, outgoing), None);
    };
    let runtime = management.clone();
    let folder = store.root().join(OTHERS);
    let named = mote_journal::nats_log::named(nats, runtime, own, folder, title(config));
    let journal = Journal::replicated(path, outgoing, (named.replication)(&named.own));
    Journals::new(journal, Some(named))
}

/// The text by which other nodes show this node: its machine and the address of its HTTP front.
fn title(config: &Config) -> String {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    match config.http {
        Some(address) => format!("{machine} ({address})"),
        None => machine,
    }
}

/// Opens the journal if there is one, and moves calls into it that an earlier version kept in the
/// store. Errors are only logged, because the node can serve without the journal, and the accepted
/// calls stay on disk.
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
    let old = blocking(move || reader.calls()).await??;
    for (number, _) in old {
        let reader = store.clone();
        let Some(record) = blocking(move || reader.call(number)).await?? else { continue };
        let record = Bytes::from(record);
        if Runner::of(&record) == Some(Runner::Activation) {
            journal.keep_activation(record.to_vec()).await?;
        } else if let Some(later) = Later::decode(&record) {
            journal.accept(later.into_deferred()).await?;
        } else {
            tracing::error!(number, "cannot parse an accepted call; it is kept");
            continue;
        }
        // After a crash before this line, the call runs twice, but it is never lost.
        let writer = store.clone();
        blocking(move || writer.remove_call(number)).await??;
    }
    Ok(())
}
