//! Lets only one change of each function's revisions run at a time.

use super::failed_logs::FailedLogs;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mote_api::Problem;
use mote_engine::Engine;
use mote_spec::FunctionName;
use mote_tenants::namespaces::{Change, Namespaces};
use parking_lot::Mutex;

/// The turns of deploys, and the logs of failed deploys.
#[derive(Default)]
pub(crate) struct Deploys {
    pub(crate) deploying: Deploying,
    pub(crate) failed_logs: FailedLogs,
    /// Held while a Go function is built, because all builds share one compiler cache.
    pub(crate) go_builds: mote_tenants::namespaces::Turns,
    /// Held while a WebAssembly function is compiled, so that compilers do not use all memory.
    pub(crate) wasm_builds: mote_tenants::namespaces::Turns,
    /// The progress of the deploys that wait for a container image.
    pub(crate) image_progress: ImageProgress,
    /// Held while a function with routes begins to serve, so that overlapping routes are found.
    pub(crate) route_turn: tokio::sync::Mutex<()>,
}

/// Functions that are being changed now. Two simultaneous deploys of one function would compete for
/// the newer number.
#[derive(Default)]
pub(crate) struct Deploying(Mutex<HashSet<FunctionName>>);

/// What deploys report while they wait for an image. Contains only running deploys, so the number
/// of functions that are deployed at once limits its size.
#[derive(Default, Clone)]
pub(crate) struct ImageProgress(Arc<Mutex<HashMap<FunctionName, String>>>);

impl ImageProgress {
    pub(crate) fn set(&self, name: &FunctionName, detail: String) {
        self.0.lock().insert(name.clone(), detail);
    }

    pub(crate) fn get(&self, name: &str) -> Option<String> {
        self.0.lock().iter().find(|(known, _)| known.as_str() == name).map(|(_, text)| text.clone())
    }

    /// When dropped, forgets what a deploy of this function has reported.
    pub(crate) fn of_deploy(&self, name: &FunctionName) -> ForgetProgress {
        ForgetProgress { all: self.clone(), name: name.clone() }
    }
}

/// See [`ImageProgress::of_deploy`].
pub(crate) struct ForgetProgress {
    all: ImageProgress,
    name: FunctionName,
}

impl Drop for ForgetProgress {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.name);
    }
}

/// The right to change the revisions of one function, held until drop.
pub(crate) struct Turn<'a> {
    deploying: &'a Deploying,
    name: FunctionName,
    _change: Option<Change>,
}

/// Begins a change of `name`. Fails if another change of the function is under way.
pub(crate) fn turn<'a>(
    deploying: &'a Deploying,
    namespaces: &Arc<Namespaces>,
    name: &FunctionName,
) -> Result<Turn<'a>, Problem> {
    let change = name.namespace().map(|namespace| namespaces.change(namespace)).transpose()?;
    claimed(deploying, name, change)
}

/// Begins the removal of `name` while its whole namespace is being removed. In that time, [`turn`]
/// fails.
pub(crate) fn last_turn<'a>(
    deploying: &'a Deploying,
    name: &FunctionName,
) -> Result<Turn<'a>, Problem> {
    claimed(deploying, name, None)
}

/// Counts the functions of a namespace, without `name`, that are now being deployed for the first
/// time.
pub(crate) fn new_ones(
    deploying: &Deploying,
    engine: &Engine,
    namespace: &str,
    name: &FunctionName,
) -> u64 {
    let deploying = deploying.0.lock();
    let is_new = |other: &&FunctionName| {
        let is_other = other.namespace() == Some(namespace) && *other != name;
        is_other && engine.get(other.as_str()).is_none()
    };
    deploying.iter().filter(is_new).count() as u64
}

fn claimed<'a>(
    deploying: &'a Deploying,
    name: &FunctionName,
    change: Option<Change>,
) -> Result<Turn<'a>, Problem> {
    if deploying.0.lock().insert(name.clone()) {
        return Ok(Turn { deploying, name: name.clone(), _change: change });
    }
    let text = format!("another deploy of {name} is running");
    Err(Problem::new(409, "M1405", text).with_hint("try again when it has ended"))
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.deploying.0.lock().remove(&self.name);
    }
}
