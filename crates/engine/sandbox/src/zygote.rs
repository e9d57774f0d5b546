//! The zygote: a single-threaded process, forked before the daemon has threads, that clones itself
//! once per instance.
//!
//! A threaded process cannot fork safely, because another thread may hold a lock that the child
//! needs. The zygote has no threads, no logger and no locks, so its children may use the whole
//! standard library. It only receives an order, clones itself, hands its sockets to the child and
//! continues. All slow work happens in the child. An order with one descriptor makes a child that
//! prepares and then receives its plan directly from the daemon. An order with two descriptors
//! assigns a prewarmed instance. The zygote trusts only the daemon, which is its only peer.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::assignment;
use crate::child;
use crate::message;
use crate::plan::{Answer, PREFIX_BYTES, PREPARATION_BYTES_MAX};
use crate::sys;

/// The name of the step in which the kernel may refuse namespaces.
pub(crate) const CLONE: &str = "clone into new namespaces";

/// The descriptor of the zygote's control socket. All descriptors above it are closed.
const CONTROL_FD: RawFd = 3;

/// A type without values. It has only the function [`Zygote::fork`].
#[derive(Debug)]
pub enum Zygote {}

/// The daemon's end. Dropping this ends the zygote and every instance that the zygote has made.
#[derive(Debug)]
pub struct ZygoteHandle {
    control: OwnedFd,
    pid: i32,
    /// Becomes readable once the zygote has ended.
    pidfd: OwnedFd,
}

impl Zygote {
    /// Forks the zygote. Call this first in a `main` that is not async.
    ///
    /// Fails if the process already has more than one thread, or if the kernel refuses. Does not
    /// block. In the child, this function never returns.
    pub fn fork() -> io::Result<ZygoteHandle> {
        let threads = std::fs::read_dir("/proc/self/task")?.count();
        if threads != 1 {
            return Err(io::Error::other(format!(
                "the zygote must be forked while single-threaded, there are {threads} threads"
            )));
        }
        let (ours, theirs) = sys::socket_pair(libc::SOCK_SEQPACKET)?;
        let daemon = std::process::id();
        // SAFETY: single-threaded, as checked above.
        match unsafe { sys::fork_into(0) }? {
            Some((pid, pidfd)) => Ok(ZygoteHandle { control: ours, pid, pidfd }),
            None => {
                drop(ours);
                // A panic must end this copy of the daemon, and not unwind into the daemon's
                // `main`.
                std::panic::set_hook(Box::new(|_| std::process::abort()));
                let _ = run(theirs, daemon);
                sys::exit_now(0)
            }
        }
    }
}

impl ZygoteHandle {
    /// Process id of the zygote, for messages and metrics.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Resolves when the zygote has ended for any reason. Needs an async runtime. Fails if no
    /// descriptors are left.
    pub(crate) async fn ended(&self) -> io::Result<()> {
        let pidfd = sys::watched(self.pidfd.try_clone()?)?;
        pidfd.readable().await.map(drop)
    }

    /// Sends an order. For a prepared child, the order carries the inner end of the child's status
    /// socket. For an assignment, it also carries the instance's mount namespace. Returns
    /// `WouldBlock` if the zygote has not caught up with earlier orders, and `BrokenPipe` if it has
    /// ended.
    pub(crate) fn send(
        &self,
        order: &[u8],
        status: BorrowedFd<'_>,
        mounts: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let fds: Vec<_> = std::iter::once(status).chain(mounts).map(|fd| fd.as_raw_fd()).collect();
        message::send(self.control.as_fd(), order, &fds, libc::MSG_DONTWAIT)
    }
}

fn run(control: OwnedFd, daemon: u32) -> io::Result<()> {
    // The zygote gets its own session, so that Ctrl-C in the terminal reaches only the daemon,
    // which drains. SAFETY: a plain system call. A freshly forked process is never the leader of a
    // group.
    unsafe {
        libc::setsid();
    }
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGPIPE] {
        sys::set_signal(signal, libc::SIG_IGN);
    }
    sys::set_signal(libc::SIGTERM, libc::SIG_DFL);
    // While SIGCHLD is ignored, the kernel collects dead instances. Pidfds show their ends.
    sys::set_signal(libc::SIGCHLD, libc::SIG_IGN);
    sys::unblock_signals();
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0)?;
    // The daemon may have died before the line above took effect.
    if std::os::unix::process::parent_id() != daemon {
        return Ok(());
    }
    sys::prctl(libc::PR_SET_DUMPABLE, 0, 0)?;
    // SAFETY: plain descriptor numbers; whatever was at CONTROL_FD is a copy of the daemon's.
    let control = unsafe {
        let fd = control.as_raw_fd();
        if fd == CONTROL_FD {
            control
        } else {
            sys::check(libc::c_long::from(libc::dup3(fd, CONTROL_FD, libc::O_CLOEXEC)))?;
            std::mem::forget(control);
            OwnedFd::from_raw_fd(CONTROL_FD)
        }
    };
    sys::close_from(CONTROL_FD + 1)?;
    std::env::set_current_dir("/")?;
    let filter = crate::seccomp::compile()?;

    let mut buffer = vec![0; PREPARATION_BYTES_MAX];
    loop {
        let (length, fds) = match message::receive(control.as_fd(), &mut buffer) {
            Ok((0, fds)) if fds.is_empty() => return Ok(()),
            Ok(received) => received,
            // A message that is too long for the buffer is the daemon's mistake. The sockets in it
            // are closed, so that start fails.
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => continue,
            Err(error) => return Err(error),
        };
        let mut fds = fds.into_iter();
        let (Some(status), mounts) = (fds.next(), fds.next()) else {
            continue;
        };
        let Some((prefix, order)) = buffer[..length].split_first_chunk::<PREFIX_BYTES>() else {
            continue;
        };
        // SAFETY: this process is single-threaded for its whole life.
        let answer = match unsafe { sys::fork_into(u64::from_le_bytes(*prefix)) } {
            Ok(None) => match mounts {
                None => child::run(order, status, &filter),
                Some(mounts) => assignment::run(order, status, mounts),
            },
            Ok(Some((pid, pidfd))) => {
                let answer = Answer::Cloned { pid }.encode();
                let fds = [pidfd.as_raw_fd()];
                message::send(status.as_fd(), &answer, &fds, libc::MSG_DONTWAIT)
            }
            Err(error) => {
                let answer = Answer::Failed {
                    step: CLONE.to_owned(),
                    errno: error.raw_os_error().unwrap_or(0),
                };
                message::send(status.as_fd(), &answer.encode(), &[], libc::MSG_DONTWAIT)
            }
        };
        // If the daemon has closed its end, it has given up on this start. Nothing needs to be done
        // here, because the child notices the same.
        let _ = answer;
    }
}
