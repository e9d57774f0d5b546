//! Functions as resources of a Kubernetes cluster.
//!
//! This program has two long-running parts. The *controller* (`controller/`) runs once in a
//! cluster. It makes immutable revisions of `Function` resources, decides which of them receive
//! traffic, and offers the management API of `mote` for the whole cluster. The *agent* (`agent/`)
//! runs next to each cell. It follows the resources and configures its cell accordingly, over the
//! cell's management socket. No invocation passes through either part. `resources.rs` defines the
//! resources. The program must not know how a function runs.

mod agent;
mod controller;
pub mod install;
mod keys;
mod metrics;
mod mirror;
mod resources;
mod serving;
mod source;
mod work;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Functions of mote as resources of a Kubernetes cluster.
#[derive(Parser)]
#[command(name = "mote-cluster", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Makes revisions of Function resources and offers the management API for the whole cluster.
    Controller(controller::Options),
    /// Gives the cell in the same pod the functions of the cluster.
    Agent(agent::Options),
    /// Prints the definitions of the resources.
    Crds,
    #[command(flatten)]
    Install(crate::install::Command),
}

/// What every part needs to know of the cluster.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Place {
    /// The namespace of the functions and of the Secret mote-secrets.
    #[arg(long, env = "MOTE_FUNCTIONS_NAMESPACE", default_value = "default")]
    pub(crate) functions_namespace: String,
    /// The namespace of this pod, of the cells and of the Secrets mote-keys and mote-api.
    #[arg(long, env = "MOTE_SYSTEM_NAMESPACE", default_value = "mote-system")]
    pub(crate) system_namespace: String,
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    if matches!(arguments.command, Command::Crds) {
        print!("{}", crate::install::CRDS);
        return ExitCode::SUCCESS;
    }
    if let Command::Install(command) = &arguments.command {
        return match crate::install::run(command, &mut std::io::stdout()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let levels = Targets::new()
        .with_target("mote_cluster", tracing::Level::INFO)
        .with_default(tracing::level_filters::LevelFilter::OFF);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        // If the log is closed, everything else must go on.
        .log_internal_errors(false);
    tracing_subscriber::registry().with(lines.with_target(false)).with(levels).init();
    // One thread is enough, because both parts wait for the network most of the time.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(async {
        match arguments.command {
            Command::Controller(options) => controller::run(options).await,
            Command::Agent(options) => agent::run(options).await,
            Command::Crds | Command::Install(_) => Ok(()),
        }
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Resolves when SIGTERM or SIGINT arrives.
async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
