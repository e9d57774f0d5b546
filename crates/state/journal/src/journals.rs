//! The journals that a node runs: its own, and those of lost nodes that it has taken over.
//!
//! New invocations always go into the node's own journal. Queries for an invocation cover all
//! journals. If a log keeps the journals, a running node can take over another journal and continue
//! the invocations in it. Without further journals this is a thin layer over one [`Journal`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use mote_api::Problem;
use mote_api::journals::{JournalList, JournalState, JournalStatus};
use mote_core::InvocationId;
use mote_core::accept::{Accept, AcceptError, AcceptFuture, Deferred};
use mote_core::publish::Publish;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::journal::{Cancelled, Figures, Journal, Shown};
use crate::record::State;
use crate::records::unix_ms;
use crate::replica::Replication;
use crate::steps::{Step, StepPage};
use crate::view::{Reader, problem_of};

/// The most journals that a node runs in addition to its own. Each has two threads and a file.
const OTHERS_MAX: usize = 64;
/// How long the attempts of a journal may take to end after the node gives the journal back.
const CLOSE_GRACE: Duration = Duration::from_secs(12);
/// The file of another journal. Each other journal has a separate folder.
const FILE_NAME: &str = "journal.db";

/// The journals of a node. Cheap to clone; there is one per node.
#[derive(Clone)]
pub struct Journals(Arc<Inner>);

/// The settings that a node needs to run journals that a log keeps.
pub struct Named {
    pub own: String,
    /// The folder for the files of other nodes' journals. Files from an earlier run are removed.
    pub folder: PathBuf,
    /// Returns the log of the journal with the given name.
    pub replication: Box<dyn Fn(&str) -> Replication + Send + Sync>,
}

/// Starts running a journal.
type Run = Box<dyn Fn(Journal) -> JoinHandle<()> + Send + Sync>;

struct Inner {
    named: Option<Named>,
    own: Mutex<Running>,
    others: Mutex<BTreeMap<String, Running>>,
    /// Held while the node takes a journal.
    taking: tokio::sync::Mutex<()>,
    run: OnceLock<Run>,
    publish: OnceLock<Arc<dyn Publish>>,
    /// The counts of journals that were given back.
    past: Mutex<Figures>,
}

struct Running {
    journal: Journal,
    task: Option<JoinHandle<()>>,
    /// The journal's folder, which is removed together with the journal.
    folder: Option<PathBuf>,
}

impl Journals {
    /// Starts with the node's own journal. Others can be taken if `named` is given.
    pub fn new(own: Journal, named: Option<Named>) -> Self {
        if let Some(named) = &named
            && named.folder.exists()
            && let Err(error) = std::fs::remove_dir_all(&named.folder)
        {
            tracing::warn!(%error, "cannot remove the files of journals that this node ran before");
        }
        Self(Arc::new(Inner {
            named,
            own: Mutex::new(Running { journal: own, task: None, folder: None }),
            others: Mutex::default(),
            taking: tokio::sync::Mutex::default(),
            run: OnceLock::new(),
            publish: OnceLock::new(),
            past: Mutex::default(),
        }))
    }

    /// The journal that receives new invocations of this node.
    pub fn own(&self) -> Journal {
        self.0.own.lock().journal.clone()
    }

    /// Returns the journal with this name, if the node runs it and no other node has taken it over.
    pub fn named(&self, name: &str) -> Option<Journal> {
        let is_own = self.0.named.as_ref().is_some_and(|named| named.own == name);
        let found = match is_own {
            true => Some(self.own()),
            false => self.0.others.lock().get(name).map(|running| running.journal.clone()),
        };
        found.filter(|journal| !journal.is_taken())
    }

    /// Returns the acceptor for the runs of schedules: the node's own journal, or with a name, the
    /// journal of that name while this node runs it.
    pub fn accepting(&self, name: Option<String>) -> Arc<dyn Accept> {
        match name {
            None => Arc::new(self.clone()),
            Some(name) => Arc::new(Accepting { journals: self.clone(), name }),
        }
    }

    /// Sets the publisher of results for all journals.
    pub fn set_publish(&self, publish: Arc<dyn Publish>) {
        self.own().set_publish(publish.clone());
        let _ = self.0.publish.set(publish);
    }

    /// Starts running the node's own journal, and each further journal when it is taken. `run`
    /// starts [`crate::run`].
    pub fn run(&self, run: impl Fn(Journal) -> JoinHandle<()> + Send + Sync + 'static) {
        let mut own = self.0.own.lock();
        own.task = Some(run(own.journal.clone()));
        let _ = self.0.run.set(Box::new(run));
    }

    /// Takes the journal of this name and runs it until another node takes it or it is given back.
    /// If this node already runs the journal, nothing changes. The node's own journal is opened
    /// again if another node had taken it.
    pub async fn take(&self, name: &str) -> Result<(), Problem> {
        let named = self.0.named.as_ref().ok_or_else(not_named)?;
        let _turn = self.0.taking.lock().await;
        let is_own = named.own == name;
        if self.named(name).is_some() {
            return Ok(());
        }
        if !is_own && self.0.others.lock().len() >= OTHERS_MAX {
            let text = format!("this node runs {OTHERS_MAX} journals of other nodes already");
            return Err(Problem::new(409, "M1402", text));
        }
        let own = self.own();
        let refused = |error: &AcceptError| problem_of(error, Reader::Owner);
        if own.is_stopping() {
            return Err(refused(&AcceptError::Stopping));
        }
        let (folder, path) = match is_own {
            // The former journal no longer writes to this file, so the new journal can use it.
            true => (None, own.path()),
            false => {
                // A former journal of this name may still be ending, so the new one needs a
                // separate folder.
                let folder = named.folder.join(format!("{name}.{}", unix_ms()));
                std::fs::create_dir_all(&folder).map_err(|error| {
                    let text = format!("{}: {error}", folder.display());
                    refused(&AcceptError::Disk(text))
                })?;
                let path = folder.join(FILE_NAME);
                (Some(folder), path)
            }
        };
        let journal = Journal::replicated(path, own.outgoing(), (named.replication)(name));
        if let Some(publish) = self.0.publish.get() {
            journal.set_publish(publish.clone());
        }
        if let Err(error) = journal.open().await {
            if let Some(folder) = folder {
                let _ = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(folder)).await;
            }
            return Err(refused(&error));
        }
        let waiting = journal.figures().waiting;
        tracing::info!(name, waiting, "this node runs the journal");
        let task = self.0.run.get().map(|run| run(journal.clone()));
        let running = Running { journal, task, folder };
        let before = match is_own {
            true => Some(std::mem::replace(&mut *self.0.own.lock(), running)),
            false => self.0.others.lock().insert(name.to_owned(), running),
        };
        if let Some(before) = before {
            tokio::spawn(self.clone().close(before));
        }
        Ok(())
    }

    /// Stops running another journal. Returns when its attempts have ended and the log has recorded
    /// their ends. Invocations that have not ended stay in the log for the next node.
    pub async fn give_back(&self, name: &str) -> Result<(), Problem> {
        let named = self.0.named.as_ref().ok_or_else(not_named)?;
        if named.own == name {
            let text = format!("{name} is the own journal of this node, which ends with the node");
            return Err(Problem::new(409, "M1402", text));
        }
        let running = self.0.others.lock().remove(name);
        if let Some(running) = running {
            tracing::info!(name, "this node gives the journal back");
            self.clone().close(running).await;
        }
        Ok(())
    }

    async fn close(self, running: Running) {
        let Running { journal, task, folder } = running;
        journal.stop();
        if let Some(task) = task {
            let abort = task.abort_handle();
            if tokio::time::timeout(CLOSE_GRACE, task).await.is_err() {
                abort.abort();
            }
        }
        if !journal.is_taken() {
            journal.flush().await;
        }
        self.0.past.lock().add_past(&journal.figures());
        // Waiting for the journal's threads blocks.
        let ended = tokio::task::spawn_blocking(move || {
            drop(journal);
            if let Some(folder) = folder
                && let Err(error) = std::fs::remove_dir_all(folder)
            {
                tracing::warn!(%error, "cannot remove the file of a journal that was given back");
            }
        });
        let _ = ended.await;
    }

    /// The status of the journals, for people and programs. Empty if no log keeps the journals.
    pub async fn status(&self) -> JournalList {
        let Some(named) = &self.0.named else { return JournalList::default() };
        let status = self.members(&named.own).into_iter().map(|(name, own, journal)| async move {
            let (state, detail) = match journal.log_state() {
                Some(Err(error)) if journal.is_taken() => {
                    (JournalState::Taken, Some(error.to_string()))
                }
                Some(Err(error)) => (JournalState::Away, Some(error.to_string())),
                _ => (JournalState::Open, None),
            };
            let waiting = journal.figures().waiting as u64;
            let empty = waiting == 0 && journal.is_empty().await.unwrap_or(false);
            JournalStatus { name, own, state, detail, waiting, empty }
        });
        JournalList { journals: join_all(status).await }
    }

    /// Returns every journal with its name, and whether it is the node's own.
    fn members(&self, own: &str) -> Vec<(String, bool, Journal)> {
        let mut all = vec![(own.to_owned(), true, self.own())];
        let others = self.0.others.lock();
        all.extend(others.iter().map(|(name, it)| (name.clone(), false, it.journal.clone())));
        all
    }

    /// Returns the node's own journal, and the other journals that this node still owns.
    fn all(&self) -> Vec<Journal> {
        let mut all = vec![self.own()];
        let others = self.0.others.lock();
        let owned = others.values().map(|running| &running.journal);
        all.extend(owned.filter(|journal| !journal.is_taken()).cloned());
        all
    }

    /// Asks the journals in turn, and returns the first real answer.
    async fn first<T, F>(
        &self,
        ask: impl Fn(Journal) -> F,
        is_answer: impl Fn(&T) -> bool,
        otherwise: T,
    ) -> Result<T, AcceptError>
    where
        F: Future<Output = Result<T, AcceptError>>,
    {
        let mut refused = None;
        for journal in self.all() {
            match ask(journal).await {
                Ok(answer) if is_answer(&answer) => return Ok(answer),
                Ok(_) => {}
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map_or(Ok(otherwise), Err)
    }

    /// As [`Journal::show`].
    pub async fn show(&self, id: InvocationId) -> Result<Option<Shown>, AcceptError> {
        let ask = |journal: Journal| async move { journal.show(id).await };
        self.first(ask, Option::is_some, None).await
    }

    /// Like [`Journal::list`], over all journals.
    pub async fn list(
        &self,
        functions: Option<Vec<String>>,
        state: Option<State>,
        before: Option<InvocationId>,
        limit: usize,
    ) -> Result<Vec<Shown>, AcceptError> {
        let journals = self.all();
        let several = journals.len() > 1;
        let mut all = Vec::new();
        for journal in journals {
            all.extend(journal.list(functions.clone(), state, before, limit, several).await?);
        }
        if several {
            all.sort_unstable_by_key(|one| std::cmp::Reverse(one.stored.id.0));
            all.truncate(limit);
        }
        Ok(all)
    }

    /// As [`Journal::cancel`].
    pub async fn cancel(&self, id: InvocationId) -> Result<Cancelled, AcceptError> {
        let ask = |journal: Journal| async move { journal.cancel(id).await };
        self.first(ask, |found| *found != Cancelled::Unknown, Cancelled::Unknown).await
    }

    /// As [`Journal::retry`].
    pub async fn retry(&self, id: InvocationId) -> Result<bool, AcceptError> {
        let ask = |journal: Journal| async move { journal.retry(id).await };
        self.first(ask, |revived| *revived, false).await
    }

    /// Like [`Journal::delete_dead`], in all journals.
    pub async fn delete_dead(
        &self,
        id: Option<InvocationId>,
        function: Option<&str>,
    ) -> Result<usize, AcceptError> {
        let mut deleted = 0;
        for journal in self.all() {
            deleted += journal.delete_dead(id, function).await?;
        }
        Ok(deleted)
    }

    /// Like [`Journal::forget`], in all journals.
    pub async fn forget(&self, namespace: &str, patience: Duration) -> Result<bool, AcceptError> {
        for journal in self.all() {
            if !journal.forget(namespace, patience).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// As [`Journal::steps`].
    pub async fn steps(&self, id: InvocationId) -> Result<Vec<Step>, AcceptError> {
        let ask = |journal: Journal| async move { journal.steps(id).await };
        self.first(ask, |steps| !steps.is_empty(), Vec::new()).await
    }

    /// Returns the journal in which an invocation runs, or the node's own journal if the invocation
    /// is unknown.
    fn running(&self, id: InvocationId) -> Journal {
        let all = self.all();
        all.iter().find(|journal| journal.running(id).is_some()).unwrap_or(&all[0]).clone()
    }

    /// As [`Journal::step_page`].
    pub async fn step_page(
        &self,
        id: InvocationId,
        after: String,
    ) -> Result<Option<StepPage>, AcceptError> {
        self.running(id).step_page(id, after).await
    }

    /// As [`Journal::keep_step`].
    pub async fn keep_step(
        &self,
        id: InvocationId,
        key: String,
        value: bytes::Bytes,
    ) -> Result<(), AcceptError> {
        self.running(id).keep_step(id, key, value).await
    }

    pub fn figures(&self) -> Figures {
        let mut sum = *self.0.past.lock();
        for journal in self.all() {
            let figures = journal.figures();
            sum.waiting += figures.waiting;
            sum.running += figures.running;
            sum.add_past(&figures);
        }
        sum
    }

    /// Stops accepting invocations and starting attempts.
    pub fn stop(&self) {
        self.all().iter().for_each(Journal::stop);
    }

    /// Waits until nothing is running any longer. Call [`Journals::stop`] first.
    pub async fn all_ended(&self) {
        let others = std::mem::take(&mut *self.0.others.lock());
        let own = self.0.own.lock().task.take();
        let closing = others.into_values().map(|running| self.clone().close(running));
        let own = async {
            if let Some(own) = own {
                let _ = own.await;
            }
        };
        tokio::join!(own, join_all(closing));
    }

    /// Like [`Journal::flush`], for the node's own journal. The other journals have ended by then.
    pub async fn flush(&self) {
        self.own().flush().await;
    }
}

fn not_named() -> Problem {
    Problem::new(409, "M1402", "this node keeps no journal in NATS")
        .with_hint("start it with --nats URL and --journal-name NAME")
}

impl Accept for Journals {
    fn accept(&self, deferred: Deferred) -> AcceptFuture {
        self.own().accept(deferred)
    }

    fn ended(&self, id: InvocationId) -> BoxFuture<'static, ()> {
        let all = self.all();
        let holder = all.iter().find(|journal| journal.has_not_ended(id));
        holder.map_or_else(|| std::future::ready(()).boxed(), |journal| journal.ended(id))
    }
}

/// Accepts invocations into the journal of the given name while this node runs it.
struct Accepting {
    journals: Journals,
    name: String,
}

impl Accept for Accepting {
    fn accept(&self, deferred: Deferred) -> AcceptFuture {
        match self.journals.named(&self.name) {
            Some(journal) => journal.accept(deferred),
            None => {
                let text = format!("this node does not run the journal {}", self.name);
                std::future::ready(Err(AcceptError::Away(text))).boxed()
            }
        }
    }

    fn ended(&self, id: InvocationId) -> BoxFuture<'static, ()> {
        match self.journals.named(&self.name) {
            Some(journal) => journal.ended(id),
            None => std::future::ready(()).boxed(),
        }
    }
}
