//! A namespace that this node uses: its index, and the task that follows the namespace's stream.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, StatusCode};
use bytes::Bytes;
use futures_util::StreamExt as _;
use mote_core::state::Namespace;
use mote_journal::nats::NatsError;
use mote_process::clock::unix_ms;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::api;
use crate::connection::{Connection, PATIENCE};
use crate::index::{Held, Index, Removed};
use crate::place::Place;
use crate::{keys, streams};

/// The header of a message that says when its entry expires, in milliseconds since 1970.
pub(crate) const EXPIRES: &str = "Mote-Expires";
/// The header of a message that says that its key was removed.
pub(crate) const REMOVED: &str = "Mote-Removed";
/// How long a message with [`REMOVED`] stays, so that every connected node sees it. A node that was
/// not connected reads the whole stream again.
const REMOVED_STAYS_MS: u64 = 120_000;
/// How often the node looks for messages that are due for removal, and how many it removes at a
/// time.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const REMOVED_PER_LOOK: usize = 1_000;
/// How often the server says that there is nothing new. If the server is silent for three times as
/// long, the stream is requested again.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How long the index may lag behind the stream before the stream is read again.
const LAG_PATIENCE: Duration = Duration::from_millis(500);
/// The number of locks for keys. Keys that share a lock sometimes wait for each other without need.
const LOCKS: usize = 64;

/// How far the follower has got.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// How many times the whole stream has been read.
    rounds: u64,
    /// The last sequence number that the index contains.
    reached: u64,
}

#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) stream: String,
    /// The prefix of the subjects of the namespace's keys.
    pub(crate) keys: String,
    pub(crate) cleared: String,
    subjects: String,
    pub(crate) index: Mutex<Index>,
    progress: watch::Sender<Progress>,
    again: Notify,
    /// Changes of one key happen one after another, in the order of their requests.
    locks: Vec<tokio::sync::Mutex<()>>,
    /// Held by a write that must see every other write.
    pub(crate) strict: tokio::sync::Mutex<()>,
    hash: RandomState,
    pub(crate) used: Mutex<Instant>,
}

/// Why the stream must be read again.
type Stale = String;

impl Space {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        Self {
            stream: keys::stream(namespace),
            keys: keys::keys(namespace),
            cleared: keys::cleared(namespace),
            subjects: keys::subjects(namespace),
            index: Mutex::default(),
            progress: watch::Sender::default(),
            again: Notify::new(),
            locks: (0..LOCKS).map(|_| tokio::sync::Mutex::default()).collect(),
            strict: tokio::sync::Mutex::default(),
            hash: RandomState::new(),
            used: Mutex::new(Instant::now()),
        }
    }

    pub(crate) fn subject(&self, key: &str) -> String {
        keys::subject(&self.keys, key)
    }

    pub(crate) fn lock_of(&self, key: &str) -> &tokio::sync::Mutex<()> {
        &self.locks[self.hash.hash_one(key) as usize % LOCKS]
    }

    /// Waits until the stream has been read once.
    pub(crate) async fn opened(
        &self,
        connection: &Connection,
        until: Instant,
    ) -> Result<(), NatsError> {
        self.after_round(0, connection, until).await
    }

    async fn after_round(
        &self,
        round: u64,
        connection: &Connection,
        until: Instant,
    ) -> Result<(), NatsError> {
        let mut progress = self.progress.subscribe();
        let read = timeout_at(until, progress.wait_for(|progress| progress.rounds > round)).await;
        match read {
            Ok(Ok(_)) => Ok(()),
            _ => Err(connection.problem("its stream could not be read in time")),
        }
    }

    /// Makes the follower read the whole stream again, and waits until it has.
    pub(crate) async fn read_again(
        &self,
        connection: &Connection,
        until: Instant,
    ) -> Result<(), NatsError> {
        let round = self.progress.borrow().rounds;
        self.again.notify_one();
        self.after_round(round, connection, until).await
    }

    /// Waits until the index contains everything that the stream holds now. Returns the stream's
    /// last sequence number.
    pub(crate) async fn caught_up(
        &self,
        connection: &Connection,
        until: Instant,
    ) -> Result<u64, NatsError> {
        self.opened(connection, until).await?;
        let subject = format!("STREAM.INFO.{}", self.stream);
        let info = api::call(connection, &subject, &json!({}), until).await;
        let info = info.map_err(|error| error.of_stream(&self.stream))?;
        let last = info["state"]["last_seq"].as_u64().unwrap_or(0);
        let mut progress = self.progress.subscribe();
        let there = progress.wait_for(|progress| progress.reached >= last);
        if timeout(LAG_PATIENCE, there).await.is_err() {
            // The last message may already have been removed. It then never arrives.
            self.read_again(connection, until).await?;
        }
        Ok(last)
    }

    /// Follows the stream until the task is aborted.
    pub(crate) async fn follow(self: Arc<Self>, connection: Connection) {
        let mut pause = Duration::from_millis(10);
        loop {
            let rounds = self.progress.borrow().rounds;
            let stale = self.follow_once(&connection).await;
            if self.progress.borrow().rounds > rounds {
                pause = Duration::from_millis(10);
            } else {
                tracing::debug!("{}: {stale}", self.stream);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
        }
    }

    async fn follow_once(&self, connection: &Connection) -> Stale {
        match self.try_follow(connection).await {
            Ok(never) => match never {},
            Err(stale) => stale,
        }
    }

    async fn try_follow(&self, connection: &Connection) -> Result<std::convert::Infallible, Stale> {
        let until = Instant::now() + PATIENCE;
        let text = |error: NatsError| error.to_string();
        let (client, losses) = connection.client_and_losses(until).await.map_err(text)?;
        let replicas = connection.settings().replicas;
        let subjects = [self.subjects.clone()];
        let config = api::stream_config(&self.stream, &subjects, 1, replicas);
        let ensured = api::ensure_stream(connection, &self.stream, &config, until).await;
        let info = ensured.map_err(|error| text(error.of_stream(&self.stream)))?;
        let last = info["state"]["last_seq"].as_u64().unwrap_or(0);
        let inbox = client.new_inbox();
        let mut messages =
            client.subscribe(inbox.clone()).await.map_err(|error| error.to_string())?;
        let consumer = json!({"stream_name": self.stream, "config": {
            "deliver_subject": inbox,
            "deliver_policy": "all",
            "ack_policy": "none",
            "max_deliver": 1,
            "replay_policy": "instant",
            "flow_control": true,
            "idle_heartbeat": u64::try_from(HEARTBEAT.as_nanos()).unwrap_or(u64::MAX),
            "headers_only": true,
            "mem_storage": true,
            "num_replicas": 1,
        }});
        let subject = format!("CONSUMER.CREATE.{}", self.stream);
        let made = api::call(connection, &subject, &consumer, until).await;
        let made = made.map_err(|error| text(error.of_stream(&self.stream)))?;
        let mut pending = made["num_pending"].as_u64().unwrap_or(0);
        let mut building = Some(Index::default());
        let mut consumed = 0;
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            if pending == 0
                && let Some(mut built) = building.take()
            {
                built.reached = built.reached.max(last);
                let mut index = self.index.lock();
                let older = std::mem::take(&mut *index);
                // A stream that was deleted and made again begins with small sequence numbers, so
                // the older index does not apply to it.
                if older.reached <= built.reached {
                    built.absorb(older);
                }
                let reached = built.reached;
                *index = built;
                drop(index);
                self.progress.send_modify(|progress| {
                    progress.rounds += 1;
                    progress.reached = reached;
                });
            }
            let message = tokio::select! {
                message = timeout(HEARTBEAT * 3, messages.next()) => message,
                () = connection.lost(losses) => return Err("the connection was lost".to_owned()),
                () = self.again.notified() => return Err("it is to be read again".to_owned()),
                _ = look.tick() => {
                    let gone = self.index.lock().take_removed(unix_ms(), REMOVED_PER_LOOK);
                    let connection = connection.clone();
                    let stream = self.stream.clone();
                    tokio::spawn(async move {
                        let until = Instant::now() + PATIENCE;
                        // Messages that could not be removed are removed by another node, or after
                        // the stream is read again.
                        let _ = streams::delete(&connection, &stream, &gone, until).await;
                    });
                    continue;
                }
            };
            let Ok(Some(message)) = message else { return Err("nothing arrives".to_owned()) };
            if message.status.is_some() {
                let last = answer_status(&client, &message).await;
                if last.is_some_and(|last| last != consumed) {
                    return Err("messages are missing".to_owned());
                }
                continue;
            }
            let place = Place::of(&message).ok_or("a message without a place")?;
            if place.consumed != consumed + 1 {
                return Err("messages are missing".to_owned());
            }
            consumed = place.consumed;
            pending = pending.saturating_sub(1);
            match &mut building {
                Some(built) => self.learn(built, &message, place),
                None => {
                    self.learn(&mut self.index.lock(), &message, place);
                    self.progress.send_modify(|progress| progress.reached = place.sequence);
                }
            }
        }
    }

    fn learn(&self, index: &mut Index, message: &Message, place: Place) {
        index.reached = index.reached.max(place.sequence);
        let Some(key) = keys::key(&self.keys, &message.subject) else {
            if message.subject.as_str() == self.cleared {
                index.clear(place.sequence);
            }
            return;
        };
        let number = |name: &str| field(message, name).unwrap_or(0);
        let is_removed = message.headers.as_ref().is_some_and(|all| all.get(REMOVED).is_some());
        let held = Held {
            sequence: place.sequence,
            bytes: key.len() as u64 + number("Nats-Msg-Size"),
            expires_ms: number(EXPIRES),
            is_removed,
            value: None,
        };
        index.learn(&key, held);
        if is_removed {
            index.remove_later(Removed {
                due_ms: place.time_unix_ms + REMOVED_STAYS_MS,
                sequence: place.sequence,
                key,
            });
        }
    }

    /// Records that this node has removed a key.
    pub(crate) fn removed(&self, key: &str, sequence: u64) {
        let mut index = self.index.lock();
        index.learn(key, Held { sequence, is_removed: true, ..Default::default() });
    }
}

/// Answers a status message of the server about the delivery. Returns the number of the consumer's
/// last message, if the status names it.
async fn answer_status(client: &async_nats::Client, message: &Message) -> Option<u64> {
    if message.status != Some(StatusCode::IDLE_HEARTBEAT) {
        return None;
    }
    let headers = message.headers.as_ref();
    let stalled = headers.and_then(|all| all.get("Nats-Consumer-Stalled"));
    let to = message.reply.clone().or_else(|| stalled.map(|to| to.as_str().into()));
    if let Some(to) = to {
        let _ = client.publish(to, Bytes::new()).await;
    }
    field(message, "Nats-Last-Consumer")
}

fn field(message: &Message, name: &str) -> Option<u64> {
    message.headers.as_ref()?.get(name)?.as_str().parse().ok()
}
