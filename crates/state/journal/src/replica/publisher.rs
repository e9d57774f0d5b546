//! The thread that appends the changes of transactions to the log in order, and answers their
//! durable jobs once the log has the changes.
//!
//! The transaction determines the place of each message, and no message is left out or changed
//! later. When the outcome of an append is unknown, the last place of the log tells how many
//! messages arrived. The thread then appends the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use mote_store::StoreError;
use mote_store::commit::{Answer, CommitError};

use super::epoch::{EPOCH, Epoch};
use super::log::{Log, LogError, Message};
use super::rows::RowMessages;
use super::state::ReplicaState;

/// The maximum number of messages in one append. A server accepts at most 1,000.
const APPEND_MESSAGES: usize = 900;
/// The maximum number of bytes in one append.
const APPEND_BYTES: usize = 4 << 20;
/// How long the log may fail before the journal accepts nothing new.
const AWAY_AFTER: Duration = Duration::from_secs(2);
/// The pause before the next try: the first one, and the longest one.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How often an idle node checks that it still owns the log.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long appending the last messages may take while the journal closes.
const CLOSE_GRACE: Duration = Duration::from_secs(3);

/// The changes of a transaction, and the answers to its durable jobs.
#[derive(Default)]
pub(super) struct Batch {
    rows: Vec<RowMessages>,
    pub(super) answers: Vec<Answer>,
}

impl Batch {
    pub(super) fn of(rows: Vec<RowMessages>) -> Self {
        Self { rows, answers: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.answers.is_empty()
    }

    pub(super) fn messages(&self) -> usize {
        self.rows.iter().map(Vec::len).sum()
    }

    pub(super) fn bytes(&self) -> usize {
        self.rows.iter().flatten().map(Message::bytes).sum()
    }
}

/// The thread's handle. Dropping it waits until all batches are appended, but for at most a few
/// seconds.
pub(super) struct Publisher {
    batches: Option<Sender<Batch>>,
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Publisher {
    pub(super) fn start(
        log: Box<dyn Log>,
        epoch: u64,
        place: u64,
        state: Arc<ReplicaState>,
    ) -> Result<Self, StoreError> {
        let (batches, received) = channel();
        let closing = Arc::new(AtomicBool::new(false));
        let appending =
            Appending { log, epoch, place, state, closing: closing.clone(), closing_since: None };
        let thread = std::thread::Builder::new()
            .name("mote-journal-log".to_owned())
            .spawn(move || appending.serve(&received))
            .map_err(|source| StoreError::Io { path: "mote-journal-log".into(), source })?;
        Ok(Self { batches: Some(batches), closing, thread: Some(thread) })
    }

    pub(super) fn thread(&self) -> ThreadId {
        self.thread.as_ref().expect("it runs until this is dropped").thread().id()
    }

    pub(super) fn send(&self, batch: Batch) {
        let Some(batches) = &self.batches else { return };
        if let Err(unsent) = batches.send(batch) {
            let error = Arc::new(StoreError::Damaged("the journal's log has ended".to_owned()));
            for answer in unsent.0.answers {
                answer(Some(&error));
            }
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        drop(self.batches.take());
        self.closing.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

struct Appending {
    log: Box<dyn Log>,
    epoch: u64,
    /// The last place that the log has confirmed.
    place: u64,
    state: Arc<ReplicaState>,
    closing: Arc<AtomicBool>,
    closing_since: Option<Instant>,
}

/// Why no more messages can be appended.
enum End {
    Taken(String),
    Closed(String),
}

impl Appending {
    fn serve(mut self, batches: &Receiver<Batch>) {
        let mut ended: Option<CommitError> = None;
        loop {
            let wait = if self.state.is_away() { PAUSE_MAX } else { LOOK_EVERY };
            let first = match batches.recv_timeout(wait) {
                Ok(first) => first,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    if ended.is_none()
                        && let Err(end) = self.append(&[])
                    {
                        ended = Some(self.end(end));
                    }
                    continue;
                }
            };
            let mut all = vec![first];
            let mut messages = all[0].messages();
            let mut bytes = all[0].bytes();
            while messages < APPEND_MESSAGES
                && bytes < APPEND_BYTES
                && let Ok(next) = batches.try_recv()
            {
                messages += next.messages();
                bytes += next.bytes();
                all.push(next);
            }
            let mut answers = Vec::new();
            let mut rows = Vec::new();
            for batch in all {
                rows.extend(batch.rows);
                answers.extend(batch.answers);
            }
            if ended.is_none()
                && let Err(end) = self.append_rows(rows)
            {
                ended = Some(self.end(end));
            }
            self.state.confirmed(messages, bytes);
            for answer in answers {
                answer(ended.as_ref());
            }
        }
    }

    fn end(&self, end: End) -> CommitError {
        let error = match end {
            End::Taken(owner) => {
                tracing::error!(
                    owner,
                    "another node has taken over this node's journal: this node accepts nothing \
                     for later any more, and runs none of the accepted invocations"
                );
                let _ = self.state.taken.set(owner.clone());
                (self.state.changed)();
                StoreError::TakenOver(owner)
            }
            End::Closed(reason) => {
                tracing::warn!(
                    reason,
                    "the journal was closed before its stream had all of it; invocations whose end \
                     is not in the stream run again"
                );
                StoreError::Away(reason)
            }
        };
        Arc::new(error)
    }

    /// Appends rows in portions that the log accepts. The messages of one row stay in one append.
    fn append_rows(&mut self, rows: Vec<RowMessages>) -> Result<(), End> {
        let mut messages: Vec<Message> = Vec::new();
        let mut bytes = 0;
        for row in rows {
            let row_bytes: usize = row.iter().map(Message::bytes).sum();
            let is_full =
                messages.len() + row.len() > APPEND_MESSAGES || bytes + row_bytes > APPEND_BYTES;
            if is_full && !messages.is_empty() {
                self.append(&messages)?;
                messages.clear();
                bytes = 0;
            }
            bytes += row_bytes;
            messages.extend(row);
        }
        if messages.is_empty() { Ok(()) } else { self.append(&messages) }
    }

    /// Appends messages, and retries until it succeeds. Without messages, checks that this node
    /// still owns the log.
    fn append(&mut self, messages: &[Message]) -> Result<(), End> {
        let began = Instant::now();
        let mut pause = PAUSE;
        let target = self.place + messages.len() as u64;
        let mut failed = match messages {
            [] => None,
            _ => self.log.append(self.place, messages).err(),
        };
        if failed.is_none() && !messages.is_empty() {
            self.place = target;
            self.here();
            return Ok(());
        }
        loop {
            match self.look(target) {
                Ok(None) if self.place == target => {
                    self.here();
                    return Ok(());
                }
                Ok(None) => {
                    let rest = messages.len() - (target - self.place) as usize;
                    match self.log.append(self.place, &messages[rest..]) {
                        Ok(()) => {
                            self.place = target;
                            self.here();
                            return Ok(());
                        }
                        Err(error) => failed = Some(error),
                    }
                }
                Ok(Some(owner)) => return Err(End::Taken(owner)),
                Err(error) => failed = Some(error),
            }
            let reason = failed.as_ref().map(ToString::to_string).unwrap_or_default();
            if began.elapsed() >= AWAY_AFTER || messages.is_empty() {
                self.away(&reason);
            }
            if self.closing.load(Ordering::Acquire) {
                let since = *self.closing_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= CLOSE_GRACE {
                    return Err(End::Closed(reason));
                }
            }
            if messages.is_empty() {
                return Ok(());
            }
            std::thread::park_timeout(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Reads which messages the log already has. Returns the log's owner if that is not this node.
    fn look(&mut self, target: u64) -> Result<Option<String>, LogError> {
        // The order of the two reads matters: if the node still owns the log after the first read,
        // all messages up to `last` are its own.
        let last = self.log.last()?;
        let epoch = self.log.last_of(EPOCH)?;
        let own = epoch.as_ref().is_some_and(|epoch| epoch.place == self.epoch);
        if own && (self.place..=target).contains(&last) {
            self.place = last;
            return Ok(None);
        }
        if own && last > target {
            // The log has more messages than this node has sent.
            return Ok(Some("an unknown writer".to_owned()));
        }
        let parsed = epoch.and_then(|kept| serde_json::from_slice::<Epoch>(&kept.body).ok());
        Ok(Some(match parsed {
            Some(epoch) if !own => epoch.node,
            _ => "nobody: the stream was removed or replaced".to_owned(),
        }))
    }

    fn away(&self, reason: &str) {
        if self.state.refusal().is_none() {
            tracing::warn!(
                reason,
                "the journal's stream cannot be reached: nothing is accepted for later until it can"
            );
        }
        self.state.set_away(reason);
    }

    fn here(&self) {
        if self.state.set_here() {
            tracing::info!("the journal's stream can be reached again");
            (self.state.changed)();
        }
    }
}
