//! Group commit: many callers share one transaction of SQLite, and therefore one sync of the disk.
//!
//! A [`Committer`] is a thread that owns the only writing connection of one database file. It takes
//! every waiting job, runs all of them in one transaction, commits once, and then answers each job.
//! While it commits, new jobs collect for the next transaction. The committer never delays a job to
//! wait for others, so a single caller pays for one sync and little more.
//!
//! A job that fails or panics leaves no change, and does not affect the other jobs of its
//! transaction. For this reason, a job either makes a single change or runs in a savepoint.
//!
//! A file may have a [`Follower`], which learns what each transaction has changed and keeps the
//! changes in another place. For such a file, the follower answers the durable jobs, and commits do
//! not sync the disk.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, ThreadId};

use rusqlite::ffi::{SQLITE_IOERR_DIR_FSYNC, SQLITE_IOERR_FSYNC};
use rusqlite::{Connection, OpenFlags};

use crate::error::StoreError;
use crate::files;
use crate::schema;

/// The most jobs of one transaction. This limits the memory of the answers that wait for the
/// commit, and the time that the first job waits.
const JOBS_MAX: usize = 1_024;

/// The error of a job. If the commit of a transaction fails, all its jobs share that error.
pub type CommitError = Arc<StoreError>;

/// The tables of a database file: the SQL of each step from an empty file to the newest version. A
/// released step never changes.
pub type Steps = &'static [&'static str];

/// The writing side of one database file. Dropping it waits until every submitted job has ended.
#[derive(Debug)]
pub struct Committer {
    path: PathBuf,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// The thread of the follower.
    answering: Option<ThreadId>,
    /// Whether the log already says that the file is damaged.
    damage_said: Arc<AtomicBool>,
}

/// Runs in the transaction, or receives the error that prevented it. Returns the closure that
/// answers the caller after the commit.
type Work = Box<dyn FnOnce(Result<&Connection, CommitError>) -> Answer + Send>;

/// Answers a job with its own result, or with the error that kept the result from becoming durable.
pub type Answer = Box<dyn FnOnce(Option<&CommitError>) + Send>;

/// Keeps the changes of a file's transactions in another place. All calls come from the committer's
/// thread and must not wait for that place.
pub trait Follower: Send {
    /// The thread that answers durable jobs. If this thread itself drops the committer, the drop
    /// does not wait for the thread.
    fn thread(&self) -> ThreadId;

    /// Why the file takes no more jobs; `None` if it takes them.
    fn refusal(&self) -> Option<CommitError>;

    /// Runs in each transaction, after its jobs. An error rolls the transaction back.
    fn collect(&mut self, connection: &Connection) -> rusqlite::Result<()>;

    /// The transaction has failed and was rolled back.
    fn undone(&mut self);

    /// The transaction is committed. The follower answers the durable jobs once their changes are
    /// safe in the other place.
    fn committed(&mut self, answers: Vec<Answer>);
}

struct Job {
    is_durable: bool,
    work: Work,
}

/// Fails, without writing, if a newer version or another program made the file. Blocks.
pub fn refuse_newer(path: &Path, steps: Steps) -> Result<(), StoreError> {
    if path.exists() && !files::begins_like_a_database(path) {
        // `Store::check_file` reports such a file and moves it aside.
        return Ok(());
    }
    schema::refuse_newer(path, steps.len() as u32)
}

impl Committer {
    /// Opens `path`, creates or migrates its tables, and starts the thread. Fails if another
    /// program or a newer version made the file. Blocks.
    pub fn open(path: &Path, steps: Steps, thread_name: &str) -> Result<Self, StoreError> {
        Self::start(path, schema::open_file(path, steps)?, None, thread_name)
    }

    /// Opens a file like `open`, with a follower that `follow` makes from the open connection.
    pub fn open_followed(
        path: &Path,
        steps: Steps,
        thread_name: &str,
        follow: impl FnOnce(&mut Connection) -> Result<Box<dyn Follower>, StoreError>,
    ) -> Result<Self, StoreError> {
        let mut connection = schema::open_file(path, steps)?;
        let follower = follow(&mut connection)?;
        Self::start(path, connection, Some(follower), thread_name)
    }

    fn start(
        path: &Path,
        connection: Connection,
        follower: Option<Box<dyn Follower>>,
        thread_name: &str,
    ) -> Result<Self, StoreError> {
        let (jobs, received) = channel();
        let answering = follower.as_ref().map(|follower| follower.thread());
        let file = Open { path: path.to_owned(), connection, syncs: true, broken: None, follower };
        let thread = std::thread::Builder::new()
            .name(thread_name.to_owned())
            .spawn(move || file.serve(&received))
            .map_err(|error| StoreError::io(path, error))?;
        Ok(Self {
            path: path.to_owned(),
            jobs: Some(jobs),
            thread: Some(thread),
            answering,
            damage_said: Arc::default(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Submits a job. Does not block. `work` runs on the committer's thread in a transaction that
    /// it shares with other jobs. `done` receives the result on the same thread after the commit,
    /// and must not block. If `is_durable`, the result is on disk by then. Otherwise, the result
    /// survives the end of the process, but it survives a power cut only if a durable job followed.
    pub fn submit<T: Send + 'static>(
        &self,
        is_durable: bool,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
        done: impl FnOnce(Result<T, CommitError>) + Send + 'static,
    ) {
        self.send(is_durable, |connection, path| in_savepoint(connection, path, work), done);
    }

    /// Submits a job whose only change is its last statement. Such a job needs no savepoint. A
    /// savepoint would copy every page that the job changes.
    pub fn submit_one<T: Send + 'static>(
        &self,
        is_durable: bool,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
        done: impl FnOnce(Result<T, CommitError>) + Send + 'static,
    ) {
        self.send(is_durable, |connection, path| caught(connection, path, work), done);
    }

    fn send<T: Send + 'static>(
        &self,
        is_durable: bool,
        work: impl FnOnce(&Connection, &Path) -> Result<T, CommitError> + Send + 'static,
        done: impl FnOnce(Result<T, CommitError>) + Send + 'static,
    ) {
        let path = self.path.clone();
        let said = self.damage_said.clone();
        let work: Work = Box::new(move |connection| {
            let worked = connection.and_then(|connection| work(connection, &path));
            if let Err(error) = &worked
                && matches!(**error, StoreError::Damaged(_))
                && !said.swap(true, Ordering::Relaxed)
            {
                let file = path.display();
                tracing::error!(%error, "{file} is damaged; restart the node, which moves it aside and says what is lost");
            }
            Box::new(move |failed| match failed {
                Some(error) => done(Err(error.clone())),
                None => done(worked),
            })
        });
        let Some(jobs) = &self.jobs else { return };
        if let Err(unsent) = jobs.send(Job { is_durable, work }) {
            let text = format!("{}: its thread has ended", self.path.display());
            let answer = (unsent.0.work)(Err(Arc::new(StoreError::Damaged(text))));
            answer(None);
        }
    }

    /// Opens a connection for reading only. Each statement sees everything that was committed
    /// before it. Blocks.
    pub fn reader(&self) -> Result<Connection, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let opened = Connection::open_with_flags(schema::with_real_folder(&self.path)?, flags);
        let connection = opened.map_err(|error| schema::sql(&self.path, error))?;
        connection.busy_timeout(schema::BUSY_TIMEOUT).map_err(|e| schema::sql(&self.path, e))?;
        Ok(connection)
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        // An answer that runs on the committer's or the follower's thread may hold the last
        // reference to the committer. A thread that joined itself would wait forever.
        let here = std::thread::current().id();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != here
            && self.answering != Some(here)
        {
            let _ = thread.join();
        }
    }
}

/// Runs one job so that either all of its changes happen or none.
fn in_savepoint<T>(
    connection: &Connection,
    path: &Path,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> Result<T, CommitError> {
    let sql = |error| Arc::new(schema::sql(path, error));
    let run = |statement| connection.prepare_cached(statement)?.execute([]);
    run("SAVEPOINT job").map_err(sql)?;
    let worked = caught(connection, path, work);
    let worked = worked.and_then(|value| run("RELEASE job").map(|_| value).map_err(sql));
    if worked.is_err() {
        // If these statements fail, the transaction is over, and its commit will fail too.
        let _ = run("ROLLBACK TO job").and_then(|_| run("RELEASE job"));
    }
    worked
}

/// Runs a job, and turns a panic into an error.
fn caught<T>(
    connection: &Connection,
    path: &Path,
    work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> Result<T, CommitError> {
    match std::panic::catch_unwind(AssertUnwindSafe(|| work(connection))) {
        Ok(worked) => worked.map_err(|error| Arc::new(schema::sql(path, error))),
        Err(_) => {
            let text = format!("{}: a change of it panicked", path.display());
            Err(Arc::new(StoreError::Damaged(text)))
        }
    }
}

/// The database file on the committer's thread.
struct Open {
    path: PathBuf,
    connection: Connection,
    /// Whether commits sync the disk now.
    syncs: bool,
    /// Why the file takes no more changes; `None` if it takes them.
    broken: Option<CommitError>,
    follower: Option<Box<dyn Follower>>,
}

impl Open {
    fn serve(mut self, jobs: &Receiver<Job>) {
        while let Ok(first) = jobs.recv() {
            let mut all = vec![first];
            while all.len() < JOBS_MAX
                && let Ok(next) = jobs.try_recv()
            {
                all.push(next);
            }
            self.commit(all);
        }
    }

    fn commit(&mut self, jobs: Vec<Job>) {
        let is_synced = self.follower.is_none() && jobs.iter().any(|job| job.is_durable);
        let refusal = || self.follower.as_ref().and_then(|follower| follower.refusal());
        let begun = match self.broken.clone().or_else(refusal) {
            Some(error) => Err(error),
            None => self.begin(is_synced),
        };
        if let Err(error) = begun {
            for job in jobs {
                (job.work)(Err(error.clone()))(None);
            }
            return;
        }
        let connection = &self.connection;
        let run = |job: Job| (job.is_durable, (job.work)(Ok(connection)));
        let answers: Vec<(bool, Answer)> = jobs.into_iter().map(run).collect();
        let failed = self.end().err();
        let mut later = Vec::new();
        for (is_durable, answer) in answers {
            if is_durable && failed.is_none() && self.follower.is_some() {
                later.push(answer);
            } else {
                answer(failed.as_ref());
            }
        }
        match &mut self.follower {
            Some(follower) if failed.is_none() => follower.committed(later),
            Some(follower) => follower.undone(),
            None => {}
        }
    }

    fn begin(&mut self, is_durable: bool) -> Result<(), CommitError> {
        let sql = |error| Arc::new(schema::sql(&self.path, error));
        if self.syncs != is_durable {
            // In NORMAL mode SQLite does not sync at each commit. It syncs only when it moves its
            // log into the file, which keeps the file whole.
            let mode = if is_durable { "FULL" } else { "NORMAL" };
            self.connection.execute_batch(&format!("PRAGMA synchronous = {mode}")).map_err(sql)?;
            self.syncs = is_durable;
        }
        self.run("BEGIN IMMEDIATE").map_err(sql)
    }

    fn end(&mut self) -> Result<(), CommitError> {
        let collected = match &mut self.follower {
            Some(follower) => follower.collect(&self.connection),
            None => Ok(()),
        };
        let Err(error) = collected.and_then(|()| self.run("COMMIT")) else { return Ok(()) };
        let of_sync = error
            .sqlite_extended_error_code()
            .is_some_and(|code| code == SQLITE_IOERR_FSYNC || code == SQLITE_IOERR_DIR_FSYNC);
        let error = Arc::new(schema::sql(&self.path, error));
        if !self.connection.is_autocommit() {
            let _ = self.run("ROLLBACK");
        }
        if of_sync {
            // The kernel may have dropped pages that it could not write. A later sync that succeeds
            // would prove nothing about those pages.
            self.broken = Some(error.clone());
        }
        Err(error)
    }

    fn run(&self, statement: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(statement)?.execute([]).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const STEPS: Steps = &["CREATE TABLE numbers (n INTEGER PRIMARY KEY NOT NULL) STRICT"];

    fn add(n: i64) -> impl FnOnce(&Connection) -> rusqlite::Result<()> + Send + 'static {
        move |connection| {
            connection.prepare_cached("INSERT INTO numbers VALUES (?1)")?.execute([n]).map(|_| ())
        }
    }

    fn all(committer: &Committer) -> Vec<i64> {
        let reader = committer.reader().expect("opens");
        let mut statement = reader.prepare("SELECT n FROM numbers ORDER BY n").expect("valid");
        let rows = statement.query_map([], |row| row.get(0)).expect("runs");
        rows.collect::<Result<_, _>>().expect("numbers")
    }

    #[test]
    fn the_folder_of_a_file_may_be_a_link_and_the_file_may_not() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("real")).expect("a folder");
        std::os::unix::fs::symlink(path("real"), path("linked")).expect("a link");
        let committer = Committer::open(&path("linked/numbers.db"), STEPS, "n").expect("opens");
        committer.submit(true, add(1), |_| ());
        committer.reader().expect("opens");
        drop(committer);
        let committer = Committer::open(&path("real/numbers.db"), STEPS, "n").expect("opens");
        assert_eq!(all(&committer), [1]);
        drop(committer);
        std::os::unix::fs::symlink(path("real/numbers.db"), path("other.db")).expect("a link");
        assert!(Committer::open(&path("other.db"), STEPS, "n").is_err());
    }

    #[test]
    fn a_job_that_fails_or_panics_leaves_nothing_and_hurts_no_other() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("numbers.db");
        let committer = Committer::open(&path, STEPS, "numbers").expect("opens");
        let (answers, received) = channel();
        // The first job blocks the thread until all others have been submitted, so they share one
        // transaction.
        let (go, wait) = channel::<()>();
        let hold = move |_: &Connection| wait.recv().map_err(|_| rusqlite::Error::InvalidQuery);
        committer.submit(true, hold, |_| ());
        for n in [1, 2, 1, 3] {
            let answers = answers.clone();
            committer.submit(true, add(n), move |done| {
                answers.send((n, done.is_ok())).expect("received");
            });
        }
        let half = |connection: &Connection| {
            add(4)(connection)?;
            add(1)(connection)
        };
        let tell = answers.clone();
        committer.submit(false, half, move |done| tell.send((4, done.is_ok())).expect("received"));
        let panics = |connection: &Connection| -> rusqlite::Result<()> {
            add(5)(connection)?;
            panic!("on purpose");
        };
        committer.submit(true, panics, move |done| {
            answers.send((5, done.is_ok())).expect("received");
        });
        go.send(()).expect("the thread waits");
        let answered: Vec<_> = received.iter().collect();
        let expected = [(1, true), (2, true), (1, false), (3, true), (4, false), (5, false)];
        assert_eq!(answered, expected);
        assert_eq!(all(&committer), [1, 2, 3]);
    }

    #[test]
    fn jobs_that_were_submitted_are_committed_when_the_committer_is_dropped() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("numbers.db");
        let committer = Committer::open(&path, STEPS, "numbers").expect("opens");
        for n in 0..5_000 {
            committer.submit(n % 2 == 0, add(n), |done| done.expect("committed"));
        }
        drop(committer);
        let committer = Committer::open(&path, STEPS, "numbers").expect("opens again");
        assert_eq!(all(&committer).len(), 5_000);
    }

    #[test]
    fn a_file_of_another_program_or_of_a_newer_version_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("numbers.db");
        std::fs::write(
            &path,
            "something else, long enough to be a header of a database ".repeat(3),
        )
        .expect("written");
        let refused = Committer::open(&path, STEPS, "numbers").expect_err("not a database");
        assert!(matches!(refused, StoreError::Damaged(_)), "{refused:?}");
        std::fs::remove_file(&path).expect("removed");
        drop(Committer::open(&path, &["CREATE TABLE a (b) ", "CREATE TABLE c (d)"], "new"));
        let refused = Committer::open(&path, STEPS, "numbers").expect_err("newer");
        assert!(matches!(refused, StoreError::Newer { found: 2, known: 1, .. }), "{refused:?}");
    }
}
