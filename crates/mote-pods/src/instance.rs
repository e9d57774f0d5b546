//! A claimed pod as an instance. The engine has a local socket and a pipe, as it has for a sandbox;
//! this module moves the bytes between them and the connection to the pod.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use mote_core::backend::{BoxFuture, Exit, InstanceControl, Started, Usage};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::net::{TcpStream, unix};
use tokio::sync::watch;
use tokio_rustls::client::TlsStream;

use crate::records::{DATA_BYTES_MAX, Ended, RecordKind, put, split};
use crate::{Held, Pods};

/// SIGKILL: how an instance ends of which nothing was heard.
const KILLED: Exit = Exit { status: None, signal: Some(9), out_of_memory: false };

/// Turns a claimed pod into an instance. `first` is the first record of the pod, and `input` what
/// arrived after it.
pub(crate) fn run(
    pods: &Pods,
    held: Held,
    stream: TlsStream<TcpStream>,
    input: BytesMut,
    first: (RecordKind, Bytes),
) -> io::Result<Started> {
    let (channel, inside) = std::os::unix::net::UnixStream::pair()?;
    channel.set_nonblocking(true)?;
    inside.set_nonblocking(true)?;
    let inside = UnixStream::from_std(inside)?;
    let (output, printed) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let printed = pipe::Sender::from_owned_fd(printed)?;
    let (ended, exit) = watch::channel(None);
    let (kill, killed) = watch::channel(false);
    let shared = pods.0.clone();
    shared.running.fetch_add(1, Ordering::Relaxed);
    tokio::spawn(mote_tasks::boxed(async move {
        let exit = drive(stream, input, first, inside, printed, killed, &held.name).await;
        shared.running.fetch_sub(1, Ordering::Relaxed);
        // Nobody may wait for it any more.
        let _ = ended.send(Some(exit));
    }));
    Ok(Started {
        channel: OwnedFd::from(channel),
        output,
        egress: Vec::new(),
        control: Box::new(Control { kill, exit }),
        prewarmed: true,
        under_way: Box::new(()),
    })
}

async fn drive(
    stream: TlsStream<TcpStream>,
    input: BytesMut,
    first: (RecordKind, Bytes),
    inside: UnixStream,
    mut printed: pipe::Sender,
    mut killed: watch::Receiver<bool>,
    name: &str,
) -> Exit {
    let (from_pod, to_pod) = tokio::io::split(stream);
    let (from_engine, to_engine) = inside.into_split();
    let sending = async {
        // A worker that ends by itself closes the connection; one that the engine lets go ends when
        // it reads the end.
        let _ = to_pod_all(from_engine, to_pod).await;
        std::future::pending::<()>().await
    };
    let receiving = to_engine_all(from_pod, input, first, to_engine, &mut printed);
    let received = tokio::select! {
        received = receiving => received,
        () = sending => return KILLED,
        // The sender lives as long as the instance's control.
        _ = killed.wait_for(|killed| *killed) => return KILLED,
    };
    match received {
        Ok(exit) => exit,
        Err(error) => {
            let why = match error.kind() {
                io::ErrorKind::UnexpectedEof => "its main process has ended".to_owned(),
                _ => error.to_string(),
            };
            let line = format!("mote: the pod {name} is lost: {why}\n");
            // The log may be full, or nobody reads it any more.
            let _ = printed.try_write(line.as_bytes());
            tracing::warn!(pod = name, "a pod with an instance is lost: {why}");
            KILLED
        }
    }
}

/// From the engine to the worker, until the engine closes its end.
async fn to_pod_all(
    mut from: unix::OwnedReadHalf,
    mut to: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let mut buffer = vec![0; DATA_BYTES_MAX];
    let mut record = Vec::new();
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        record.clear();
        put(&mut record, RecordKind::Worker, &buffer[..count]);
        to.write_all(&record).await?;
        to.flush().await?;
    }
}

/// From the pod to the engine, until the pod says how its worker ended.
async fn to_engine_all(
    mut from: impl AsyncRead + Unpin,
    mut input: BytesMut,
    first: (RecordKind, Bytes),
    mut to: unix::OwnedWriteHalf,
    printed: &mut pipe::Sender,
) -> io::Result<Exit> {
    let mut record = Some(first);
    loop {
        match record.take() {
            // The engine may have closed its end already; the pod still says how its worker ended.
            Some((RecordKind::Worker, bytes)) => drop(to.write_all(&bytes).await),
            Some((RecordKind::Output, bytes)) => drop(printed.write_all(&bytes).await),
            Some((RecordKind::Exit, json)) => {
                let ended: Ended = serde_json::from_slice(&json)?;
                return Ok(ended.into());
            }
            Some((kind, _)) => {
                return Err(io::Error::other(format!("unexpected record {kind:?}")));
            }
            None if from.read_buf(&mut input).await? == 0 => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            None => {}
        }
        record = split(&mut input).map_err(io::Error::other)?;
    }
}

struct Control {
    kill: watch::Sender<bool>,
    exit: watch::Receiver<Option<Exit>>,
}

impl InstanceControl for Control {
    fn kill(&self) {
        self.kill.send_replace(true);
    }

    /// The pod has a processor of its own, as far as its cluster says so.
    fn set_background(&self, _: bool) {}

    fn set_paused(&self, _: bool) -> bool {
        false
    }

    fn pid(&self) -> Option<u32> {
        None
    }

    fn usage(&self) -> Option<Usage> {
        None
    }

    fn exited(&self) -> BoxFuture<Exit> {
        let mut exit = self.exit.clone();
        Box::pin(async move {
            let ended = exit.wait_for(Option::is_some).await.ok().and_then(|exit| *exit);
            // The task is missing only when the runtime is shutting down, which ends connections.
            ended.unwrap_or(KILLED)
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.kill();
    }
}
