//! The requests of the node about streams.

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::{HeaderMap, jetstream};
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use futures_util::future::join_all;
use mote_journal::nats::{NatsError, PageOf, Reply, ServerStatus, Stored};
use serde_json::json;
use tokio::time::Instant;

use crate::api::{self, ApiError, code};
use crate::connection::{Connection, Lost};

/// The most messages of a page and their most bytes, so that an answer fits into a frame.
const PAGE_MAX: u32 = 2_000;
const PAGE_BYTES_MAX: usize = 8 << 20;
/// How long a direct read may take before the stream's leader is asked instead.
const DIRECT_PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);
/// The header fields in the answer to a direct read.
const SEQUENCE: &str = "Nats-Sequence";
const TIME: &str = "Nats-Time-Stamp";

pub(crate) async fn read(
    connection: &Connection,
    page: &PageOf,
    until: Instant,
) -> Result<Reply, NatsError> {
    let stream = &page.stream;
    let subject = format!("STREAM.INFO.{stream}");
    let info = api::call(connection, &subject, &json!({}), until).await;
    let info = info.map_err(|error| error.of_stream(stream))?;
    let number = |name: &str| info["state"][name].as_u64().unwrap_or(0);
    let last_sequence = number("last_seq");
    let most = page.most.clamp(1, PAGE_MAX);
    let mut messages = Vec::new();
    if page.from <= last_sequence && number("messages") > 0 {
        let read = tokio::time::timeout_at(until, fetch(connection, page, most, until));
        messages = match read.await {
            Ok(Ok(messages)) => messages,
            Ok(Err(error)) => return Err(connection.unreachable(&error.to_string())),
            Err(_) => return Err(connection.unreachable("it did not answer in time")),
        };
    }
    Ok(Reply::Page { messages, last_sequence })
}

/// Reads the messages of a page. The server forgets the consumer that is used for this.
async fn fetch(
    connection: &Connection,
    page: &PageOf,
    most: u32,
    until: Instant,
) -> Result<Vec<Stored>, Box<dyn std::error::Error + Send + Sync>> {
    let context = jetstream::new(connection.client(until).await?);
    let config = pull::Config {
        deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: page.from.max(1) },
        ack_policy: AckPolicy::None,
        filter_subject: page.subjects.clone().unwrap_or_default(),
        inactive_threshold: std::time::Duration::from_secs(10),
        memory_storage: true,
        num_replicas: 1,
        ..Default::default()
    };
    let consumer = context.create_consumer_on_stream(config, page.stream.as_str()).await?;
    let fetched = consumer.fetch().max_messages(most as usize).max_bytes(PAGE_BYTES_MAX);
    let mut fetched = fetched.messages().await?;
    let mut messages = Vec::new();
    while let Some(message) = fetched.try_next().await? {
        let info = message.info()?;
        let time_ms = info.published.unix_timestamp_nanos() / 1_000_000;
        let sequence = info.stream_sequence;
        let time_unix_ms = u64::try_from(time_ms)?;
        messages.push(Stored {
            sequence,
            time_unix_ms,
            subject: message.subject.to_string(),
            headers: fields(message.headers.as_ref()),
            body: message.payload.clone(),
        });
    }
    let name = consumer.cached_info().name.clone();
    // If this request does not arrive, the server still forgets the consumer after some time.
    let _ = context.delete_consumer_from_stream(name, page.stream.as_str()).await;
    Ok(messages)
}

/// The header fields that the sender of a message has set. Fields that begin with `Nats-` are
/// instructions to the server or notes of the server. The only exception is the id by which the
/// server recognises a message that is sent again.
fn fields(headers: Option<&HeaderMap>) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    for (name, values) in headers.into_iter().flat_map(HeaderMap::iter) {
        let name = name.to_string();
        if is_of_sender(&name) {
            fields.extend(values.iter().map(|value| (name.clone(), value.to_string())));
        }
    }
    fields
}

fn is_of_sender(name: &str) -> bool {
    !name.starts_with("Nats-") || name == "Nats-Msg-Id"
}

/// Removes messages by their sequence numbers. Messages that are already gone are ignored.
pub(crate) async fn delete(
    connection: &Connection,
    stream: &str,
    sequences: &[u64],
    until: Instant,
) -> Result<(), NatsError> {
    let removed = join_all(sequences.iter().map(|sequence| async move {
        let document = json!({"seq": sequence, "no_erase": true});
        let subject = format!("STREAM.MSG.DELETE.{stream}");
        match api::call(connection, &subject, &document, until).await {
            Err(ApiError::Server { code: code::NOT_REMOVED | code::NO_MESSAGE, .. }) => Ok(()),
            other => other.map(|_| ()).map_err(|error| error.of_stream(stream)),
        }
    }));
    removed.await.into_iter().collect()
}

/// The last message of a subject. If the stream has several replicas, its leader is asked, because
/// the other servers may not have the last message yet.
pub(crate) async fn last(
    connection: &Connection,
    stream: &str,
    subject: &str,
    until: Instant,
) -> Result<Option<Stored>, NatsError> {
    if connection.settings().replicas > 1 {
        return last_of_leader(connection, stream, subject, until).await;
    }
    let asked = format!("$JS.API.DIRECT.GET.{stream}.{subject}");
    let soon = until.min(Instant::now() + DIRECT_PATIENCE);
    let message = match connection.request(asked, None, Bytes::new(), soon).await {
        Ok(message) => message,
        // Either the stream does not exist, or the server does not support direct reads for it. Old
        // servers do not answer at all for a stream that was removed.
        Err(Lost::NoResponders | Lost::Unknown(_)) => {
            return last_of_leader(connection, stream, subject, until).await;
        }
        Err(lost) => return Err(api::no_answer(connection, lost)),
    };
    match message.status.map(|status| status.as_u16()) {
        None => {}
        Some(404) => return Ok(None),
        Some(other) => return Err(NatsError::Refused(format!("the server answered {other}"))),
    }
    let headers = message.headers.as_ref();
    let field = |name: &str| headers.and_then(|headers| headers.get(name)).map(|v| v.as_str());
    let sequence = field(SEQUENCE).and_then(|text| text.parse().ok()).unwrap_or(0);
    Ok(Some(Stored {
        sequence,
        time_unix_ms: field(TIME).map_or(0, unix_ms),
        subject: subject.to_owned(),
        headers: fields(headers),
        body: message.payload,
    }))
}

async fn last_of_leader(
    connection: &Connection,
    stream: &str,
    subject: &str,
    until: Instant,
) -> Result<Option<Stored>, NatsError> {
    let asked = format!("STREAM.MSG.GET.{stream}");
    let answer = api::call(connection, &asked, &json!({"last_by_subj": subject}), until).await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(ApiError::Server { code: code::NO_MESSAGE, .. }) => return Ok(None),
        Err(error) => return Err(error.of_stream(stream)),
    };
    let message = &answer["message"];
    let decoded = |name: &str| {
        let text = message[name].as_str().unwrap_or_default();
        mote_core::base64::decode(text.as_bytes())
            .ok_or_else(|| connection.unreachable("an answer that cannot be read"))
    };
    let headers = decoded("hdrs")?;
    let body = decoded("data")?;
    Ok(Some(Stored {
        sequence: message["seq"].as_u64().unwrap_or(0),
        time_unix_ms: message["time"].as_str().map_or(0, unix_ms),
        subject: subject.to_owned(),
        headers: parsed(&headers),
        body: body.into(),
    }))
}

/// Parses a block of header fields.
fn parsed(block: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(block);
    let lines = text.split("\r\n").skip(1);
    let fields = lines.filter_map(|line| line.split_once(':'));
    let fields = fields.filter(|(name, _)| is_of_sender(name));
    fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

/// Converts a time in the server's format into milliseconds since 1970. Returns 0 if it cannot be
/// read.
fn unix_ms(text: &str) -> u64 {
    async_nats::datetime::parse_rfc3339(text)
        .ok()
        .and_then(|time| u64::try_from(time.unix_timestamp_nanos() / 1_000_000).ok())
        .unwrap_or(0)
}

pub(crate) async fn check(connection: &Connection, until: Instant) -> Result<Reply, NatsError> {
    let info = api::call(connection, "INFO", &json!({}), until).await;
    let info = info.map_err(|error| error.of_stream("account"))?;
    let client = connection.client(until).await?;
    let server = client.server_info();
    Ok(Reply::Server(ServerStatus {
        address: connection.settings().servers.join(", "),
        version: server.version,
        streams: info["streams"].as_u64().unwrap_or(0),
    }))
}
