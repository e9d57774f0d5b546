//! Prewarmed programs. Each becomes an instance of the next function that needs a program of its
//! kind.
//!
//! Starting an interpreter takes most of a cold start, and until it has loaded a function, all
//! instances of the same interpreter are alike. So a few are started before they are needed, in
//! complete sandboxes that lack only the function's folders (`assignment`). Each becomes an
//! instance of one function, once.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use mote_core::backend::{InstanceRequest, Prewarmed};

use crate::running::Running;
use crate::sys;

/// The prewarmed programs of one backend.
#[derive(Default)]
pub(crate) struct PrewarmedPool {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    wanted: Vec<Prewarmed>,
    up: Vec<(InstanceRequest, Running)>,
    filling: bool,
    closed: bool,
}

impl PrewarmedPool {
    /// Replaces the list of wanted programs. Programs that are no longer on the list are ended.
    pub(crate) fn want(&self, wanted: Vec<Prewarmed>) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        state.wanted = wanted;
        let mut kept: Vec<(InstanceRequest, Running)> = Vec::new();
        let mut ended = Vec::new();
        for (like, running) in std::mem::take(&mut state.up) {
            let have = kept.iter().filter(|(other, _)| other.suits(&like)).count();
            let keep = have < state.count_of(&like);
            if keep { &mut kept } else { &mut ended }.push((like, running));
        }
        state.up = kept;
        drop(state);
        // Dropping the programs ends them. This happens outside the lock, because it closes sockets
        // and starts clean-ups.
        drop(ended);
    }

    /// Takes a living program that can become an instance of `request`, together with the request
    /// for which it was brought up. Programs that are still starting are not considered, because a
    /// new one with a full share of the processor is ready before them (about 90 ms compared with
    /// 300 ms in a burst).
    pub(crate) fn take(&self, request: &InstanceRequest) -> Option<(InstanceRequest, Running)> {
        let mut state = self.lock();
        let mut dead = Vec::new();
        let taken = loop {
            let Some(at) = state.up.iter().position(|(like, _)| like.suits(request)) else {
                break None;
            };
            let found = state.up.swap_remove(at);
            // The only event that its pid 1 can have to report is its end.
            if !is_readable(found.1.prepared.status_fd()) {
                break Some(found);
            }
            dead.push(found);
        };
        drop(state);
        drop(dead);
        taken
    }

    /// Whether the caller must bring up programs until [`PrewarmedPool::next`] returns `None`.
    pub(crate) fn begin_filling(&self) -> bool {
        let mut state = self.lock();
        let begin = !state.filling && state.missing().is_some();
        state.filling |= begin;
        begin
    }

    /// The program to bring up next. `None` ends the filling.
    pub(crate) fn next(&self) -> Option<InstanceRequest> {
        let mut state = self.lock();
        let missing = state.missing();
        state.filling = missing.is_some();
        missing
    }

    /// Ends the filling after a failure. The next change of the pool tries again.
    pub(crate) fn give_up(&self) {
        self.lock().filling = false;
    }

    pub(crate) fn add(&self, like: InstanceRequest, running: Running) {
        let mut state = self.lock();
        let have = state.up.iter().filter(|(other, _)| other.suits(&like)).count();
        if !state.closed && have < state.count_of(&like) {
            state.up.push((like, running));
        }
    }

    /// Ends all programs permanently.
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
        let wanted = self.wanted.iter().find(|wanted| wanted.like.suits(like));
        wanted.map_or(0, |wanted| wanted.count as usize)
    }

    fn missing(&self) -> Option<InstanceRequest> {
        let lacks = |wanted: &&Prewarmed| {
            let have = self.up.iter().filter(|(like, _)| like.suits(&wanted.like)).count();
            have < wanted.count as usize
        };
        self.wanted.iter().find(lacks).map(|wanted| wanted.like.clone())
    }
}

/// Whether a message, or the end of the peer, can be read.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut entry = [sys::poll_entry(fd.as_raw_fd(), libc::POLLIN)];
    matches!(sys::poll(&mut entry, 0), Ok(ready) if ready > 0)
}
