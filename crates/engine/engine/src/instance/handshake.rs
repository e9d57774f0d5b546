//! What a worker and the engine say before calls: HELLO, LOAD, READY.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use mote_core::backend::StartError;
use mote_core::services::Services;
use mote_core::turn::Turn;
use mote_core::wire::{self, FrameKind, Load, Ready, WorkerError};
use mote_spec::{
    CONCURRENCY_DEFAULT_EXEC, CONCURRENCY_DEFAULT_GO, CONCURRENCY_DEFAULT_NODE,
    CONCURRENCY_DEFAULT_RUST, CONCURRENCY_DEFAULT_WASM, FunctionSpec, Runtime,
};

use crate::instance::launch::{self, CODE_DIR, LaunchError, PACKAGES_DIR, program, secret_env};
use crate::instance::{requests, services_door};
use crate::link::worker::{Connection, LinkEnd, TRACE_LINES_MAX};
use crate::revision::Revision;
use crate::revision::logs::LogLevel;

/// Why an instance did not become ready.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartFailure {
    #[error(transparent)]
    Sandbox(#[from] StartError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("did not become ready in {0} ms")]
    TimedOut(u64),
    #[error("nothing listens on $PORT ({port}) after {waited_ms} ms{}", elsewhere(listening, *is_image))]
    NotListening { port: u16, waited_ms: u64, listening: Vec<u16>, is_image: bool },
    #[error("worker ended before it was ready ({0})")]
    Ended(String),
    /// A prewarmed program or a copy ended before it was ready, which may not be the function's
    /// fault.
    #[error("worker ended before it was ready ({0})")]
    DiedPrewarmed(String),
    #[error("worker broke the protocol: {0}")]
    Protocol(String),
    #[error("{0}")]
    Load(String),
    #[error("worker socket: {0}")]
    Socket(#[from] std::io::Error),
}

/// Says on which other ports a server listens, and what its owner can do about that.
fn elsewhere(ports: &[u16], is_image: bool) -> String {
    match ports {
        [] if is_image => {
            "; a server must listen there before that time, or [limits] init_timeout must be longer. \
             An entry script of the image that starts itself again as another user does not end: \
             set command to the program that it starts"
                .to_owned()
        }
        [] => {
            "; a server must listen there before that time, or [limits] init_timeout must be longer"
                .to_owned()
        }
        [port] => format!(
            "; the program listens on port {port}: let it use $PORT, or write port = {port} in mote.toml"
        ),
        [first, rest @ ..] => {
            let rest: Vec<_> = rest.iter().map(u16::to_string).collect();
            format!(
                "; the program listens on the ports {first} and {}: let it use $PORT, or name one with \
                 port in mote.toml",
                rest.join(" and ")
            )
        }
    }
}

/// What the engine tells a worker during the handshake.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// To load the function.
    Function,
    /// To load the function, and then to make copies instead of serving calls.
    Seed,
    /// Nothing: a copy has loaded the function already.
    Nothing,
}

/// The variables that a function's code finds, with those that are secrets.
pub(crate) fn secrets_and_variables(
    revision: &Revision,
) -> Result<BTreeMap<String, String>, LaunchError> {
    let mut env = revision.spec.env.clone();
    env.extend(secret_env(revision)?);
    Ok(env)
}

/// The handshake: HELLO, LOAD, READY. A copy only sends READY.
pub(crate) async fn handshake(
    revision: &Arc<Revision>,
    instance: u64,
    connection: &mut Connection,
    told: Told,
) -> Result<Ready, StartFailure> {
    let mut turn = Turn::new();
    if told != Told::Nothing {
        say_hello(revision, instance, connection, told, &mut turn).await?;
    }
    await_ready(revision, instance, connection, &mut turn).await
}

/// The first part of the handshake: HELLO, LOAD.
async fn say_hello(
    revision: &Arc<Revision>,
    instance: u64,
    connection: &mut Connection,
    told: Told,
    turn: &mut Turn,
) -> Result<(), StartFailure> {
    let spec = &revision.spec;
    let answered_by = spec.answered_by();
    let (header, payload) = connection.read_frame(turn).await.map_err(handshake_end)?;
    let version = payload.first_chunk::<2>().map(|bytes| u16::from_le_bytes(*bytes));
    if header.kind != FrameKind::Hello || version != Some(wire::VERSION) {
        return Err(StartFailure::Protocol(format!("expected HELLO of version {}", wire::VERSION)));
    }
    let mut env = secrets_and_variables(revision)?;
    env.insert("MOTE_FUNCTION".into(), spec.name.to_string());
    env.extend(services_door::variable(spec, instance));
    if let (Runtime::Python, Some(port)) = (answered_by, launch::debug_port(revision)) {
        env.insert("MOTE_DEBUG_PORT".into(), port.to_string());
    }
    let load = Load {
        function: spec.name.to_string(),
        revision: revision.number,
        code_dir: CODE_DIR.into(),
        packages_dir: revision.packages_dir.as_ref().map(|_| PACKAGES_DIR.into()),
        entry: spec.entry.clone(),
        concurrency: spec.limits.concurrency.or(match answered_by {
            Runtime::Node | Runtime::Bun | Runtime::Deno => Some(CONCURRENCY_DEFAULT_NODE),
            Runtime::Go => Some(CONCURRENCY_DEFAULT_GO),
            Runtime::Exec => Some(CONCURRENCY_DEFAULT_EXEC),
            Runtime::Wasm => Some(CONCURRENCY_DEFAULT_WASM),
            Runtime::Rust => Some(CONCURRENCY_DEFAULT_RUST),
            Runtime::Python | Runtime::Server | Runtime::Chain => None,
        }),
        env,
        memory_bytes: Some(spec.limits.memory_bytes),
        command: if answered_by == Runtime::Exec { program(revision) } else { Vec::new() },
        compat: spec.compat,
        template: spec.template.clone(),
        services: services(&revision.spec, revision.shared.services.get()),
        seed: told == Told::Seed,
    };
    let load = serde_json::to_vec(&load).expect("a Load has only string keys");
    let mut frame = Vec::new();
    wire::put_frame(&mut frame, FrameKind::Load, 0, 0, &load);
    connection.write_all(&frame).await.map_err(handshake_end)
}

/// The second part of the handshake: READY, and what a worker may send before it.
async fn await_ready(
    revision: &Arc<Revision>,
    instance: u64,
    connection: &mut Connection,
    turn: &mut Turn,
) -> Result<Ready, StartFailure> {
    let spec = &revision.spec;
    loop {
        let (header, payload) = connection.read_frame(turn).await.map_err(handshake_end)?;
        match header.kind {
            FrameKind::Log => connection.log(revision.log_of(instance), &payload),
            FrameKind::Request
                if !services(&revision.spec, revision.shared.services.get()).is_empty() =>
            {
                let answered = requests::answer_while_loading(revision, &header, payload).await;
                let frame = answered.map_err(|error| StartFailure::Protocol(error.to_string()))?;
                connection.write_all(&frame).await.map_err(handshake_end)?;
            }
            FrameKind::Ready => {
                return serde_json::from_slice(&payload)
                    .map(|ready: Ready| ready.clamped(spec.concurrency_max()))
                    .map_err(|error| StartFailure::Protocol(format!("READY: {error}")));
            }
            FrameKind::Error => {
                let error: WorkerError = serde_json::from_slice(&payload)
                    .map_err(|error| StartFailure::Protocol(format!("ERROR: {error}")))?;
                let error = error.clamped();
                for line in error.trace.lines().take(TRACE_LINES_MAX) {
                    revision.log.platform(LogLevel::Error, revision.number, instance, line);
                }
                // The backend reports a program that it cannot execute with the same text. Here,
                // the worker looks up the program before it runs anything.
                let text = match error.kind.as_str() {
                    "Exec" => format!("{}: cannot execute {}", revision.label(), error.message),
                    // The file and the line are more useful than the kind of the error.
                    "Chain" => error.message.clone(),
                    kind => format!("{kind}: {}", error.message),
                };
                return Err(StartFailure::Load(text));
            }
            kind => return Err(StartFailure::Protocol(format!("{kind:?} before READY"))),
        }
    }
}

/// The services among `all` to which a worker of this function may send requests.
pub(crate) fn services(spec: &FunctionSpec, all: Option<&Arc<dyn Services>>) -> Vec<String> {
    match spec.answered_by() {
        Runtime::Python
        | Runtime::Node
        | Runtime::Bun
        | Runtime::Deno
        | Runtime::Go
        | Runtime::Rust
        | Runtime::Wasm => all.map(|all| all.announced()).unwrap_or_default(),
        Runtime::Chain => all.map(|all| all.announced_to_chains()).unwrap_or_default(),
        Runtime::Exec | Runtime::Server => Vec::new(),
    }
}

fn handshake_end(end: LinkEnd) -> StartFailure {
    match end {
        LinkEnd::Closed | LinkEnd::Socket(_) => StartFailure::Ended(String::new()),
        LinkEnd::Protocol(error) => StartFailure::Protocol(error.to_string()),
    }
}

pub(crate) fn stream(fd: OwnedFd) -> std::io::Result<UnixStream> {
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(true)?;
    Ok(stream)
}
