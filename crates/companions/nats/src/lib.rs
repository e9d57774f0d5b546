//! A node's connection to NATS JetStream, in a process next to the node that runs without
//! privileges.
//!
//! The library `async-nats` implements the NATS protocol. This program confines itself
//! ([`confinement`]), holds the connection (`connection.rs`), and answers the requests that the
//! node sends over the socket on its standard input (the frames of `mote_journal::nats`). The
//! requests concern streams (`streams.rs`), the state of functions (`state.rs`), and streams that
//! keep a journal (`log.rs`). For the state, `space.rs` follows the stream of a namespace, and
//! `index.rs` holds what is known about its keys. The program ends when the node closes the socket.
//! It must not know functions, manifests or the store.

mod api;
mod connection;
mod index;
mod keys;
mod log;
mod place;
mod serve;
mod space;
mod state;
mod streams;

use std::io;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::Duration;

use mote_process::companion::confinement::{self, Files, Network, Rights};
use tokio::net::UnixStream;
use tracing::level_filters::LevelFilter;

/// Runs this process as the companion that serves the node.
pub fn main() -> ExitCode {
    if !matches!(std::env::args().skip(1).collect::<Vec<_>>().as_slice(), [word] if word == "run") {
        eprintln!("mote-nats is started by a node of mote: mote up --nats nats://HOST:4222");
        return ExitCode::from(2);
    }
    confinement::log_to_node("mote_nats", LevelFilter::OFF);
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    // The node passes a socket as the standard input. It carries both directions.
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let mut socket = std::os::unix::net::UnixStream::from(socket);
    // The socket blocks for now, because this process must have only one thread until it is
    // confined.
    socket.set_nonblocking(false)?;
    let settings = serve::read_settings(&mut socket)?;
    let authorities = match &settings.authorities {
        Some(pem) => Some(confinement::file_in_memory("authorities", pem.as_bytes())?),
        None => None,
    };
    confinement::confine(Rights {
        uid: settings.uid,
        // The memory is for the requests in progress, and for the keys of the namespaces in use.
        memory_bytes: 512 << 20,
        open_files: 256,
        // Resolving host names and reading the system's certificates need files that the user may
        // read.
        files: Files::ReadAll,
        network: Network::Connect,
    })?;
    // One thread is enough, because the program mostly waits, and the node needs the cores.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_keep_alive(Duration::from_secs(5))
        .build()?;
    runtime.block_on(async {
        socket.set_nonblocking(true)?;
        let socket = UnixStream::from_std(socket)?;
        let authorities = authorities.as_ref().map(|file| file.path.clone());
        let connection = connection::Connection::start(settings, authorities)?;
        serve::serve(socket, connection).await
    })
}
