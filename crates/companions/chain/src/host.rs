//! What a run of a chain needs from its surroundings, and the errors of chains.

use futures_util::future::LocalBoxFuture;

use crate::expression::{Val, get, int_of, text_of};

/// The beginning of the types of errors that the language defines.
const ERRORS: &str = "https://serverlessworkflow.io/spec/1.0.0/errors/";

/// What a run needs from its surroundings.
pub trait Host {
    fn call(&self, call: Outgoing) -> LocalBoxFuture<'_, Result<Reply, Stop>>;
    /// Publishes a message to an MQTT topic.
    fn publish(&self, message: Publication) -> LocalBoxFuture<'_, Result<(), Stop>>;
    /// Keeps the record of a step; it is on disk when this resolves.
    fn record(&self, key: &str, value: String) -> LocalBoxFuture<'_, Result<(), Stop>>;
    /// Whether records are kept.
    fn is_journalled(&self) -> bool;
    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;
    /// Until when this attempt may begin steps, in milliseconds since 1970; a journalled run goes on
    /// in another attempt then.
    fn begins_until_ms(&self) -> u64;
    /// A number from 0 to 1.
    fn random(&self) -> f64;
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The key of the step.
    pub step: String,
    /// The function, or `NAME@TAG`.
    pub function: String,
    pub method: String,
    /// Path below the function.
    pub path: String,
    /// Query without `?`.
    pub query: String,
    /// Header fields, with lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// How long the call may take in milliseconds; 0 for no limit of its own.
    pub timeout_ms: u64,
}

/// The answer of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    /// Header fields.
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
    /// Whether the broker keeps it for later subscribers.
    pub retain: bool,
    /// The type of the payload; empty for none.
    pub content_type: String,
}

/// An error of a chain (RFC 9457).
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    /// A URI that says what kind of error it is.
    pub kind: String,
    pub status: i64,
    /// What is wrong, in a few words.
    pub title: String,
    /// What is wrong this time.
    pub detail: String,
    /// The task, as a JSON pointer into the file.
    pub instance: String,
}

impl Error {
    /// An error of a kind that the language defines.
    pub fn new(kind: &str, status: i64, title: &str, detail: impl Into<String>) -> Self {
        let kind = format!("{ERRORS}{kind}");
        let title = title.to_owned();
        Self { kind, status, title, detail: detail.into(), instance: String::new() }
    }

    /// As a value of expressions.
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

    /// The error that a value of expressions describes.
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

/// Why a step does not go on.
#[derive(Debug, Clone, PartialEq)]
pub enum Stop {
    /// An error that a chain can handle.
    Error(Error),
    /// This attempt cannot go on; another one can.
    Broken(String),
}
