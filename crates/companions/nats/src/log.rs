//! Streams that keep a journal. They hold the last message of each subject, and an append happens
//! as a whole or not at all.

use async_nats::HeaderMap;
use bytes::Bytes;
use mote_journal::nats::{NatsError, Publishing, Reply};
use tokio::time::Instant;

use crate::api::{self, StoreError};
use crate::connection::Connection;

/// How long the server keeps a message that says that a row was removed.
const REMOVAL_TTL: &str = "5s";

pub(crate) async fn ensure(
    connection: &Connection,
    name: &str,
    subjects: String,
    until: Instant,
) -> Result<Reply, NatsError> {
    let replicas = connection.settings().replicas;
    let mut config = api::stream_config(name, &[subjects], 1, replicas);
    // The newest state of a row replaces the previous one.
    config["discard"] = "old".into();
    config["allow_atomic"] = true.into();
    config["allow_msg_ttl"] = true.into();
    let refused = |error: api::ApiError| error.of_stream(name);
    api::ensure_stream(connection, name, &config, until).await.map_err(refused)?;
    // An older server ignores settings that it does not know, so the result is checked.
    let asked = format!("STREAM.INFO.{name}");
    let nothing = serde_json::json!({});
    let info = api::call(connection, &asked, &nothing, until).await.map_err(refused)?;
    if info["config"]["allow_atomic"] != true || info["config"]["allow_msg_ttl"] != true {
        let text = "the NATS server is too old to keep a journal; it needs version 2.12";
        return Err(NatsError::Refused(text.to_owned()));
    }
    Ok(Reply::Done)
}

/// Stores messages as one batch. The server stores a batch atomically and syncs it once. The first
/// message requires that the last sequence number is `expected_last`; otherwise the batch is not
/// stored.
pub(crate) async fn append(
    connection: &Connection,
    messages: Vec<Publishing>,
    expected_last: u64,
    until: Instant,
) -> Result<Reply, NatsError> {
    let count = messages.len();
    // If the answer to a process was lost, another process can append the same messages. The two
    // batches must not mix.
    let batch = format!("{:016x}{:016x}", random(), random());
    for (at, message) in messages.into_iter().enumerate() {
        let mut headers = HeaderMap::new();
        if at == 0 {
            headers.insert("Nats-Expected-Last-Sequence", expected_last.to_string());
        }
        if message.body.is_empty() {
            headers.insert("Nats-TTL", REMOVAL_TTL);
        }
        if count > 1 {
            headers.insert("Nats-Batch-Id", batch.as_str());
            headers.insert("Nats-Batch-Sequence", (at + 1).to_string());
        }
        if at + 1 < count {
            send(connection, message.subject, headers, message.body, until).await?;
            continue;
        }
        if count > 1 {
            headers.insert("Nats-Batch-Commit", "1");
        }
        let subject = message.subject.clone();
        let stored = api::store(connection, subject, Some(headers), message.body, until).await;
        let place = stored.map_err(|error| match error {
            StoreError::NoStream => {
                NatsError::NoStream(format!("with the subject {}", message.subject))
            }
            StoreError::Unknown(text) => connection.unreachable(&text),
            StoreError::Api(error) => error.of_stream(&message.subject),
        })?;
        if place != expected_last + count as u64 {
            let text =
                format!("the server stored a batch at place {place}, which was not expected");
            return Err(NatsError::Refused(text));
        }
    }
    Ok(Reply::Done)
}

/// Sends a message of a batch. The server does not answer it.
async fn send(
    connection: &Connection,
    subject: String,
    headers: HeaderMap,
    body: Bytes,
    until: Instant,
) -> Result<(), NatsError> {
    let client = connection.client(until).await?;
    let sent = client.publish_with_headers(subject, headers, body).await;
    sent.map_err(|error| match error.kind() {
        async_nats::PublishErrorKind::MaxPayloadExceeded => NatsError::Refused(format!(
            "a message is longer than the server takes ({error}); raise max_payload there"
        )),
        _ => connection.unreachable(&error.to_string()),
    })
}

fn random() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::process::id())
}
