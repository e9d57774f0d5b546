//! Creates, shows, invokes and removes actions and sequences.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::compat::node::{Code, Deploy, Manifest, Space};
use crate::compat::part::Part;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use mote_spec::FunctionName;
use mote_spec::manifest::{FunctionManifest, PlatformName, RuntimeName};
use mote_spec::toml_reader::Lined;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::action_limits::limits;
use super::activations::without_created;
use super::callers::{self, Sender};
use super::entities::{self, Entity, EntityKind, Pair, What};
use super::id::Id;
use super::not_run::NotRun;
use super::run::{Activation, Patience};
use super::{CODE_BYTES_MAX, Refused, Whisk, accepted, object, run, spaces, system};

/// A caller that waits longer than this for the result receives the activation id instead.
const BLOCKING_MAX: Duration = Duration::from_secs(60);

/// A client's description of an action. If the action exists, members that are left out keep their
/// values.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ActionChange {
    exec: Option<Value>,
    pub(super) parameters: Option<Vec<Pair>>,
    pub(super) annotations: Option<Vec<Pair>>,
    limits: Option<Map<String, Value>>,
    pub(super) publish: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Flags {
    pub(super) overwrite: bool,
    pub(super) force: bool,
    code: Option<bool>,
    blocking: bool,
    result: bool,
    timeout: Option<u64>,
}

/// The parameters of a list request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Page {
    limit: Option<usize>,
    skip: usize,
    count: bool,
}

impl Page {
    /// Returns the requested part of a list, or the number of elements if the client asked to count
    /// them.
    pub(super) fn of(&self, kind: EntityKind, all: Vec<Value>) -> Json<Value> {
        if self.count {
            return Json(json!({ kind.as_str(): all.len().saturating_sub(self.skip) }));
        }
        let limit = match self.limit.unwrap_or(30) {
            0 => 200,
            limit => limit.min(200),
        };
        Json(all.into_iter().skip(self.skip).take(limit).collect::<Vec<_>>().into())
    }
}

/// Lists the entities of one kind, sorted by name.
pub(super) fn list_of(whisk: &Whisk, kind: EntityKind, page: &Page) -> Json<Value> {
    let all = whisk.entities.list(kind);
    page.of(kind, all.into_iter().map(|(name, one)| one.shown(&name).into()).collect())
}

pub(super) async fn list(
    State(whisk): State<Whisk>,
    part: Part,
    Query(page): Query<Page>,
) -> Json<Value> {
    let mut all = match part.space() {
        None => whisk.entities.list(EntityKind::Action),
        Some(space) => spaces::list(&whisk, space),
    };
    all.sort_by_key(|(_, entity)| std::cmp::Reverse(entity.updated_ms));
    let shown = |(name, entity): (String, Entity)| {
        let mut shown = entity.shown_in(part.shown(), &name);
        shown.remove("parameters");
        if let Some(exec) = shown.get_mut("exec") {
            *exec = json!({ "binary": exec["binary"] });
        }
        Value::Object(shown)
    };
    page.of(EntityKind::Action, all.into_iter().map(shown).collect())
}

pub(super) async fn dispatch_in_package(
    state: State<Whisk>,
    Path((package, name)): Path<(String, String)>,
    flags: Query<Flags>,
    sender: Sender,
    body: Bytes,
) -> Result<Response, Refused> {
    dispatch(state, Path(format!("{package}/{name}")), flags, sender, body).await
}

pub(super) async fn dispatch(
    State(whisk): State<Whisk>,
    Path(name): Path<String>,
    Query(flags): Query<Flags>,
    sender: Sender,
    body: Bytes,
) -> Result<Response, Refused> {
    let name = match sender.part.space() {
        None => entities::local_name(&name)?,
        Some(_) => entities::check_name(&name).map(|()| name)?,
    };
    dispatch_named(&whisk, &name, &flags, sender, &body).await
}

/// Handles requests for an action of the platform's own packages. Such an action can only be invoked.
pub(super) async fn dispatch_system(
    State(whisk): State<Whisk>,
    Path((package, name)): Path<(String, String)>,
    Query(flags): Query<Flags>,
    sender: Sender,
    body: Bytes,
) -> Result<Response, Refused> {
    let name = entities::local_name(&format!("/{}/{package}/{name}", system::NAMESPACE))?;
    dispatch_named(&whisk, &name, &flags, sender, &body).await
}

async fn dispatch_named(
    whisk: &Whisk,
    name: &str,
    flags: &Flags,
    sender: Sender,
    body: &[u8],
) -> Result<Response, Refused> {
    let is_own = system::action_of(name).is_none();
    match sender.method {
        Method::PUT if is_own => put(whisk, &sender.part, name, flags, body).await,
        Method::GET => show(whisk, sender.part.space(), name, flags).await,
        Method::DELETE if sender.part.space().is_some() => {
            spaces::remove(whisk, &sender.part, name).await
        }
        Method::DELETE if is_own => remove(whisk, name).await,
        Method::POST => invoke(whisk, name, flags, sender, body).await,
        _ => Err(Refused::method()),
    }
}

async fn show(
    whisk: &Whisk,
    space: Option<&Space>,
    name: &str,
    flags: &Flags,
) -> Result<Response, Refused> {
    let found = run::find(whisk, space, name)?;
    let mut shown = found.entity.shown_in(found.namespace(), &found.name);
    let is_action = space.is_none() && matches!(found.entity.what, What::Action { .. });
    if flags.code != Some(false) && is_action {
        let code = whisk.entities.code(whisk.context.node.as_ref(), &found.name).await;
        if let Some(code) = code {
            shown["exec"]["code"] = code;
        }
    }
    Ok(Json(shown).into_response())
}

pub(super) async fn remove(whisk: &Whisk, name: &str) -> Result<Response, Refused> {
    let _turn = whisk.entities.turn().await;
    let entity = whisk.entities.get(EntityKind::Action, name).ok_or_else(Refused::not_found)?;
    let node = whisk.context.node.as_ref();
    if let What::Action { function, .. } = &entity.what {
        match node.remove(function).await {
            // The function was already removed by other means than this API.
            Err(problem) if problem.status == 404 => {}
            other => other?,
        }
    }
    whisk.entities.remove(node, EntityKind::Action, name).await?;
    Ok(Json(entity.shown(name)).into_response())
}

async fn invoke(
    whisk: &Whisk,
    name: &str,
    flags: &Flags,
    mut sender: Sender,
    body: &[u8],
) -> Result<Response, Refused> {
    let found = run::find(whisk, sender.part.space(), name)?;
    let (caller, places) = match callers::admit(whisk, &found, &mut sender.fields, sender.from) {
        Ok(admitted) => admitted,
        Err(fault) => return Ok(callers::denied(&fault, name)),
    };
    let payload: Map<String, Value> = object(body)?;
    let limits = whisk.limits.of(found.space.as_ref());
    limits.invocation()?;
    let accepted = |id: Id| {
        let body = Json(json!({ "activationId": id }));
        let fields = [("x-openwhisk-activation-id", id.to_string())];
        (StatusCode::ACCEPTED, fields, body).into_response()
    };
    if !flags.blocking {
        return Ok(accepted(accepted::accept(whisk, name, found, payload, (None, caller)).await?));
    }
    let place = limits.place()?;
    let id = run::new_id(whisk);
    let mut running = {
        // The activation runs in a task, so it ends normally even if the client stops waiting.
        let whisk = whisk.clone();
        let found = found.clone();
        let payload = payload.clone();
        let caller = caller.clone();
        let tasks = whisk.tasks.clone();
        tasks.spawn(async move {
            let _places = (place, places);
            let payload = Value::Object(payload);
            let activation = Activation { id, found, payload, cause: None, caller };
            run::activate(&whisk, &activation, Patience::Refused).await
        })
    };
    let asked = flags.timeout.map_or(BLOCKING_MAX, Duration::from_millis).min(BLOCKING_MAX);
    let ended = match tokio::time::timeout(asked, &mut running).await {
        Ok(ended) => ended.unwrap_or(Err(NotRun::Failed))?,
        Err(_) => {
            let kept = (id, caller);
            accepted::accept_running(whisk, kept, found, name, payload, running).await?;
            return Ok(accepted(id));
        }
    };
    let body = match flags.result {
        true => ended.result().clone(),
        false => without_created(ended.record.clone()),
    };
    let fields = [("x-openwhisk-activation-id", ended.id.to_string())];
    Ok((ended.status(), fields, Json(body)).into_response())
}

async fn put(
    whisk: &Whisk,
    part: &Part,
    name: &str,
    flags: &Flags,
    body: &[u8],
) -> Result<Response, Refused> {
    let wish: ActionChange = object(body)?;
    // In a namespace, the lock that the deploy takes for the function is enough. Without this lock,
    // other namespaces do not have to wait.
    let _turn = match part.space() {
        None => Some(whisk.entities.turn().await),
        Some(_) => None,
    };
    if let Some((package, _)) = name.split_once('/') {
        let holder =
            whisk.entities.get(EntityKind::Package, package).ok_or_else(Refused::not_found)?;
        if matches!(holder.what, What::Package { binding: Some(_) }) {
            return Err(Refused::bad("Operation not permitted on package binding."));
        }
    }
    let known = match part.space() {
        None => whisk.entities.get(EntityKind::Action, name),
        Some(space) => spaces::get(whisk, space, name),
    };
    if known.is_some() && !flags.overwrite {
        return Err(Refused::conflict("resource already exists"));
    }
    let exec = match (&wish.exec, &known) {
        (Some(exec), _) => Some(exec.clone()),
        (None, Some(_)) => None,
        (None, None) => return Err(Refused::bad("exec undefined")),
    };
    let limits = limits(wish.limits.as_ref(), known.as_ref())?;
    let mut entity = known.clone().unwrap_or_else(|| Entity::new(What::Trigger));
    take(&mut entity, &wish);
    let is_sequence = exec.as_ref().map_or_else(
        || matches!(entity.what, What::Sequence { .. }),
        |exec| exec["kind"] == "sequence",
    );
    let mut code = None;
    if is_sequence && part.space().is_some() {
        return Err(spaces::only_actions(part.shown()));
    }
    if is_sequence {
        let components = match &exec {
            Some(exec) => components(whisk, exec)?,
            None => match &entity.what {
                What::Sequence { components, .. } => components.clone(),
                _ => Vec::new(),
            },
        };
        entity.what = What::Sequence { components, limits };
    } else {
        let new = (exec.as_ref(), limits);
        code = action(part, name, &mut entity, known.as_ref(), new).await?;
    }
    if part.space().is_none() {
        annotate(&mut entity);
        let node = whisk.context.node.as_ref();
        let code = code.as_ref();
        entity = whisk.entities.put(node, EntityKind::Action, name, entity, code).await?;
    }
    let mut shown = entity.shown_in(part.shown(), name);
    if let Some(code) = code {
        shown["exec"]["code"] = code;
    }
    Ok(Json(shown).into_response())
}

/// Applies the members of a request that all kinds of entities have.
pub(super) fn take(entity: &mut Entity, wish: &ActionChange) {
    if let Some(parameters) = &wish.parameters {
        entity.parameters.clone_from(parameters);
    }
    if let Some(annotations) = &wish.annotations {
        entity.annotations.clone_from(annotations);
    }
    entity.publish = wish.publish.unwrap_or(entity.publish);
}

/// Adds the annotations that the platform itself sets.
pub(super) fn annotate(entity: &mut Entity) {
    let kind = match &entity.what {
        What::Action { exec, .. } => exec["kind"].clone(),
        _ => "sequence".into(),
    };
    entity.annotations.retain(|pair| pair.key != "exec");
    entity.annotations.push(Pair { key: "exec".to_owned(), value: kind });
}

fn components(whisk: &Whisk, exec: &Value) -> Result<Vec<String>, Refused> {
    let written = exec["components"].as_array().cloned().unwrap_or_default();
    if written.is_empty() {
        return Err(Refused::bad("No component specified for sequence."));
    }
    if written.len() > run::SEQUENCE_MAX {
        return Err(Refused::bad("Too many actions in the sequence."));
    }
    let one = |name: &Value| {
        let name = entities::local_name(name.as_str().unwrap_or(""))?;
        let missing = |_| {
            let text = "Sequence component does not exist.".to_owned();
            Refused(StatusCode::NOT_FOUND, text)
        };
        run::find(whisk, None, &name).map_err(missing)?;
        Ok(name)
    };
    written.iter().map(one).collect()
}

/// Deploys the function of an action. Returns the code to store, if it is new.
async fn action(
    part: &Part,
    name: &str,
    entity: &mut Entity,
    known: Option<&Entity>,
    (exec, limits): (Option<&Value>, Value),
) -> Result<Option<Value>, Refused> {
    let before = match known.map(|known| &known.what) {
        Some(What::Action { exec, function, .. }) => Some((exec.clone(), function.clone())),
        _ => None,
    };
    let function = match &before {
        Some((_, function)) => function.clone(),
        None => free_name(part, name)?,
    };
    let function_name = FunctionName::new(&function)
        .map_err(|_| Refused::bad("The name of the entity cannot be that of a function."))?;
    let mut keys = FunctionManifest::default();
    let (code, kept) = match exec {
        Some(exec) => (source(exec, &mut keys).await?, exec["code"].clone()),
        None => (Code::Of(function_name.clone()), Value::Null),
    };
    keys.compat = lined(PlatformName::OpenWhisk);
    keys.limits.timeout_ms = limits["timeout"].as_u64();
    keys.limits.memory_bytes = limits["memory"].as_u64().map(|mib| mib << 20);
    let concurrency = limits["concurrency"].as_u64().and_then(|n| u32::try_from(n).ok());
    keys.limits.concurrency = concurrency.filter(|n| *n > 1);
    let defaults = entities::merged([entity.parameters.as_slice()]);
    if !defaults.is_empty() {
        // Callers that use the function's own address also receive the default parameters.
        let text = Value::Object(defaults).to_string();
        keys.env.insert("OPENWHISK_PARAMETERS".to_owned(), text);
    }
    let replace = before.is_some();
    let mut shown = match exec {
        Some(exec) => exec.clone(),
        None => before.map_or(Value::Null, |(exec, _)| exec),
    };
    if let Some(members) = shown.as_object_mut() {
        members.remove("code");
        members.entry("binary").or_insert(false.into());
    }
    entity.what = What::Action { exec: shown, limits, function };
    let mut annotations = BTreeMap::new();
    if part.space().is_some() {
        annotate(entity);
        entity.change(known);
        annotations = spaces::annotations(name, entity)?;
    }
    let deploy = Deploy {
        name: function_name,
        code,
        manifest: Manifest::Keys(Box::new(keys)),
        annotations,
        secrets: Vec::new(),
        may_name_secrets: false,
        replace,
        registry_login: None,
    };
    part.deploy(deploy).await?;
    Ok((!kept.is_null()).then_some(kept))
}

fn lined<T>(value: T) -> Option<Lined<T>> {
    Some(Lined { value, line: 0 })
}

/// The port on which the images of actions listen.
const IMAGE_PORT: u16 = 8080;

/// Returns the code of an action, and writes the settings that its description implies into `keys`.
async fn source(exec: &Value, keys: &mut FunctionManifest) -> Result<Code, Refused> {
    let kind = exec["kind"].as_str().unwrap_or("");
    let main = exec["main"].as_str();
    let code = exec["code"].as_str().unwrap_or("");
    let (runtime, file) = match kind.split(':').next().unwrap_or("") {
        "nodejs" => (RuntimeName::Node, "index.js"),
        "python" => (RuntimeName::Python, "__main__.py"),
        "go" => (RuntimeName::Go, "main.go"),
        "blackbox" | "native" => (RuntimeName::Exec, "exec"),
        _ => {
            let known = "nodejs, python, go, blackbox, sequence";
            let text = format!("kind '{kind}' not in Set({known})");
            return Err(Refused::bad(format!("The request content was malformed:\n{text}")));
        }
    };
    if code.is_empty() {
        let image = exec["image"].as_str().filter(|image| !image.is_empty());
        let (Some(image), "blackbox") = (image, kind) else {
            return Err(Refused::bad("code undefined: send the program, or name an image"));
        };
        keys.image = lined(image.to_owned());
        keys.port = lined(IMAGE_PORT);
        return Ok(Code::Image);
    }
    if code.len() > CODE_BYTES_MAX {
        let text = "action code exceeds 48 MB".to_owned();
        return Err(Refused(StatusCode::PAYLOAD_TOO_LARGE, text));
    }
    keys.runtime = lined(runtime);
    let binary = match exec["binary"].as_bool() {
        Some(binary) => binary,
        // If a client leaves `binary` out, the content can still be recognised as a zip archive.
        None => code.starts_with("UEsD"),
    };
    let entry = match runtime {
        RuntimeName::Go => Some(main.filter(|m| *m != "main").unwrap_or("Main").to_owned()),
        RuntimeName::Python => Some(format!("__main__:{}", main.unwrap_or("main"))),
        RuntimeName::Node if !binary => Some(format!("{file}:{}", main.unwrap_or("main"))),
        // The package.json in the archive names the file.
        RuntimeName::Node => main.map(|main| format!(":{main}")),
        _ => None,
    };
    keys.entry = entry.and_then(lined);
    if runtime == RuntimeName::Exec {
        keys.command = lined(vec!["./exec".to_owned()]);
    }
    if !binary {
        return Ok(Code::Files(vec![(file.to_owned(), code.as_bytes().to_vec())]));
    }
    let bytes = crate::compat::decoded(code.to_owned())
        .await
        .ok_or_else(|| Refused::bad("The request content was malformed:\ncode is not base64"))?;
    Ok(Code::Zip { bytes: bytes.into(), below: String::new() })
}

/// Returns a full name for the function of a new action. The name is the action's label, with a number
/// appended if the label is already taken.
fn free_name(part: &Part, name: &str) -> Result<String, Refused> {
    let label = entities::label(name);
    let is_free = |name: &String| part.function(name).is_none();
    let numbered = (2..1000).map(|number| format!("{label}-{number}"));
    let mut all = std::iter::once(label.clone()).chain(numbered);
    let found = all.find(is_free).and_then(|name| part.full(&name));
    found.ok_or_else(|| Refused::conflict("too many functions of this name"))
}
