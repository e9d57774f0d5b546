//! Requests that programs and servers make over HTTP to services of the node
//! ([`crate::service_api`]).
//!
//! A listener inside the sandbox belongs to one instance, so every request that arrives there comes
//! from the instance's function. The invocation that makes the request is looked up among those
//! that the instance runs. The deadline and the callers of this invocation apply to the request,
//! and calls that it makes end with it.

use std::sync::Arc;

use crate::service_api::{Ask, URL_VARIABLE, address};
use mote_core::chain::Chain;
use mote_core::services::{Answer, AnswerFuture, Asked, Begun, Caller, Status};
use mote_core::state::Operation;
use mote_core::{Invocation, InvocationId};
use mote_spec::FunctionSpec;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot, watch};

use crate::instance::request_bounds::READS_MAX;
use crate::instance::requests::guard_call;
use crate::revision::Revision;
use mote_process::clock::now_ns;

/// The variable that contains the address of the services, for functions that use them over HTTP.
pub(crate) fn variable(spec: &FunctionSpec, instance: u64) -> Option<(String, String)> {
    spec.has_services_door().then(|| (URL_VARIABLE.to_owned(), address(instance)))
}

/// Tells a server which invocation a request is. The node replaces any value that the client sent.
pub(crate) fn name_invocation(invocation: &mut Invocation) {
    let id = invocation.id.text();
    invocation.head.replace_header(b"mote-invocation", &id);
}

/// Serves the listener of an instance until `closed` changes.
pub(crate) fn serve(
    revision: &Arc<Revision>,
    instance: u64,
    listener: TcpListener,
    mut closed: watch::Receiver<()>,
) {
    let reads = Arc::new(Semaphore::new(READS_MAX));
    let programs = Programs { revision: revision.clone(), instance, reads };
    revision.shared.runtime.spawn(async move {
        let closed = async {
            let _ = closed.changed().await;
        };
        crate::service_api::serve(listener, instance, Arc::new(programs), closed).await;
    });
}

struct Programs {
    revision: Arc<Revision>,
    instance: u64,
    reads: Arc<Semaphore>,
}

/// What is known about the invocation that makes the request.
struct Asking {
    deadline_ns: u64,
    chain: Option<Arc<Chain>>,
    /// Resolves when the invocation ends.
    stopped: Option<oneshot::Receiver<()>>,
}

impl Programs {
    fn find(&self, invocation: Option<InvocationId>, asked: &Asked) -> Result<Asking, Answer> {
        let latest = now_ns() + self.revision.timeout_ms() * 1_000_000;
        let Some(id) = invocation else {
            return Ok(Asking { deadline_ns: latest, chain: None, stopped: None });
        };
        let mut pool = self.revision.pool.lock();
        let mut workers = pool.workers_mut().filter(|(_, one)| one.number() == self.instance);
        let streams = workers.next().map(|(_, worker)| worker.parts().0);
        let stream = streams
            .and_then(|streams| streams.iter_mut().find(|(_, stream)| stream.id == id))
            .map(|(_, stream)| &mut **stream);
        let Some(stream) = stream else {
            let text = format!("this instance does not run the invocation {id}; it may have ended");
            return Err(Answer::text(Status::Cancelled, text));
        };
        let stopped = match asked {
            Asked::Call(call) if call.waits => Some(
                guard_call(&mut stream.calls)
                    .map_err(|text| Answer::text(Status::Invalid, text))?,
            ),
            _ => None,
        };
        let deadline_ns = if stream.answered { latest } else { stream.deadline_ns };
        Ok(Asking { deadline_ns, chain: stream.chain.clone(), stopped })
    }

    fn begin(&self, invocation: Option<InvocationId>, asked: Asked, asking: &Asking) -> Begun {
        let Some(services) = self.revision.shared.services.get() else {
            let text = "the node has not started yet";
            return Begun::Done(Answer::text(Status::Unavailable, text));
        };
        let caller = Caller {
            spec: &self.revision.spec,
            invocation: invocation.unwrap_or(InvocationId(0)),
            deadline_ns: asking.deadline_ns,
            chain: asking.chain.as_ref(),
        };
        services.begin(caller, asked)
    }
}

impl Ask for Programs {
    fn ask(&self, invocation: Option<InvocationId>, asked: Asked) -> AnswerFuture {
        let reads = match &asked {
            Asked::State { operation: Operation::Get { .. } | Operation::List { .. }, .. } => {
                Some(self.reads.clone())
            }
            _ => None,
        };
        let programs = Self {
            revision: self.revision.clone(),
            instance: self.instance,
            reads: self.reads.clone(),
        };
        Box::pin(async move {
            // The permit is held until the answer is available, so that only a few large values are
            // read at once.
            let _permit = match reads {
                Some(reads) => reads.acquire_owned().await.ok(),
                None => None,
            };
            let mut asking = match programs.find(invocation, &asked) {
                Ok(asking) => asking,
                Err(answer) => return answer,
            };
            let answer = match programs.begin(invocation, asked, &asking) {
                Begun::Done(answer) => return answer,
                Begun::Later(answer) => answer,
            };
            match asking.stopped.take() {
                None => answer.await,
                Some(stopped) => tokio::select! {
                    biased;
                    _ = stopped => Answer::text(Status::Cancelled, "the caller is gone"),
                    answer = answer => answer,
                },
            }
        })
    }
}
