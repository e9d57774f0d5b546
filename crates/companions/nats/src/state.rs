//! The state of functions in JetStream: the implementation of each operation.
//!
//! A namespace is a stream, and a key is a subject of that stream. The stream keeps the last
//! message of each subject. The version of an entry is the sequence number of its message. A change
//! requires that the last message of its subject is still the one on which the decision was based.
//! Nodes therefore need not know each other, and no acknowledged change is lost.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::HeaderMap;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use mote_core::state::{
    Condition, Entry, LIST_BYTES_MAX, LIST_MAX, Namespace, Operation, Outcome, Quota, StateError,
    Usage,
};
use mote_journal::nats::{NatsError, Stored};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::api::{self, StoreError};
use crate::connection::{Connection, Lost};
use crate::index::{Held, Reserved};
use crate::space::{EXPIRES, REMOVED, Space};
use crate::{keys, streams};

/// A namespace that has not been used for this long is no longer followed.
const IDLE: Duration = Duration::from_secs(600);
/// The most expired entries that a change removes in addition to its own work.
const SWEPT_PER_CHANGE: usize = 4;
/// The most expired entries that are removed before a quota counts as used up.
const SWEPT_FOR_QUOTA: usize = 10_000;
/// The most requests of one operation that run at once.
const AT_ONCE: usize = 64;
/// How long to wait before a message is sent again.
const AGAIN_AFTER: Duration = Duration::from_millis(5);
/// The header by which the server recognises a message that it has received before.
const MESSAGE_ID: &str = "Nats-Msg-Id";

#[derive(Clone)]
pub(crate) struct States(Arc<Shared>);

struct Shared {
    connection: Connection,
    spaces: Mutex<HashMap<Namespace, (Arc<Space>, AbortHandle)>>,
    random: RandomState,
    counter: AtomicU64,
}

/// The next step of an operation.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The operation is decided.
    Done(Result<Outcome, StateError>),
    /// The known state is not sufficient, so the server must be asked.
    Look,
    /// Write this value. With `expected`, only if the last message of the key has this sequence
    /// number.
    Write { value: Bytes, expires_ms: u64, expected: Option<u64> },
    /// Remove the key, if its last message has this sequence number.
    Remove { expected: u64 },
}

/// Why a message was not stored.
enum Refusal {
    /// Another change came first.
    OtherLast,
    NoStream,
    Failed(StateError),
}

/// Decides what an operation does if the last message of the key is `held`. `is_sure` means that
/// the server has just confirmed `held`. Otherwise another node may have changed the key.
fn decide(operation: &Operation, held: &Held, is_sure: bool, now_ms: u64) -> Step {
    let if_sure = |result| if is_sure { Step::Done(result) } else { Step::Look };
    let version = held.version(now_ms);
    match operation {
        Operation::Put { value, condition, ttl_ms, .. } => {
            if !condition.holds(version) {
                return if_sure(Err(StateError::Conflict { version }));
            }
            let expires_ms = ttl_ms.map_or(0, |ttl_ms| now_ms.saturating_add(ttl_ms));
            let expected = (*condition != Condition::None).then_some(held.sequence);
            Step::Write { value: value.clone(), expires_ms, expected }
        }
        Operation::Increment { by, ttl_ms, .. } => {
            let number = match (held.lives(now_ms), &held.value) {
                (false, _) => Some(0),
                (true, None) if !is_sure => return Step::Look,
                (true, value) => value.as_ref().and_then(|value| {
                    std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok())
                }),
            };
            let Some(sum) = number.and_then(|number| number.checked_add(*by)) else {
                let text = "the entry holds no whole number of 64 bits, or the sum is none";
                return if_sure(Err(StateError::Invalid(text.to_owned())));
            };
            let kept = if held.lives(now_ms) { held.expires_ms } else { 0 };
            let expires_ms = ttl_ms.map_or(kept, |ttl_ms| now_ms.saturating_add(ttl_ms));
            let value = Bytes::from(sum.to_string());
            let expected = Some(held.sequence);
            Step::Write { value, expires_ms, expected }
        }
        Operation::Delete { condition, .. } => {
            if *condition != Condition::None && !condition.holds(version) {
                return if_sure(Err(StateError::Conflict { version }));
            }
            if version == 0 {
                return if_sure(Ok(Outcome::Deleted(false)));
            }
            Step::Remove { expected: version }
        }
        Operation::Get { .. } | Operation::List { .. } => {
            Step::Done(Err(StateError::Invalid("not a change".to_owned())))
        }
    }
}

fn of_nats(error: NatsError) -> StateError {
    StateError::Disk(error.to_string())
}

/// Reads what a message says about its key.
fn read(key: &str, stored: &Stored) -> Held {
    let field = |name: &str| {
        stored.headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    };
    Held {
        sequence: stored.sequence,
        bytes: (key.len() + stored.body.len()) as u64,
        expires_ms: field(EXPIRES).and_then(|text| text.parse().ok()).unwrap_or(0),
        is_removed: field(REMOVED).is_some(),
        value: None,
    }
    .keeping(&stored.body)
}

fn entry(held: &Held, value: Bytes) -> Entry {
    let expires_unix_ms = (held.expires_ms > 0).then_some(held.expires_ms);
    Entry { value, version: held.sequence, expires_unix_ms }
}

impl States {
    pub(crate) fn new(connection: Connection) -> Self {
        Self(Arc::new(Shared {
            connection,
            spaces: Mutex::default(),
            random: RandomState::new(),
            counter: AtomicU64::new(0),
        }))
    }

    fn space(&self, namespace: &Namespace) -> Arc<Space> {
        let mut spaces = self.0.spaces.lock();
        if let Some((space, _)) = spaces.get(namespace) {
            *space.used.lock() = Instant::now();
            return space.clone();
        }
        spaces.retain(|_, (space, follower)| {
            let is_used = space.used.lock().elapsed() < IDLE;
            if !is_used {
                follower.abort();
            }
            is_used
        });
        let space = Arc::new(Space::new(namespace));
        let follower = tokio::spawn(space.clone().follow(self.0.connection.clone()));
        spaces.insert(namespace.clone(), (space.clone(), follower.abort_handle()));
        space
    }

    pub(crate) async fn apply(
        &self,
        namespace: &Namespace,
        operation: Operation,
        quota: Quota,
        now_ms: u64,
        until: Instant,
    ) -> Result<Outcome, StateError> {
        match operation {
            Operation::Get { key } => self.get(namespace, &key, now_ms, until).await,
            Operation::List { prefix, after, limit, values } => {
                let space = self.space(namespace);
                self.list(&space, &prefix, after.as_deref(), limit, values, now_ms, until).await
            }
            Operation::Put { ref key, .. }
            | Operation::Delete { ref key, .. }
            | Operation::Increment { ref key, .. } => {
                let space = self.space(namespace);
                let Ok(_turn) = timeout_at(until, space.lock_of(key).lock()).await else {
                    return Err(of_nats(self.0.connection.problem("earlier changes take long")));
                };
                self.change(&space, key, &operation, quota, now_ms, until).await
            }
        }
    }

    async fn get(
        &self,
        namespace: &Namespace,
        key: &str,
        now_ms: u64,
        until: Instant,
    ) -> Result<Outcome, StateError> {
        let (stream, subject) =
            (keys::stream(namespace), keys::subject(&keys::keys(namespace), key));
        let stored = match streams::last(&self.0.connection, &stream, &subject, until).await {
            Ok(stored) => stored,
            Err(NatsError::NoStream(_)) => None,
            Err(error) => return Err(of_nats(error)),
        };
        let found = stored.map(|stored| (read(key, &stored), stored.body));
        let living = found.filter(|(held, _)| held.lives(now_ms));
        Ok(Outcome::Entry(living.map(|(held, value)| entry(&held, value))))
    }

    /// Asks the server for the last message of a key.
    async fn look(&self, space: &Space, key: &str, until: Instant) -> Result<Held, StateError> {
        let subject = space.subject(key);
        let stored = streams::last(&self.0.connection, &space.stream, &subject, until).await;
        match stored {
            Ok(Some(stored)) => {
                let held = read(key, &stored);
                space.index.lock().learn(key, held.clone());
                Ok(held)
            }
            Ok(None) => {
                space.index.lock().forget(key);
                Ok(Held::default())
            }
            Err(error) => Err(of_nats(error)),
        }
    }

    async fn change(
        &self,
        space: &Arc<Space>,
        key: &str,
        operation: &Operation,
        quota: Quota,
        now_ms: u64,
        until: Instant,
    ) -> Result<Outcome, StateError> {
        let connection = &self.0.connection;
        space.opened(connection, until).await.map_err(of_nats)?;
        let mut looked = None;
        let mut made_room = false;
        while Instant::now() < until {
            let (held, is_sure) = match looked.take() {
                Some(held) => (held, true),
                None => (space.index.lock().get(key), false),
            };
            let refusal = match decide(operation, &held, is_sure, now_ms) {
                Step::Done(result) => return result,
                Step::Look => {
                    looked = Some(self.look(space, key, until).await?);
                    continue;
                }
                Step::Remove { expected } => {
                    let mut headers = HeaderMap::new();
                    headers.insert(REMOVED, "1");
                    let message = Message {
                        key,
                        headers,
                        body: Bytes::new(),
                        expected: Some(expected),
                        expected_last: None,
                    };
                    match self.store(space, message, until).await {
                        Ok(sequence) => {
                            space.removed(key, sequence);
                            self.sweep(space, now_ms, SWEPT_PER_CHANGE);
                            return Ok(Outcome::Deleted(true));
                        }
                        Err(refusal) => refusal,
                    }
                }
                Step::Write { value, expires_ms, expected } => {
                    let bytes = (key.len() + value.len()) as u64;
                    let reserved = space.index.lock().reserve(key, bytes, quota);
                    let reserved = match reserved {
                        Ok(reserved) => Room { space, reserved },
                        Err(error) if made_room => return Err(error),
                        Err(_) => {
                            // Before the quota counts as used up, expired entries are removed, and
                            // the index learns about keys that other nodes have removed.
                            made_room = true;
                            self.sweep(space, now_ms, SWEPT_FOR_QUOTA);
                            space.caught_up(connection, until).await.map_err(of_nats)?;
                            self.sweep(space, now_ms, SWEPT_FOR_QUOTA);
                            continue;
                        }
                    };
                    let write = Write { key, value: &value, expires_ms, expected };
                    match self.write(space, &write, reserved, quota, until).await {
                        Ok(version) => {
                            self.sweep(space, now_ms, SWEPT_PER_CHANGE);
                            return Ok(match operation {
                                Operation::Increment { .. } => {
                                    let text = std::str::from_utf8(&value).unwrap_or_default();
                                    Outcome::Counted { version, value: text.parse().unwrap_or(0) }
                                }
                                _ => Outcome::Written { version },
                            });
                        }
                        Err(refusal) => refusal,
                    }
                }
            };
            match refusal {
                Refusal::OtherLast => looked = Some(self.look(space, key, until).await?),
                Refusal::NoStream => {
                    space.read_again(connection, until).await.map_err(of_nats)?;
                }
                Refusal::Failed(error) => return Err(error),
            }
        }
        Err(of_nats(connection.problem("other changes of the key are always faster")))
    }

    async fn write(
        &self,
        space: &Arc<Space>,
        write: &Write<'_>,
        room: Room<'_>,
        quota: Quota,
        until: Instant,
    ) -> Result<u64, Refusal> {
        let connection = &self.0.connection;
        let mut headers = HeaderMap::new();
        if write.expires_ms > 0 {
            headers.insert(EXPIRES, write.expires_ms.to_string());
        }
        let key = write.key;
        let value = write.value;
        let body = value.clone();
        let expected = write.expected;
        let message = Message { key, headers, body, expected, expected_last: None };
        let stored = if room.reserved.is_strict {
            let Ok(_turn) = timeout_at(until, space.strict.lock()).await else {
                let error = connection.problem("earlier changes take long");
                return Err(Refusal::Failed(of_nats(error)));
            };
            drop(room);
            let last = space.caught_up(connection, until).await;
            let last = last.map_err(|error| Refusal::Failed(of_nats(error)))?;
            // Room is reserved again, because other nodes may have written meanwhile.
            let bytes = (key.len() + value.len()) as u64;
            let reserved = space.index.lock().reserve(key, bytes, quota);
            let _room = Room { space, reserved: reserved.map_err(Refusal::Failed)? };
            let message = Message { expected_last: Some(last), ..message };
            self.store(space, message, until).await?
        } else {
            self.store(space, message, until).await?
        };
        let held = Held {
            sequence: stored,
            bytes: (key.len() + value.len()) as u64,
            expires_ms: write.expires_ms,
            is_removed: false,
            value: None,
        };
        space.index.lock().learn(key, held.keeping(value));
        Ok(stored)
    }

    /// Stores a message of a key. If the answer is lost, the message is sent again, and the server
    /// recognises it.
    async fn store(
        &self,
        space: &Space,
        message: Message<'_>,
        until: Instant,
    ) -> Result<u64, Refusal> {
        let Message { key, mut headers, body, expected, expected_last } = message;
        let number = self.0.counter.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:016x}", self.0.random.hash_one(number));
        headers.insert(MESSAGE_ID, id.as_str());
        if let Some(expected) = expected {
            headers.insert("Nats-Expected-Last-Subject-Sequence", expected.to_string());
        }
        if let Some(last) = expected_last {
            headers.insert("Nats-Expected-Last-Sequence", last.to_string());
        }
        let connection = &self.0.connection;
        let subject = space.subject(key);
        let mut is_again = false;
        loop {
            let headers = Some(headers.clone());
            let body = body.clone();
            let stored = api::store(connection, subject.clone(), headers, body, until).await;
            match stored {
                Ok(sequence) => return Ok(sequence),
                Err(StoreError::NoStream) => return Err(Refusal::NoStream),
                Err(StoreError::Unknown(text)) => {
                    if Instant::now() >= until {
                        let error = api::no_answer(connection, Lost::Unknown(text));
                        return Err(Refusal::Failed(of_nats(error)));
                    }
                    is_again = true;
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
                Err(StoreError::Api(error)) => {
                    return match error.of_stream(&space.stream) {
                        NatsError::OtherLast if is_again => {
                            // The last message may be this message, which was stored by the first
                            // attempt.
                            let last =
                                streams::last(connection, &space.stream, &subject, until).await;
                            let last = last.map_err(|error| Refusal::Failed(of_nats(error)))?;
                            let is_own = |stored: &Stored| {
                                stored.headers.iter().any(|(n, v)| n == MESSAGE_ID && *v == id)
                            };
                            match last.filter(is_own) {
                                Some(stored) => Ok(stored.sequence),
                                // Another change may have followed this message. It is therefore
                                // not tried again, because an increment would count twice.
                                None => Err(Refusal::Failed(of_nats(connection.unreachable(
                                    "its answer was lost, and the change may have happened",
                                )))),
                            }
                        }
                        NatsError::OtherLast => Err(Refusal::OtherLast),
                        error => Err(Refusal::Failed(of_nats(error))),
                    };
                }
            }
        }
    }

    /// Removes expired entries without waiting for the server.
    fn sweep(&self, space: &Arc<Space>, now_ms: u64, most: usize) {
        let gone = space.index.lock().take_expired(now_ms, most);
        if gone.is_empty() {
            return;
        }
        let connection = self.0.connection.clone();
        let stream = space.stream.clone();
        tokio::spawn(async move {
            for some in gone.chunks(AT_ONCE) {
                let until = Instant::now() + crate::connection::PATIENCE;
                // Entries that could not be removed are found again when the stream is next read.
                let _ = streams::delete(&connection, &stream, some, until).await;
            }
        });
    }

    #[allow(clippy::too_many_arguments, reason = "those of the operation, and when it is over")]
    async fn list(
        &self,
        space: &Arc<Space>,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
        values: bool,
        now_ms: u64,
        until: Instant,
    ) -> Result<Outcome, StateError> {
        let connection = &self.0.connection;
        space.caught_up(connection, until).await.map_err(of_nats)?;
        let limit = match limit {
            0 => LIST_MAX,
            limit => limit.min(LIST_MAX),
        } as usize;
        let mut found = Vec::new();
        let mut bytes = 0;
        let mut more = false;
        for (key, held) in space.index.lock().list(prefix, after, now_ms) {
            bytes += if values { held.bytes as usize } else { key.len() };
            if found.len() == limit || (bytes > LIST_BYTES_MAX && !found.is_empty()) {
                more = true;
                break;
            }
            found.push((key.clone(), held.clone()));
        }
        if !values {
            let listed = found.into_iter().map(|(key, held)| (key, entry(&held, Bytes::new())));
            return Ok(Outcome::Listed { entries: listed.collect(), more });
        }
        let read_one = |(key, _): (String, Held)| async move {
            let subject = space.subject(&key);
            let stored = streams::last(connection, &space.stream, &subject, until).await?;
            let living = stored
                .map(|stored| (read(&key, &stored), stored.body))
                .filter(|(held, _)| held.lives(now_ms));
            Ok(living.map(|(held, value)| (key, entry(&held, value))))
        };
        let read_all = stream::iter(found).map(read_one).buffered(AT_ONCE);
        let read_all = read_all.collect::<Vec<Result<_, NatsError>>>().await;
        let mut entries = Vec::new();
        for one in read_all {
            entries.extend(one.map_err(of_nats)?);
        }
        Ok(Outcome::Listed { entries, more })
    }

    /// The number of keys and bytes in each namespace, ordered by name.
    pub(crate) async fn usage(&self, until: Instant) -> Result<Vec<Usage>, NatsError> {
        let connection = &self.0.connection;
        let mut namespaces = Vec::new();
        loop {
            let document = json!({"offset": namespaces.len(), "subject": "mote.kv.>"});
            let page = api::call(connection, "STREAM.NAMES", &document, until).await;
            let page = page.map_err(|error| error.of_stream("names"))?;
            let names = page["streams"].as_array().map(Vec::as_slice).unwrap_or_default();
            namespaces.extend(names.iter().filter_map(|name| name.as_str()).map(str::to_owned));
            if names.is_empty() || namespaces.len() as u64 >= page["total"].as_u64().unwrap_or(0) {
                break;
            }
        }
        namespaces.sort();
        let namespaces: Vec<_> =
            namespaces.iter().filter_map(|name| keys::namespace(name)).collect();
        let read_one = |namespace: Namespace| async move {
            let space = self.space(&namespace);
            space.caught_up(connection, until).await?;
            let (keys, bytes) = space.index.lock().usage();
            Ok(Usage { namespace, keys, bytes })
        };
        let read_all = stream::iter(namespaces).map(read_one).buffered(AT_ONCE / 8);
        let read_all = read_all.collect::<Vec<Result<Usage, NatsError>>>().await;
        let read_all = read_all.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(read_all.into_iter().filter(|usage| usage.keys > 0).collect())
    }

    /// Removes everything from a namespace. The stream stays, so that no version number is ever
    /// used again.
    pub(crate) async fn clear(
        &self,
        namespace: &Namespace,
        until: Instant,
    ) -> Result<(), NatsError> {
        let connection = &self.0.connection;
        let space = self.space(namespace);
        space.opened(connection, until).await?;
        let cleared = space.cleared.clone();
        let stored = api::store(connection, cleared, None, Bytes::new(), until).await;
        let sequence = stored.map_err(|error| match error {
            StoreError::NoStream => NatsError::NoStream(space.stream.clone()),
            StoreError::Unknown(text) => api::no_answer(connection, Lost::Unknown(text)),
            StoreError::Api(error) => error.of_stream(&space.stream),
        })?;
        let subject = format!("STREAM.PURGE.{}", space.stream);
        let purged = api::call(connection, &subject, &json!({"seq": sequence}), until).await;
        purged.map_err(|error| error.of_stream(&space.stream))?;
        space.index.lock().clear(sequence);
        Ok(())
    }
}

/// A message of a key.
struct Message<'a> {
    key: &'a str,
    headers: HeaderMap,
    body: Bytes,
    /// The required sequence number of the key's last message.
    expected: Option<u64>,
    /// The required last sequence number of the stream.
    expected_last: Option<u64>,
}

struct Write<'a> {
    key: &'a str,
    value: &'a Bytes,
    expires_ms: u64,
    expected: Option<u64>,
}

/// Room in a namespace's quota. It is given back when this value is dropped.
struct Room<'a> {
    space: &'a Space,
    reserved: Reserved,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.space.index.lock().release(self.reserved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(sequence: u64, value: Option<&'static str>) -> Held {
        Held { sequence, value: value.map(Bytes::from), ..Default::default() }
    }

    #[test]
    fn what_may_be_stale_is_looked_at_before_it_is_refused() {
        let put = |condition| Operation::Put {
            key: "k".into(),
            value: Bytes::new(),
            condition,
            ttl_ms: None,
        };
        let conflict = |version| Step::Done(Err(StateError::Conflict { version }));
        let absent = put(Condition::Absent);
        assert_eq!(decide(&absent, &held(4, None), false, 0), Step::Look);
        assert_eq!(decide(&absent, &held(4, None), true, 0), conflict(4));
        let write = |expected| Step::Write { value: Bytes::new(), expires_ms: 0, expected };
        // A key that was removed or that has expired still has a last message.
        let removed = Held { is_removed: true, ..held(4, None) };
        assert_eq!(decide(&absent, &removed, false, 0), write(Some(4)));
        let ended = Held { expires_ms: 5, ..held(4, None) };
        assert_eq!(decide(&absent, &ended, false, 5), write(Some(4)));
        assert_eq!(decide(&put(Condition::Version(4)), &ended, true, 5), conflict(0));
        assert_eq!(decide(&put(Condition::None), &held(4, None), false, 0), write(None));
        let delete = Operation::Delete { key: "k".into(), condition: Condition::None };
        assert_eq!(decide(&delete, &removed, false, 0), Step::Look);
        assert_eq!(decide(&delete, &removed, true, 0), Step::Done(Ok(Outcome::Deleted(false))));
        assert_eq!(decide(&delete, &held(4, None), false, 0), Step::Remove { expected: 4 });
    }

    #[test]
    fn an_increment_needs_a_number_that_is_known() {
        let add = Operation::Increment { key: "k".into(), by: 2, ttl_ms: None };
        assert_eq!(decide(&add, &held(4, None), false, 0), Step::Look);
        let sum = |text: &'static str, expected| Step::Write {
            value: text.into(),
            expires_ms: 0,
            expected: Some(expected),
        };
        assert_eq!(decide(&add, &held(4, Some("40")), false, 0), sum("42", 4));
        assert_eq!(decide(&add, &held(0, None), false, 0), sum("2", 0));
        assert_eq!(decide(&add, &held(4, Some("x")), false, 0), Step::Look);
        let refused = decide(&add, &held(4, Some("x")), true, 0);
        assert!(matches!(refused, Step::Done(Err(StateError::Invalid(_)))), "{refused:?}");
    }
}
