//! The state of functions over NATS.

use mote_core::state::{Begun, Namespace, Operation, Quota, State, StateError, StateFuture, Usage};

use crate::nats::client::{Nats, unexpected};
use crate::nats::frames::{NatsError, Reply, Request};

/// The state of functions in NATS JetStream, which several nodes share. The rules are in
/// `mote-nats`; this type only passes operations on. The version of an entry is its place in the
/// stream, which only the server knows. So every operation, durable or not, is answered only after
/// the server has stored it.
#[derive(Debug, Clone)]
pub struct NatsState(Nats);

impl NatsState {
    pub fn new(nats: Nats) -> Self {
        Self(nats)
    }
}

impl State for NatsState {
    fn begin(
        &self,
        namespace: Namespace,
        operation: Operation,
        quota: Quota,
        _durable: bool,
        now_unix_ms: u64,
    ) -> Begun {
        let asked = self.0.ask(&Request::State { namespace, operation, quota, now_unix_ms });
        Begun::Later(Box::pin(async move {
            match asked.await.map_err(of_nats)? {
                Reply::State(result) => result,
                other => Err(of_nats(unexpected(&other))),
            }
        }))
    }

    fn usage(&self) -> StateFuture<Vec<Usage>> {
        let asked = self.0.ask(&Request::Usage);
        Box::pin(async move {
            match asked.await.map_err(of_nats)? {
                Reply::Usage(usage) => Ok(usage),
                other => Err(of_nats(unexpected(&other))),
            }
        })
    }

    fn clear(&self, namespace: Namespace) -> StateFuture<()> {
        let asked = self.0.ask(&Request::Clear(namespace));
        Box::pin(async move {
            match asked.await.map_err(of_nats)? {
                Reply::Done => Ok(()),
                other => Err(of_nats(unexpected(&other))),
            }
        })
    }
}

fn of_nats(error: NatsError) -> StateError {
    StateError::Disk(error.to_string())
}
