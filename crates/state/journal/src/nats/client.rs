//! The handle: sends requests, and returns the answers to their callers.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

use crate::nats::frames::{
    FRAME_BYTES_MAX, NatsError, PageOf, Publishing, Reply, Request, ServerStatus, Stored,
};
use crate::nats::process::{self, Launch};
use crate::nats::shared::Shared;

/// The most requests that wait for an answer.
const WAITING_MAX: usize = 8_192;
/// The most bytes of requests that `mote-nats` has not read yet.
const QUEUED_BYTES_MAX: usize = 64 << 20;
/// How long a request may take. `mote-nats` gives up earlier and says why, so this limit matters
/// only if the process cannot be started or hangs.
const PATIENCE: Duration = Duration::from_secs(12);

/// A connection to NATS, over the process `mote-nats`. All clones share one process.
#[derive(Debug, Clone)]
pub struct Nats(Arc<Shared>);

/// Removes a request when its caller stops waiting for the answer.
struct Waiting {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.traffic.lock().waiting.remove(&self.number);
    }
}

impl Nats {
    /// Starts the process on `runtime`, and restarts it whenever it ends.
    pub fn start(launch: Launch, runtime: &Handle) -> Self {
        let (stopping, stopped) = watch::channel(false);
        let shared = Arc::new(Shared {
            traffic: Mutex::default(),
            queued: Notify::new(),
            stopping,
            task: Mutex::new(None),
        });
        let task = runtime.spawn(process::keep(launch, shared.clone(), stopped));
        *shared.task.lock() = Some(task);
        Self(shared)
    }

    /// Ends the process after it has answered the requests that it was sent. Later requests are
    /// refused.
    pub async fn stop(&self) {
        self.0.stopping.send_replace(true);
        let task = self.0.task.lock().take();
        if let Some(task) = task {
            let _ = task.await;
        }
        self.0.end();
    }

    /// Sends a request. When this function returns, the request is in the queue, behind earlier
    /// ones. It is sent even if the caller does not await the answer.
    pub fn ask(
        &self,
        request: &Request,
    ) -> impl Future<Output = Result<Reply, NatsError>> + Send + 'static {
        let sent = self.send(request);
        async move {
            let (waiting, answered) = sent?;
            let reply = match tokio::time::timeout(PATIENCE, answered).await {
                Ok(Ok(reply)) => reply,
                Ok(Err(_)) => return Err(NatsError::Unreachable("the node is stopping".into())),
                Err(_) => {
                    let problem = waiting.shared.traffic.lock().problem.clone();
                    let text = match problem.as_str() {
                        "" => "mote-nats does not answer".to_owned(),
                        problem => format!("mote-nats does not run: {problem}"),
                    };
                    return Err(NatsError::Unreachable(text));
                }
            };
            match reply {
                Reply::Failed(error) => Err(error),
                reply => Ok(reply),
            }
        }
    }

    fn send(&self, request: &Request) -> Result<(Waiting, oneshot::Receiver<Reply>), NatsError> {
        let (answer, answered) = oneshot::channel();
        let mut traffic = self.0.traffic.lock();
        if traffic.ended {
            return Err(NatsError::Unreachable("the node is stopping".to_owned()));
        }
        if traffic.waiting.len() >= WAITING_MAX || traffic.queued_bytes > QUEUED_BYTES_MAX {
            let text = "too many requests to NATS are under way; try again later";
            return Err(NatsError::Unreachable(text.to_owned()));
        }
        traffic.next += 1;
        let number = traffic.next;
        let frame = request.frame(number);
        if frame.len() > FRAME_BYTES_MAX {
            return Err(NatsError::Refused("the request has more than 16 MiB".to_owned()));
        }
        traffic.waiting.insert(number, answer);
        traffic.queued_bytes += frame.len();
        traffic.queue.push_back((number, frame));
        drop(traffic);
        self.0.queued.notify_one();
        Ok((Waiting { shared: self.0.clone(), number }, answered))
    }

    /// Creates a stream for [`Nats::append`] unless it exists.
    pub async fn ensure_log(&self, name: String, subjects: String) -> Result<(), NatsError> {
        match self.ask(&Request::EnsureLog { name, subjects }).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Stores the messages in this order, all of them or none, and only if the stream's last place
    /// is the expected one. The stream forgets messages without a body after some seconds.
    pub async fn append(
        &self,
        messages: Vec<Publishing>,
        expected_last: u64,
    ) -> Result<(), NatsError> {
        match self.ask(&Request::Append { messages, expected_last }).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Reads messages in order from a place on. Also returns the last place of the stream.
    pub async fn read(&self, page: PageOf) -> Result<(Vec<Stored>, u64), NatsError> {
        match self.ask(&Request::Read(page)).await? {
            Reply::Page { messages, last_sequence } => Ok((messages, last_sequence)),
            other => Err(unexpected(&other)),
        }
    }

    /// Reads the last message of a subject.
    pub async fn last(&self, stream: String, subject: String) -> Result<Option<Stored>, NatsError> {
        match self.ask(&Request::Last { stream, subject }).await? {
            Reply::Last(message) => Ok(message),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks whether the servers answer.
    pub async fn check(&self) -> Result<ServerStatus, NatsError> {
        match self.ask(&Request::Check).await? {
            Reply::Server(status) => Ok(status),
            other => Err(unexpected(&other)),
        }
    }
}

pub(crate) fn unexpected(reply: &Reply) -> NatsError {
    let kind = match reply {
        Reply::Done => "done",
        Reply::Page { .. } | Reply::Last(_) => "messages",
        Reply::Server(_) => "a status",
        Reply::State(_) | Reply::Usage(_) => "state",
        Reply::Failed(_) => "a failure",
    };
    NatsError::Refused(format!("mote-nats answered with {kind}; is it of another version?"))
}
