//! The threads of the data path, and how an answer gets from one thread to another.
//!
//! Each thread has a separate runtime, and serves some of the connections and some of the
//! instances. The caller that waits for an answer is often on another thread than the worker.
//! Waking a task of another runtime costs a system call. So the answers of a batch are put into the
//! inboxes of their threads, and each of these threads is woken only once.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use mote_core::Reply;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::entry::offer::Unanswered;

/// The maximum number of threads of the data path. Each of them has one bit in a [`u64`].
pub const THREADS_MAX: usize = u64::BITS as usize;

thread_local! {
    /// The number of this thread among those of the data path.
    static HERE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The number of the current thread among those of the data path. `None` on any other thread.
pub(crate) fn here() -> Option<usize> {
    HERE.get()
}

/// Sends the answer of an invocation to its caller.
pub(crate) struct ReplySender {
    sender: oneshot::Sender<Result<Reply, Unanswered>>,
    /// The thread whose task waits for the answer.
    thread: Option<usize>,
}

impl ReplySender {
    /// A channel for the answer to an invocation of a task on the current thread.
    pub(crate) fn channel() -> (Self, oneshot::Receiver<Result<Reply, Unanswered>>) {
        let (sender, answer) = oneshot::channel();
        (Self { sender, thread: here() }, answer)
    }

    /// The thread of the data path whose task waits for the answer.
    pub(crate) fn thread(&self) -> Option<usize> {
        self.thread
    }

    /// Whether the caller no longer waits for the answer.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Passes the answer on, if the caller still waits for it.
    pub(crate) fn send(self, answer: Result<Reply, Unanswered>) {
        // An error means that the caller has just left, so there is nothing left to do.
        let _ = self.sender.send(answer);
    }
}

/// Answers that were taken from a worker, each with its recipient.
pub(crate) type Answers = Vec<(ReplySender, Result<Reply, Unanswered>)>;

/// Answers that other threads have passed to the tasks of one thread.
#[derive(Default)]
struct Inbox(Mutex<Arrived>);

#[derive(Default)]
struct Arrived {
    answers: Answers,
    /// Wakes the task that hands out the answers; `None` if the task has already been woken.
    waker: Option<Waker>,
}

impl Inbox {
    /// Hands out answers on the thread with this number, for the life of the thread's runtime.
    /// After the answers that are available at once, other tasks run.
    async fn hand_out(self: Arc<Self>, thread: usize) {
        HERE.set(Some(thread));
        let mut answers = Answers::new();
        poll_fn(|cx| {
            let mut arrived = self.0.lock();
            std::mem::swap(&mut arrived.answers, &mut answers);
            arrived.waker = Some(cx.waker().clone());
            drop(arrived);
            send(&mut answers);
            Poll::Pending
        })
        .await
    }
}

fn send(answers: &mut Answers) {
    for (sender, answer) in answers.drain(..) {
        sender.send(answer);
    }
}

/// The threads of the data path. The first thread also runs the engine's other tasks.
pub(crate) struct Threads {
    runtimes: Box<[Handle]>,
    /// One inbox for each thread. Empty if there is only one thread.
    inboxes: Box<[Arc<Inbox>]>,
    /// One seat for each thread, with one reference for each instance that the thread serves or
    /// starts.
    seats: Box<[Seat]>,
}

/// A place on a thread. While it exists, its instance counts as one of that thread.
pub(crate) type Seat = Arc<()>;

impl Threads {
    /// The threads of `first` and of the `further` runtimes. Runtimes beyond [`THREADS_MAX`] are
    /// not used. Each runtime must run all its tasks on one thread, unless there is only one
    /// runtime.
    pub(crate) fn new(first: Handle, further: &[Handle]) -> Self {
        let further = &further[..further.len().min(THREADS_MAX - 1)];
        let runtimes: Box<[_]> = std::iter::once(first).chain(further.iter().cloned()).collect();
        let count = if runtimes.len() == 1 { 0 } else { runtimes.len() };
        let inboxes: Box<[Arc<Inbox>]> = (0..count).map(|_| Arc::default()).collect();
        for (thread, (runtime, inbox)) in runtimes.iter().zip(&inboxes).enumerate() {
            runtime.spawn(inbox.clone().hand_out(thread));
        }
        let seats = runtimes.iter().map(|_| Seat::default()).collect();
        Self { runtimes, inboxes, seats }
    }

    pub(crate) fn runtimes(&self) -> &[Handle] {
        &self.runtimes
    }

    /// The runtime of the current thread, or the first runtime on any other thread.
    pub(crate) fn this(&self) -> &Handle {
        here().and_then(|thread| self.runtimes.get(thread)).unwrap_or(&self.runtimes[0])
    }

    /// The thread for a new instance: the first of the threads with the fewest instances.
    pub(crate) fn next(&self) -> (&Handle, Seat) {
        let count = |at: &usize| Seat::strong_count(&self.seats[*at]);
        let at = (0..self.seats.len()).min_by_key(count).unwrap_or(0);
        (&self.runtimes[at], self.seats[at].clone())
    }

    /// A seat on the current thread, for an instance that it serves.
    pub(crate) fn seat(&self) -> Option<Seat> {
        self.seats.get(here()?).cloned()
    }

    /// Runs the start of an instance on the thread that is due for the next instance. Dropping this
    /// future ends the start.
    pub(crate) async fn start<T: Send + 'static>(
        &self,
        start: impl Future<Output = T> + Send + 'static,
    ) -> T {
        if self.inboxes.is_empty() {
            return start.await;
        }
        let (runtime, _seat) = self.next();
        let mut starts = JoinSet::new();
        starts.spawn_on(start, runtime);
        match starts.join_next().await.expect("one start was spawned") {
            Ok(started) => started,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Passes the answers on, and empties `answers`. An answer is passed on at once if its task is
    /// on the current thread or on none of the data path's threads. Any other answer goes through
    /// the inbox of its thread.
    pub(crate) fn pass_on(&self, answers: &mut Answers) {
        if self.inboxes.is_empty() {
            return send(answers);
        }
        let here = here();
        let mut to_wake = 0_u64;
        for (sender, answer) in answers.drain(..) {
            let other = sender.thread.filter(|_| sender.thread != here);
            match other.and_then(|thread| Some((thread, self.inboxes.get(thread)?))) {
                Some((thread, inbox)) => {
                    inbox.0.lock().answers.push((sender, answer));
                    to_wake |= 1 << thread;
                }
                None => sender.send(answer),
            }
        }
        while to_wake != 0 {
            let thread = to_wake.trailing_zeros() as usize;
            to_wake &= to_wake - 1;
            let waker = self.inboxes[thread].0.lock().waker.take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}
