//! Starts the process `mote-nats`, sends it settings and requests, watches it, and restarts it.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use mote_process::companion::Role;
use mote_process::companion::supervision::{self, Companion, END_PATIENCE, Serving};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::nats::frames::{Reply, Request, Settings, take_frame};
use crate::nats::shared::Shared;

/// The most bytes that are collected for one write.
const WRITE_BYTES: usize = 256 << 10;

/// How the process is started.
pub struct Launch {
    /// The path of the `mote` executable.
    pub program: PathBuf,
    /// Called before each start, so that files with credentials may change while the node runs.
    pub settings: Box<dyn Fn() -> io::Result<Settings> + Send + Sync>,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings are left out, because they contain secrets.
        f.debug_struct("Launch").field("program", &self.program).finish_non_exhaustive()
    }
}

/// Runs the process until the node stops.
pub(crate) async fn keep(launch: Launch, shared: Arc<Shared>, stopped: watch::Receiver<bool>) {
    supervision::keep(Process { launch, shared, begun: None }, stopped).await;
}

struct Process {
    launch: Launch,
    shared: Arc<Shared>,
    /// The settings and the socket of the process that is being started.
    begun: Option<(Settings, UnixStream)>,
}

impl Companion for Process {
    fn label(&self) -> &'static str {
        "NATS"
    }

    fn pauses(&self) -> (Duration, Duration) {
        (Duration::from_millis(100), Duration::from_secs(10))
    }

    fn command(&mut self) -> io::Result<Command> {
        let settings = (self.launch.settings)()?;
        let (own, other) = std::os::unix::net::UnixStream::pair()?;
        own.set_nonblocking(true)?;
        self.begun = Some((settings, UnixStream::from_std(own)?));
        let mut command = supervision::command_of(&self.launch.program, Role::Nats, Path::new("/"));
        // The socket is the input of the process. However the node ends, the socket closes, and the
        // process ends because its input has ended.
        command.stdin(Stdio::from(OwnedFd::from(other))).stdout(Stdio::null());
        Ok(command)
    }

    fn serve<'a>(
        &'a mut self,
        child: &'a mut Child,
        stopped: &'a mut watch::Receiver<bool>,
    ) -> Serving<'a> {
        Box::pin(async move {
            let begun = self.begun.take().ok_or_else(|| io::Error::other("it was not started"))?;
            self.shared.began();
            serve(begun, &self.shared, stopped, child).await
        })
    }

    fn ended(&mut self, ended: &io::Result<String>, is_stopping: bool) {
        let problem = match ended {
            Ok(status) => format!("mote-nats ended ({status})"),
            Err(error) => format!("mote-nats cannot run: {error}"),
        };
        self.shared.broke(&problem);
        if !is_stopping {
            tracing::error!("[M1215] {problem}; the node starts it again");
        }
    }
}

/// Carries requests and answers until the process has ended or must end.
async fn serve(
    (settings, socket): (Settings, UnixStream),
    shared: &Shared,
    stopped: &mut watch::Receiver<bool>,
    child: &mut Child,
) -> io::Result<()> {
    let (mut input, mut output) = socket.into_split();
    let writing = async {
        let mut bytes = Request::Begin(settings).frame(0);
        loop {
            while bytes.len() < WRITE_BYTES
                && let Some(frame) = shared.next_frame()
            {
                bytes.extend_from_slice(&frame);
            }
            if bytes.is_empty() {
                shared.queued.notified().await;
                continue;
            }
            // If the process has ended, its exit status is reported, so this error is not.
            if output.write_all(&bytes).await.is_err() {
                return std::future::pending().await;
            }
            bytes.clear();
            bytes.shrink_to(WRITE_BYTES);
        }
    };
    let reading = async {
        let mut read = BytesMut::new();
        loop {
            while let Some(frame) = take_frame(&mut read).map_err(io::Error::other)? {
                let (number, reply) = Reply::read(frame).map_err(io::Error::other)?;
                shared.answered(number, reply);
            }
            read.reserve(16 << 10);
            match input.read_buf(&mut read).await {
                // If the process has ended, its exit status is reported, so this is not an error.
                Ok(0) | Err(_) => return io::Result::Ok(()),
                Ok(_) => {}
            }
        }
    };
    tokio::pin!(reading);
    tokio::select! {
        read = &mut reading => return read,
        ended = child.wait() => return ended.map(|_| ()),
        never = writing => never,
        _ = stopped.changed() => {}
    }
    // The process ends when its input ends, after it has answered everything that it has read.
    drop(output);
    let _ = timeout(END_PATIENCE, reading).await;
    Ok(())
}
