//! Requests of workers to services of the node (REQUEST and RESPONSE frames).
//!
//! The task of a worker's connection reads the requests, counts them against the worker's bounds
//! under the pool's lock, and begins them after it has released the lock. An answer that is there
//! at once is written at once; for any other request a task waits. Answers leave through the bytes
//! of the instance like all frames, and wait while too many of these are unwritten.

use std::sync::Arc;
use std::task::{Poll, Waker};

use mote_core::InvocationId;
use mote_core::services::{
    Answer, AnswerFuture, Asked, Begun, CALLS_MAX, Caller, Chain, REQUEST_BYTES_MAX, REQUESTS_MAX,
    Request, Services, Status,
};
use mote_core::state::Operation;
use mote_core::wire::{FrameKind, WireError};
use mote_pool::Instance as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::pool::{Instance, Stream};
use crate::revision::Revision;

/// Requests of one instance that read from the state at once. Each may bring as much as a value or
/// a listing, so this bounds what the node keeps for a worker that does not read.
const READS_MAX: usize = 16;
/// The list of an invocation's calls is cleaned of ended ones when it has this many.
const CALLS_KEPT: usize = 8;

/// Held by the invocation; a call whose other end is dropped is cancelled.
pub(crate) type CallGuard = oneshot::Sender<()>;

/// The requests of one instance.
pub(crate) struct Requests {
    under_way: u32,
    bytes: usize,
    reads: Option<Arc<Semaphore>>,
    /// Tasks whose answer waits for room.
    wakers: Vec<Waker>,
    /// Calls that belong to no invocation.
    calls: Vec<CallGuard>,
}

impl Requests {
    pub(crate) const fn new() -> Self {
        Self { under_way: 0, bytes: 0, reads: None, wakers: Vec::new(), calls: Vec::new() }
    }

    /// Wakes those that wait for room in the outgoing bytes.
    pub(crate) fn wake(&mut self) {
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }

    fn admit(&mut self, bytes: usize) -> Result<(), WireError> {
        let too_many = |why| Err(WireError::Malformed(FrameKind::Request, why));
        if self.under_way >= REQUESTS_MAX {
            return too_many("too many requests under way");
        }
        if self.bytes + bytes > REQUEST_BYTES_MAX {
            return too_many("too many bytes of requests under way");
        }
        self.under_way += 1;
        self.bytes += bytes;
        Ok(())
    }
}

/// A request that was admitted.
pub(crate) struct Admitted {
    place: Place,
    invocation: InvocationId,
    deadline_ns: u64,
    chain: Option<Arc<Chain>>,
    asked: Asked,
    /// Resolves when nobody waits for a call any more.
    stopped: Option<oneshot::Receiver<()>>,
    reads: Option<Arc<Semaphore>>,
}

/// Where an answer goes.
#[derive(Clone, Copy)]
struct Place {
    key: usize,
    instance: u64,
    stream: u32,
    id: u32,
    bytes: usize,
}

/// Admits a request of the worker with this key; `stream` is `None` outside an invocation.
pub(crate) fn admit(
    revision: &Revision,
    (key, number): (usize, u64),
    instance: &mut Instance,
    (stream_number, stream): (u32, Option<&mut Stream>),
    payload: bytes::Bytes,
    now_ns: u64,
) -> Result<Admitted, WireError> {
    if !instance.takes_requests {
        return Err(WireError::Malformed(FrameKind::Request, "not announced"));
    }
    let bytes = payload.len();
    instance.requests.admit(bytes)?;
    let Request { id, mut asked } = Request::parse(payload)?;
    let mut admitted = Admitted {
        place: Place { key, instance: number, stream: stream_number, id, bytes },
        invocation: InvocationId(0),
        deadline_ns: now_ns + revision.spec.limits.timeout_ms * 1_000_000,
        chain: None,
        asked: Asked::Unusable(String::new()),
        stopped: None,
        reads: None,
    };
    let guards = match stream {
        Some(stream) => {
            admitted.invocation = stream.id;
            if !stream.answered {
                admitted.deadline_ns = stream.deadline_ns;
            }
            admitted.chain.clone_from(&stream.chain);
            &mut stream.calls
        }
        None => &mut instance.requests.calls,
    };
    match &asked {
        Asked::Call(call) if call.waits => {
            if guards.len() >= CALLS_KEPT {
                guards.retain(|guard| !guard.is_closed());
            }
            if guards.len() >= CALLS_MAX {
                let text = format!("more than {CALLS_MAX} calls of one invocation at once");
                asked = Asked::Unusable(text);
            } else {
                let (guard, stopped) = oneshot::channel();
                guards.push(guard);
                admitted.stopped = Some(stopped);
            }
        }
        Asked::State { operation: Operation::Get { .. } | Operation::List { .. }, .. } => {
            let reads = &mut instance.requests.reads;
            let reads = reads.get_or_insert_with(|| Arc::new(Semaphore::new(READS_MAX)));
            admitted.reads = Some(reads.clone());
        }
        _ => {}
    }
    admitted.asked = asked;
    Ok(admitted)
}

/// Begins admitted requests. Call it without the pool's lock.
pub(crate) fn begin(revision: &Arc<Revision>, requests: Vec<Admitted>) {
    let Some(services) = revision.shared.services.get() else { return };
    for request in requests {
        let permit = match request.reads.clone().map(Semaphore::try_acquire_owned) {
            None => None,
            Some(Ok(permit)) => Some(permit),
            Some(Err(_)) => {
                let (revision, services) = (revision.clone(), services.clone());
                let runtime = revision.shared.runtime.clone();
                runtime.spawn(async move {
                    let Some(reads) = request.reads.clone() else { return };
                    let Ok(permit) = reads.acquire_owned().await else { return };
                    begin_one(&revision, &services, request, Some(permit));
                });
                continue;
            }
        };
        begin_one(revision, services, request, permit);
    }
}

fn begin_one(
    revision: &Arc<Revision>,
    services: &Arc<dyn Services>,
    request: Admitted,
    permit: Option<OwnedSemaphorePermit>,
) {
    let Admitted { place, invocation, deadline_ns, chain, asked, stopped, .. } = request;
    if let Asked::Unusable(text) = asked {
        return deliver(revision, place, Answer::text(Status::Invalid, text), permit);
    }
    let caller = Caller { spec: &revision.spec, invocation, deadline_ns, chain: chain.as_ref() };
    match services.begin(caller, asked) {
        Begun::Done(answer) => deliver(revision, place, answer, permit),
        Begun::Later(answer) => {
            let waiting = wait(revision.clone(), place, answer, stopped, permit);
            revision.shared.runtime.spawn(waiting);
        }
    }
}

async fn wait(
    revision: Arc<Revision>,
    place: Place,
    answer: AnswerFuture,
    stopped: Option<oneshot::Receiver<()>>,
    permit: Option<OwnedSemaphorePermit>,
) {
    let answer = match stopped {
        None => answer.await,
        Some(stopped) => tokio::select! {
            biased;
            _ = stopped => Answer::text(Status::Cancelled, "the caller is gone"),
            answer = answer => answer,
        },
    };
    deliver(&revision, place, answer, permit);
}

/// Writes an answer, at once if there is room.
fn deliver(
    revision: &Arc<Revision>,
    place: Place,
    answer: Answer,
    permit: Option<OwnedSemaphorePermit>,
) {
    if try_write(revision, place, &answer, None).is_ready() {
        return;
    }
    let revision = revision.clone();
    let runtime = revision.shared.runtime.clone();
    runtime.spawn(async move {
        std::future::poll_fn(|cx| try_write(&revision, place, &answer, Some(cx.waker()))).await;
        drop(permit);
    });
}

fn try_write(
    revision: &Revision,
    place: Place,
    answer: &Answer,
    waker: Option<&Waker>,
) -> Poll<()> {
    let mut pool = revision.pool.lock();
    let Some(worker) = pool.worker_mut(place.key) else { return Poll::Ready(()) };
    if worker.number() != place.instance {
        return Poll::Ready(());
    }
    let instance = worker.instance_mut();
    if instance.is_full() {
        instance.requests.wakers.extend(waker.cloned());
        return Poll::Pending;
    }
    instance.requests.under_way -= 1;
    instance.requests.bytes -= place.bytes;
    instance.write(|out| answer.put(out, place.stream, place.id));
    Poll::Ready(())
}
