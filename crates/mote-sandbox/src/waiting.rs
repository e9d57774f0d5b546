//! Programs that wait to become an instance of whichever function is asked for next.
//!
//! An interpreter takes most of a cold start, and until it has loaded a function every instance of it
//! is like any other. A few are therefore brought up before they are wanted, in complete sandboxes
//! that lack only the function's folders (`adoption`). Each becomes an instance of one function, once.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use mote_core::backend::{InstanceRequest, Launch, Waiting};

use crate::running::Running;
use crate::sys;

/// The waiting programs of one backend.
#[derive(Default)]
pub(crate) struct WaitingPool {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    wanted: Vec<Waiting>,
    up: Vec<(InstanceRequest, Running)>,
    filling: bool,
    closed: bool,
}

impl WaitingPool {
    /// Replaces what is wanted; what is not any more ends.
    pub(crate) fn want(&self, wanted: Vec<Waiting>) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        state.wanted = wanted;
        let mut kept = Vec::new();
        let mut ended = Vec::new();
        for (like, running) in std::mem::take(&mut state.up) {
            let have = kept.iter().filter(|(other, _)| fits(other, &like)).count();
            let keep = have < state.count_of(&like);
            if keep { &mut kept } else { &mut ended }.push((like, running));
        }
        state.up = kept;
        drop(state);
        // Ends them: outside the lock, as it closes sockets and starts clean-ups.
        drop(ended);
    }

    /// A living program that can become an instance of `request`, with what it was brought up for;
    /// one that is already up before one that is still coming up.
    pub(crate) fn take(&self, request: &InstanceRequest) -> Option<(InstanceRequest, Running)> {
        let mut state = self.lock();
        let mut dead = Vec::new();
        let mut found = None;
        let mut at = 0;
        while at < state.up.len() {
            let (like, running) = &state.up[at];
            if !fits(like, request) {
                at += 1;
            } else if is_readable(running.parked.status_fd()) {
                // Its pid 1 says nothing more but that it has ended.
                dead.push(state.up.swap_remove(at));
            } else if is_readable(running.channel_fd()) {
                found = Some(at);
                break;
            } else {
                found = found.or(Some(at));
                at += 1;
            }
        }
        let taken = found.map(|at| state.up.swap_remove(at));
        drop(state);
        drop(dead);
        taken
    }

    /// Whether the caller is to bring programs up until [`WaitingPool::next`] names no more.
    pub(crate) fn begin_filling(&self) -> bool {
        let mut state = self.lock();
        let begin = !state.filling && state.missing().is_some();
        state.filling |= begin;
        begin
    }

    /// What to bring up next. `None` ends the filling.
    pub(crate) fn next(&self) -> Option<InstanceRequest> {
        let mut state = self.lock();
        let missing = state.missing();
        state.filling = missing.is_some();
        missing
    }

    /// Ends the filling after a failure; the next change of the pool tries again.
    pub(crate) fn give_up(&self) {
        self.lock().filling = false;
    }

    pub(crate) fn add(&self, like: InstanceRequest, running: Running) {
        let mut state = self.lock();
        let have = state.up.iter().filter(|(other, _)| fits(other, &like)).count();
        if !state.closed && have < state.count_of(&like) {
            state.up.push((like, running));
        }
    }

    /// Ends all of them, for good.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.wanted.clear();
        let up = std::mem::take(&mut state.up);
        drop(state);
        drop(up);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn count_of(&self, like: &InstanceRequest) -> usize {
        let wanted = self.wanted.iter().find(|wanted| fits(&wanted.like, like));
        wanted.map_or(0, |wanted| wanted.count as usize)
    }

    fn missing(&self) -> Option<InstanceRequest> {
        let lacks = |wanted: &&Waiting| {
            let have = self.up.iter().filter(|(like, _)| fits(like, &wanted.like)).count();
            have < wanted.count as usize
        };
        self.wanted.iter().find(lacks).map(|wanted| wanted.like.clone())
    }
}

/// Whether a program brought up for `like` can become what is asked for: the same program, started
/// under the same rules, as far as they cannot be changed afterwards.
fn fits(like: &InstanceRequest, request: &InstanceRequest) -> bool {
    let same_program = match (&like.launch, &request.launch) {
        (Launch::Shim { argv: like }, Launch::Shim { argv }) => like == argv,
        // Its pid 1 is our own and learns the command later.
        (Launch::PerInvocation { .. }, Launch::PerInvocation { .. }) => true,
        _ => false,
    };
    same_program
        && like.env == request.env
        && like.limits.pids == request.limits.pids
        && like.limits.disk_bytes == request.limits.disk_bytes
        && like.egress == request.egress
        && like.files == request.files
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut entry = [sys::poll_entry(fd.as_raw_fd(), libc::POLLIN)];
    matches!(sys::poll(&mut entry, 0), Ok(ready) if ready > 0)
}
