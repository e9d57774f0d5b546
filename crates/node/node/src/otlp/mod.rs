//! The OpenTelemetry protocol: messages (open-telemetry/opentelemetry-proto, `common/v1` and
//! `resource/v1`), and the queue of what is sent to a collector ([`collector`]). Fields that a node
//! does not send are left out.

pub(crate) mod collector;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3")]
    pub(crate) value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Number(i64),
}

impl Resource {
    /// A revision of a function. Each function is a service.
    pub(crate) fn new(function: &str, revision: u64) -> Self {
        let mut attributes = vec![text("service.name", function), text("faas.name", function)];
        if revision > 0 {
            attributes.push(text("service.version", revision.to_string()));
            attributes.push(text("faas.version", revision.to_string()));
        }
        Self { attributes }
    }
}

impl Scope {
    pub(crate) fn own() -> Self {
        Self { name: "mote".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

pub(crate) fn text(key: &str, text: impl Into<String>) -> KeyValue {
    value(key, Value::Text(text.into()))
}

pub(crate) fn value(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}
