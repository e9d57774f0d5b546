//! Requests of workers to services of the node (REQUEST and RESPONSE frames).
//!
//! The task of a worker's connection reads the requests, counts them against the worker's limits
//! while it holds the pool's lock, and begins them after it has released the lock. An answer that
//! is available at once is written at once. For any other request, a task waits for the answer.
//! Like all frames, answers leave through the outgoing bytes of the instance, and wait while too
//! many of those are unwritten.

use std::sync::Arc;
use std::task::{Poll, Waker};

use mote_core::InvocationId;
use mote_core::chain::Chain;
use mote_core::services::{
    Answer, AnswerFuture, Asked, Begun, CALLS_MAX, Caller, Request, Services, Status,
};
use mote_core::state::Operation;
use mote_core::wire::{FrameHeader, FrameKind, WireError};
use mote_pool::Instance as _;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::instance::request_bounds::{CALLS_KEPT, CallGuard};
use crate::revision::Revision;
use crate::revision::pool::{Instance, Pool, Stream};

pub(crate) struct Admitted {
    place: Place,
    invocation: InvocationId,
    deadline_ns: u64,
    chain: Option<Arc<Chain>>,
    asked: Asked,
    /// Resolves when the caller no longer waits for the call.
    stopped: Option<oneshot::Receiver<()>>,
    reads: Option<Arc<Semaphore>>,
}

/// Identifies the request that an answer belongs to.
#[derive(Clone, Copy)]
struct Place {
    key: usize,
    instance: u64,
    stream: u32,
    id: u32,
    bytes: usize,
}

/// Admits a request of the worker with this key, whose invocations may take `timeout_ms`. `stream`
/// is `None` if the request belongs to no invocation.
pub(crate) fn admit(
    timeout_ms: u64,
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
        deadline_ns: now_ns + timeout_ms * 1_000_000,
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
        None => instance.requests.calls(),
    };
    match &asked {
        Asked::Call(call) if call.waits => match guard_call(guards) {
            Ok(stopped) => admitted.stopped = Some(stopped),
            Err(text) => asked = Asked::Unusable(text),
        },
        Asked::State { operation: Operation::Get { .. } | Operation::List { .. }, .. } => {
            admitted.reads = Some(instance.requests.reads());
        }
        _ => {}
    }
    admitted.asked = asked;
    Ok(admitted)
}

/// The RESPONSE frame for a request of a worker that is loading its function. Such requests are
/// answered one after another, within the time that the function has for loading. They may only use
/// the function's state, because a call might wait for the very function that is loading.
pub(crate) async fn answer_while_loading(
    revision: &Revision,
    header: &FrameHeader,
    payload: bytes::Bytes,
) -> Result<Vec<u8>, WireError> {
    let Some(services) = revision.shared.services.get() else {
        return Err(WireError::Malformed(FrameKind::Request, "not announced"));
    };
    let Request { id, asked } = Request::parse(payload)?;
    let caller = Caller {
        spec: &revision.spec,
        invocation: InvocationId(0),
        deadline_ns: mote_process::clock::now_ns() + revision.init_timeout_ms() * 1_000_000,
        chain: None,
    };
    let answer = match asked {
        Asked::Unusable(text) => Answer::text(Status::Invalid, text),
        Asked::State { .. } => match services.begin(caller, asked) {
            Begun::Done(answer) => answer,
            Begun::Later(answer) => answer.await,
        },
        _ => Answer::text(
            Status::Unavailable,
            "while a function loads, it can use its state, and nothing else of the node",
        ),
    };
    let mut frame = Vec::new();
    answer.put(&mut frame, header.stream, id);
    Ok(frame)
}

/// Adds a call to the calls of an invocation. The receiver resolves when the invocation ends.
pub(crate) fn guard_call(guards: &mut Vec<CallGuard>) -> Result<oneshot::Receiver<()>, String> {
    if guards.len() >= CALLS_KEPT {
        guards.retain(|guard| !guard.is_closed());
    }
    if guards.len() >= CALLS_MAX {
        return Err(format!("more than {CALLS_MAX} calls of one invocation at once"));
    }
    let (guard, stopped) = oneshot::channel();
    guards.push(guard);
    Ok(stopped)
}

/// Begins admitted requests. Call it without holding the pool's lock.
pub(crate) fn begin(revision: &Arc<Revision>, requests: Vec<Admitted>) {
    let Some(services) = revision.shared.services.get() else { return };
    for request in requests {
        let permit = match request.reads.clone().map(Semaphore::try_acquire_owned) {
            None => None,
            Some(Ok(permit)) => Some(permit),
            Some(Err(_)) => {
                let revision = revision.clone();
                let services = services.clone();
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
    if try_write(&revision.pool, place, &answer, None).is_ready() {
        return;
    }
    let revision = revision.clone();
    let runtime = revision.shared.runtime.clone();
    runtime.spawn(async move {
        std::future::poll_fn(|cx| try_write(&revision.pool, place, &answer, Some(cx.waker())))
            .await;
        drop(permit);
    });
}

fn try_write(pool: &Mutex<Pool>, place: Place, answer: &Answer, waker: Option<&Waker>) -> Poll<()> {
    let mut pool = pool.lock();
    let Some(worker) = pool.worker_mut(place.key) else { return Poll::Ready(()) };
    if worker.number() != place.instance {
        return Poll::Ready(());
    }
    let instance = worker.instance_mut();
    if instance.is_full() {
        instance.requests.wait(waker);
        return Poll::Pending;
    }
    instance.requests.answered(place.bytes);
    instance.write(|out| answer.put(out, place.stream, place.id));
    Poll::Ready(())
}
