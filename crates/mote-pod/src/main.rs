//! The main process of a pod that waits to become an instance of a function.
//!
//! It starts the interpreter with its shim (`worker.rs`), listens at one port, and accepts one
//! connection in its life: the first that proves the key of the cells (`door.rs`). Over it arrive
//! the function's files (`arrival.rs`); from then on it carries the bytes between the cell and the
//! worker (`service.rs`). When the worker or the connection ends, the process ends, and with it the
//! pod, which its cluster replaces. The records are those of `mote_pods::records`.
//!
//! The worker runs code that nobody trusts, as the same user. So this process cannot be traced or
//! dumped, the secret of the pod is in no environment and no file that the worker could read, and
//! the key is forgotten before the function's files arrive. The settings are environment variables:
//! `MOTE_POD_RUNTIME` (python or node), `MOTE_POD_LISTEN`, `MOTE_POD_CELLS` (the public key of the
//! cells), `MOTE_POD_SECRET`, and `MOTE_POD_ROOT` for a folder other than `/`.
//!
//! It must not know functions, revisions or Kubernetes.

#![forbid(unsafe_code)]

mod arrival;
mod door;
mod service;
mod settings;
mod worker;

use std::io::Write as _;
use std::process::ExitCode;

use settings::{Settings, take_secret};
use tokio::signal::unix::{SignalKind, signal};

/// Writes a line to stderr, if there is still someone to read it.
fn log(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "mote-pod: {text}");
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    // Without this, the worker could read the memory of this process through /proc.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let secret = take_secret()?;
    let settings = Settings::read()?;
    // This comes before anything else that opens files: the worker needs its socket as number 3.
    let sockets = worker::sockets()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        // The first process of a pod ignores signals that it does not handle.
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            ended = live(&settings, sockets, secret) => ended,
            _ = terminate.recv() => Ok(()),
        }
    });
    // Threads of the runtime may still wait for a disk; the worker ends with this process.
    runtime.shutdown_background();
    ended
}

/// From the start of the worker to its end.
async fn live(
    settings: &Settings,
    sockets: worker::Sockets,
    secret: Vec<u8>,
) -> Result<(), Box<dyn std::error::Error>> {
    let worker = worker::start(settings, sockets).await?;
    let stream = door::open(settings, &secret).await?;
    drop(secret);
    let Some((connection, label)) = arrival::take(stream, settings).await? else {
        return Ok(());
    };
    log(format_args!("claimed for {label}"));
    service::run(connection, worker, settings).await
}
