//! The steps of a deploy: unpack, check, install packages, start, switch (`rollout.rs`).
//!
//! If a step fails, the old revision keeps serving, and the answer names the step.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use mote_api::Problem;
use mote_api::types::{DeployResult, DeployStep, RegistryLogin};
use mote_core::rollout::{Edit, Split, SplitError, Traffic};
use mote_engine::Revision;
use mote_engine::revision::logs::LogLevel;
use mote_engine::trees::Trees;
use mote_images::Image;
use mote_pool::autoscale::{self, Known};
use mote_spec::FunctionName;
use mote_spec::FunctionSpec;
use mote_spec::Runtime;
use mote_store::{ArchiveLimits, RevisionState, StagedCode, Store, StoredRevision};

use super::data_folders::NewFolder;
use super::spec_check::{check, cors_warning, recipient_warnings, route_warnings};
use super::store_work::{blocking, internal, store_problem, with_store};
use super::turns::turn;
use super::{
    Node, access_warnings, data_folders, golang, images, namespaces, packages, rollout, wasm,
};

/// Starts the removal of unused code when a deploy ends.
struct CollectAfter<'a>(&'a Trees);

impl Drop for CollectAfter<'_> {
    fn drop(&mut self) {
        self.0.collect_soon();
    }
}

/// The steps of a deploy that have ended, with the time that each took.
struct Steps {
    steps: Vec<DeployStep>,
    since: Instant,
}

impl Steps {
    fn done(&mut self, name: &str, detail: String) {
        let ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.steps.push(DeployStep { name: name.to_owned(), detail, ms });
        self.since = Instant::now();
    }
}

pub(crate) struct Options {
    /// Checks everything and changes nothing.
    pub(crate) dry_run: bool,
    /// Gives the revision no share of the traffic.
    pub(crate) no_traffic: bool,
    /// Like `no_traffic`, but callers can reach the revision by this tag.
    pub(crate) tag: Option<String>,
    /// Makes no new revision if a serving revision, or the newest one that has ever served, has
    /// this code and these settings.
    pub(crate) if_changed: bool,
    /// The login at the registry of the function's image.
    pub(crate) registry_login: Option<RegistryLogin>,
    /// Set for a revision whose number a cluster has chosen.
    pub(crate) place: Option<Place>,
}

/// How a cell places a revision that its cluster puts on each cell. The revision receives no
/// traffic until [`rollout::set_split`] names it.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) number: u64,
    /// Whether an instance of the revision must become ready. Off for a revision that other cells
    /// already use, so that a new cell need not start every function once.
    pub(crate) warm: bool,
}

impl Options {
    fn held_back(&self) -> bool {
        self.no_traffic || self.tag.is_some()
    }

    /// The traffic split that applies once `revision` is ready. `now` is `None` for a function's
    /// first revision.
    fn traffic(&self, now: Option<&Traffic>, revision: u64) -> Result<Traffic, SplitError> {
        let Some(now) = now else { return Ok(Traffic::whole(revision)) };
        let split = match &self.tag {
            Some(tag) => {
                let edit = Edit { revision, percent: None, tag: Some(tag.clone()) };
                now.split.edited(&[edit])?
            }
            None if self.no_traffic => now.split.clone(),
            None => now.split.all_to(revision)?,
        };
        Ok(now.moved(split))
    }
}

/// Deploys the archive `upload` as `name`, and logs how the deploy ended. `upload` is read on a
/// blocking thread. It is a trait object, so that this long function is compiled only once and not
/// for each kind of reader.
pub(crate) async fn deploy(
    node: &Arc<Node>,
    name: &str,
    upload: Box<dyn Read + Send>,
    options: &Options,
) -> Result<DeployResult, Problem> {
    let ended = attempt(node, name, upload, options).await;
    match &ended {
        Ok(_) if options.dry_run => {}
        Ok(result) => {
            let revision = result.revision;
            let held_back = result.held_back;
            tracing::info!(function = %name.escape_debug(), revision, held_back, "deployed");
        }
        Err(problem) => {
            let Problem { code, detail, .. } = problem;
            tracing::warn!(function = %name.escape_debug(), %code, "deploy failed: {detail}");
        }
    }
    ended
}

async fn attempt(
    node: &Arc<Node>,
    name: &str,
    upload: Box<dyn Read + Send>,
    options: &Options,
) -> Result<DeployResult, Problem> {
    let name = FunctionName::new(name)
        .map_err(|error| Problem::new(422, "M0303", error.to_string()).with_field("name"))?;
    let _turn = turn(&node.deploys.deploying, &node.tenants.namespaces, &name)?;
    namespaces::room_for(node, &name)?;
    let files_place = node.tenants.namespaces.files_place(&name)?;
    // This is also needed after a failed deploy, which leaves code that no revision names.
    let _collect = CollectAfter(&node.deployed.trees);
    let mut steps = Steps { steps: Vec::new(), since: Instant::now() };
    let now = match options.place {
        Some(_) => None,
        None => placed(node, &name, options).await?,
    };
    let uploaded = images::Uploaded::new(node).map_err(|error| no_room(&error))?;
    let limits = ArchiveLimits {
        set_aside: Some(mote_api::SPEC_ENTRY.to_owned()),
        large: Some(uploaded.entry()),
        ..ArchiveLimits::default()
    };
    let staged =
        with_store(&node.opened.store, move |store| store.stage_archive(upload, &limits)).await?;
    let mut warnings = staged.notes.clone();
    steps.done(
        "unpack",
        format!("{} files, {} bytes, sha256:{}", staged.files, staged.bytes, &staged.hash[..8]),
    );
    let mut spec = spec(&name, &staged).await?;
    check(node, &spec)?;
    mote_tenants::namespaces::confined::check_names(&spec).await?;
    golang::check(&node.opened.interpreters, &spec)?;
    data_folders::check(node, &spec, options.place.is_some())?;
    let _files = node.tenants.namespaces.files_turn(files_place, &name).await?;
    let mut trees = vec![staged.path.clone()];
    namespaces::room_on_disk(node, &name, trees.clone()).await?;
    steps.done("check", format!("runtime {}", spec.runtime.as_str()));
    let image =
        images::complete(node, &mut spec, uploaded, options.registry_login.as_ref()).await?;
    if let (Some(image), Some(named)) = (&image, &spec.image) {
        let layers = match image.layers.len() {
            1 => "1 layer".to_owned(),
            several => format!("{several} layers"),
        };
        let size = mote_core::fault::rounded_bytes_text(image.bytes);
        steps.done("image", format!("{}, {layers}, {size}", named.shown()));
        trees.extend(image.layers.iter().cloned());
        trees.extend(images::folders_of(node, &name).await?);
        namespaces::room_on_disk(node, &name, trees.clone()).await?;
    }
    warnings.extend(recipient_warnings(&node.data_path.engine, &node.outgoing, &spec));
    warnings.extend(route_warnings(&node.data_path.engine, &node.config, &spec));
    warnings.extend(cors_warning(&node.config, &spec));
    warnings.extend(access_warnings::warning(node, &spec));
    let live = node.data_path.engine.get(name.as_str());
    warnings.extend(
        live.as_ref().and_then(|live| access_warnings::change(&node.config, &live.spec, &spec)),
    );
    if let Some(text) = live.as_ref().and_then(|live| replaces(live, &spec, options)) {
        // Clients of other platforms cannot show warnings, so the node logs them.
        if !options.dry_run {
            tracing::warn!("{text}");
        }
        warnings.push(text);
    }
    let mut result = DeployResult {
        function: name.to_string(),
        revision: 0,
        previous: live.as_ref().map(|revision| revision.number),
        traffic: Vec::new(),
        access: node.config.access_of(spec.access).as_str().to_owned(),
        unchanged: false,
        held_back: options.held_back(),
        steps: Vec::new(),
        warnings: Vec::new(),
        urls: node.urls(&spec),
    };
    if let Some(now) = now.as_ref().filter(|_| options.if_changed)
        && is_known(&node.opened.store, &spec, &staged, now).await?
    {
        result.unchanged = true;
        result.revision = result.previous.take().unwrap_or_default();
        result.traffic = rollout::shares(&now.split);
        return Ok(DeployResult { steps: steps.steps, warnings, ..result });
    }
    // For a new revision, the measurements of the live revision are the best estimate.
    let learnt = live.map_or_else(Known::default, |revision| revision.known());
    if options.dry_run {
        warnings.extend(scale_warnings(node.data_path.memory_bytes, &spec, learnt));
        let wanted = name.clone();
        let stored = with_store(&node.opened.store, move |store| store.revisions(&wanted)).await?;
        result.revision = stored.first().map_or(0, |newest| newest.revision) + 1;
        if spec.runtime == Runtime::Chain {
            // Even a dry run starts the worker of chains, because only this worker can check the
            // tasks, and it runs none of the user's code.
            let code = staged.path.clone();
            let revision = node.data_path.engine.revision(spec, result.revision, code, None, None);
            node.deployed.trees.keep(&revision);
            let read = rollout::warm(node, &revision).await;
            node.data_path.engine.discard(&revision);
            read?;
            steps.done("start", "the worker of chains has read its tasks".to_owned());
        }
        return Ok(DeployResult { steps: steps.steps, warnings, ..result });
    }
    if let Some(place) = options.place {
        let wanted = name.clone();
        let stored = with_store(&node.opened.store, move |store| store.revisions(&wanted)).await?;
        if let Some(stored) = stored.iter().find(|stored| stored.revision == place.number) {
            result.revision = place.number;
            if stored.code_hash == staged.hash && stored.spec == spec {
                // The revision is stored even if none of its instances became ready, so this deploy
                // starts an instance again.
                if place.warm {
                    rollout::shown(node, stored).await?;
                }
                return Ok(DeployResult { steps: steps.steps, warnings, ..result });
            }
            let text = format!("{name}@{} is stored with other code or settings", place.number);
            return Err(Problem::new(409, "M1405", text)
                .with_field("number")
                .with_hint("a revision never changes: deploy the change under a new number"));
        }
    }
    let packages = match spec.runtime {
        Runtime::Go => Some(golang::build(node, &spec, &staged).await?),
        Runtime::Wasm => Some(wasm::build(node, &spec, &staged).await?),
        _ => packages::install(node, &spec, &staged, &mut warnings).await?,
    };
    if let Some(packages) = &packages {
        let step = match spec.runtime {
            Runtime::Go => "build",
            Runtime::Wasm => "compile",
            _ => "packages",
        };
        steps.done(step, packages.detail.clone());
        trees.push(packages.path.clone());
        namespaces::room_on_disk(node, &name, trees).await?;
    }
    let left = match spec.files.data_bytes {
        Some(_) => namespaces::room_on_disk(node, &name, Vec::new()).await?,
        None => 0,
    };
    let new_folder = data_folders::prepare(node, &spec, left).await?;
    if let Some(bytes) = spec.files.data_bytes {
        let size = mote_core::fault::bytes_text(bytes);
        steps.done("data", format!("{size} at {}", mote_spec::files::DATA_DIR));
    }
    let (revision, created_at_ms) =
        start(node, spec, &staged, (packages.as_ref(), image), &mut steps, options.place).await?;
    // From here on, the folder may contain what the revision has written.
    new_folder.into_iter().for_each(NewFolder::keep);
    if options.place.is_some() {
        node.data_path.engine.discard(&revision);
        result.revision = revision.number;
        return Ok(DeployResult { steps: steps.steps, warnings, ..result });
    }
    let split = publish(node, &revision, created_at_ms, now.as_ref(), options).await?;
    result.revision = revision.number;
    result.traffic = rollout::shares(&split);
    result.urls.port = node.deployed.ports.shown(&revision.spec);
    let problem = result.urls.port.as_ref().and_then(|port| port.problem.as_ref());
    warnings.extend(problem.map(|problem| format!("{name}: its port is not open: {problem}")));
    if let Some(tag) = &options.tag {
        for url in [&mut result.urls.http, &mut result.urls.coap].into_iter().flatten() {
            url.push_str(&format!("@{tag}"));
        }
    }
    let known = Known { service: learnt.service, ..revision.known() };
    warnings.extend(scale_warnings(node.data_path.memory_bytes, &revision.spec, known));
    warnings.extend(access_warnings::unknown_issuer(&node.callers.guard, &revision.spec));
    Ok(DeployResult { steps: steps.steps, warnings, ..result })
}

/// Whether the newest revision that has served, or a revision that serves now, has this code and
/// this spec. If that newest revision no longer serves, somebody has rolled it back, and this must
/// not undo the rollback.
async fn is_known(
    store: &Arc<Store>,
    spec: &FunctionSpec,
    staged: &StagedCode,
    now: &Traffic,
) -> Result<bool, Problem> {
    let wanted = spec.name.clone();
    let stored = with_store(store, move |store| store.revisions(&wanted)).await?;
    let newest = stored.iter().find(|stored| stored.state != RevisionState::Added);
    let mut serving = stored.iter().filter(|stored| now.split.reaches(stored.revision));
    let is_same = |stored: &StoredRevision| stored.code_hash == staged.hash && stored.spec == *spec;
    Ok(newest.is_some_and(is_same) || serving.any(is_same))
}

/// Warns if a deploy replaces a function that came from another origin, because this is seldom
/// intended.
fn replaces(live: &Revision, spec: &FunctionSpec, options: &Options) -> Option<String> {
    let before = live.spec.origin.as_ref()?;
    let now = spec.origin.as_ref()?;
    if before == now || options.held_back() {
        return None;
    }
    let name = &spec.name;
    Some(format!(
        "{name}: this deploy, from {now}, replaces the function {name} from {before}; to \
         keep both, give one of them another name and restore the other with mote rollback \
         {name}"
    ))
}

/// The current traffic split of the function, if the function is served. Also checks, before code
/// is uploaded and instances start, that the new revision can have the requested share or tag.
async fn placed(
    node: &Node,
    name: &FunctionName,
    options: &Options,
) -> Result<Option<Traffic>, Problem> {
    let now = match node.data_path.engine.get(name.as_str()) {
        Some(_) => Some(rollout::traffic(&node.opened.store, &node.data_path.engine, name).await?),
        None => None,
    };
    if now.is_none() && options.held_back() {
        let text = format!("{name} has no live revision that could receive the traffic");
        let problem = Problem::new(409, "M0413", text);
        return Err(problem.with_hint("deploy it first without --tag and --no-traffic"));
    }
    // The number is not known yet. Any number that no revision has is enough to check that there is
    // room and that the tag is valid.
    let fits = options.traffic(now.as_ref(), u64::MAX);
    fits.map_err(|error| rollout::not_a_split(&error))?;
    Ok(now)
}

/// Gives a ready revision its share or tag. Returns the resulting traffic split.
async fn publish(
    node: &Node,
    revision: &Arc<Revision>,
    created_at_ms: u64,
    now: Option<&Traffic>,
    options: &Options,
) -> Result<Split, Problem> {
    let name = &revision.spec.name;
    let then = options.traffic(now, revision.number);
    let then = then.map_err(|error| rollout::not_a_split(&error))?;
    if !then.split.reaches(revision.number) {
        // The instance has proved that it can start. It is stopped, because nobody can call the
        // revision.
        let text = format!("ready, receives no traffic ({})", then.split);
        revision.log.platform(LogLevel::Info, revision.number, 0, &text);
        node.data_path.engine.discard(revision);
        return Ok(then.split);
    }
    let mut revisions = vec![revision.clone()];
    let serving = node.data_path.engine.serving(name.as_str());
    revisions.extend(serving.iter().flat_map(|serving| serving.revisions().iter().cloned()));
    let why = match &options.tag {
        Some(tag) => format!("deploy --tag {tag}"),
        None => "deploy".to_owned(),
    };
    node.deployed.created(name, created_at_ms);
    let switched = rollout::switch(node, name, now, &then, &revisions, &why).await;
    if let Err(problem) = switched {
        if now.is_none() {
            node.deployed.forget(name);
        }
        node.data_path.engine.discard(revision);
        return Err(problem);
    }
    Ok(then.split)
}

/// Returns the spec in the archive, or if there is none, the spec that the folder implies.
async fn spec(name: &FunctionName, staged: &StagedCode) -> Result<FunctionSpec, Problem> {
    let mut spec = match &staged.set_aside {
        Some(json) => {
            let spec = mote_spec::json::from_json(json).map_err(|error| {
                Problem::new(422, "M0303", format!("spec: {error}"))
                    .with_field(mote_api::SPEC_ENTRY)
            })?;
            mote_project::check_code(&staged.path, &spec).map_err(|mistakes| refused(&mistakes))?;
            spec
        }
        None => read_upload(name, &staged.path).await?,
    };
    // A project names its function without the namespace to which it is deployed.
    if spec.name.namespace().is_none() && spec.name.as_str() == name.label() {
        spec.name = name.clone();
    }
    if &spec.name != name {
        let text = format!("the archive holds {}, not {name}", spec.name);
        return Err(Problem::new(422, "M0303", text).with_field("name"));
    }
    Ok(spec)
}

/// Returns the spec that the uploaded files imply, for an upload by a client other than `mote`.
async fn read_upload(name: &FunctionName, folder: &Path) -> Result<FunctionSpec, Problem> {
    let name = name.clone();
    let folder = folder.to_owned();
    let read = tokio::task::spawn_blocking(move || spec_of(&name, &folder)).await;
    read.unwrap_or_else(|_| Err(Problem::new(500, "M0599", "the upload could not be read")))
}

/// Does the work of [`read_upload`]. Blocks.
fn spec_of(name: &FunctionName, folder: &Path) -> Result<FunctionSpec, Problem> {
    let options = mote_project::Options {
        name: Some(name.as_str()),
        check_machine: true,
        ..mote_project::Options::default()
    };
    let project = mote_project::read_own(folder, options).map_err(|mistakes| {
        let code = mistakes.0.first().map_or("M0303", |mistake| mistake.code);
        Problem::new(422, code, mistakes.to_string())
    })?;
    match <[_; 1]>::try_from(project.functions) {
        Ok([planned]) => Ok(planned.spec),
        Err(all) => {
            let text = format!("the archive holds {} functions, not one", all.len());
            Err(Problem::new(422, "M0303", text))
        }
    }
}

/// The answer if the upload cannot be kept.
fn no_room(error: &std::io::Error) -> Problem {
    Problem::new(507, "M0704", format!("cannot make a file for the upload: {error}"))
}

/// The answer that lists the mistakes in a project.
pub(super) fn refused(mistakes: &mote_spec::toml_reader::Mistakes) -> Problem {
    let Some(first) = mistakes.0.first() else { return Problem::new(422, "M0303", "refused") };
    let problem = Problem::new(422, first.code, first.text.clone());
    match &first.hint {
        Some(hint) => problem.with_hint(hint.clone()),
        None => problem,
    }
}

/// Warnings about settings that are allowed but will cause problems, each with a better value.
fn scale_warnings(memory_bytes: u64, spec: &FunctionSpec, learnt: Known) -> Vec<String> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let known = Known { node_memory_bytes: Some(memory_bytes), node_cores: Some(cores), ..learnt };
    autoscale::lint(spec, &spec.scale.policy, &known)
        .into_iter()
        .map(|warning| format!("{}: {}", warning.field, warning.text))
        .collect()
}

/// Stores the revision and starts its first instance, because only a ready revision may receive
/// traffic. Returns the revision, and the time at which it was stored.
async fn start(
    node: &Arc<Node>,
    spec: FunctionSpec,
    staged: &StagedCode,
    (packages, image): (Option<&packages::Installed>, Option<Image>),
    steps: &mut Steps,
    place: Option<Place>,
) -> Result<(Arc<Revision>, u64), Problem> {
    let store = node.opened.store.clone();
    let stored_spec = spec.clone();
    let hash = staged.hash.clone();
    let key = packages.map(|packages| packages.key.clone());
    let add = move || match place {
        Some(place) => store.place_revision(&stored_spec, &hash, key.as_deref(), place.number),
        None => store.add_revision(&stored_spec, &hash, key.as_deref()),
    };
    let row = blocking(add)
        .await
        .map_err(|error| internal(&error))?
        .map_err(|error| store_problem(&error))?;
    let packages_dir = packages.map(|packages| packages.path.clone());
    let revision = node.data_path.engine.revision(
        spec,
        row.revision,
        staged.path.clone(),
        packages_dir,
        image.map(images::runnable),
    );
    node.deployed.trees.keep(&revision);
    if place.is_some_and(|place| !place.warm) {
        return Ok((revision, row.created_at_ms));
    }
    if let Err(problem) = rollout::warm(node, &revision).await {
        node.data_path.engine.discard(&revision);
        // A revision that a cluster has placed stays stored, because the cluster asks for it again
        // by its number.
        if place.is_none() {
            let name = revision.spec.name.clone();
            let gone = with_store(&node.opened.store, move |store| {
                store.forget_failed(&name, row.revision)
            });
            if let Err(error) = gone.await {
                let title = revision.title();
                tracing::warn!(function = %title, "its files stay on disk: {}", error.detail);
            }
        }
        return Err(problem);
    }
    let status = revision.status();
    let init_ms = status.instances.first().map_or(0, |instance| instance.init_ns / 1_000_000);
    steps.done("start", format!("1 instance, init {init_ms} ms"));
    Ok((revision, row.created_at_ms))
}
