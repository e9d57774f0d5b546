//! The pulse of each cell: its agent sends a byte twice a second for as long as the controller
//! listens.
//!
//! When a machine fails, its pulse stops, and the controller notices within two seconds. Kubernetes
//! itself notices after 40 seconds. The controller then no longer relies on the cell, and takes the
//! cell's pod out of the Services. An overloaded machine still accepts new connections, because its
//! kernel does that, so its cell stays. If more than half of the cells are silent, the controller's
//! own network is more likely at fault, and the controller changes nothing.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Controller;
use crate::resources::Cell;

/// The path at which an agent sends its pulse.
pub(crate) const PATH: &str = "/v1/pulse";
/// The time between two beats.
pub(crate) const BEAT: Duration = Duration::from_millis(500);
/// After this much silence, which is two beats and some delay, the controller connects again.
const SILENCE: Duration = Duration::from_millis(1_250);
/// Longest time to connect. Connecting to a working machine takes much less. Together with
/// [`SILENCE`], it is less than 2 s.
const CONNECT: Duration = Duration::from_millis(500);
/// The pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(500);

/// Why the pulse ended.
enum Ended {
    /// No machine answers at the address.
    Silent,
    /// The connection is open, but no bytes arrive.
    Quiet,
    /// The machine answers, but the agent does not.
    Refused,
}

/// Follows the pulse of a cell until the cell is gone.
pub(super) async fn follow(controller: Arc<Controller>, cell: Arc<Cell>) {
    let name = cell.name_any();
    let is_there = || {
        let now = controller.cells.get(&name);
        now.is_some_and(|now| now.metadata.uid == cell.metadata.uid && now.spec == cell.spec)
    };
    while is_there() {
        match listen(&controller, &cell).await {
            // A new connection shows whether the machine is still there.
            Ended::Quiet => continue,
            Ended::Silent if is_there() => silent(&controller, &name).await,
            Ended::Silent | Ended::Refused => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
    controller.lost.lock().remove(&name);
    controller.work.add(super::journals::WORK);
}

/// Continues without a cell whose machine does not answer.
async fn silent(controller: &Controller, name: &str) {
    let known = controller.cells.all().len();
    {
        let mut lost = controller.lost.lock();
        if lost.contains(name) || 2 * (lost.len() + 1) > known.max(2) {
            return;
        }
        lost.insert(name.to_owned());
        controller.heard.lock().remove(name);
    }
    tracing::warn!("{name} is silent: its functions and triggers move to other cells");
    controller.wake_all();
    leave_services(controller, name).await;
}

async fn listen(controller: &Controller, cell: &Cell) -> Ended {
    let address = (cell.spec.address.as_str(), cell.spec.agent_port.unwrap_or(8082));
    let stream = match timeout(CONNECT, TcpStream::connect(address)).await {
        Err(_) => return Ended::Silent,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            return Ended::Refused;
        }
        Ok(Err(_)) => return Ended::Silent,
        Ok(Ok(stream)) => stream,
    };
    let request = axum::http::Request::get(PATH)
        .header("host", "agent")
        .header("authorization", format!("Bearer {}", controller.key))
        .body(axum::body::Body::empty());
    let (Ok(request), Ok((mut sender, connection))) =
        (request, hyper::client::conn::http1::handshake(TokioIo::new(stream)).await)
    else {
        return Ended::Refused;
    };
    let connection = tokio::spawn(connection);
    let mut body = match timeout(SILENCE, sender.send_request(request)).await {
        Err(_) => return Ended::Refused,
        Ok(Ok(answer)) if answer.status().is_success() => answer.into_body(),
        Ok(_) => return Ended::Refused,
    };
    let ended = loop {
        match timeout(SILENCE, body.frame()).await {
            Err(_) => break Ended::Quiet,
            Ok(Some(Ok(_))) => {
                if controller.heard.lock().insert(cell.name_any()) {
                    controller.work.add(super::journals::WORK);
                }
                if controller.lost.lock().remove(&cell.name_any()) {
                    tracing::info!("{} is back", cell.name_any());
                    controller.wake_all();
                }
            }
            Ok(_) => break Ended::Refused,
        }
    };
    connection.abort();
    ended
}

/// Marks a pod as not ready. Kubernetes would do the same once it notices that the machine is gone.
/// If the kubelet is alive after all, it marks the pod as ready again.
async fn leave_services(controller: &Controller, name: &str) {
    let Some(pod) = controller.pods.get(name) else { return };
    let mut conditions =
        pod.status.clone().and_then(|status| status.conditions).unwrap_or_default();
    for condition in &mut conditions {
        if condition.type_ == "Ready" {
            condition.status = "False".to_owned();
            condition.reason = Some("Silent".to_owned());
            condition.message = Some("the cell does not answer the controller".to_owned());
        }
    }
    let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
    if let Err(error) =
        controller.pods_api.patch_status(name, &PatchParams::default(), &patch).await
    {
        tracing::warn!("{name} cannot be taken out of the Services: {error}");
    }
}
