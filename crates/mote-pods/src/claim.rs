//! Claims one pod: the connection, what is sent, and the first word of its worker.

use std::convert::identity;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use mote_core::backend::{InstanceRequest, Launch, Started};
use mote_raw_keys::no_name;
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::client::TlsStream;

use crate::records::{Claim, PAYLOAD_BYTES_MAX, RecordError, RecordKind, VERSION, put, split};
use crate::waiting::WaitingPod;
use crate::{Held, Pods, files, instance};

/// A pod on a machine that works answers within a millisecond or two. The next one is tried soon.
const CONNECT: Duration = Duration::from_millis(500);
/// The handshake takes two hundred microseconds, but the machine of the pod may be busy.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// From the claim to the first word of the worker, whose interpreter has started already. The code
/// is sent meanwhile.
const FIRST_WORD: Duration = Duration::from_secs(60);
/// The kernel gives up a connection whose bytes were not acknowledged for as long, also those of
/// its own questions for a sign of life.
const UNACKNOWLEDGED_MS: u32 = 5_000;
/// Silence until the kernel asks for a sign of life. No process wakes up for this.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
/// The pause after each question.
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(1);
/// Questions without an answer until the connection is given up: one lost packet means nothing.
const KEEPALIVE_PROBES: u32 = 3;

/// Why a pod was not claimed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Another cell was faster, or the machine is gone. The next pod is tried.
    #[error("no connection: {0}")]
    Connection(io::Error),
    /// It is not the pod that was meant, or it does not accept this cell. The next one is tried.
    #[error("the handshake failed: {0}")]
    Handshake(io::Error),
    /// The connection was lost before the worker ran. The next one is tried.
    #[error("the connection ended: {0}")]
    Lost(io::Error),
    /// The pod says why it cannot run the function. Others would say the same.
    #[error("{0}")]
    Refused(String),
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        Failure::Lost(io::Error::other(error))
    }
}

/// Connects to a pod, sends it the function, and waits until its worker speaks.
pub(crate) async fn claim(
    pods: &Pods,
    pod: &WaitingPod,
    request: &InstanceRequest,
) -> Result<Started, Failure> {
    let tcp = tokio::time::timeout(CONNECT, TcpStream::connect(pod.address)).await;
    let tcp = tcp.map_err(io::Error::from).and_then(identity).map_err(Failure::Connection)?;
    prepare(&tcp);
    let connector = pods.0.key.connector(pod.key);
    let connector = connector.map_err(|error| Failure::Handshake(io::Error::other(error)))?;
    let shaking = tokio::time::timeout(HANDSHAKE, connector.connect(no_name(), tcp)).await;
    let mut stream =
        shaking.map_err(io::Error::from).and_then(identity).map_err(Failure::Handshake)?;
    // From here on the pod is this node's, before anything is sent to it.
    let held = Held::new(&pods.0, &pod.name);
    let mut input = BytesMut::new();
    let speaks = async {
        send(&mut stream, request).await?;
        first_word(&mut stream, &mut input).await
    };
    let speaks = tokio::time::timeout(FIRST_WORD, speaks).await;
    let first = speaks.map_err(|late| Failure::Lost(late.into()))??;
    instance::run(pods, held, stream, input, first).map_err(Failure::Lost)
}

/// Sets the options of the socket, at both ends. A kernel that refuses one only notices later that
/// the other side is lost.
pub fn prepare(tcp: &TcpStream) {
    let _ = sockopt::set_tcp_nodelay(tcp, true);
    let _ = sockopt::set_tcp_user_timeout(tcp, UNACKNOWLEDGED_MS);
    let _ = sockopt::set_socket_keepalive(tcp, true);
    let _ = sockopt::set_tcp_keepidle(tcp, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(tcp, KEEPALIVE_PAUSE);
    let _ = sockopt::set_tcp_keepcnt(tcp, KEEPALIVE_PROBES);
}

async fn send(stream: &mut TlsStream<TcpStream>, request: &InstanceRequest) -> Result<(), Failure> {
    if !matches!(request.launch, Launch::Shim { .. }) {
        return Err(Failure::Refused("a pod runs only Python and Node functions".to_owned()));
    }
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let claim = Claim {
        version: VERSION,
        label: request.label.clone(),
        files: request.files.iter().map(|(path, content)| (text(path), content.clone())).collect(),
    };
    let json = serde_json::to_vec(&claim).expect("a claim has only string keys");
    if json.len() > PAYLOAD_BYTES_MAX {
        let text = format!("its secrets have more than {} KiB", PAYLOAD_BYTES_MAX >> 10);
        return Err(Failure::Refused(text));
    }
    let mut head = Vec::with_capacity(json.len() + 16);
    put(&mut head, RecordKind::Claim, &json);
    let mut folders = vec![("/function", request.code_dir.clone())];
    folders.extend(request.packages_dir.clone().map(|folder| ("/packages", folder)));
    let (out, mut batches) = mpsc::channel::<Vec<u8>>(2);
    let reading = mote_tasks::blocking(move || files::send(&folders, &out));
    stream.write_all(&head).await.map_err(Failure::Lost)?;
    while let Some(batch) = batches.recv().await {
        stream.write_all(&batch).await.map_err(Failure::Lost)?;
    }
    stream.flush().await.map_err(Failure::Lost)?;
    // A file that cannot be read is no fault of the pod, and another pod would not help.
    let read = reading.await.map_err(io::Error::other).and_then(identity);
    read.map_err(|error| Failure::Refused(format!("the function's files: {error}")))
}

/// The first bytes of the worker. A claimed pod sends nothing else before them but what its worker
/// prints.
async fn first_word(
    stream: &mut TlsStream<TcpStream>,
    input: &mut BytesMut,
) -> Result<(RecordKind, Bytes), Failure> {
    loop {
        if let Some((kind, payload)) = split(input)? {
            if kind == RecordKind::Failed {
                return Err(Failure::Refused(String::from_utf8_lossy(&payload).into_owned()));
            }
            return Ok((kind, payload));
        }
        if stream.read_buf(input).await.map_err(Failure::Lost)? == 0 {
            return Err(Failure::Lost(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lost_packet_or_a_short_stall_ends_no_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        prepare(&tcp);
        let probes = sockopt::tcp_keepcnt(&tcp).unwrap();
        assert!(sockopt::socket_keepalive(&tcp).unwrap() && probes >= 3, "{probes} probes");
        let idle = sockopt::tcp_keepidle(&tcp).unwrap();
        let silence = idle + probes * sockopt::tcp_keepintvl(&tcp).unwrap();
        assert_eq!(silence, Duration::from_secs(5));
        // The kernel goes by the shorter one of both times.
        assert_eq!(sockopt::tcp_user_timeout(&tcp).unwrap(), 5_000);
    }
}
