//! The interface between a run of a chain and its surroundings, and the errors of chains.

use futures_util::future::LocalBoxFuture;

use crate::expression::{Val, get, int_of, text_of};

/// The common prefix of the error types that the language defines.
const ERRORS: &str = "https://serverlessworkflow.io/spec/1.0.0/errors/";

/// The services that a run needs from its surroundings.
pub trait Host {
    fn call(&self, call: Outgoing) -> LocalBoxFuture<'_, Result<Reply, Stop>>;
    /// Publishes a message to an MQTT topic.
    fn publish(&self, message: Publication) -> LocalBoxFuture<'_, Result<(), Stop>>;
    /// Keeps the record of a step. When the future resolves, the record is on disk.
    fn record(&self, key: &str, value: String) -> LocalBoxFuture<'_, Result<(), Stop>>;
    /// Whether the run is journalled, so that records are kept.
    fn is_journalled(&self) -> bool;
    /// The current time in milliseconds since 1970.
    fn now_ms(&self) -> u64;
    /// The time until which this attempt may begin steps, in milliseconds since 1970. After that, a
    /// journalled run continues in another attempt.
    fn begins_until_ms(&self) -> u64;
    /// A random number from 0 to 1.
    fn random(&self) -> f64;
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The key of the step.
    pub step: String,
    /// The name of the function, or `NAME@TAG`.
    pub function: String,
    pub method: String,
    /// The path below the function.
    pub path: String,
    /// The query without `?`.
    pub query: String,
    /// The header fields, with lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The time limit of the call in milliseconds. 0 means that the call has no limit of its own.
    pub timeout_ms: u64,
}

/// The answer of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// A message for an MQTT topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Publication {
    pub topic: String,
    pub payload: Vec<u8>,
    /// The quality of service, 0 to 2.
    pub qos: u8,
    /// Whether the broker keeps the message for later subscribers.
    pub retain: bool,
    /// The content type of the payload. Empty if there is none.
    pub content_type: String,
}

/// An error of a chain (RFC 9457).
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    /// A URI that identifies the kind of the error.
    pub kind: String,
    pub status: i64,
    /// A short description of this kind of error.
    pub title: String,
    /// The description of this particular error.
    pub detail: String,
    /// The task that failed, as a JSON pointer into the file.
    pub instance: String,
}

impl Error {
    /// An error of a kind that the language defines.
    pub fn new(kind: &str, status: i64, title: &str, detail: impl Into<String>) -> Self {
        let kind = format!("{ERRORS}{kind}");
        let title = title.to_owned();
        Self { kind, status, title, detail: detail.into(), instance: String::new() }
    }

    /// The error as a value for expressions.
    pub fn value(&self) -> Val {
        let mut members: Vec<(&str, Val)> = vec![
            ("type", Val::from(self.kind.clone())),
            ("status", Val::from(self.status as isize)),
        ];
        for (key, text) in
            [("title", &self.title), ("detail", &self.detail), ("instance", &self.instance)]
        {
            if !text.is_empty() {
                members.push((key, Val::from(text.clone())));
            }
        }
        Val::obj(
            members.into_iter().map(|(key, value)| (Val::from(key.to_owned()), value)).collect(),
        )
    }

    /// Reads an error from a value of an expression.
    pub fn of_value(value: &Val) -> Self {
        let text = |key| get(value, key).and_then(text_of).unwrap_or_default();
        let status = get(value, "status").and_then(|status| {
            int_of(status).or_else(|| text_of(status).and_then(|text| text.parse().ok()))
        });
        Self {
            kind: text("type"),
            status: status.unwrap_or(500),
            title: text("title"),
            detail: text("detail"),
            instance: text("instance"),
        }
    }
}

/// Why a step cannot continue.
#[derive(Debug, Clone, PartialEq)]
pub enum Stop {
    /// An error that a chain can handle.
    Error(Error),
    /// This attempt cannot continue, but another attempt can.
    Broken(String),
}
