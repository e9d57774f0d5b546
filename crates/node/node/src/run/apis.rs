//! Serves the management API and the APIs of other platforms.

use std::sync::Arc;

use anyhow::Result;
use mote_platforms::compat::Bound;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::fronts::Fronts;
use super::listen::Listening;
use crate::listeners::Listeners;
use crate::{Node, admin, compat};

/// The running APIs, and the channel that stops them.
pub(super) struct Apis {
    /// The APIs stop when this turns true.
    pub(super) stop: watch::Sender<bool>,
    /// The thread that runs the APIs of other platforms, if one of them is on.
    pub(super) platforms: Option<std::thread::JoinHandle<()>>,
    pub(super) management: JoinHandle<std::io::Result<()>>,
    /// Whether the node made the management socket. If it did, it removes the socket when it stops.
    pub(super) owns_socket: bool,
}

/// Starts the APIs. Adds the fronts of other platforms to `fronts`.
pub(super) async fn serve(
    node: &Arc<Node>,
    listening: Listening,
    fronts: &mut Fronts,
    management: &Handle,
) -> Result<Apis> {
    let Listening { sockets, tls, platforms, .. } = listening;
    let Listeners { management: socket, owns_management, admin, .. } = sockets;
    let (stop, stopped) = watch::channel(false);
    let platforms = if node.config.compat.is_off() {
        compat::warn_of_activations(node).await;
        None
    } else {
        let of_others = compat::Fronts {
            tasks: &mut fronts.tasks,
            stopper: fronts.stopper.clone(),
            coap_stopped: fronts.stop_coap.subscribe(),
            access_log: fronts.access_log.clone(),
        };
        let node = node.clone();
        let runtime = management.clone();
        Some(platforms.serve(node, runtime, of_others, stopped.clone()).await?)
    };
    let admin = admin.map(|socket| Ok::<_, std::io::Error>(Bound::of(socket)?.with_tls(tls)));
    let served = admin::serve(node.clone(), socket, admin.transpose()?, stopped);
    let management = management.spawn(served);
    Ok(Apis { stop, platforms, management, owns_socket: owns_management })
}
