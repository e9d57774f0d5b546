//! The platform's entities that are not functions: actions as their users see them, sequences,
//! triggers, rules and packages. All entities are in memory. A change is written to the store before
//! the request is answered.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use crate::compat::node::{Change, Documents};
use axum::http::StatusCode;
use mote_api::Problem;
pub(super) use mote_process::clock::unix_ms;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{NAMESPACE, Refused, system};

const COLLECTION: &str = "openwhisk/entities";
/// The collection with the code of actions in the form in which it was sent. Clients can ask for it.
const CODE: &str = "openwhisk/code";
const NAME_BYTES_MAX: usize = 256;

/// The kinds of entities. Their names are those used in paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EntityKind {
    Action,
    Package,
    Trigger,
    Rule,
}

impl EntityKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            EntityKind::Action => "actions",
            EntityKind::Package => "packages",
            EntityKind::Trigger => "triggers",
            EntityKind::Rule => "rules",
        }
    }
}

/// A parameter or an annotation, in the form `{key, value}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Pair {
    pub(super) key: String,
    #[serde(default)]
    pub(super) value: Value,
}

/// The parts of an entity that depend on its kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum What {
    /// `exec` does not contain the code. `function` is the function's name on the node.
    Action { exec: Value, limits: Value, function: String },
    /// The full names of the actions that run one after another.
    Sequence { components: Vec<String>, limits: Value },
    /// A trigger has only parameters.
    Trigger,
    /// The names of the trigger and the action, and whether the rule is active.
    Rule { trigger: String, action: String, active: bool },
    /// The package to which a binding refers; `None` if this is not a binding.
    Package { binding: Option<String> },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entity {
    pub(super) version: u32,
    pub(super) publish: bool,
    pub(super) updated_ms: u64,
    pub(super) parameters: Vec<Pair>,
    pub(super) annotations: Vec<Pair>,
    pub(super) what: What,
}

/// Returns the full name of an action. Only actions of the platform's own packages are stored with
/// their namespace.
pub(super) fn path(namespace: &str, name: &str) -> String {
    name.strip_prefix('/').map_or_else(|| format!("{namespace}/{name}"), str::to_owned)
}

impl Entity {
    pub(super) fn new(what: What) -> Self {
        let parameters = Vec::new();
        let annotations = Vec::new();
        Self { version: 0, publish: false, updated_ms: 0, parameters, annotations, what }
    }

    /// Sets the version and the time of a change. `before` is the entity that is replaced.
    pub(super) fn change(&mut self, before: Option<&Entity>) {
        self.version = before.map_or(1, |known| known.version.saturating_add(1));
        self.updated_ms = unix_ms();
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&Value> {
        self.annotations.iter().find(|pair| pair.key == key).map(|pair| &pair.value)
    }

    /// Returns the entity as the API shows it in the default namespace. For an entity in a package,
    /// `name` is `package/name`.
    pub(super) fn shown(&self, name: &str) -> Map<String, Value> {
        self.shown_in(NAMESPACE, name)
    }

    /// Returns the entity as the API shows it in namespace `namespace`.
    pub(super) fn shown_in(&self, namespace: &str, name: &str) -> Map<String, Value> {
        let (package, own) = name.rsplit_once('/').unwrap_or(("", name));
        let namespace = if package.is_empty() {
            namespace.to_owned()
        } else {
            format!("{namespace}/{package}")
        };
        let mut shown = Map::new();
        shown.insert("namespace".into(), namespace.into());
        shown.insert("name".into(), own.into());
        shown.insert("version".into(), format!("0.0.{}", self.version).into());
        shown.insert("publish".into(), self.publish.into());
        shown.insert("updated".into(), self.updated_ms.into());
        shown.insert("annotations".into(), json!(self.annotations));
        if !matches!(self.what, What::Rule { .. }) {
            shown.insert("parameters".into(), json!(self.parameters));
        }
        match &self.what {
            What::Action { exec, limits, .. } => {
                shown.insert("exec".into(), exec.clone());
                shown.insert("limits".into(), limits.clone());
            }
            What::Sequence { components, limits } => {
                let components: Vec<_> =
                    components.iter().map(|one| format!("/{}", path(NAMESPACE, one))).collect();
                let exec = json!({ "kind": "sequence", "components": components, "binary": false });
                shown.insert("exec".into(), exec);
                shown.insert("limits".into(), limits.clone());
            }
            What::Trigger => {
                shown.insert("limits".into(), json!({}));
            }
            What::Rule { trigger, action, active } => {
                let reference = |name: &str| {
                    let full = path(NAMESPACE, name);
                    let (path, own) = full.rsplit_once('/').unwrap_or(("", &full));
                    json!({ "name": own, "path": path })
                };
                shown.insert("trigger".into(), reference(trigger));
                shown.insert("action".into(), reference(action));
                let status = if *active { "active" } else { "inactive" };
                shown.insert("status".into(), status.into());
            }
            What::Package { binding } => {
                let binding = binding
                    .as_ref()
                    .map_or(json!({}), |name| json!({ "namespace": NAMESPACE, "name": name }));
                shown.insert("binding".into(), binding);
            }
        }
        shown
    }
}

type Key = (EntityKind, String);

pub(super) struct Entities {
    all: RwLock<BTreeMap<Key, Entity>>,
    /// Held during a change. Only one change runs at a time, so that changes reach the store and the
    /// memory in the same order.
    turn: tokio::sync::Mutex<()>,
}

impl Entities {
    /// Reads the stored entities into memory.
    pub(super) async fn load(node: &dyn Documents) -> Result<Self, Problem> {
        let mut all = BTreeMap::new();
        for (key, bytes) in node.documents(COLLECTION).await? {
            let kinds =
                [EntityKind::Action, EntityKind::Package, EntityKind::Trigger, EntityKind::Rule];
            let parts = key.split_once('/');
            let kind = parts.and_then(|(word, _)| kinds.into_iter().find(|k| k.as_str() == word));
            match (kind, serde_json::from_slice(&bytes)) {
                (Some(kind), Ok(entity)) => {
                    let name = parts.map_or("", |(_, name)| name).to_owned();
                    all.insert((kind, name), entity);
                }
                _ => tracing::warn!(key, "cannot read a stored entity of OpenWhisk"),
            }
        }
        Ok(Self { all: RwLock::new(all), turn: tokio::sync::Mutex::default() })
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<Key, Entity>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the lock that a change of entities requires.
    pub(super) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    pub(super) fn get(&self, kind: EntityKind, name: &str) -> Option<Entity> {
        self.read().get(&(kind, name.to_owned())).cloned()
    }

    pub(super) fn list(&self, kind: EntityKind) -> Vec<(String, Entity)> {
        let of = |((_, name), entity): (&Key, &Entity)| (name.clone(), entity.clone());
        self.read().iter().filter(|((one, _), _)| *one == kind).map(of).collect()
    }

    /// Stores an entity. `code` is the code of its action, if the code is new.
    pub(super) async fn put(
        &self,
        node: &dyn Documents,
        kind: EntityKind,
        name: &str,
        mut entity: Entity,
        code: Option<&Value>,
    ) -> Result<Entity, Refused> {
        entity.change(self.get(kind, name).as_ref());
        let mut changes = vec![change(kind, name, Some(&entity))];
        if let Some(code) = code {
            let value = Some(code.to_string().into_bytes());
            changes.push(Change { collection: CODE, key: name.to_owned(), value });
        }
        node.put_documents(changes).await?;
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        all.insert((kind, name.to_owned()), entity.clone());
        Ok(entity)
    }

    pub(super) async fn remove(
        &self,
        node: &dyn Documents,
        kind: EntityKind,
        name: &str,
    ) -> Result<(), Refused> {
        let code = Change { collection: CODE, key: name.to_owned(), value: None };
        node.put_documents(vec![change(kind, name, None), code]).await?;
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        all.remove(&(kind, name.to_owned()));
        Ok(())
    }

    /// Returns the code of an action in the form in which it was sent.
    pub(super) async fn code(&self, node: &dyn Documents, name: &str) -> Option<Value> {
        let bytes = node.document(CODE, name).await.ok()??;
        serde_json::from_slice(&bytes).ok()
    }
}

fn change(kind: EntityKind, name: &str, entity: Option<&Entity>) -> Change {
    let value = entity.and_then(|entity| serde_json::to_vec(entity).ok());
    Change { collection: COLLECTION, key: format!("{}/{name}", kind.as_str()), value }
}

/// Checks a name that contains no package against the platform's rules.
pub(super) fn check_name(name: &str) -> Result<(), Refused> {
    let good = |c: char| c.is_alphanumeric() || matches!(c, '_' | '@' | '.' | '-' | ' ');
    let begins = name.chars().next().is_some_and(|c| c.is_alphanumeric() || c == '_');
    if !begins || name.len() > NAME_BYTES_MAX || !name.chars().all(good) || name.ends_with(' ') {
        return Err(Refused::bad("The name of the entity contains illegal characters."));
    }
    Ok(())
}

/// Returns the name under which an entity is stored. `written` is `/_/name`, `/guest/pkg/name`,
/// `pkg/name` or `name`.
pub(super) fn local_name(written: &str) -> Result<String, Refused> {
    let rest = match written.strip_prefix('/') {
        Some(rest) => {
            let (namespace, rest) = rest.split_once('/').unwrap_or(("", ""));
            if namespace == system::NAMESPACE {
                return system::name(rest).map_err(|text| Refused(StatusCode::NOT_FOUND, text));
            }
            if namespace != "_" && namespace != NAMESPACE {
                return Err(Refused::not_found());
            }
            rest
        }
        None => written,
    };
    let parts: Vec<&str> = rest.split('/').collect();
    if parts.is_empty() || parts.len() > 2 {
        return Err(Refused::bad("The name of the entity is not valid."));
    }
    parts.iter().try_for_each(|part| check_name(part))?;
    Ok(rest.to_owned())
}

/// Merges lists of parameters into an object. Parameters of later lists take precedence.
pub(super) fn merged<'p>(lists: impl IntoIterator<Item = &'p [Pair]>) -> Map<String, Value> {
    let pairs = lists.into_iter().flatten();
    let mut all = Map::new();
    all.extend(pairs.map(|pair| (pair.key.clone(), pair.value.clone())));
    all
}

/// Replaces the characters of an action's name that a function's name must not contain.
pub(super) fn label(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let label: String = name.chars().map(letter).take(56).collect();
    let label = label.trim_matches('-').to_owned();
    if label.is_empty() { "action".to_owned() } else { label }
}
