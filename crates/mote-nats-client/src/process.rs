//! The process `mote-nats`: started, sent its settings and requests, watched, started again.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::frames::{Reply, Request, Settings, take_frame};
use crate::shared::Shared;

/// How long it may take to end.
const END_PATIENCE: Duration = Duration::from_secs(8);
/// The first pause before it is started again, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A process that lasted this long begins the pauses anew.
const STABLE: Duration = Duration::from_secs(60);
/// The longest line of its log.
const LINE_BYTES_MAX: u64 = 1 << 10;
/// Lines of its log in a second.
const LINES_PER_S: u32 = 20;
/// Bytes that one write collects.
const WRITE_BYTES: usize = 256 << 10;

/// How the process is started.
pub struct Launch {
    /// The program `mote-nats`.
    pub program: PathBuf,
    /// Reads its settings anew for each start, so that files with credentials may change while the
    /// node runs.
    pub settings: Box<dyn Fn() -> io::Result<Settings> + Send + Sync>,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Settings contain secrets.
        f.debug_struct("Launch").field("program", &self.program).finish_non_exhaustive()
    }
}

/// Runs the process until the node stops.
pub(crate) async fn keep(launch: Launch, shared: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    let mut pause = PAUSE_MIN;
    while !*stopped.borrow() {
        let began = Instant::now();
        let ended = run(&launch, &shared, &mut stopped).await;
        let problem = match &ended {
            Ok(status) => format!("mote-nats ended ({status})"),
            Err(error) => format!("mote-nats cannot run: {error}"),
        };
        shared.broke(&problem);
        if *stopped.borrow() {
            return;
        }
        tracing::error!("[M1215] {problem}; the node starts it again");
        if began.elapsed() >= STABLE {
            pause = PAUSE_MIN;
        }
        tokio::select! {
            () = sleep(pause) => {}
            _ = stopped.changed() => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// One process from its start to its end: how it ended.
async fn run(
    launch: &Launch,
    shared: &Shared,
    stopped: &mut watch::Receiver<bool>,
) -> io::Result<String> {
    let settings = (launch.settings)()?;
    let (own, other) = std::os::unix::net::UnixStream::pair()?;
    own.set_nonblocking(true)?;
    let socket = UnixStream::from_std(own)?;
    // Nothing of the node's environment, which may contain secrets. The socket is its input, and
    // its end, when the node ends however it ends, ends the process.
    let mut child = Command::new(&launch.program)
        .arg("run")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(other)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    shared.began();
    let log = child.stderr.take().map(|errors| tokio::spawn(relay(errors)));
    let served = serve(&settings, socket, shared, stopped, &mut child).await;
    let ended = match served {
        Ok(()) => match timeout(END_PATIENCE, child.wait()).await {
            Ok(status) => Ok(status?.to_string()),
            Err(_) => {
                child.kill().await?;
                Ok("it did not end in time, and was killed".to_owned())
            }
        },
        Err(error) => {
            child.kill().await?;
            Err(error)
        }
    };
    if let Some(log) = log {
        let _ = timeout(Duration::from_secs(1), log).await;
    }
    ended
}

/// Carries requests and answers until the process has ended, or is to end.
async fn serve(
    settings: &Settings,
    socket: UnixStream,
    shared: &Shared,
    stopped: &mut watch::Receiver<bool>,
    child: &mut Child,
) -> io::Result<()> {
    let (mut input, mut output) = socket.into_split();
    let writing = async {
        let mut bytes = Request::Begin(settings.clone()).frame(0);
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
            // A process that has ended is reported by its status.
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
                // A process that has ended is reported by its status.
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
    // The process ends when its input does, after it has answered what it has read.
    drop(output);
    let _ = timeout(END_PATIENCE, reading).await;
    Ok(())
}

/// Writes the lines of the process to the log of the node.
async fn relay(errors: ChildStderr) {
    let mut errors = BufReader::new(errors);
    let (mut since, mut lines) = (Instant::now(), 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut errors).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if since.elapsed() >= Duration::from_secs(1) {
            (since, lines) = (Instant::now(), 0);
        }
        lines += 1;
        if lines > LINES_PER_S {
            continue;
        }
        let text = String::from_utf8_lossy(&line);
        match text.trim().split_once(' ') {
            Some(("ERROR", text)) => tracing::error!("NATS: {}", text.trim()),
            Some(("WARN", text)) => tracing::warn!("NATS: {}", text.trim()),
            Some(("INFO", text)) => tracing::info!("NATS: {}", text.trim()),
            _ => tracing::warn!("NATS: {}", text.trim()),
        }
    }
}
