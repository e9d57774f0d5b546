//! Requests to the JetStream API. Each has a subject and a JSON document, and the answer is JSON.

use async_nats::{HeaderMap, Message};
use bytes::Bytes;
use mote_journal::nats::NatsError;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::connection::{Connection, Lost};

/// The JetStream error codes that this program distinguishes.
pub(crate) mod code {
    /// The message does not exist.
    pub(crate) const NO_MESSAGE: u64 = 10_037;
    /// A message cannot be removed, because it does not exist.
    pub(crate) const NOT_REMOVED: u64 = 10_057;
    /// A stream of this name exists with another configuration.
    pub(crate) const OTHER_FORM: u64 = 10_058;
    /// The stream does not exist.
    pub(crate) const NO_STREAM: u64 = 10_059;
    /// The last sequence number is not the required one: that of the stream, or that of the
    /// subject.
    pub(crate) const OTHER_LAST: [u64; 2] = [10_071, 10_164];
}

/// Why the API did not carry out a request.
#[derive(Debug)]
pub(crate) enum ApiError {
    /// An error of the server, with JetStream's code and text.
    Server { code: u64, text: String },
    /// There was no usable answer.
    Nats(NatsError),
}

impl ApiError {
    /// Converts the error into the form that the node reads.
    pub(crate) fn of_stream(self, stream: &str) -> NatsError {
        match self {
            ApiError::Server { code: code::NO_STREAM, .. } => NatsError::NoStream(stream.into()),
            ApiError::Server { code, .. } if code::OTHER_LAST.contains(&code) => {
                NatsError::OtherLast
            }
            ApiError::Server { text, .. } => {
                NatsError::Refused(format!("the NATS server refuses it: {text}"))
            }
            ApiError::Nats(error) => error,
        }
    }
}

/// The part that every answer may contain.
#[derive(Deserialize)]
struct Answer {
    error: Option<AnswerError>,
}

#[derive(Deserialize)]
struct AnswerError {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

pub(crate) async fn call(
    connection: &Connection,
    subject: &str,
    document: &Value,
    until: Instant,
) -> Result<Value, ApiError> {
    let body = Bytes::from(document.to_string());
    let answer = connection.request(format!("$JS.API.{subject}"), None, body, until).await;
    let message = answer.map_err(|lost| ApiError::Nats(no_answer(connection, lost)))?;
    checked(connection, &message)?;
    serde_json::from_slice(&message.payload).map_err(|error| unreadable(connection, &error))
}

fn unreadable(connection: &Connection, error: &serde_json::Error) -> ApiError {
    ApiError::Nats(connection.unreachable(&format!("an answer that cannot be read: {error}")))
}

/// Fails if the answer is an error.
fn checked(connection: &Connection, message: &Message) -> Result<(), ApiError> {
    let answer: Answer =
        serde_json::from_slice(&message.payload).map_err(|error| unreadable(connection, &error))?;
    match answer.error {
        None => Ok(()),
        Some(error) => Err(ApiError::Server { code: error.err_code, text: error.description }),
    }
}

/// The reason why there is no answer, in the form that the node reads.
pub(crate) fn no_answer(connection: &Connection, lost: Lost) -> NatsError {
    match lost {
        Lost::NoResponders => {
            connection.unreachable("JetStream is off there: start it with jetstream enabled")
        }
        Lost::Refused(text) => NatsError::Refused(text),
        Lost::Unknown(text) if text.starts_with("the NATS server") => NatsError::Unreachable(text),
        Lost::Unknown(text) => connection.unreachable(&text),
    }
}

/// Stores a message. Returns its sequence number once the server has stored it.
pub(crate) async fn store(
    connection: &Connection,
    subject: String,
    headers: Option<HeaderMap>,
    body: Bytes,
    until: Instant,
) -> Result<u64, StoreError> {
    #[derive(Deserialize)]
    struct Stored {
        #[serde(default)]
        seq: u64,
        error: Option<AnswerError>,
    }
    let message = match connection.request(subject, headers, body, until).await {
        Ok(message) => message,
        Err(Lost::NoResponders) => return Err(StoreError::NoStream),
        Err(Lost::Unknown(text)) => return Err(StoreError::Unknown(text)),
        Err(Lost::Refused(text)) => {
            return Err(StoreError::Api(ApiError::Nats(NatsError::Refused(text))));
        }
    };
    match serde_json::from_slice::<Stored>(&message.payload) {
        Ok(Stored { error: Some(error), .. }) => {
            Err(StoreError::Api(ApiError::Server { code: error.err_code, text: error.description }))
        }
        Ok(Stored { seq, .. }) => Ok(seq),
        Err(error) => Err(StoreError::Unknown(error.to_string())),
    }
}

/// Why a message was not stored.
#[derive(Debug)]
pub(crate) enum StoreError {
    /// There is no stream for the subject.
    NoStream,
    /// The message may have been stored.
    Unknown(String),
    /// The server refused the message.
    Api(ApiError),
}

/// The configuration of a stream.
pub(crate) fn stream_config(
    name: &str,
    subjects: &[String],
    messages_per_subject: u32,
    replicas: u8,
) -> Value {
    json!({
        "name": name,
        "subjects": subjects,
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msg_size": -1,
        "max_msgs_per_subject": if messages_per_subject == 0 { -1 } else { i64::from(messages_per_subject) },
        "num_replicas": replicas.max(1),
        "duplicate_window": DUPLICATES_NS,
        "allow_direct": true,
        "allow_rollup_hdrs": false,
    })
}

/// For how long the server recognises a message that it has received before, in nanoseconds. It is
/// longer than the time for which a message is sent again after its answer was lost.
const DUPLICATES_NS: u64 = 30_000_000_000;

/// Creates a stream if it does not exist, and gives it this configuration. Returns information
/// about the stream and its content.
pub(crate) async fn ensure_stream(
    connection: &Connection,
    name: &str,
    config: &Value,
    until: Instant,
) -> Result<Value, ApiError> {
    let made = call(connection, &format!("STREAM.CREATE.{name}"), config, until).await;
    match made {
        Err(ApiError::Server { code: code::OTHER_FORM, .. }) => {
            call(connection, &format!("STREAM.UPDATE.{name}"), config, until).await
        }
        made => made,
    }
}
