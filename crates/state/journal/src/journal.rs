//! The journal of a node: accepts invocations, answers questions about them, and hands them to the
//! runner. The file is opened at its first use.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use mote_core::InvocationId;
use mote_core::accept::{Accept, AcceptError, AcceptFuture, Accepted, Deferred, SCHEDULE_KEYS};
use mote_core::invocation::Trigger;
use mote_core::publish::Publish;
use mote_outgoing::Outgoing;
use mote_store::StoreError;
use mote_store::commit::CommitError;
use parking_lot::Mutex;
use tokio::sync::{Notify, OnceCell, oneshot};

use crate::pending::{Entry, Number, Pending, RESULTS};
use crate::record::{NewRecord, ScheduleRun, State, Stored, Waiting, Work};
use crate::records::{Bounds, Records, unix_ms};
use crate::replica::{Replica, ReplicaState, Replication};
use crate::room::Room;

/// The most bytes of waiting requests that stay in memory. The runner reads the other requests from
/// the disk again.
const CACHED_BYTES_MAX: u64 = 16 << 20;
/// The most invocations that run at once, over all functions.
pub(crate) const RUNNING_MAX: usize = 128;
/// The most invocations of one function that run at once.
pub(crate) const RUNNING_OF_ONE_MAX: usize = 64;
/// The maximum number of ended invocations that can be looked up: without an idempotency key, and
/// with one.
const KEPT_MAX: u64 = 10_000;
const KEYED_MAX: u64 = 100_000;
/// After this many new watchers of an invocation, the journal removes those that no longer wait.
const WATCHERS_STEP: usize = 64;
/// How long the state and the answer of an ended invocation can be looked up.
const KEEP_MS: u64 = 24 * 3_600_000;
/// The most bytes of the answers of ended invocations. The same limit holds separately for the
/// requests of dead letters.
const KEPT_BYTES_MAX: u64 = 256 << 20;
/// How long dead letters are kept.
const DEAD_KEEP_MS: u64 = 30 * 24 * 3_600_000;
/// Longest idempotency key and longest order key in bytes.
const KEY_BYTES_MAX: usize = 255;
/// How far ahead the time of an accepted invocation may lie.
pub(crate) const DELAY_MS_MAX: u64 = 366 * 24 * 3_600_000;

/// The journal of a node. Cheap to clone; there is one per node.
#[derive(Clone)]
pub struct Journal(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    path: PathBuf,
    /// Where results may be sent.
    pub(crate) outgoing: Outgoing,
    /// Publishes results. Set once, before the first invocation runs.
    pub(crate) publish: OnceLock<Arc<dyn Publish>>,
    records: OnceCell<Arc<Records>>,
    /// The log that keeps the records, if they are not only in the file.
    pub(crate) replica: Option<Replica>,
    pub(crate) state: Mutex<Memory>,
    /// Wakes the runner.
    pub(crate) changed: Arc<Notify>,
    began: Instant,
}

/// The part of the journal that stays in memory.
pub(crate) struct Memory {
    pub(crate) pending: Pending<Data>,
    by_id: HashMap<InvocationId, Number>,
    /// The running records. Each has the sender that ends its attempt; the sender is `None` after a
    /// cancellation.
    pub(crate) running: HashMap<Number, Option<oneshot::Sender<()>>>,
    /// Notified when a record has ended.
    watching: HashMap<InvocationId, Vec<oneshot::Sender<()>>>,
    pub(crate) room: Room,
    cached_bytes: u64,
    /// Bytes of answers that were added since the runner last asked.
    pub(crate) grown_bytes: u64,
    stopping: bool,
    /// Counts of past events since the node started. Present invocations are counted elsewhere.
    pub(crate) past: Figures,
}

/// A record that waits or runs.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) id: InvocationId,
    /// The function, or its share for results, under which the record is counted.
    pub(crate) owner: Arc<str>,
    /// The record's work and depth, while they are in memory.
    work: Option<(Work, u32)>,
    bytes: u64,
    /// The time from which the record's age is counted, in milliseconds since 1970.
    pub(crate) since_ms: u64,
    pub(crate) attempts: u32,
    pub(crate) roomless: u32,
}

/// The state of an invocation.
#[derive(Debug)]
pub struct Shown {
    /// The stored part of the state.
    pub stored: Stored,
    /// Whether the invocation runs now.
    pub is_running: bool,
}

/// The result of a request to cancel an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The invocation was waiting, and will never run.
    Waiting,
    /// The invocation was running, and is being ended.
    Running,
    /// The invocation had already ended.
    Ended,
    /// There is no such invocation.
    Unknown,
}

/// Counts of the invocations in the journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Invocations that have not ended.
    pub waiting: usize,
    /// The invocations among `waiting` that are running.
    pub running: usize,
    /// Invocations that have succeeded since the node started.
    pub succeeded: u64,
    /// Invocations that have failed for good since the node started.
    pub dead: u64,
    /// Attempts since the node started that were followed by another attempt.
    pub repeated: u64,
}

impl Figures {
    /// Adds the counts of past events from another journal.
    pub(crate) fn add_past(&mut self, other: &Figures) {
        self.succeeded += other.succeeded;
        self.dead += other.dead;
        self.repeated += other.repeated;
    }
}

impl Journal {
    /// The journal with its file at `path`. Nothing is opened or written yet.
    pub fn new(path: PathBuf, outgoing: Outgoing) -> Self {
        Self::with_log(path, outgoing, None)
    }

    /// Creates a journal whose records a log keeps. [`Journal::take_up`] opens it, and the journal
    /// accepts nothing before that.
    pub fn replicated(path: PathBuf, outgoing: Outgoing, replication: Replication) -> Self {
        Self::with_log(path, outgoing, Some(replication))
    }

    fn with_log(path: PathBuf, outgoing: Outgoing, replication: Option<Replication>) -> Self {
        let changed = Arc::new(Notify::new());
        let replica = replication.map(|replication| {
            let woken = changed.clone();
            let starting = "the node has not reached the stream yet".to_owned();
            Replica {
                replication: Arc::new(replication),
                state: Arc::new(ReplicaState::new(move || woken.notify_one())),
                closed: Mutex::new(AcceptError::Away(starting)),
                opened: OnceLock::new(),
            }
        });
        let memory = Memory {
            pending: Pending::new(RUNNING_MAX),
            by_id: HashMap::new(),
            running: HashMap::new(),
            watching: HashMap::new(),
            room: Room::default(),
            cached_bytes: 0,
            grown_bytes: 0,
            stopping: false,
            past: Figures::default(),
        };
        Self(Arc::new(Shared {
            path,
            outgoing,
            publish: OnceLock::new(),
            records: OnceCell::new(),
            replica,
            state: Mutex::new(memory),
            changed,
            began: Instant::now(),
        }))
    }

    /// Sets the publisher of results. Without one, results for topics become dead letters.
    pub fn set_publish(&self, publish: Arc<dyn Publish>) {
        let _ = self.0.publish.set(publish);
    }

    /// Opens the file if an earlier run of the node left one, so that the invocations in it run.
    /// Returns the number of those invocations.
    ///
    /// A journal with a log is always opened. If opening fails, the journal keeps trying in the
    /// background until it succeeds or is stopped.
    pub async fn take_up(&self) -> Result<usize, AcceptError> {
        if let Some(replica) = &self.0.replica {
            if let Err(error) = self.open().await {
                *replica.closed.lock() = error.clone();
                tokio::spawn(self.clone().keep_opening());
                return Err(error);
            }
        } else if !self.0.path.exists() {
            return Ok(0);
        }
        self.records().await?;
        Ok(self.0.state.lock().pending.len())
    }

    /// Returns the open file. If no log keeps the records, opens the file first if necessary.
    pub(crate) async fn records(&self) -> Result<Arc<Records>, AcceptError> {
        let Some(replica) = &self.0.replica else { return self.open().await };
        match self.opened() {
            Some(records) => Ok(records.clone()),
            None => Err(replica.closed.lock().clone()),
        }
    }

    pub(crate) async fn open(&self) -> Result<Arc<Records>, AcceptError> {
        let open = async {
            let path = self.0.path.clone();
            let log = self.0.replica.as_ref();
            let log = log.map(|replica| (replica.replication.clone(), replica.state.clone()));
            let opened = tokio::task::spawn_blocking(move || match log {
                Some((replication, state)) => Records::replicated(&path, &replication, &state),
                None => Records::open(&path),
            });
            let opened = opened.await.map_err(|error| AcceptError::Disk(error.to_string()))?;
            let records = Arc::new(opened.map_err(|error| disk(&Arc::new(error)))?);
            if let Some(replica) = &self.0.replica {
                let _ = replica.opened.set(Instant::now());
            }
            let waiting = records.waiting().await.map_err(|error| disk(&error))?;
            let mut memory = self.0.state.lock();
            for record in waiting {
                memory.room.take(&record.function, record.bytes);
                self.add(&mut memory, record, None);
            }
            drop(memory);
            self.0.changed.notify_one();
            Ok(records)
        };
        self.0.records.get_or_try_init(|| open).await.cloned()
    }

    pub(crate) fn opened(&self) -> Option<&Arc<Records>> {
        self.0.records.get()
    }

    /// Milliseconds on the clock that the timers use.
    pub(crate) fn now_ms(&self) -> u64 {
        self.0.began.elapsed().as_millis() as u64
    }

    /// Adds a record that is on disk to the memory.
    fn add(&self, memory: &mut Memory, record: Waiting, work: Option<(Work, u32)>) {
        let Waiting { number, id, function, order, due_ms, since_ms, attempts, bytes, .. } = record;
        let owner: Arc<str> = function.into();
        // Requests that carry results have their own shares, so that a host that does not answer
        // delays neither the function nor the results for other hosts.
        let function = match &work {
            _ if !record.is_post => owner.clone(),
            Some((Work::Post(post), _)) => {
                let host = post.host().unwrap_or_default();
                // The dots become slashes, because a dot would begin the name of a namespace.
                format!("{owner}{RESULTS} {}", host.replace('.', "/")).into()
            }
            _ => format!("{owner}{RESULTS}").into(),
        };
        let work =
            work.filter(|(work, _)| memory.cached_bytes + work.bytes() as u64 <= CACHED_BYTES_MAX);
        memory.cached_bytes += work.as_ref().map_or(0, |(work, _)| work.bytes() as u64);
        memory.by_id.insert(id, number);
        let wait_ms = due_ms.saturating_sub(unix_ms());
        let data = Data { id, owner, work, bytes, since_ms, attempts, roomless: 0 };
        let due_ms = if wait_ms == 0 { 0 } else { self.now_ms() + wait_ms };
        memory.pending.add(number, Entry { function, order: order.map(Into::into), due_ms, data });
    }

    /// Queues a record for the disk. `done` receives the outcome on another thread.
    pub(crate) fn insert(
        &self,
        records: &Records,
        record: NewRecord,
        done: impl FnOnce(Result<Accepted, AcceptError>) + Send + 'static,
    ) {
        let journal = self.clone();
        let kept = record.clone();
        records.insert(record, move |inserted| {
            let bytes = kept.work.bytes() as u64;
            let mut memory = journal.0.state.lock();
            let outcome = match inserted {
                Ok(inserted) => {
                    if inserted.is_new {
                        journal.add_new(&mut memory, inserted.number, kept);
                    } else {
                        memory.room.release(kept.work.function(), bytes);
                    }
                    if inserted.differs {
                        let text = "the idempotency key was used for another request";
                        Err(AcceptError::Invalid(text.to_owned()))
                    } else {
                        Ok(Accepted { id: inserted.id, is_new: inserted.is_new })
                    }
                }
                Err(error) => {
                    memory.room.release(kept.work.function(), bytes);
                    Err(disk(&error))
                }
            };
            drop(memory);
            journal.0.changed.notify_one();
            done(outcome);
        });
    }

    /// Adds a record that was just written. Its room was reserved before.
    pub(crate) fn add_new(&self, memory: &mut Memory, number: Number, record: NewRecord) {
        let waiting = Waiting {
            number,
            id: record.id,
            function: record.work.function().to_owned(),
            order: record.work.order().map(str::to_owned),
            due_ms: record.work.due_unix_ms(),
            since_ms: record.accepted_ms.max(record.work.due_unix_ms()),
            attempts: 0,
            bytes: record.work.bytes() as u64,
            is_post: matches!(record.work, Work::Post(_)),
        };
        self.add(memory, waiting, Some((record.work, record.depth)));
    }

    /// Returns the work of a record that is about to run, or `None` if it cannot be read.
    pub(crate) async fn work_of(&self, number: Number) -> Option<(Work, u32)> {
        let cached = {
            let mut memory = self.0.state.lock();
            let work = memory.pending.get_mut(number)?.data.work.take();
            memory.cached_bytes -= work.as_ref().map_or(0, |(work, _)| work.bytes() as u64);
            work
        };
        if cached.is_some() {
            return cached;
        }
        match self.opened()?.work(number).await {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(number, %error, "cannot read an accepted invocation");
                None
            }
        }
    }

    /// Removes an ended record from memory, and notifies its watchers.
    pub(crate) fn ended_now(&self, memory: &mut Memory, number: Number, ran: bool) {
        let Some(entry) = memory.pending.remove(number, ran) else { return };
        let data = entry.data;
        memory.cached_bytes -= data.work.as_ref().map_or(0, |(work, _)| work.bytes() as u64);
        memory.running.remove(&number);
        memory.by_id.remove(&data.id);
        memory.room.release(&data.owner, data.bytes);
        for watcher in memory.watching.remove(&data.id).unwrap_or_default() {
            let _ = watcher.send(());
        }
    }

    /// Returns an invocation, with its answer if it has ended, or `None` if the journal does not
    /// know it.
    pub async fn show(&self, id: InvocationId) -> Result<Option<Shown>, AcceptError> {
        let Some(records) = self.existing().await? else { return Ok(None) };
        let stored = records.show(id).await.map_err(|error| disk(&error))?;
        Ok(stored.map(|stored| self.shown(stored)))
    }

    /// Returns invocations without their answers, newest first. Filters: some functions or all, one
    /// state or any, accepted before `before`. With `by_id`, they are in the order that several
    /// journals share.
    pub async fn list(
        &self,
        functions: Option<Vec<String>>,
        state: Option<State>,
        before: Option<InvocationId>,
        limit: usize,
        by_id: bool,
    ) -> Result<Vec<Shown>, AcceptError> {
        let Some(records) = self.existing().await? else { return Ok(Vec::new()) };
        let listed = records.list(functions, state, before, limit, by_id);
        let listed = listed.await.map_err(|error| disk(&error))?;
        Ok(listed.into_iter().map(|stored| self.shown(stored)).collect())
    }

    fn shown(&self, stored: Stored) -> Shown {
        let is_running = stored.state == State::Waiting
            && self.0.state.lock().running.contains_key(&stored.number);
        Shown { stored, is_running }
    }

    /// Cancels an invocation. If the invocation is running, it is ended; the effects that it has
    /// had by then remain.
    pub async fn cancel(&self, id: InvocationId) -> Result<Cancelled, AcceptError> {
        let Some(records) = self.existing().await? else { return Ok(Cancelled::Unknown) };
        let waiting = {
            let mut memory = self.0.state.lock();
            match memory.by_id.get(&id).copied() {
                None => None,
                Some(number) => match memory.running.get_mut(&number) {
                    // The entry stays until the attempt has ended, because the attempt still
                    // occupies a place.
                    Some(end) => {
                        if let Some(end) = end.take() {
                            let _ = end.send(());
                        }
                        return Ok(Cancelled::Running);
                    }
                    None => Some(number),
                },
            }
        };
        let Some(number) = waiting else {
            let known = records.show(id).await.map_err(|error| disk(&error))?;
            return Ok(if known.is_some() { Cancelled::Ended } else { Cancelled::Unknown });
        };
        let settled = crate::records::Settled {
            number,
            state: State::Cancelled,
            last: None,
            following: Vec::new(),
        };
        let (answer, answered) = oneshot::channel();
        let journal = self.clone();
        // From now on, the invocation must not start, even if the note of the cancellation never
        // reaches the disk.
        self.ended_now(&mut self.0.state.lock(), number, false);
        records.settle(settled, move |done| {
            journal.0.changed.notify_one();
            let _ = answer.send(done.map(|_| ()));
        });
        match answered.await {
            Ok(Ok(())) => Ok(Cancelled::Waiting),
            Ok(Err(error)) => Err(disk(&error)),
            Err(_) => Err(AcceptError::Stopping),
        }
    }

    /// Runs a dead letter again, with all its attempts. Returns false if there is no such dead
    /// letter.
    pub async fn retry(&self, id: InvocationId) -> Result<bool, AcceptError> {
        let Some(records) = self.existing().await? else { return Ok(false) };
        let known = records.show(id).await.map_err(|error| disk(&error))?;
        let Some(known) = known else { return Ok(false) };
        self.0.state.lock().room.check_again(&known.function)?;
        let revive = async { records.revive(id, unix_ms()).await.map_err(|error| disk(&error)) };
        let revived = self.confirmed(revive).await?;
        let Some(waiting) = revived else { return Ok(false) };
        let mut memory = self.0.state.lock();
        memory.room.take(&waiting.function, waiting.bytes);
        self.add(&mut memory, waiting, None);
        drop(memory);
        self.0.changed.notify_one();
        Ok(true)
    }

    /// Removes one dead letter, all dead letters of a function, or all of them. Returns how many it
    /// removed.
    pub async fn delete_dead(
        &self,
        id: Option<InvocationId>,
        function: Option<&str>,
    ) -> Result<usize, AcceptError> {
        let Some(records) = self.existing().await? else { return Ok(0) };
        let function = function.map(str::to_owned);
        let deleted =
            async { records.delete_dead(id, function).await.map_err(|error| disk(&error)) };
        self.confirmed(deleted).await
    }

    /// Returns the file if it exists, and does not create it.
    pub(crate) async fn existing(&self) -> Result<Option<Arc<Records>>, AcceptError> {
        if self.0.replica.is_none() && self.opened().is_none() && !self.0.path.exists() {
            return Ok(None);
        }
        self.records().await.map(Some)
    }

    /// Returns what the journal knows about the schedules of a function. A schedule is missing if
    /// the journal has never accepted a run of it.
    pub async fn schedule_runs(&self, function: &str) -> Result<Vec<ScheduleRun>, AcceptError> {
        let Some(records) = self.existing().await? else { return Ok(Vec::new()) };
        records.schedule_runs(function.to_owned()).await.map_err(|error| disk(&error))
    }

    /// Whether the journal knows no invocation at all, ended ones included.
    pub(crate) async fn is_empty(&self) -> Result<bool, AcceptError> {
        let Some(records) = self.existing().await? else { return Ok(true) };
        records.is_empty().await.map_err(|error| disk(&error))
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path.clone()
    }

    pub(crate) fn outgoing(&self) -> Outgoing {
        self.0.outgoing.clone()
    }

    /// Whether an invocation waits or runs here.
    pub(crate) fn has_not_ended(&self, id: InvocationId) -> bool {
        self.0.state.lock().by_id.contains_key(&id)
    }

    /// Returns the number of a running invocation, and the file.
    pub(crate) fn running(&self, id: InvocationId) -> Option<(Number, Arc<Records>)> {
        let memory = self.0.state.lock();
        let number = *memory.by_id.get(&id)?;
        memory.running.get(&number)?.as_ref()?;
        Some((number, self.opened()?.clone()))
    }

    /// Counts further bytes for a record that has not ended. Fails if the function or its namespace
    /// has used up its share.
    pub(crate) fn grow(&self, number: Number, bytes: u64) -> Result<(), AcceptError> {
        let mut memory = self.0.state.lock();
        let Some(owner) = memory.pending.get_mut(number).map(|entry| entry.data.owner.clone())
        else {
            return Ok(());
        };
        memory.room.grow(&owner, bytes)?;
        if let Some(entry) = memory.pending.get_mut(number) {
            entry.data.bytes += bytes;
        }
        Ok(())
    }

    pub fn figures(&self) -> Figures {
        let memory = self.0.state.lock();
        let waiting = memory.pending.len();
        let running = memory.running.len();
        Figures { waiting, running, ..memory.past }
    }

    /// Makes the journal refuse all invocations from now on.
    pub fn stop(&self) {
        self.0.state.lock().stopping = true;
        self.0.changed.notify_one();
    }

    /// Whether a running record has been cancelled.
    pub(crate) fn is_cancelled(&self, number: Number) -> bool {
        self.0.state.lock().running.get(&number).is_some_and(Option::is_none)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.0.state.lock().stopping
    }

    /// Removes ended records whose time to be kept is over.
    pub(crate) async fn sweep(&self, by_bytes: bool) {
        let Some(records) = self.opened() else { return };
        let now_ms = unix_ms();
        let bounds = Bounds {
            records: KEPT_MAX,
            keyed: KEYED_MAX,
            bytes: by_bytes.then_some(KEPT_BYTES_MAX),
            ended_before_ms: now_ms.saturating_sub(KEEP_MS),
            dead_before_ms: now_ms.saturating_sub(DEAD_KEEP_MS),
        };
        match records.sweep(bounds).await {
            Ok(0) => {}
            Ok(dead) => tracing::warn!(
                dead,
                "the oldest dead letters were removed, because there are more than {KEPT_MAX} or \
                 they were 30 days old"
            ),
            Err(error) => tracing::error!(%error, "cannot remove old records of the journal"),
        }
    }

    /// Keeps a record of work that another part of the node runs. The record is on disk when the
    /// future resolves to its number.
    pub async fn keep_activation(&self, record: Vec<u8>) -> Result<u64, AcceptError> {
        let records = self.records().await?;
        let kept = async { records.keep_activation(record).await.map_err(|error| disk(&error)) };
        self.confirmed(kept).await
    }

    /// Returns a record that [`Journal::keep_activation`] kept.
    pub async fn activation(&self, number: u64) -> Result<Option<Vec<u8>>, AcceptError> {
        let Some(records) = self.existing().await? else { return Ok(None) };
        records.activation(number).await.map_err(|error| disk(&error))
    }

    /// Notes the progress of the work behind a record of [`Journal::keep_activation`]. The note is
    /// on disk when the future resolves.
    pub async fn note_progress(&self, number: u64, progress: Vec<u8>) -> Result<(), AcceptError> {
        let Some(records) = self.existing().await? else { return Ok(()) };
        records.note_progress(number, progress).await.map_err(|error| disk(&error))
    }

    /// Returns the last progress noted for a record of [`Journal::keep_activation`].
    pub async fn progress(&self, number: u64) -> Result<Option<Vec<u8>>, AcceptError> {
        let Some(records) = self.existing().await? else { return Ok(None) };
        records.progress(number).await.map_err(|error| disk(&error))
    }

    /// Removes a record of [`Journal::keep_activation`].
    pub async fn forget_activation(&self, number: u64) -> Result<(), AcceptError> {
        let Some(records) = self.existing().await? else { return Ok(()) };
        records.forget_activation(number).await.map_err(|error| disk(&error))
    }

    /// Returns the number and the length in bytes of each record of [`Journal::keep_activation`],
    /// oldest first.
    pub async fn activations(&self) -> Result<Vec<(u64, u64)>, AcceptError> {
        let Some(records) = self.existing().await? else { return Ok(Vec::new()) };
        records.activations().await.map_err(|error| disk(&error))
    }
}

impl Accept for Journal {
    fn accept(&self, deferred: Deferred) -> AcceptFuture {
        let journal = self.clone();
        Box::pin(async move {
            check(&deferred)?;
            let records = journal.records().await?;
            let accepted_ms = unix_ms();
            let id = new_id(accepted_ms);
            if let Some(replica) = &journal.0.replica
                && let Some(refusal) = replica.state.refusal()
            {
                return Err(disk(&Arc::new(refusal)));
            }
            let work = Work::Invoke(deferred);
            let is_schedule = matches!(&work, Work::Invoke(d) if d.trigger == Trigger::Schedule);
            {
                let mut memory = journal.0.state.lock();
                if memory.stopping {
                    return Err(AcceptError::Stopping);
                }
                memory.room.reserve(work.function(), work.bytes() as u64, is_schedule)?;
            }
            let (answer, answered) = oneshot::channel();
            let record = NewRecord { id, work, accepted_ms, depth: 0 };
            journal.insert(&records, record, |outcome| {
                // The caller may have left, but the invocation still runs.
                let _ = answer.send(outcome);
            });
            let answered = async { answered.await.unwrap_or(Err(AcceptError::Stopping)) };
            journal.confirmed(answered).await
        })
    }

    fn ended(&self, id: InvocationId) -> BoxFuture<'static, ()> {
        let mut memory = self.0.state.lock();
        if !memory.by_id.contains_key(&id) {
            return std::future::ready(()).boxed();
        }
        let (end, ended) = oneshot::channel();
        let watchers = memory.watching.entry(id).or_default();
        if watchers.len() % WATCHERS_STEP == WATCHERS_STEP - 1 {
            // Watchers whose callers have left make room for new ones.
            watchers.retain(|watcher| !watcher.is_closed());
        }
        watchers.push(end);
        // An error here means only that the journal was dropped.
        ended.map(|_| ()).boxed()
    }
}

fn check(deferred: &Deferred) -> Result<(), AcceptError> {
    let invalid = |text: String| Err(AcceptError::Invalid(text));
    for (what, key) in [("idempotency key", &deferred.key), ("order key", &deferred.order)] {
        if let Some(key) = key
            && (key.is_empty() || key.len() > KEY_BYTES_MAX)
        {
            return invalid(format!("the {what} has {} bytes; 1 to {KEY_BYTES_MAX}", key.len()));
        }
        // Such keys are reserved, because a caller that sent one could keep a schedule from
        // running.
        if key.as_deref().is_some_and(|key| key.starts_with(SCHEDULE_KEYS))
            && deferred.trigger != Trigger::Schedule
        {
            return invalid(format!(
                "the {what} begins with {SCHEDULE_KEYS}, as those of schedules"
            ));
        }
    }
    if deferred.due_unix_ms > unix_ms() + DELAY_MS_MAX {
        return invalid("an invocation can be delayed by 366 days at most".to_owned());
    }
    Ok(())
}

/// Returns a fresh id. Nobody must be able to guess the id, because everyone who knows it may read
/// the result.
pub(crate) fn new_id(unix_ms: u64) -> InvocationId {
    let mut random = [0; 16];
    let mut filled = 0;
    while filled < random.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut random[filled..], flags).unwrap_or(0);
    }
    InvocationId::new(unix_ms, u128::from_le_bytes(random))
}

pub(crate) fn disk(error: &CommitError) -> AcceptError {
    let text = mote_core::fault::error_chain(&**error);
    match &**error {
        StoreError::DiskFull { .. } => AcceptError::DiskFull(text),
        StoreError::Away(text) => AcceptError::Away(text.clone()),
        StoreError::TakenOver(_) => AcceptError::TakenOver(text),
        _ => AcceptError::Disk(text),
    }
}
