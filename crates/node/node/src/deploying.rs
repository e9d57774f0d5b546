//! The functions that are being changed now.

use std::collections::HashSet;

use mote_api::Problem;
use mote_spec::FunctionName;
use mote_tenants::namespaces::Change;
use parking_lot::Mutex;

/// Names that are being deployed now: two simultaneous deploys of one function would compete for
/// the newer number.
#[derive(Default)]
pub(crate) struct Deploying(Mutex<HashSet<FunctionName>>);

/// The right to change one function's revisions, until dropped.
pub(crate) struct Turn<'a> {
    deploying: &'a Deploying,
    name: FunctionName,
    _change: Option<Change>,
}

impl Deploying {
    /// Begins a change of `name`, or fails because another one is under way.
    pub(crate) fn claim(
        &self,
        name: &FunctionName,
        change: Option<Change>,
    ) -> Result<Turn<'_>, Problem> {
        if self.0.lock().insert(name.clone()) {
            return Ok(Turn { deploying: self, name: name.clone(), _change: change });
        }
        let text = format!("another deploy of {name} is running");
        Err(Problem::new(409, "M1405", text).with_hint("try again when it has ended"))
    }

    /// How many names that fit are being deployed now.
    pub(crate) fn count(&self, fits: impl Fn(&FunctionName) -> bool) -> u64 {
        self.0.lock().iter().filter(|name| fits(name)).count() as u64
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.deploying.0.lock().remove(&self.name);
    }
}
