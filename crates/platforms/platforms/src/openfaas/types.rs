//! The documents that the gateway and its clients exchange.

use std::collections::BTreeMap;

use crate::compat::node::Function;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A deployment as a client sends it.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Deployment {
    pub(super) service: String,
    #[serde(default)]
    pub(super) image: String,
    pub(super) namespace: Option<String>,
    #[serde(default)]
    pub(super) env_process: Option<String>,
    #[serde(default)]
    pub(super) secrets: Option<Vec<String>>,
    #[serde(default)]
    pub(super) constraints: Option<Vec<String>>,
    /// The login at the registry of the image: `USER:PASSWORD` in base64.
    pub(super) registry_auth: Option<String>,
}

/// The parts of a deployment that are stored so that they can be shown again.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Shown {
    pub(super) image: Option<String>,
    pub(super) env_process: Option<String>,
    pub(super) labels: Option<BTreeMap<String, Value>>,
    pub(super) annotations: Option<BTreeMap<String, Value>>,
    pub(super) constraints: Option<Vec<String>>,
    pub(super) limits: Option<Value>,
    pub(super) requests: Option<Value>,
}

impl Shown {
    /// The key of the annotation that holds this value.
    pub(super) const KEY: &str = "openfaas";

    pub(super) fn of(function: &Function) -> Self {
        let kept = function.spec.annotations.get(Self::KEY);
        kept.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
    }
}

/// A function as clients see it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    name: String,
    namespace: String,
    image: String,
    env_process: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    env_vars: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    secrets: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    constraints: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<Value>,
    invocation_count: u64,
    replicas: u32,
    available_replicas: u32,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Usage {
    /// This is the only field, because processor time is not counted per function. Reporting it as 0
    /// would be wrong.
    total_memory_bytes: u64,
}

impl Status {
    pub(super) fn of(function: &Function, with_usage: bool) -> Self {
        let shown = Shown::of(function);
        let texts = |table: Option<BTreeMap<String, Value>>| -> BTreeMap<String, String> {
            let text = |value: Value| match value {
                Value::String(text) => text,
                other => other.to_string(),
            };
            let mut texts = BTreeMap::new();
            texts.extend(
                table.unwrap_or_default().into_iter().map(|(key, value)| (key, text(value))),
            );
            texts
        };
        let name = function.spec.name.label().to_owned();
        let image = shown.image.unwrap_or_else(|| format!("mote://{name}"));
        let process = shown.env_process.unwrap_or_else(|| function.spec.command.join(" "));
        let mut labels = texts(shown.labels);
        // On the platform, every function has this label, and clients select functions by it.
        labels.insert("faas_function".to_owned(), name.clone());
        let created = mote_api::Timestamp::from_unix_ms(function.created_unix_ms);
        let usage = Usage { total_memory_bytes: function.memory_bytes };
        Self {
            name,
            namespace: function.spec.name.namespace().unwrap_or(super::NAMESPACE).to_owned(),
            image,
            env_process: process,
            env_vars: function.spec.env.clone(),
            labels,
            annotations: texts(shown.annotations),
            secrets: function.spec.secrets.clone(),
            constraints: shown.constraints.unwrap_or_default(),
            limits: shown.limits.filter(|value| !value.is_null()),
            requests: shown.requests.filter(|value| !value.is_null()),
            invocation_count: function.calls,
            replicas: function.instances,
            available_replicas: function.ready,
            created_at: created.to_string(),
            usage: with_usage.then_some(usage),
        }
    }
}
