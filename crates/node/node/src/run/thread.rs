//! Threads with a runtime.

use anyhow::{Context as _, Result};
use tokio::runtime::{Builder, Handle};

/// Makes a single-threaded runtime, like that of the data path, on a new thread. The thread ends
/// when `end` resolves.
pub(super) fn runtime_on_thread(
    name: &str,
    end: impl Future<Output = ()> + Send + 'static,
) -> Result<Handle> {
    let runtime =
        Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            runtime.block_on(end);
            runtime.shutdown_background();
        })
        .with_context(|| format!("cannot start the thread {name}"))?;
    Ok(handle)
}
