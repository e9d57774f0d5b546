//! The journal's data about one invocation, and the byte format of the stored request.

use bytes::Bytes;
use mote_core::InvocationId;
use mote_core::accept::{Callback, Deferred};
use mote_core::invocation::{Head, Trigger, headers};
use mote_spec::Topic;
use mote_spec::mqtt::Connection;
use serde::{Deserialize, Serialize};

use crate::pending::Number;

/// What happens when a record runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    Invoke(Deferred),
    /// Sends the result of an invocation to an address or a topic.
    Post(Post),
}

/// Where a result goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A POST to this address.
    Url(String),
    /// A message at an MQTT broker.
    Topic {
        /// The topic and how to publish to it. All placeholders have been replaced.
        topic: Topic,
        connection: Connection,
    },
}

/// A request or a message from the node that carries the result of an invocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Post {
    /// The function that produced the result.
    pub function: String,
    pub to: Destination,
    /// Header block (see [`Head`]).
    pub fields: Bytes,
    pub body: Bytes,
}

impl Post {
    /// The host that receives the request, in lower case; `None` for a topic.
    pub(crate) fn host(&self) -> Option<String> {
        let Destination::Url(url) = &self.to else { return None };
        mote_outgoing::check(url).ok()?.host().map(str::to_ascii_lowercase)
    }
}

impl Work {
    pub fn function(&self) -> &str {
        match self {
            Work::Invoke(deferred) => &deferred.function,
            Work::Post(post) => &post.function,
        }
    }

    pub fn order(&self) -> Option<&str> {
        match self {
            Work::Invoke(deferred) => deferred.order.as_deref(),
            Work::Post(_) => None,
        }
    }

    pub fn key(&self) -> Option<&str> {
        match self {
            Work::Invoke(deferred) => deferred.key.as_deref(),
            Work::Post(_) => None,
        }
    }

    /// The earliest time to run, in milliseconds since 1970; 0 for at once.
    pub fn due_unix_ms(&self) -> u64 {
        match self {
            Work::Invoke(deferred) => deferred.due_unix_ms,
            Work::Post(_) => 0,
        }
    }

    /// Roughly how many bytes of memory the work occupies.
    pub fn bytes(&self) -> usize {
        match self {
            Work::Invoke(deferred) => deferred.head.bytes() + deferred.body.len(),
            Work::Post(post) => {
                let to = match &post.to {
                    Destination::Url(url) => url.len(),
                    Destination::Topic { topic, .. } => topic.topic.len(),
                };
                to + post.fields.len() + post.body.len()
            }
        }
    }
}

/// A record that is about to be written.
#[derive(Debug, Clone)]
pub struct NewRecord {
    pub id: InvocationId,
    pub work: Work,
    /// When the invocation was accepted, in milliseconds since 1970.
    pub accepted_ms: u64,
    /// How many times results were passed on from one function to the next before this record.
    pub depth: u32,
}

#[derive(Debug)]
pub struct Waiting {
    pub number: Number,
    pub id: InvocationId,
    pub function: String,
    pub order: Option<String>,
    /// The earliest time to run, in milliseconds since 1970; 0 for at once.
    pub due_ms: u64,
    /// The time from which the record's age is counted: the later of its acceptance and its due
    /// time.
    pub since_ms: u64,
    /// Attempts so far.
    pub attempts: u32,
    /// Bytes of the request on disk.
    pub bytes: u64,
    /// Whether the record carries a result instead of invoking a function.
    pub is_post: bool,
}

/// The journal's data about one schedule of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleRun {
    /// The identity of the schedule, as it appears in the idempotency keys.
    pub identity: u64,
    /// The newest accepted time of the schedule, in milliseconds since 1970.
    pub newest_due_ms: i64,
    /// The schedule's invocations that have not ended.
    pub waiting: Vec<InvocationId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The invocation has not ended.
    Waiting = 0,
    /// The function has answered.
    Succeeded = 1,
    /// The invocation has failed for good and is kept as a dead letter.
    Dead = 2,
    Cancelled = 3,
}

impl State {
    pub(crate) fn from_number(number: i64) -> Self {
        match number {
            1 => State::Succeeded,
            2 => State::Dead,
            3 => State::Cancelled,
            _ => State::Waiting,
        }
    }
}

/// How the last attempt at a record ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastAttempt {
    /// Number of attempts, including this one.
    pub attempts: u32,
    /// When the attempt began, in milliseconds since 1970.
    pub began_ms: u64,
    pub ended_ms: u64,
    /// The status of the function's answer, or of the fault.
    pub status: u16,
    /// The code of the fault, if there was one.
    pub fault: Option<String>,
    /// The text of the fault.
    pub detail: Option<String>,
    /// Header block of the answer.
    pub fields: Bytes,
    /// Body of the answer; `None` if it was longer than the journal keeps.
    pub body: Option<Bytes>,
}

/// Everything that the journal knows about an invocation.
#[derive(Debug, Clone)]
pub struct Stored {
    pub number: Number,
    pub id: InvocationId,
    pub function: String,
    /// The source of the invocation; `None` for a request that carries a result.
    pub trigger: Option<Trigger>,
    pub state: State,
    /// When the invocation was accepted, in milliseconds since 1970.
    pub accepted_ms: u64,
    /// The earliest time of the first or next attempt; 0 for at once.
    pub due_ms: u64,
    pub key: Option<String>,
    /// The last attempt, if there was one.
    pub last: Option<LastAttempt>,
}

/// The part of a stored request that is neither header fields nor body.
#[derive(Serialize, Deserialize)]
struct Description {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    method: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    target: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    callback: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    callback_fields: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
    /// The address of a [`Post`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    /// The topic of a [`Post`], and its broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    topic: Option<(Topic, Connection)>,
    #[serde(default, skip_serializing_if = "is_zero")]
    depth: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The columns of a record that are needed to decode its stored request.
#[derive(Debug, Clone)]
pub struct Columns {
    pub function: String,
    /// The number of the trigger; 0 for a [`Post`].
    pub trigger: u8,
    pub key: Option<String>,
    pub order: Option<String>,
    /// The earliest time to run.
    pub due_ms: u64,
}

/// Encodes a request: length and text of its description in JSON, length and bytes of its header
/// fields, then its body.
pub fn encode(work: &Work, depth: u32) -> Vec<u8> {
    let (description, fields, body) = match work {
        Work::Invoke(deferred) => {
            let head = &deferred.head;
            let mut target = String::from_utf8_lossy(head.path()).into_owned();
            if !head.query().is_empty() {
                target.push('?');
                target.push_str(&String::from_utf8_lossy(head.query()));
            }
            let (callback, callback_fields) = match &deferred.callback {
                Some(callback) => (Some(callback.url.clone()), callback.fields.clone()),
                None => (None, Vec::new()),
            };
            let description = Description {
                method: String::from_utf8_lossy(head.method()).into_owned(),
                target,
                callback,
                callback_fields,
                attempts: Some(deferred.attempts_default),
                url: None,
                topic: None,
                depth,
            };
            (description, head.headers(), &deferred.body)
        }
        Work::Post(post) => {
            let (url, topic) = match &post.to {
                Destination::Url(url) => (Some(url.clone()), None),
                Destination::Topic { topic, connection } => {
                    (None, Some((topic.clone(), connection.clone())))
                }
            };
            let description = Description {
                method: String::new(),
                target: String::new(),
                callback: None,
                callback_fields: Vec::new(),
                attempts: None,
                url,
                topic,
                depth,
            };
            (description, &post.fields[..], &post.body)
        }
    };
    let description = serde_json::to_vec(&description).expect("it has only string keys");
    let mut bytes = Vec::with_capacity(8 + description.len() + fields.len() + body.len());
    for part in [&description[..], fields] {
        bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    bytes.extend_from_slice(body);
    bytes
}

/// Decodes the work and depth that [`encode`] wrote. Returns `None` for other bytes.
pub fn decode(bytes: &Bytes, columns: Columns) -> Option<(Work, u32)> {
    let mut rest = bytes.clone();
    let mut part = || {
        let length = rest.get(..4)?.try_into().ok().map(u32::from_le_bytes)? as usize;
        rest.get(4..)?.get(..length)?;
        let found = rest.slice(4..4 + length);
        rest = rest.slice(4 + length..);
        Some(found)
    };
    let description = part()?;
    let fields = part()?;
    let description: Description = serde_json::from_slice(&description).ok()?;
    let depth = description.depth;
    let url = description.url.map(Destination::Url);
    let topic =
        description.topic.map(|(topic, connection)| Destination::Topic { topic, connection });
    if let Some(to) = url.or(topic) {
        let post = Post { function: columns.function, to, fields, body: rest };
        return Some((Work::Post(post), depth));
    }
    let target = &description.target;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut head = Head::builder(description.method.as_bytes(), path.as_bytes(), query.as_bytes());
    for (name, value) in headers(&fields) {
        head.header(name, value);
    }
    let fields = description.callback_fields;
    let mut deferred =
        Deferred::new(columns.function, Trigger::from_wire(columns.trigger)?, head.finish(), rest);
    deferred.key = columns.key;
    deferred.order = columns.order;
    deferred.due_unix_ms = columns.due_ms;
    deferred.callback = description.callback.map(|url| Callback { url, fields });
    deferred.attempts_default = description.attempts.unwrap_or(deferred.attempts_default);
    Some((Work::Invoke(deferred), depth))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(work: &Work, trigger: u8) -> Columns {
        Columns {
            function: work.function().to_owned(),
            trigger,
            key: work.key().map(str::to_owned),
            order: work.order().map(str::to_owned),
            due_ms: work.due_unix_ms(),
        }
    }

    #[test]
    fn requests_keep_everything() {
        let mut head = Head::builder(b"PUT", b"/a", b"b=c?d");
        head.header(b"x-a", b"\xff");
        let body = Bytes::from_static(b"\0body");
        let mut deferred = Deferred::new("f", Trigger::Mqtt, head.finish(), body.clone());
        deferred.key = Some("key".to_owned());
        deferred.order = Some("order".to_owned());
        deferred.due_unix_ms = 7;
        deferred.attempts_default = 1;
        let fields = vec![("x-call-id".to_owned(), "1".to_owned())];
        deferred.callback = Some(Callback { url: "http://a/".to_owned(), fields });
        let post = Post {
            function: "f".to_owned(),
            to: Destination::Url("https://a/b".to_owned()),
            fields: Bytes::from_static(b"x\ny\n"),
            body,
        };
        let topic = Topic { topic: "a/b".to_owned(), qos: 2, retain: true };
        let connection = Connection { broker: Some("local".to_owned()), ..Connection::default() };
        let publish = Post { to: Destination::Topic { topic, connection }, ..post.clone() };
        let posts = [(Work::Post(post), 0), (Work::Post(publish), 0)];
        for (work, trigger) in std::iter::once((Work::Invoke(deferred), 5)).chain(posts) {
            let bytes = Bytes::from(encode(&work, 3));
            assert_eq!(decode(&bytes, columns(&work, trigger)), Some((work.clone(), 3)));
            for cut in [0, 3, 5, 20] {
                assert_eq!(decode(&bytes.slice(..cut), columns(&work, trigger)), None, "{cut}");
            }
        }
    }
}
