//! A deploy, step by step: unpack, check, install packages, start, check, switch.
//!
//! Whatever fails on the way leaves the old revision serving and says which step failed.

use std::collections::HashSet;
use std::io::Read;
use std::sync::Arc;
use std::time::Instant;

use mote_api::Problem;
use mote_api::types::{DeployResult, Step};
use mote_core::autoscale::{self, Known};
use mote_core::{FunctionName, FunctionSpec};
use mote_engine::logs::LogLevel;
use mote_engine::{Revision, WarmError};
use mote_store::{ArchiveLimits, StagedCode, StoreError};
use parking_lot::Mutex;

use super::{Node, packages};
use crate::project;

/// Names that are being deployed now: two deploys of one function at once would race for which
/// is newer.
#[derive(Default)]
pub(crate) struct Deploying(Mutex<HashSet<FunctionName>>);

struct Turn<'a> {
    deploying: &'a Deploying,
    name: FunctionName,
}

impl Deploying {
    fn begin(&self, name: &FunctionName) -> Option<Turn<'_>> {
        let fresh = self.0.lock().insert(name.clone());
        fresh.then(|| Turn { deploying: self, name: name.clone() })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.deploying.0.lock().remove(&self.name);
    }
}

/// The steps so far, with their times.
struct Steps {
    steps: Vec<Step>,
    since: Instant,
}

impl Steps {
    fn done(&mut self, name: &str, detail: String) {
        let ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.steps.push(Step { name: name.to_owned(), detail, ms });
        self.since = Instant::now();
    }
}

/// Deploys the archive `upload` as `name`. `upload` is read on a blocking thread.
pub(crate) async fn deploy(
    node: &Arc<Node>,
    name: &str,
    upload: impl Read + Send + 'static,
    dry_run: bool,
) -> Result<DeployResult, Problem> {
    let name = FunctionName::new(name)
        .map_err(|error| Problem::new(422, "M0303", error.to_string()).with_field("name"))?;
    let _turn = node.deploying.begin(&name).ok_or_else(|| {
        let text = format!("another deploy of {name} is running");
        Problem::new(409, "M1405", text).with_hint("try again when it has ended")
    })?;
    let mut steps = Steps { steps: Vec::new(), since: Instant::now() };
    let store = node.store.clone();
    let staged = tokio::task::spawn_blocking(move || {
        let limits = ArchiveLimits {
            set_aside: Some(mote_api::SPEC_ENTRY.to_owned()),
            ..ArchiveLimits::default()
        };
        store.stage_archive(upload, &limits)
    })
    .await
    .map_err(|error| internal(&error))?
    .map_err(|error| store_problem(&error))?;
    let mut warnings = staged.notes.clone();
    steps.done(
        "unpack",
        format!("{} files, {} bytes, sha256:{}", staged.files, staged.bytes, &staged.hash[..8]),
    );
    let spec = spec(&name, &staged)?;
    check(node, &spec)?;
    steps.done("check", format!("runtime {}", spec.runtime.as_str()));
    let live = node.engine.get(name.as_str());
    let previous = live.as_ref().map(|revision| revision.number);
    // What the live revision has learnt is the best guess for the new one.
    let learnt = live.map_or_else(Known::default, |revision| revision.known());
    if dry_run {
        warnings.extend(scale_warnings(node, &spec, learnt));
        let revision = previous.unwrap_or(0) + 1;
        return Ok(DeployResult {
            function: name.to_string(),
            revision,
            previous,
            steps: steps.steps,
            warnings,
            urls: node.urls(&name),
        });
    }
    let packages = packages::install(node, &spec, &staged.path, &mut warnings).await?;
    if let Some(packages) = &packages {
        steps.done("packages", packages.detail.clone());
    }
    let (revision, created_at_ms) =
        start(node, spec, &staged, packages.as_ref(), &mut steps).await?;
    let (store, live, number) = (node.store.clone(), name.clone(), revision.number);
    let stored = tokio::task::spawn_blocking(move || store.set_live(&live, number))
        .await
        .map_err(|error| internal(&error))?;
    if let Err(error) = stored {
        node.engine.discard(&revision);
        return Err(store_problem(&error));
    }
    node.created(&name, created_at_ms);
    node.engine.publish(revision.clone());
    let text = match previous {
        Some(previous) => format!("live, was @{previous}"),
        None => "live".to_owned(),
    };
    revision.log.platform(LogLevel::Info, number, 0, &text);
    let known = Known { service: learnt.service, ..revision.known() };
    warnings.extend(scale_warnings(node, &revision.spec, known));
    Ok(DeployResult {
        function: name.to_string(),
        revision: number,
        previous,
        steps: steps.steps,
        warnings,
        urls: node.urls(&name),
    })
}

/// The spec that came with the archive, or the one its folder implies.
fn spec(name: &FunctionName, staged: &StagedCode) -> Result<FunctionSpec, Problem> {
    let spec = match &staged.set_aside {
        Some(json) => {
            let spec = serde_json::from_slice::<FunctionSpec>(json).map_err(|error| {
                Problem::new(422, "M0303", format!("spec: {error}"))
                    .with_field(mote_api::SPEC_ENTRY)
            })?;
            project::check_code(&staged.path, &spec).map_err(|mistakes| refused(&mistakes))?;
            spec
        }
        None => {
            let options = project::Options { name: Some(name.as_str()), check_machine: true };
            let mut planned = project::read(&staged.path, options).map_err(|mistakes| {
                let code = mistakes.0.first().map_or("M0303", |mistake| mistake.code);
                Problem::new(422, code, mistakes.to_string())
            })?;
            if planned.len() != 1 {
                let text = format!("the archive holds {} functions, not one", planned.len());
                return Err(Problem::new(422, "M0303", text));
            }
            planned.remove(0).spec
        }
    };
    if &spec.name != name {
        let text = format!("the archive holds {}, not {name}", spec.name);
        return Err(Problem::new(422, "M0303", text).with_field("name"));
    }
    Ok(spec)
}

/// Mistakes in a project as an answer.
fn refused(mistakes: &mote_api::toml_reader::Mistakes) -> Problem {
    let Some(first) = mistakes.0.first() else { return Problem::new(422, "M0303", "refused") };
    let problem = Problem::new(422, first.code, first.text.clone());
    match &first.hint {
        Some(hint) => problem.with_hint(hint.clone()),
        None => problem,
    }
}

/// What this node can say of a spec before anything is started.
fn check(node: &Node, spec: &FunctionSpec) -> Result<(), Problem> {
    if let Some(error) = spec.check().into_iter().next() {
        return Err(Problem::new(422, "M0303", error.to_string()).with_field(error.field));
    }
    let missing = match spec.runtime {
        mote_core::spec::Runtime::Python => node.interpreters.python.as_ref().err(),
        mote_core::spec::Runtime::Node => node.interpreters.node.as_ref().err(),
        _ => None,
    };
    if let Some(reason) = missing {
        let text = format!("{} cannot run here: {reason}", spec.name);
        return Err(Problem::new(422, "M0403", text).with_hint("see: mote doctor"));
    }
    if spec.limits.memory_bytes > node.memory_bytes {
        let text = format!(
            "memory: {} asked, the node gives {} to instances in all",
            mote_core::fault::bytes_text(spec.limits.memory_bytes),
            mote_core::fault::bytes_text(node.memory_bytes)
        );
        return Err(Problem::new(422, "M0303", text).with_field("limits.memory"));
    }
    Ok(())
}

/// Settings that are allowed and will hurt, each with what to write instead.
fn scale_warnings(node: &Node, spec: &FunctionSpec, learnt: Known) -> Vec<String> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let known =
        Known { node_memory_bytes: Some(node.memory_bytes), node_cores: Some(cores), ..learnt };
    autoscale::lint(spec, &spec.scale.policy, &known)
        .into_iter()
        .map(|warning| format!("{}: {}", warning.field, warning.text))
        .collect()
}

/// Stores the revision and starts its first instance; only a ready one may take traffic. Returns
/// it with the time of its row.
async fn start(
    node: &Arc<Node>,
    spec: FunctionSpec,
    staged: &StagedCode,
    packages: Option<&packages::Installed>,
    steps: &mut Steps,
) -> Result<(Arc<Revision>, u64), Problem> {
    let (store, stored_spec) = (node.store.clone(), spec.clone());
    let hash = staged.hash.clone();
    let key = packages.map(|packages| packages.key.clone());
    let row = tokio::task::spawn_blocking(move || {
        store.add_revision(&stored_spec, &hash, key.as_deref())
    })
    .await
    .map_err(|error| internal(&error))?
    .map_err(|error| store_problem(&error))?;
    let packages_dir = packages.map(|packages| packages.path.clone());
    let title = format!("{}@{}", spec.name, row.revision);
    let revision = node.engine.revision(spec, row.revision, staged.path.clone(), packages_dir);
    let warming = revision.clone();
    let warmed = node.data_path.spawn(async move { warming.warm().await }).await;
    match warmed.map_err(|error| internal(&error))? {
        Ok(()) => {}
        Err(WarmError::NodeFull(reason)) => {
            node.engine.discard(&revision);
            let hint = "stop others: mote scale NAME 0, or raise the node's setting `memory`";
            return Err(Problem::new(503, "M0505", format!("{title}: {reason}")).with_hint(hint));
        }
        Err(WarmError::Failed(reason)) => {
            node.engine.discard(&revision);
            let lines = revision.log.tail(40);
            let said: Vec<String> = lines
                .iter()
                .filter(|line| line.revision == row.revision)
                .map(|line| format!("  | {}", line.text))
                .collect();
            let last = said[said.len().saturating_sub(5)..].join("\n");
            let mut text = format!("{title} did not become ready: {reason}");
            if !last.is_empty() {
                text = format!("{text}; its last log lines:\n{last}");
            }
            let hint = format!("see: mote logs {}", revision.spec.name);
            return Err(Problem::new(422, "M0411", text).with_hint(hint));
        }
    }
    let status = revision.status();
    let init_ms = status.instances.first().map_or(0, |instance| instance.init_ns / 1_000_000);
    steps.done("start", format!("1 instance, init {init_ms} ms"));
    Ok((revision, row.created_at_ms))
}

/// A store's refusal as an answer.
pub(crate) fn store_problem(error: &StoreError) -> Problem {
    let status = match error {
        StoreError::Archive(archive) => archive.http_status(),
        StoreError::DiskFull { .. } => 507,
        StoreError::BadKey(_) => 422,
        StoreError::NoSuchRevision { .. } => 404,
        _ => 500,
    };
    Problem::new(status, error.code(), mote_core::fault::error_chain(error))
}

/// A task of ours that panicked or was cancelled.
fn internal(error: &tokio::task::JoinError) -> Problem {
    tracing::error!(%error, "deploy task failed");
    Problem::new(500, "M0599", "the node failed to deploy; see its log")
}
