//! The interpreter with its shim, before and after it has a function.

use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::BytesMut;
use mote_pods::records::Ended;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, wait};
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::settings::{Runtime, Settings};

/// The number at which a worker finds its socket.
const WORKER_FD: i32 = 3;
/// An interpreter that has said nothing by then does not start.
const FIRST_WORD: Duration = Duration::from_secs(60);

/// Both ends of the worker's socket.
pub(crate) struct Sockets {
    inside: OwnedFd,
    own: OwnedFd,
}

/// Makes the worker's socket. Must run before anything else opens a file, because the worker
/// inherits its end under the same number.
pub(crate) fn sockets() -> io::Result<Sockets> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let (inside, own) = socketpair(family, kind, SocketFlags::empty(), None)?;
    if inside.as_raw_fd() != WORKER_FD {
        let text = format!("file descriptor {WORKER_FD} is in use; start it with 0, 1 and 2 only");
        return Err(io::Error::other(text));
    }
    fcntl_setfd(own.as_fd(), FdFlags::CLOEXEC)?;
    Ok(Sockets { inside, own })
}

/// A worker that has spoken.
pub(crate) struct Worker {
    pub(crate) socket: UnixStream,
    pub(crate) output: pipe::Receiver,
    /// Its first words, which the cell has not had yet.
    pub(crate) greeting: BytesMut,
    pub(crate) ended: watch::Receiver<Option<Ended>>,
    pid: Pid,
}

impl Worker {
    /// Kills it and what it has started in its process group.
    pub(crate) fn killer(&self) -> impl FnOnce() + use<> {
        let pid = self.pid;
        // The only possible failure is that it has ended.
        move || {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// Starts the interpreter and waits until its shim speaks.
pub(crate) async fn start(
    settings: &Settings,
    sockets: Sockets,
) -> Result<Worker, Box<dyn std::error::Error>> {
    let shims = mote_shims::unpack(&settings.at("mote"))?;
    let mut command = match settings.runtime {
        Runtime::Python => {
            let mut python = Command::new("python3");
            python.arg(mote_shims::PYTHON_OPTIONS).arg(shims.join(mote_shims::PYTHON_SHIM));
            python
        }
        Runtime::Node => {
            let mut node = Command::new("node");
            node.arg(shims.join(mote_shims::NODE_SHIM));
            node
        }
    };
    let (output, printed) = pipe_with(PipeFlags::CLOEXEC)?;
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    command
        .env_clear()
        .envs([("HOME", "/tmp"), ("LANG", "C.UTF-8")])
        // As in a sandbox, see docs/decisions/0025-freed-memory.md.
        .envs([("MALLOC_MMAP_THRESHOLD_", "33554432"), ("MALLOC_TRIM_THRESHOLD_", "67108864")])
        .env("PATH", path)
        .stdin(Stdio::null())
        .stdout(printed.try_clone()?)
        .stderr(printed)
        .process_group(0)
        .current_dir("/");
    let mut children = signal(SignalKind::child())?;
    let child = command.spawn().map_err(|error| {
        let program = command.get_program().to_string_lossy().into_owned();
        format!("{program} does not start: {error}")
    })?;
    // It has both ends of the pipe.
    drop(command);
    drop(sockets.inside);
    let pid = Pid::from_child(&child);
    let (sender, ended) = watch::channel(None);
    tokio::spawn(async move {
        // As the first process of its pod, this one gets the children of processes that have ended.
        loop {
            while let Ok(Some((of, status))) = wait(WaitOptions::NOHANG) {
                if of == pid {
                    let (status, signal) = (status.exit_status(), status.terminating_signal());
                    let out_of_memory = signal == Some(9) && had_no_memory();
                    let _ = sender.send(Some(Ended { status, signal, out_of_memory }));
                }
            }
            children.recv().await;
        }
    });
    let socket = std::os::unix::net::UnixStream::from(sockets.own);
    socket.set_nonblocking(true)?;
    rustix::io::ioctl_fionbio(output.as_fd(), true)?;
    let mut worker = Worker {
        socket: UnixStream::from_std(socket)?,
        output: pipe::Receiver::from_owned_fd(output)?,
        greeting: BytesMut::new(),
        ended,
        pid,
    };
    let heard = worker.socket.read_buf(&mut worker.greeting);
    match tokio::time::timeout(FIRST_WORD, heard).await {
        Ok(Ok(count)) if count > 0 => Ok(worker),
        _ => {
            worker.killer()();
            let mut printed = vec![0; 4_096];
            let count = worker.output.try_read(&mut printed).unwrap_or(0);
            let text = String::from_utf8_lossy(&printed[..count]).trim().to_owned();
            Err(format!("the interpreter ended before its first word: {text}").into())
        }
    }
}

/// Whether the kernel has killed a process of this pod for memory, if it says so.
fn had_no_memory() -> bool {
    let files = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];
    files.iter().any(|file| {
        let mut text = String::new();
        let opened = std::fs::File::open(file).map(|file| file.take(4_096));
        let read = opened.and_then(|mut file| file.read_to_string(&mut text));
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        read.is_ok() && kills.is_some_and(|kills| kills.trim() != "0")
    })
}
