//! Tells the cell which pods wait. This is a task of its own, because a function that is being
//! started on the cell may need them.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher;
use mote_api::ClientError;
use mote_api::pods::{PodPlace, PodsRequest};
use tokio::sync::Notify;

use super::Agent;
use crate::mirror::follow;
use crate::pods::{self, STATE, WAITING};

/// The pause after a failure, and how often the list is sent again at least: a cell that was
/// restarted knows none.
const AGAIN: Duration = Duration::from_secs(2);

/// Follows the pods for the rest of the process. There is nothing to do if the installation has none.
pub(super) async fn keep(agent: Arc<Agent>) {
    let Some(namespace) = agent.options.place.pods_namespace.clone() else {
        return std::future::pending().await;
    };
    let changed = Arc::new(Notify::new());
    let api: Api<Pod> = Api::namespaced(agent.client.clone(), &namespace);
    let config = watcher::Config::default().labels(&format!("{STATE}={WAITING}"));
    let pods = follow("pods", watcher(api, config), {
        let changed = changed.clone();
        move |before: Option<&Pod>, after: Option<&Pod>| {
            if before.and_then(pods::place) != after.and_then(pods::place) {
                changed.notify_one();
            }
        }
    });
    pods.synced().await;
    let mut told: Option<(Vec<PodPlace>, u64)> = None;
    loop {
        let pods: Vec<PodPlace> = pods.all().iter().filter_map(|pod| pods::place(pod)).collect();
        let starts = agent.starts();
        if told.as_ref() != Some(&(pods.clone(), starts)) {
            match agent.node.set_pods(&PodsRequest { pods: pods.clone() }).await {
                Ok(_) => told = Some((pods, starts)),
                // The cell was started without the setting `cell`: it claims no pods.
                Err(ClientError::Problem(problem)) if problem.status == 409 => {
                    return std::future::pending().await;
                }
                Err(error) => tracing::warn!("the waiting pods: {error}"),
            }
        }
        // A timeout is as good as a change.
        let _ = tokio::time::timeout(AGAIN, changed.notified()).await;
    }
}
