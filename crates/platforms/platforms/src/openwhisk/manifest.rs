//! Stores the entities of a `manifest.yaml`. All entities are checked together, then stored as if a
//! client had created each through the API. The functions of the manifest's actions are already on the
//! node.

use std::collections::HashSet;

use crate::compat::node::Function;
use mote_api::Problem;
use mote_api::openwhisk::{WhiskEntity, WhiskManifest, WhiskResult};
use mote_spec::Runtime;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};

use super::action_limits::limits;
use super::entities::{self, Entity, EntityKind, Pair, What};
use super::{Refused, Whisk, actions, run};

type Asked = (WhiskManifest, oneshot::Sender<Result<WhiskResult, Problem>>);

/// Passes manifests to the API. Works only while the API is served.
#[derive(Debug, Clone)]
pub struct Manifests(mpsc::Sender<Asked>);

/// The receiving end of [`Manifests`].
#[derive(Debug)]
pub struct Incoming(mpsc::Receiver<Asked>);

impl Manifests {
    /// Returns both ends of the channel.
    pub fn new() -> (Self, Incoming) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), Incoming(receiver))
    }

    /// Creates or replaces all entities of a manifest. If any entity cannot be created, creates
    /// none of them.
    pub async fn apply(&self, manifest: WhiskManifest) -> Result<WhiskResult, Problem> {
        let (answer, answered) = oneshot::channel();
        let gone = || Problem::new(503, "M0506", "the node is stopping");
        self.0.send((manifest, answer)).await.map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }
}

impl Incoming {
    /// Applies manifests until the node stops.
    pub(super) async fn serve(mut self, whisk: Whisk) {
        loop {
            let asked = tokio::select! {
                asked = self.0.recv() => asked,
                () = whisk.context.stop.stopped() => None,
            };
            let Some((manifest, answer)) = asked else { return };
            // The requester may no longer wait for the answer.
            let _ = answer.send(apply(&whisk, &manifest).await);
        }
    }
}

async fn apply(whisk: &Whisk, manifest: &WhiskManifest) -> Result<WhiskResult, Problem> {
    let _turn = whisk.entities.turn().await;
    let functions = check(whisk, manifest)?;
    let mut result = WhiskResult { made: manifest.entities(), notes: Vec::new() };
    for package in &manifest.packages {
        let what = What::Package { binding: None };
        put(whisk, EntityKind::Package, package, what).await?;
    }
    for (action, function) in manifest.actions.iter().zip(&functions) {
        let name = &action.entity.name;
        if let Some(Entity { what: What::Action { function: before, .. }, .. }) =
            whisk.entities.get(EntityKind::Action, name)
            && before != action.function
        {
            let note = format!(
                "{name} was deployed as the function {before} before, which still exists; to remove it: mote remove {before}"
            );
            result.notes.push(note);
        }
        put(whisk, EntityKind::Action, &action.entity, as_action(function)).await?;
    }
    for sequence in &manifest.sequences {
        let components = sequence.actions.iter().filter_map(|name| entities::local_name(name).ok());
        let what = What::Sequence { components: components.collect(), limits: limits(None, None)? };
        put(whisk, EntityKind::Action, &sequence.entity, what).await?;
    }
    for trigger in &manifest.triggers {
        put(whisk, EntityKind::Trigger, trigger, What::Trigger).await?;
    }
    for rule in &manifest.rules {
        let what = What::Rule {
            trigger: entities::local_name(&rule.trigger)?,
            action: entities::local_name(&rule.action)?,
            active: true,
        };
        let entity = WhiskEntity { name: rule.name.clone(), ..WhiskEntity::default() };
        put(whisk, EntityKind::Rule, &entity, what).await?;
    }
    Ok(result)
}

/// Stores one entity.
async fn put(
    whisk: &Whisk,
    kind: EntityKind,
    wanted: &WhiskEntity,
    what: What,
) -> Result<(), Problem> {
    let pairs = |all: &Map<String, Value>| {
        let pair =
            |(key, value): (&String, &Value)| Pair { key: key.clone(), value: value.clone() };
        all.iter().map(pair).collect()
    };
    let mut entity = Entity::new(what);
    entity.parameters = pairs(&wanted.parameters);
    entity.annotations = pairs(&wanted.annotations);
    if kind == EntityKind::Action {
        actions::annotate(&mut entity);
    }
    let node = whisk.context.node.as_ref();
    whisk.entities.put(node, kind, &wanted.name, entity, None).await?;
    Ok(())
}

/// Describes a function of the node as an action. The action's limits are those with which the function
/// was deployed.
fn as_action(function: &Function) -> What {
    let spec = &function.spec;
    let kind = match spec.runtime {
        Runtime::Python => "python:3",
        Runtime::Node => "nodejs:20",
        Runtime::Go => "go:1",
        Runtime::Bun
        | Runtime::Deno
        | Runtime::Rust
        | Runtime::Exec
        | Runtime::Server
        | Runtime::Chain
        | Runtime::Wasm => "blackbox",
    };
    let limits = json!({
        "timeout": spec.limits.timeout_ms, "memory": spec.limits.memory_bytes >> 20, "logs": 10,
        "concurrency": spec.limits.concurrency.unwrap_or(1),
    });
    let exec = json!({ "kind": kind, "binary": false });
    What::Action { exec, limits, function: spec.name.to_string() }
}

/// Checks that every entity can be created, and returns the functions of the actions. The error names
/// every mistake.
fn check(whisk: &Whisk, manifest: &WhiskManifest) -> Result<Vec<Function>, Problem> {
    let mut mistakes = Vec::new();
    let mut wrong = |of: String, text: &str| mistakes.push(format!("{of}: {text}"));
    let packages: HashSet<&str> = manifest.packages.iter().map(|one| one.name.as_str()).collect();
    for package in &manifest.packages {
        let of = format!("packages.{}", crate::compat::shown(&package.name));
        if entities::check_name(&package.name).is_err() {
            wrong(of, "not a name of a package");
        } else if is_binding(whisk, &package.name) {
            wrong(of, "is a binding, whose actions belong to another package");
        }
    }
    let mut callable: HashSet<String> = HashSet::new();
    let actions = manifest.actions.iter();
    let sequences = manifest.sequences.iter();
    let named = actions.map(|one| ("actions", &one.entity.name));
    for (kind, name) in named.chain(sequences.map(|one| ("sequences", &one.entity.name))) {
        let of = format!("{kind}.{}", crate::compat::shown(name));
        match entities::local_name(name) {
            Ok(local) if local == *name => {}
            _ => wrong(of.clone(), "not a name of an action"),
        }
        if let Some((package, _)) = name.split_once('/') {
            let known = whisk.entities.get(EntityKind::Package, package).is_some();
            if !packages.contains(package) && (!known || is_binding(whisk, package)) {
                wrong(of.clone(), "its package is not there");
            }
        }
        if !callable.insert(name.clone()) {
            wrong(of, "two of them have this name");
        }
    }
    let is_callable = |name: &str| {
        let local = entities::local_name(name);
        local.is_ok_and(|name| callable.contains(&name) || run::find(whisk, None, &name).is_ok())
    };
    let mut functions = Vec::new();
    for action in &manifest.actions {
        match whisk.context.node.function(&action.function) {
            Some(function) => functions.push(function),
            None => wrong(
                format!("actions.{}", crate::compat::shown(&action.entity.name)),
                &format!("no function named {}", crate::compat::shown(&action.function)),
            ),
        }
    }
    for sequence in &manifest.sequences {
        let of = || format!("sequences.{}", crate::compat::shown(&sequence.entity.name));
        if sequence.actions.is_empty() || sequence.actions.len() > run::SEQUENCE_MAX {
            wrong(of(), &format!("1 to {} actions", run::SEQUENCE_MAX));
        }
        for name in sequence.actions.iter().filter(|name| !is_callable(name)) {
            wrong(of(), &format!("no action named {}", crate::compat::shown(name)));
        }
    }
    for trigger in &manifest.triggers {
        if entities::check_name(&trigger.name).is_err() {
            wrong(
                format!("triggers.{}", crate::compat::shown(&trigger.name)),
                "not a name of a trigger",
            );
        }
    }
    let is_trigger = |name: &str| {
        let local = entities::local_name(name);
        local.is_ok_and(|name| {
            manifest.triggers.iter().any(|one| one.name == name)
                || whisk.entities.get(EntityKind::Trigger, &name).is_some()
        })
    };
    for rule in &manifest.rules {
        let of = || format!("rules.{}", crate::compat::shown(&rule.name));
        if entities::check_name(&rule.name).is_err() {
            wrong(of(), "not a name of a rule");
        }
        if !is_trigger(&rule.trigger) {
            wrong(of(), &format!("no trigger named {}", crate::compat::shown(&rule.trigger)));
        }
        if !is_callable(&rule.action) {
            wrong(of(), &format!("no action named {}", crate::compat::shown(&rule.action)));
        }
    }
    if mistakes.is_empty() {
        return Ok(functions);
    }
    let problem = Problem::new(422, "M0303", mistakes.join("\n"));
    Err(problem.with_hint("no entity was created; the functions are deployed"))
}

fn is_binding(whisk: &Whisk, package: &str) -> bool {
    let known = whisk.entities.get(EntityKind::Package, package).map(|package| package.what);
    matches!(known, Some(What::Package { binding: Some(_) }))
}

impl From<Refused> for Problem {
    fn from(Refused(status, text): Refused) -> Self {
        Problem::new(status.as_u16(), "M0303", text)
    }
}
