//! The parts of OpenWhisk's `manifest.yaml` other than functions: packages, sequences, triggers, rules,
//! and the list of functions that are actions. The node stores them if its OpenWhisk API is on.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// The entities of a manifest. Names of actions and sequences are `NAME` or `PACKAGE/NAME`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WhiskManifest {
    /// Packages.
    #[serde(default)]
    pub packages: Vec<WhiskEntity>,
    /// Functions of the node as actions.
    #[serde(default)]
    pub actions: Vec<WhiskAction>,
    /// Sequences: actions that run one after another.
    #[serde(default)]
    pub sequences: Vec<WhiskSequence>,
    /// Triggers.
    #[serde(default)]
    pub triggers: Vec<WhiskEntity>,
    /// Which action runs when which trigger fires.
    #[serde(default)]
    pub rules: Vec<WhiskRule>,
}

/// The properties that all entities have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WhiskEntity {
    /// Its name.
    pub name: String,
    /// Default parameters for calls of this entity and of the entities below it.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub parameters: Map<String, Value>,
    /// Annotations of the entity.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub annotations: Map<String, Value>,
}

/// A function of the node that is an action.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WhiskAction {
    /// Name, parameters and annotations.
    #[serde(flatten)]
    pub entity: WhiskEntity,
    /// The function, which must already be deployed.
    pub function: String,
}

/// Actions that run one after another.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WhiskSequence {
    /// Name, parameters and annotations.
    #[serde(flatten)]
    pub entity: WhiskEntity,
    /// Names of actions and sequences, in the order in which they run.
    pub actions: Vec<String>,
}

/// Which action runs when which trigger fires.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WhiskRule {
    /// Its name.
    pub name: String,
    /// The trigger.
    pub trigger: String,
    /// The action or sequence.
    pub action: String,
}

/// The result of applying a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhiskResult {
    /// Every entity that exists now, for example `sequences.sensors/both`.
    pub made: Vec<String>,
    /// Other facts that the user should know.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl WhiskManifest {
    /// Returns every entity as `kind.name`, in the order in which the entities are created.
    pub fn entities(&self) -> Vec<String> {
        let named = |kind: &'static str, name: &str| format!("{kind}.{name}");
        let mut all = Vec::new();
        all.extend(self.packages.iter().map(|one| named("packages", &one.name)));
        all.extend(self.actions.iter().map(|one| named("actions", &one.entity.name)));
        all.extend(self.sequences.iter().map(|one| named("sequences", &one.entity.name)));
        all.extend(self.triggers.iter().map(|one| named("triggers", &one.name)));
        all.extend(self.rules.iter().map(|one| named("rules", &one.name)));
        all
    }
}
