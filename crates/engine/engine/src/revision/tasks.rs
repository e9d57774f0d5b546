//! Spawns the tasks that work for revisions.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::instance::services_door;
use crate::link::server::Place;
use crate::link::{action_image, server, websocket, worker};
use crate::revision::pool::FollowUp;
use crate::revision::reconciler;
use crate::revision::starts::Draining;
use crate::revision::{Revision, Tasks};

/// Spawns tasks on the runtimes of the data path.
pub(crate) struct Spawner {
    pub(crate) runtime: Handle,
    pub(crate) draining: Draining,
}

impl Tasks for Spawner {
    fn reconcile(&self, revision: Arc<Revision>) {
        self.runtime.spawn(reconciler::run(revision));
    }

    fn follow_up(&self, revision: &Arc<Revision>, follow_up: FollowUp) {
        match follow_up {
            FollowUp::Pump { worker, stream, serial, body } => {
                let runtime = revision.shared.threads.this();
                runtime.spawn(worker::pump(revision.clone(), worker, stream, serial, body));
            }
            FollowUp::Exchange { worker, stream, serial, link, mut invocation } => {
                if revision.spec.has_services_door() {
                    services_door::name_invocation(&mut invocation);
                }
                let place = Place::new(revision.clone(), invocation.id, (worker, stream, serial));
                let runtime = link.runtime().clone();
                let task = if invocation.head.wants_websocket() {
                    runtime.spawn(websocket::exchange(place, link, invocation))
                } else if action_image::is_meant(&revision.spec) {
                    runtime.spawn(action_image::exchange(place, link, invocation))
                } else {
                    runtime.spawn(server::exchange(place, link, invocation))
                };
                let mut pool = revision.pool.lock();
                if let Some(worker) = pool.worker_mut(worker)
                    && let Some(entry) = worker.parts().0.get_mut_if(stream, serial)
                {
                    entry.task = Some(task.abort_handle());
                }
            }
        }
    }

    fn drains(&self, revision: &Arc<Revision>) {
        self.draining.lock().push(Arc::downgrade(revision));
    }
}
