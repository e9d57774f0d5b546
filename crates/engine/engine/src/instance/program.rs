//! Runs another program in the sandbox of a function, such as its tests.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use mote_core::backend::{Exit, InstanceControl, Launch};
use mote_core::fault::error_chain;

use crate::instance::egress::{self, Doors};
use crate::instance::launch::{PACKAGES_DIR, request, secret_env};
use crate::revision::Revision;

/// The least memory and processes of such a program. Tools for tests need more than a function.
const MEMORY_BYTES_MIN: u64 = 512 << 20;
const PIDS_MIN: u32 = 256;

/// A running program. Dropping it ends the program.
pub struct Program {
    /// The read end of the program's stdout and stderr, non-blocking.
    pub output: OwnedFd,
    control: Box<dyn InstanceControl>,
    _channel: OwnedFd,
    _doors: Doors,
}

impl Program {
    /// Resolves when the program has ended. Must be called only once.
    pub async fn exited(&self) -> Exit {
        self.control.exited().await
    }
}

/// Starts a program with the code, the packages and the variables of a revision. The program does
/// not count as an instance of the revision.
pub(crate) async fn start(revision: &Arc<Revision>, argv: Vec<String>) -> Result<Program, String> {
    let instance = revision.shared.next_instance();
    let mut request = request(revision, instance).map_err(|error| error_chain(&error))?;
    let spec = &revision.spec;
    let secrets = secret_env(revision);
    let secrets = secrets.map_err(|error| error_chain(&error))?;
    let variables = spec.env.clone().into_iter().chain(secrets).chain([
        ("MOTE_FUNCTION".to_owned(), spec.name.to_string()),
        ("PYTHONPATH".to_owned(), PACKAGES_DIR.to_owned()),
        ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned()),
        ("NODE_PATH".to_owned(), format!("{PACKAGES_DIR}/node_modules")),
    ]);
    for (name, value) in variables {
        if !request.env.iter().any(|(other, _)| *other == name) {
            request.env.push((name, value));
        }
    }
    request.launch = Launch::Worker { argv };
    request.debug_port = None;
    request.limits.memory_bytes = request.limits.memory_bytes.max(MEMORY_BYTES_MIN);
    request.limits.pids = request.limits.pids.max(PIDS_MIN);
    let started = revision.shared.backend.start(request).await;
    let started = started.map_err(|error| error_chain(&error))?;
    let doors = egress::serve(revision, instance, started.egress);
    let (output, control) = (started.output, started.control);
    Ok(Program { output, control, _channel: started.channel, _doors: doors })
}
