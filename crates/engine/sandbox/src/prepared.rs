//! Children that wait for an instance and are already in their namespaces and cgroups.
//!
//! Joining cgroups takes most of the time of a start, and the kernel spends that time waiting, not
//! working. So a few children prepare before they are needed. Each child is used once, and is
//! replaced after the start that took it. If no child is prepared, a start makes its own child and
//! only takes longer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use tokio::io::unix::AsyncFd;

use crate::cleanup::Unstarted;

/// Number of children that are kept prepared: enough for functions that call each other. A waiting
/// child uses a quarter of a megabyte, kernel memory included.
pub(crate) const PREPARED: usize = 2;

/// A child in its namespaces and cgroups. Dropping this ends the child and removes its cgroups.
pub(crate) struct PreparedChild {
    /// Receives the plan and reports the result. This field is dropped first, which ends the child.
    pub(crate) status: AsyncFd<OwnedFd>,
    /// The child's process id on the host, and a descriptor of the process.
    pub(crate) init: i32,
    pub(crate) pidfd: OwnedFd,
    /// The child's mount namespace.
    pub(crate) mounts: OwnedFd,
    pub(crate) cleanup: Unstarted,
}

/// The prepared children of one backend. All are alike.
#[derive(Default)]
pub(crate) struct Pool {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    prepared: Vec<PreparedChild>,
    filling: bool,
    closed: bool,
}

impl Pool {
    pub(crate) fn take(&self) -> Option<PreparedChild> {
        self.lock().prepared.pop()
    }

    /// Whether the caller must start adding children, until [`Pool::add`] returns false.
    pub(crate) fn begin_filling(&self) -> bool {
        let mut state = self.lock();
        let begin = !state.filling && !state.closed && state.prepared.len() < PREPARED;
        state.filling |= begin;
        begin
    }

    /// Adds one child, or ends the filling if the child could not be made. Returns true while more
    /// are needed.
    pub(crate) fn add(&self, prepared: Option<PreparedChild>) -> bool {
        let mut state = self.lock();
        let made = prepared.is_some();
        if !state.closed {
            state.prepared.extend(prepared);
        }
        state.filling = made && !state.closed && state.prepared.len() < PREPARED;
        state.filling
    }

    /// Ends all prepared children permanently.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let prepared = std::mem::take(&mut state.prepared);
        drop(state);
        drop(prepared);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether this error, which occurred while a plan was handed over, means that the child died while
/// it waited.
pub(crate) fn has_died(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

impl PreparedChild {
    pub(crate) fn status_fd(&self) -> BorrowedFd<'_> {
        self.status.get_ref().as_fd()
    }

    /// Hands over the plan together with the inner ends of the channel and the output, and with the
    /// mount of the data folder.
    pub(crate) fn send(
        &self,
        plan: &[u8],
        inside: &[OwnedFd; 2],
        data: Option<&OwnedFd>,
    ) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let fds: Vec<_> = inside.iter().chain(data).map(AsRawFd::as_raw_fd).collect();
        crate::message::send(self.status.get_ref().as_fd(), plan, &fds, libc::MSG_DONTWAIT)
    }
}
