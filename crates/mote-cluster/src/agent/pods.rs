//! Tells the cell which pods wait, and the cluster which of them the cell has claimed. This is a task
//! of its own, because a function that is being started on the cell may need them.
//!
//! A claim does not wait for its report, which follows within [`ASK`]. The agent may only change the
//! status of pods, so a report is a condition of the pod.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use mote_api::ClientError;
use mote_api::pods::{PodList, PodPlace, PodsRequest};
use serde_json::json;
use tokio::sync::Notify;

use super::Agent;
use crate::mirror::follow;
use crate::pods::{self, HAS_CELL, IN_VAIN, STATE, WAITING};

/// The pause after a failure, and how often the list is sent again at least: a cell that was
/// restarted knows none.
const AGAIN: Duration = Duration::from_secs(2);
/// How often the cell is asked for its claims while pods wait. A pod that is withdrawn stays for
/// longer than this.
const ASK: Duration = Duration::from_secs(1);
/// A pod that a cell has tried to claim so often is of no use, which takes it seven seconds at least.
const FAILURES: u32 = 4;

/// Follows the pods for the rest of the process. There is nothing to do if the installation has none.
pub(super) async fn keep(agent: Arc<Agent>) {
    let Some(namespace) = agent.options.place.pods_namespace.clone() else {
        return std::future::pending().await;
    };
    let changed = Arc::new(Notify::new());
    let api: Api<Pod> = Api::namespaced(agent.client.clone(), &namespace);
    let config = watcher::Config::default().labels(&format!("{STATE}={WAITING}"));
    let pods = follow("pods", watcher(api.clone(), config), {
        let changed = changed.clone();
        move |before: Option<&Pod>, after: Option<&Pod>| {
            if before.and_then(pods::place) != after.and_then(pods::place) {
                changed.notify_one();
            }
        }
    });
    pods.synced().await;
    let mut told: Option<(Vec<PodPlace>, u64)> = None;
    let mut reported: BTreeSet<(String, &'static str)> = BTreeSet::new();
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
        if let Ok(list) = agent.node.pods().await {
            report(&agent, &api, &list, &mut reported).await;
        }
        // A timeout is as good as a change.
        let is_empty = told.as_ref().is_some_and(|(pods, _)| pods.is_empty());
        let _ = tokio::time::timeout(if is_empty { AGAIN } else { ASK }, changed.notified()).await;
    }
}

/// What the cluster has to know of the cell's claims: the names of pods, each with a condition.
fn claims(list: &PodList) -> BTreeSet<(String, &'static str)> {
    let held = list.held.iter().map(|name| (name.clone(), HAS_CELL));
    let failing = list.pods.iter().filter(|pod| pod.failed >= FAILURES);
    held.chain(failing.map(|pod| (pod.name.clone(), IN_VAIN))).collect()
}

/// Writes what was not written yet. What fails is written the next time.
async fn report(
    agent: &Agent,
    api: &Api<Pod>,
    list: &PodList,
    reported: &mut BTreeSet<(String, &'static str)>,
) {
    let claims = claims(list);
    reported.retain(|claim| claims.contains(claim));
    for (name, type_) in claims {
        if reported.contains(&(name.clone(), type_)) {
            continue;
        }
        let text = format!("by the cell {}", agent.options.pod);
        // The API server joins it with the conditions of the kubelet by their types.
        let condition = json!({
            "type": type_, "status": "True", "reason": "Reported", "message": text,
            "lastTransitionTime": k8s_openapi::jiff::Timestamp::now().to_string(),
        });
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        match api.patch_status(&name, &PatchParams::default(), &patch).await {
            Ok(_) => {
                reported.insert((name, type_));
            }
            // It has ended meanwhile.
            Err(kube::Error::Api(error)) if error.code == 404 => {
                reported.insert((name, type_));
            }
            Err(error) => tracing::warn!("the claim of the pod {name} is not reported: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_and_repeated_failures_are_reported() {
        let pod = |name: &str, failed| mote_api::pods::WaitingPod {
            name: name.to_owned(),
            failed,
            ..Default::default()
        };
        let list = PodList {
            held: vec!["a".to_owned()],
            pods: vec![pod("a", 0), pod("b", FAILURES - 1), pod("c", FAILURES)],
            ..PodList::default()
        };
        let expected = [("a".to_owned(), HAS_CELL), ("c".to_owned(), IN_VAIN)];
        assert_eq!(claims(&list), BTreeSet::from(expected));
    }
}
