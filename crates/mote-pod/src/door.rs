//! The one port, and the one connection that is accepted.

use std::convert::identity;
use std::io;
use std::time::Duration;

use mote_pods::{pod_key, prepare};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;

use crate::settings::Settings;

/// A cell needs a millisecond for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// Connections that have not proved the key; a further one waits in the kernel.
const SHAKING_MAX: usize = 16;

/// Waits for the first connection that proves the key of the cells. The port is closed when this
/// returns: for the cluster the pod is no longer ready, and other cells are refused at once.
pub(crate) async fn open(
    settings: &Settings,
    secret: &[u8],
) -> Result<TlsStream<TcpStream>, Box<dyn std::error::Error>> {
    let key = pod_key(secret)?;
    let acceptor = key.acceptor(settings.cells)?;
    let listener = TcpListener::bind(settings.listen).await?;
    crate::log(format_args!("waits at {} with the key {}", listener.local_addr()?, key.public()));
    drop(key);
    let mut shaking = JoinSet::new();
    loop {
        tokio::select! {
            arrived = listener.accept(), if shaking.len() < SHAKING_MAX => {
                let Ok((tcp, _)) = arrived else {
                    // No file descriptor is free until a handshake ends.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                };
                prepare(&tcp);
                let accepting = acceptor.accept(tcp);
                shaking.spawn(async move {
                    tokio::time::timeout(HANDSHAKE, accepting).await.map_err(io::Error::from).and_then(identity)
                });
            }
            Some(shaken) = shaking.join_next() => {
                // Kubernetes connects too, to see whether the port is open.
                if let Ok(Ok(stream)) = shaken {
                    return Ok(stream);
                }
            }
        }
    }
}
