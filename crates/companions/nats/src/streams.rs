//! The requests of the node about streams.

use async_nats::HeaderMap;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use mote_journal::nats::{NatsError, PageOf, Reply, ServerStatus, Stored};
use serde_json::json;
use tokio::time::Instant;

use crate::api::{self, ApiError, code};
use crate::connection::{Connection, Lost};
use crate::place::Place;

/// The most messages of a page and their most bytes, so that an answer fits into a frame.
const PAGE_MAX: u32 = 2_000;
const PAGE_BYTES_MAX: usize = 8 << 20;
/// After this many nanoseconds without a request, the server forgets a consumer.
const CONSUMER_IDLE_NS: u64 = 10_000_000_000;
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
        messages = match tokio::time::timeout_at(until, fetch(connection, page, most, until)).await
        {
            Ok(fetched) => fetched?,
            Err(_) => return Err(connection.unreachable("it did not answer in time")),
        };
    }
    Ok(Reply::Page { messages, last_sequence })
}

/// Reads the messages of a page through a consumer that exists for this page only.
async fn fetch(
    connection: &Connection,
    page: &PageOf,
    most: u32,
    until: Instant,
) -> Result<Vec<Stored>, NatsError> {
    let stream = &page.stream;
    let consumer = json!({
        "stream_name": stream,
        "config": {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": page.from.max(1),
            "ack_policy": "none",
            "replay_policy": "instant",
            "filter_subject": page.subjects.as_deref().unwrap_or_default(),
            "inactive_threshold": CONSUMER_IDLE_NS,
            "mem_storage": true,
            "num_replicas": 1,
        },
    });
    let made = api::call(connection, &format!("CONSUMER.CREATE.{stream}"), &consumer, until).await;
    let made = made.map_err(|error| error.of_stream(stream))?;
    let Some(name) = made["name"].as_str() else {
        return Err(connection.unreachable("an answer without a consumer"));
    };
    let fetched = pull(connection, stream, name, most, until).await;
    // If this request does not arrive, the server still forgets the consumer after some time.
    let unused = format!("CONSUMER.DELETE.{stream}.{name}");
    let _ = api::call(connection, &unused, &json!({}), until).await;
    fetched
}

/// Asks a consumer for the messages that are there now. Unless it has sent as many messages as were
/// asked for, the server ends its answer with a message that has a status and no content.
async fn pull(
    connection: &Connection,
    stream: &str,
    consumer: &str,
    most: u32,
    until: Instant,
) -> Result<Vec<Stored>, NatsError> {
    let (client, losses) = connection.client_and_losses(until).await?;
    let failed = |error: &dyn std::error::Error| connection.unreachable(&error.to_string());
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.map_err(|error| failed(&error))?;
    let asked = json!({"batch": most, "max_bytes": PAGE_BYTES_MAX, "no_wait": true}).to_string();
    let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
    let sent = client.publish_with_reply(subject, inbox, asked.into()).await;
    sent.map_err(|error| failed(&error))?;
    let mut messages = Vec::new();
    while messages.len() < most as usize {
        let message = tokio::select! {
            message = answers.next() => message,
            () = connection.lost(losses) => None,
        };
        let Some(message) = message else {
            return Err(connection.unreachable("the connection was lost"));
        };
        if message.status.is_some() {
            break;
        }
        let Some(Place { sequence, time_unix_ms, .. }) = Place::of(&message) else {
            return Err(connection.unreachable("a message without its place in the stream"));
        };
        messages.push(Stored {
            sequence,
            time_unix_ms,
            subject: message.subject.to_string(),
            headers: fields(message.headers.as_ref()),
            body: message.payload,
        });
    }
    Ok(messages)
}

/// The header fields that the sender of a message has set. Fields that begin with `Nats-` are
/// instructions to the server or the server's own notes. The only exception is the id by which the
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
    text.parse::<jiff::Timestamp>()
        .ok()
        .and_then(|time| u64::try_from(time.as_millisecond()).ok())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_server_are_read_to_the_millisecond() {
        assert_eq!(unix_ms("2023-11-14T22:13:20.123456789Z"), 1_700_000_000_123);
        assert_eq!(unix_ms("yesterday"), 0);
    }
}
