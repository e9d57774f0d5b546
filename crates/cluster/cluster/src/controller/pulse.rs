//! The pulse of each cell: its agent sends a byte twice a second for as long as the controller
//! listens. A machine that fails says nothing any more, which shows within two seconds; Kubernetes
//! itself notices after 40. The controller then no longer counts with the cell, and takes its pod out
//! of the Services. A machine that has too much to do still takes new connections, because its kernel
//! does that: its cell stays. When more than half of the cells are silent, the network of the
//! controller itself is more likely at fault, and nothing changes.

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
/// After a silence of this length, two beats and some delay, the controller connects again.
const SILENCE: Duration = Duration::from_millis(1_250);
/// A connection to a machine that works takes much less. Together with [`SILENCE`] less than 2 s.
const CONNECT: Duration = Duration::from_millis(500);
/// The pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(500);

/// Why there is no pulse.
enum Ended {
    /// Nobody answers at the address.
    Silent,
    /// The connection is there, and nothing comes.
    Quiet,
    /// The machine answers, the agent does not.
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
            // The next connection shows whether the machine is there.
            Ended::Quiet => continue,
            Ended::Silent if is_there() => silent(&controller, &name).await,
            Ended::Silent | Ended::Refused => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
    controller.lost.lock().remove(&name);
    controller.work.add(super::journals::WORK);
}

/// Goes on without a cell whose machine does not answer.
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

/// Says that a pod is not ready, as Kubernetes itself will when it notices that the machine is gone.
/// A kubelet that lives after all corrects it.
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
