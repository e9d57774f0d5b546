//! Changes that arrive through the management API. Each is turned into a change of resources, and
//! is answered once the cluster has followed. This matches a node, which answers when a change is
//! in force.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use mote_api::Problem;
use mote_api::types::{
    DeployResult, DeployStep, ScaleBounds, ScaleRequest, ScaleResult, TrafficRequest, TrafficResult,
};
use mote_core::rollout::{Edit, Split, SplitError, Traffic};
use mote_spec::{Access, FunctionName, FunctionSpec};
use mote_store::{ArchiveLimits, archive};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;

use super::answer::{Refused, known, shares, urls};
use super::{Controller, ready_condition};
use crate::keys;
use crate::resources::{
    Bounds, CodeOf, Function, FunctionSpec as Wanted, READY, WantedShare, revision_name,
};
use crate::source;

/// Longest wait for the cells. Installing packages on a small board takes minutes.
const PATIENCE: Duration = Duration::from_secs(900);

/// A request to deploy.
pub(super) struct Deploy {
    pub(super) name: String,
    pub(super) tar: Bytes,
    /// The permit for a large archive, held until the archive is stored.
    pub(super) large: Option<OwnedSemaphorePermit>,
    pub(super) dry_run: bool,
    pub(super) held_back: bool,
    pub(super) tag: Option<String>,
}

/// The steps of a deploy, with their durations.
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

/// Deploys an archive as a new revision, which receives traffic once every cell has started it.
pub(super) async fn deploy(
    controller: &Controller,
    mut wish: Deploy,
) -> Result<DeployResult, Refused> {
    let mut steps = Steps { steps: Vec::new(), since: Instant::now() };
    let name = FunctionName::new(&wish.name)
        .map_err(|error| Problem::new(422, "M0303", error.to_string()).with_field("name"))?;
    if name.namespace().is_some() {
        let text =
            format!("{name}: a cluster has no namespaces of mote, so that names have no dot");
        return Err(Problem::new(422, "M0429", text).with_field("name").into());
    }
    let tar = wish.tar.clone();
    let read = tokio::task::spawn_blocking(move || read(&name, &tar)).await;
    let spec = read.map_err(|error| Problem::new(500, "M0599", error.to_string()))??;
    steps.done("check", format!("runtime {}", spec.runtime.as_str()));
    let name = wish.name.as_str();
    let _change = change_of(controller, name).await;
    let there = controller.functions_api.get_opt(name).await?;
    let now = there.as_ref().and_then(|function| function.status.as_ref()?.traffic.clone());
    if now.is_none() && wish.held_back {
        let text =
            format!("{name} has no live revision, which a deploy with --tag or --no-traffic needs");
        let problem = Problem::new(409, "M0413", text);
        return Err(problem.with_hint("deploy it first without --tag and --no-traffic").into());
    }
    // To check the tag, any unused revision number will do.
    wanted(now.as_ref(), u64::MAX, &wish).map_err(|error| not_a_split(&error))?;
    let mut result = DeployResult {
        function: name.to_owned(),
        revision: controller.known(name).first().map_or(0, |newest| newest.number) + 1,
        previous: now.as_ref().map(|now| now.split.main()),
        traffic: Vec::new(),
        access: spec.access.or(Access::Public).as_str().to_owned(),
        unchanged: false,
        held_back: wish.held_back,
        steps: Vec::new(),
        warnings: Vec::new(),
        urls: urls(controller, name),
    };
    if wish.dry_run {
        return Ok(DeployResult { steps: steps.steps, ..result });
    }
    some_cell(controller).await?;
    let is_new = there.is_none();
    let (function, number) = {
        let _turn = controller.turn(name).await;
        let function = match there {
            Some(function) => function,
            None => {
                let first = Wanted { code: Some(CodeOf { revision: 1 }), ..Wanted::default() };
                let made = Function::new(name, first);
                controller.functions_api.create(&PostParams::default(), &made).await?
            }
        };
        let tar = std::mem::take(&mut wish.tar);
        let pack = tokio::task::spawn_blocking(move || source::of_tar(tar, &spec)).await;
        let archive = pack.map_err(|error| Problem::new(500, "M0599", error.to_string()))?;
        let highest = Controller::highest(&function, &controller.known(name));
        let added = controller.add_revision(&function, archive, highest).await?;
        drop(wish.large.take());
        (function, added.number)
    };
    let before = function.spec.clone();
    steps.done("store", format!("revision {number}"));
    result.revision = number;
    let traffic = wanted(now.as_ref(), number, &wish).map_err(|error| not_a_split(&error))?;
    let spec = Wanted { code: Some(CodeOf { revision: number }), traffic, ..Wanted::default() };
    let generation = set_spec(controller, name, spec).await?;
    let followed = followed(controller, name, generation, wish.held_back.then_some(number)).await;
    if let Err(problem) = followed {
        // As on a node, a failed deploy leaves the former state.
        if is_new {
            let _ = controller.functions_api.delete(name, &DeleteParams::default()).await;
        } else {
            set_spec(controller, name, before).await?;
            let revision = revision_name(name, number);
            let _ = controller.revisions_api.delete(&revision, &DeleteParams::default()).await;
        }
        return Err(problem.into());
    }
    steps.done("start", format!("ready on {} cells", controller.live_cells().len()));
    if let Some(status) = controller.functions.get(name).and_then(|it| it.status.clone()) {
        result.traffic = status.traffic.map(|traffic| shares(&traffic.split)).unwrap_or_default();
    }
    if let (Some(tag), Some(url)) = (&wish.tag, &mut result.urls.http) {
        url.push_str(&format!("@{tag}"));
    }
    Ok(DeployResult { steps: steps.steps, ..result })
}

/// Waits for the exclusive right to change a function through this API, from the question to the
/// answer. Otherwise two concurrent deploys could mistake each other's outcome for their own.
async fn change_of(controller: &Controller, name: &str) -> tokio::sync::OwnedMutexGuard<()> {
    // This name cannot collide with a function's lock, because no function has such a name.
    controller.turn(&format!("change of {name}")).await
}

/// Waits a moment until a cell takes part, because all cells may just have been restarted.
async fn some_cell(controller: &Controller) -> Result<(), Problem> {
    let mut changes = controller.changes.subscribe();
    let end = tokio::time::Instant::now() + Duration::from_secs(5);
    while controller.live_cells().is_empty() {
        if tokio::time::timeout_at(end, changes.changed()).await.is_err() {
            return Err(controller.no_cells());
        }
    }
    Ok(())
}

/// Reads the spec in an archive, and checks it as a node does. Blocks.
fn read(name: &FunctionName, tar: &[u8]) -> Result<FunctionSpec, Refused> {
    let folder =
        tempfile::tempdir().map_err(|error| Problem::new(507, "M0703", error.to_string()))?;
    let limits = ArchiveLimits {
        set_aside: Some(mote_api::SPEC_ENTRY.to_owned()),
        ..ArchiveLimits::default()
    };
    let path = folder.path().join("code");
    std::fs::create_dir(&path).map_err(|error| Problem::new(507, "M0703", error.to_string()))?;
    let unpacked = archive::unpack(tar, &path, &limits)
        .map_err(|error| Problem::new(422, "M1301", error.to_string()))?;
    let first = |mistakes: mote_spec::toml_reader::Mistakes| {
        let code = mistakes.0.first().map_or("M0303", |mistake| mistake.code);
        Refused(Problem::new(422, code, mistakes.to_string()))
    };
    let spec = match unpacked.set_aside {
        Some(json) => {
            let spec = mote_spec::json::from_json(&json).map_err(|error| {
                Problem::new(422, "M0303", format!("spec: {error}"))
                    .with_field(mote_api::SPEC_ENTRY)
            })?;
            mote_project::check_code(&path, &spec).map_err(first)?;
            spec
        }
        None => {
            let options = mote_project::Options { name: Some(name.as_str()), ..Default::default() };
            let mut project = mote_project::read_own(&path, options).map_err(first)?;
            if project.functions.len() != 1 {
                let text =
                    format!("the archive holds {} functions, not one", project.functions.len());
                return Err(Problem::new(422, "M0303", text).into());
            }
            project.functions.remove(0).spec
        }
    };
    if &spec.name != name {
        let text = format!("the archive holds {}, not {name}", spec.name);
        return Err(Problem::new(422, "M0303", text).with_field("name").into());
    }
    source::check_runtime(&spec).map_err(|text| Problem::new(422, "M0303", text))?;
    Ok(spec)
}

/// Returns the split that a deploy asks for. `None` sends all traffic to the newest revision.
fn wanted(
    now: Option<&Traffic>,
    number: u64,
    wish: &Deploy,
) -> Result<Option<Vec<WantedShare>>, SplitError> {
    let Some(now) = now else { return Ok(None) };
    let split = match &wish.tag {
        Some(tag) => {
            now.split.edited(&[Edit { revision: number, percent: None, tag: Some(tag.clone()) }])?
        }
        None if wish.held_back => now.split.clone(),
        None => now.split.all_to(number)?,
    };
    let is_plain = split.shares().iter().all(|share| share.tag.is_none());
    let follows = !wish.held_back && is_plain;
    Ok((!follows).then(|| named(&split)))
}

fn named(split: &Split) -> Vec<WantedShare> {
    let share = |share: &mote_core::rollout::Share| WantedShare {
        revision: Some(share.revision),
        percent: share.percent,
        tag: share.tag.clone(),
        latest: None,
    };
    split.shares().iter().map(share).collect()
}

/// Replaces the spec of a function. Returns the new generation.
async fn set_spec(controller: &Controller, name: &str, spec: Wanted) -> Result<i64, Refused> {
    loop {
        let mut function = controller.functions_api.get(name).await?;
        function.spec = spec.clone();
        match controller.functions_api.replace(name, &PostParams::default(), &function).await {
            // The function was written in between, so the loop tries again.
            Err(kube::Error::Api(error)) if error.code == 409 => {}
            replaced => return Ok(replaced?.metadata.generation.unwrap_or(0)),
        }
    }
}

/// Waits until the cluster serves what generation `generation` asks for, and until every cell holds
/// the revision `held`, if one is given. If that cannot happen, fails with the reason.
async fn followed(
    controller: &Controller,
    name: &str,
    generation: i64,
    held: Option<u64>,
) -> Result<(), Problem> {
    let mut changes = controller.changes.subscribe();
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let Some(function) = controller.functions.get(name) else {
            // The mirror may not know a function that was created just now.
            let there = controller.functions_api.get_opt(name).await;
            let is_there = there.is_ok_and(|function| function.is_some());
            if is_there && tokio::time::timeout_at(end, changes.changed()).await.is_ok() {
                continue;
            }
            return Err(Problem::new(409, "M1405", format!("{name} was removed in the meantime")));
        };
        let seen = function.status.as_ref().map_or(0, |status| status.observed_generation);
        let ready = ready_condition(&function).filter(|_| seen >= generation);
        match ready.map(|ready| ready.status.as_str()) {
            Some("True") if holds(controller, name, held)? => return Ok(()),
            Some("False") => {
                let ready = ready.expect("it has a status");
                let code = if ready.reason == "NoCells" { "M0505" } else { "M0411" };
                let status = if ready.reason == "NoCells" { 503 } else { 422 };
                return Err(Problem::new(status, code, format!("{name}: {}", ready.message)));
            }
            _ => {}
        }
        if tokio::time::timeout_at(end, changes.changed()).await.is_err() {
            let why = ready_condition(&function).map(|ready| ready.message.clone());
            let text = format!(
                "{name}: not every cell serves the change after 15 minutes: {}",
                why.unwrap_or_default()
            );
            return Err(Problem::new(504, "M0204", text));
        }
    }
}

/// Whether every cell holds the revision `held`. True if no revision is given.
fn holds(controller: &Controller, name: &str, held: Option<u64>) -> Result<bool, Problem> {
    let Some(number) = held else { return Ok(true) };
    let function = known(controller, name)?;
    for cell in controller.live_cells() {
        match cell.of(&function).and_then(|has| has.revisions.get(&number.to_string())) {
            Some(state) if state == READY => {}
            Some(error) => {
                let text = format!("{name}@{number} on {}: {error}", cell.name_any());
                return Err(Problem::new(422, "M0411", text));
            }
            None => return Ok(false),
        }
    }
    Ok(true)
}

fn not_a_split(error: &SplitError) -> Problem {
    Problem::new(422, "M0413", error.to_string())
}

fn now(controller: &Controller, name: &str) -> Result<Traffic, Problem> {
    let function = known(controller, name)?;
    let traffic = function.status.as_ref().and_then(|status| status.traffic.clone());
    traffic.ok_or_else(|| {
        Problem::new(409, "M0413", format!("{name} has no live revision yet"))
            .with_hint(format!("see: kubectl describe function {name}"))
    })
}

pub(super) async fn traffic(
    controller: &Controller,
    name: &str,
    wish: TrafficRequest,
) -> Result<TrafficResult, Refused> {
    let now = now(controller, name)?;
    let edits: Vec<_> = wish
        .shares
        .into_iter()
        .map(|edit| Edit { revision: edit.revision, percent: edit.percent, tag: edit.tag })
        .collect();
    let split = now.split.edited(&edits).map_err(|error| not_a_split(&error))?;
    move_to(controller, name, &now, &split).await
}

/// Sends all traffic to `revision`, or to the revision that was live before.
pub(super) async fn rollback(
    controller: &Controller,
    name: &str,
    revision: Option<u64>,
) -> Result<TrafficResult, Refused> {
    let now = now(controller, name)?;
    let revision = revision.or_else(|| now.back()).ok_or_else(|| {
        Problem::new(404, "M0412", format!("{name} has no earlier live revision"))
            .with_hint(format!("list the revisions: mote revisions {name}"))
    })?;
    let then = now.rolled_back(revision).map_err(|error| not_a_split(&error))?;
    move_to(controller, name, &now, &then.split).await
}

async fn move_to(
    controller: &Controller,
    name: &str,
    now: &Traffic,
    split: &Split,
) -> Result<TrafficResult, Refused> {
    let _change = change_of(controller, name).await;
    let known = controller.known(name);
    for share in split.shares() {
        if !known.iter().any(|known| known.number == share.revision) {
            let text = format!("{name} has no revision {}", share.revision);
            let hint = format!("list the revisions: mote revisions {name}");
            return Err(Problem::new(404, "M0412", text).with_hint(hint).into());
        }
    }
    let before = controller.functions_api.get(name).await?.spec;
    let spec = Wanted { traffic: Some(named(split)), ..before.clone() };
    let started = Instant::now();
    let generation = set_spec(controller, name, spec).await?;
    if let Err(problem) = followed(controller, name, generation, None).await {
        set_spec(controller, name, before).await?;
        return Err(problem.into());
    }
    let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let detail = format!("on {} cells", controller.live_cells().len());
    Ok(TrafficResult {
        function: name.to_owned(),
        revision: split.main(),
        previous: now.split.main(),
        traffic: shares(split),
        steps: vec![DeployStep { name: "switch".to_owned(), detail, ms }],
    })
}

/// Removes a function, and returns once no live cell has it.
pub(super) async fn remove(controller: &Controller, name: &str) -> Result<(), Refused> {
    known(controller, name)?;
    match controller.functions_api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(error)) if error.code == 404 => {}
        removed => removed.map(|_| ())?,
    }
    let mut changes = controller.changes.subscribe();
    let end = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let has = |cell: &std::sync::Arc<crate::resources::Cell>| {
            cell.status.as_ref().is_some_and(|status| status.functions.contains_key(name))
        };
        if controller.functions.get(name).is_none() && !controller.live_cells().iter().any(has) {
            return Ok(());
        }
        if tokio::time::timeout_at(end, changes.changed()).await.is_err() {
            let text = format!("{name} is removed, but some cells still have it after 60 s");
            return Err(Problem::new(504, "M0204", text).into());
        }
    }
}

/// Sets the limits for the whole cluster in the resource. Starts or stops instances now, spread
/// over the cells.
pub(super) async fn scale(
    controller: &Controller,
    name: &str,
    wish: ScaleRequest,
) -> Result<ScaleResult, Refused> {
    known(controller, name)?;
    if wish == ScaleRequest::default() {
        let text = "give a number of instances, --min, --max or --reset";
        return Err(Problem::new(422, "M0303", text).with_field("instances").into());
    }
    if wish.reset || wish.min.is_some() || wish.max.is_some() {
        let _change = change_of(controller, name).await;
        let mut spec = controller.functions_api.get(name).await?.spec;
        let scale = spec.settings.entry("scale").or_insert_with(|| json!({}));
        if wish.reset {
            *scale = json!({});
        }
        for (key, number) in [("min", wish.min), ("max", wish.max)] {
            if let Some(number) = number {
                scale[key] = number.into();
            }
        }
        let generation = set_spec(controller, name, spec).await?;
        followed(controller, name, generation, None).await?;
    }
    let cells = controller.live_cells();
    let whole = Bounds { min: wish.instances.unwrap_or(0), max: None };
    let count = u32::try_from(cells.len()).unwrap_or(u32::MAX);
    let mut sum = ScaleResult {
        function: name.to_owned(),
        ready: 0,
        starting: 0,
        stopped: 0,
        bounds: ScaleBounds { min: wish.min, max: wish.max },
        note: None,
    };
    if wish.instances.is_none() {
        return Ok(sum);
    }
    for (index, cell) in (0..).zip(&cells) {
        let part = whole.part(index, count).min;
        let own = ScaleRequest { instances: Some(part), ..ScaleRequest::default() };
        let scaled = controller.cell(cell)?.scale(name, &own).await?;
        sum.ready += scaled.ready;
        sum.starting += scaled.starting;
        sum.stopped += scaled.stopped;
        sum.note = sum.note.or(scaled.note);
    }
    Ok(sum)
}

/// Lists the names in the Secret with the functions' secrets.
pub(super) async fn secret_names(controller: &Controller) -> Result<Vec<String>, Refused> {
    let secret = controller.secrets_api.get_opt(keys::FUNCTIONS).await?;
    let data = secret.and_then(|secret| secret.data).unwrap_or_default();
    Ok(data.into_keys().collect())
}

/// Stores a secret. Returns true if it is new.
pub(super) async fn put_secret(
    controller: &Controller,
    name: &str,
    value: &Bytes,
) -> Result<bool, Refused> {
    if std::str::from_utf8(value).is_err() {
        return Err(Problem::new(422, "M0303", "the value of a secret must be text").into());
    }
    let is_new = !secret_names(controller).await?.iter().any(|there| there == name);
    let data = BTreeMap::from([(name.to_owned(), ByteString(value.to_vec()))]);
    let patch = json!({"data": data});
    let params = PatchParams::default();
    match controller.secrets_api.patch(keys::FUNCTIONS, &params, &Patch::Merge(&patch)).await {
        Err(kube::Error::Api(error)) if error.code == 404 => {
            let metadata =
                ObjectMeta { name: Some(keys::FUNCTIONS.to_owned()), ..ObjectMeta::default() };
            let secret = Secret { metadata, data: Some(data), ..Secret::default() };
            controller.secrets_api.create(&PostParams::default(), &secret).await?;
        }
        patched => patched.map(|_| ())?,
    }
    Ok(is_new)
}

pub(super) async fn remove_secret(controller: &Controller, name: &str) -> Result<(), Refused> {
    if !secret_names(controller).await?.iter().any(|there| there == name) {
        return Err(Problem::new(404, "M0601", format!("there is no secret {name}")).into());
    }
    let mut data = serde_json::Map::new();
    data.insert(name.to_owned(), serde_json::Value::Null);
    let patch = Patch::Merge(json!({"data": data}));
    controller.secrets_api.patch(keys::FUNCTIONS, &PatchParams::default(), &patch).await?;
    Ok(())
}
