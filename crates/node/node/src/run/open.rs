//! Opens the files of a node, and prepares what starts its functions.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use mote_api::client::DEPLOY_TIMEOUT;
use mote_images::{Images, Limits};
use mote_sandbox::{ProcessBackend, SandboxConfig, ZygoteHandle};
use mote_store::seal::Secrets;
use mote_store::{LostFile, Store};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::logs::Logs;
use crate::logs::otlp::LineSender;
use crate::traces::Traces;
use crate::unusable::unusable;
use crate::{accepted, interpreters, secrets};

/// The file in the data folder that holds the state of functions.
pub(super) const STATE_FILE: &str = "state.db";

/// The folder in the data folder that holds container images.
pub(crate) const IMAGES_FOLDER: &str = "images";
/// The longest time of a download of an image. It ends before the client of the deploy stops waiting.
const PULL_TIME_MAX: Duration = DEPLOY_TIMEOUT.saturating_sub(Duration::from_secs(60));

/// The node's files, and the parts that start its functions.
pub(crate) struct Opened {
    pub(crate) store: Arc<Store>,
    /// Databases that were missing or damaged when the node started.
    pub(crate) lost_files: Vec<LostFile>,
    pub(crate) interpreters: interpreters::Found,
    pub(crate) backend: Arc<ProcessBackend>,
    /// The functions' logs on disk; `None` if they are only in memory.
    pub(crate) logs: Option<Logs>,
    /// The sender of the functions' lines to a collector; `None` if there is no collector.
    pub(crate) line_sender: Option<Arc<LineSender>>,
    /// The container images of functions.
    pub(crate) images: Images,
    /// The recorded invocations; `None` if none are recorded.
    pub(crate) traces: Option<Traces>,
}

/// Opens the store and meanwhile searches for interpreters. Returns the secrets separately, because
/// the engine takes them, and the task that compiles the shims.
pub(super) async fn open(
    config: &Config,
    zygote: ZygoteHandle,
    management: &Handle,
) -> Result<(Opened, Secrets, JoinHandle<()>)> {
    let settings = config.clone();
    let opening = management.spawn_blocking(move || open_files(&settings));
    let (found, opened) = tokio::join!(interpreters::find(), opening);
    let (store, images, shims_dir, secrets, lost_files) =
        opened.context("cannot open the store")??;
    let compiling = interpreters::compile_shims(&found, &shims_dir, management);
    renew_wasm(&found, &store);
    let mut sandbox = SandboxConfig::default();
    sandbox.runtime_prefixes = found.prefixes();
    sandbox.shims_dir = Some(shims_dir);
    sandbox.uid_base = config.uid_base;
    let backend = Arc::new(ProcessBackend::new(zygote, sandbox));
    let logs = config.logs.map(|limits| Logs::start(&config.data, limits)).transpose()?;
    let traces = config.traces.clone().map(|rules| Traces::start(rules, management));
    let line_sender = config.collector.clone().map(|url| {
        Arc::new(LineSender::start(url, traces.as_ref().map(Traces::tracer), management))
    });
    let store = Arc::new(store);
    let opened = Opened {
        store,
        lost_files,
        interpreters: found,
        backend,
        logs,
        line_sender,
        images,
        traces,
    };
    Ok((opened, secrets, compiling))
}

/// Makes sandboxes show the installed `mote-wasm`, if they still show an earlier one.
fn renew_wasm(found: &interpreters::Found, store: &Store) {
    let Ok(wasm) = &found.wasm else { return };
    if store.root().join("shims/wasm").exists()
        && let Err(error) = mote_build::shims::unpack_wasm(store.root(), &wasm.program)
    {
        tracing::error!("WebAssembly functions cannot start: {error}");
    }
}

type Files = (Store, Images, PathBuf, Secrets, Vec<LostFile>);

/// Returns the store, the images, the folder of the shims, the secrets, and the lost databases.
fn open_files(config: &Config) -> Result<Files> {
    let data_dir = &config.data;
    let tightened = mote_store::own::secure(data_dir).map_err(not_own)?;
    for path in tightened {
        let path = path.display();
        tracing::warn!("others could write to {path} in the data folder, which they cannot now");
    }
    refuse_newer_files(data_dir)?;
    let store = Store::open(data_dir)?;
    let lost_files = lost_files(&store, config.journal_name.is_some())?;
    let shims = mote_build::shims::unpack(store.root())
        .with_context(|| format!("cannot write the shims below {}", data_dir.display()))?;
    let secrets = secrets::open(config, &store)?;
    let folder = data_dir.join(IMAGES_FOLDER);
    let limits = Limits { time: PULL_TIME_MAX, ..Limits::default() };
    let images = Images::open(&folder, limits)
        .with_context(|| format!("cannot open the images in {}", folder.display()))?;
    Ok((store, images, shims, secrets, lost_files))
}

/// Fails if a newer version wrote one of the files. All files are checked before any of them is
/// changed.
fn refuse_newer_files(data_dir: &Path) -> Result<()> {
    mote_journal::records::refuse_newer(&data_dir.join(accepted::FILE_NAME))?;
    mote_store::state::FileState::refuse_newer(&data_dir.join(STATE_FILE))?;
    Ok(())
}

/// Returns the databases next to the store that are missing or damaged, and moves damaged ones
/// aside. If the journal's log is elsewhere, the journal is left out, because the node rebuilds it
/// from that log.
fn lost_files(store: &Store, journal_is_elsewhere: bool) -> Result<Vec<LostFile>> {
    let mut all = Vec::new();
    for name in [accepted::FILE_NAME, STATE_FILE] {
        if name == accepted::FILE_NAME && journal_is_elsewhere {
            continue;
        }
        if let Some(lost) = store.check_file(name)? {
            tracing::error!(
                "{lost}. The node makes a new one; to keep what it held, stop the node and restore \
                 the file from a backup"
            );
            all.push(lost);
        }
    }
    Ok(all)
}

/// The error for a data folder that others could change, with a remedy.
fn not_own(error: mote_store::own::NotOwn) -> anyhow::Error {
    let text = format!(
        "{error}; the data folder is for the node alone: give what is in it to the user of the node, \
         or name another folder with --data"
    );
    unusable("data", text)
}
