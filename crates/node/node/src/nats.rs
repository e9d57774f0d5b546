//! The node's side of NATS: it starts the process `mote-nats`, and chooses where functions' state
//! is kept.

use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use mote_api::types::{Check, CheckState};
use mote_core::state::State;
use mote_journal::nats::{Launch, Nats, NatsError, NatsState, Settings};
use mote_process::companion::OWN_PROGRAM;
use mote_store::state::FileState;
use tokio::runtime::Handle;

use super::unusable::unusable;
use crate::config::NatsServers;

/// The oldest version of the NATS server that has every feature that the node uses.
const OLDEST: [u32; 2] = [2, 9];

/// Starts the process that connects the node to the NATS servers.
pub(super) fn start(servers: &NatsServers, uid_base: u32, runtime: &Handle) -> Result<Nats> {
    // If a file cannot be read now, the setting that names it is wrong.
    let files = [("nats_credentials", &servers.credentials), ("nats_ca", &servers.authorities)];
    for (key, path) in files {
        read(path.as_deref()).map_err(|error| unusable(key, error.to_string()))?;
    }
    let servers = servers.clone();
    let settings = move || {
        Ok(Settings {
            servers: servers.servers.clone(),
            credentials: read(servers.credentials.as_deref())?,
            authorities: read(servers.authorities.as_deref())?,
            replicas: servers.replicas,
            uid: uid_base - 2,
        })
    };
    Ok(Nats::start(Launch { program: OWN_PROGRAM.into(), settings: Box::new(settings) }, runtime))
}

fn read(path: Option<&Path>) -> io::Result<Option<String>> {
    let Some(path) = path else { return Ok(None) };
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) => Err(io::Error::other(format!("{}: {error}", path.display()))),
    }
}

/// The state of functions: in NATS if there is a connection, otherwise in a file. The file is also
/// returned separately, so that the node can close it.
pub(super) fn state(nats: Option<&Nats>, file: &Path) -> (Arc<dyn State>, Option<FileState>) {
    match nats {
        Some(nats) => {
            if file.exists() {
                tracing::warn!(
                    file = %file.display(),
                    "the state of functions is in NATS now; what the file holds is not used"
                );
            }
            (Arc::new(NatsState::new(nats.clone())), None)
        }
        None => {
            let state = FileState::new(file);
            (Arc::new(state.clone()), Some(state))
        }
    }
}

/// Reports whether the NATS servers answer.
pub(super) async fn check(nats: &Nats) -> Check {
    let (state, detail, hint) = match nats.check().await {
        Ok(server) => {
            let detail = format!(
                "{} answers, version {}, {} streams",
                server.address, server.version, server.streams
            );
            if is_old(&server.version) {
                let [major, minor] = OLDEST;
                let hint = format!("install nats-server {major}.{minor} or newer");
                (CheckState::Warn, detail, Some(hint))
            } else {
                (CheckState::Ok, detail, None)
            }
        }
        Err(error) => {
            let hint = match &error {
                NatsError::Unreachable(_) => {
                    "functions cannot use their state until it answers; the node tries again"
                }
                _ => "functions cannot use their state",
            };
            (CheckState::Fail, error.to_string(), Some(hint.to_owned()))
        }
    };
    Check { name: "nats".into(), state, detail, hint }
}

fn is_old(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)] < OLDEST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_recognised() {
        assert!(is_old("2.8.4") && is_old("1.99.0") && is_old("no version"));
        assert!(!is_old("2.9.10") && !is_old("2.15.2") && !is_old("3.0.0-preview"));
    }
}
