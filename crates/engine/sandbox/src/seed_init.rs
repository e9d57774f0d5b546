//! Pid 1 of a seed: it also changes the root of the seed, and reports how copies end.
//!
//! Pid 1 and the seed share one root and one working folder (CLONE_FS). So the seed needs no right
//! to change its root, and the copy that it makes next inherits the root that pid 1 has entered.
//! Pid 1 keeps the capability for this, in a user namespace that owns nothing else. It opens files
//! only below descriptors of its own, because the seed can change the working folder.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::copy_roots::{self, COPIES_MAX};
use crate::message;
use crate::plan::Answer;
use crate::step::{STATUS_FD, status, tell};
use crate::sys;

/// How many ends are remembered of processes that the daemon has not asked about. A copy that ends
/// at once ends before the daemon asks.
const RECENT_MAX: usize = 64;
/// A request to enter the root of this number has one byte. A request to report the end of a process
/// has the four bytes of its number.
const REQUEST_BYTES_MAX: usize = 4;

/// The folder with the roots of the copies.
pub(crate) struct Roots(OwnedFd);

impl Roots {
    /// Opens the folder. Call this before the seed starts.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        sys::openat(None, copy_roots::DIR, flags, 0).map(Self)
    }

    fn enter(&self, number: u8) -> io::Result<()> {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let root = sys::openat(Some(self.0.as_fd()), &sys::cstring(number.to_string())?, flags, 0)?;
        sys::change_root(root.as_fd())
    }
}

/// The ends of processes. Only those that the daemon asks about are reported: a function can end
/// processes faster than the daemon could read of it.
#[derive(Default)]
struct Ends {
    asked: BTreeSet<i32>,
    recent: VecDeque<(i32, i32)>,
}

impl Ends {
    fn ended(&mut self, pid: i32, wait_status: i32) {
        if self.asked.remove(&pid) {
            return tell(&Answer::CopyEnded { pid, wait_status }, &[]);
        }
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((pid, wait_status));
    }

    fn ask(&mut self, pid: i32) {
        match self.recent.iter().rposition(|(ended, _)| *ended == pid) {
            Some(at) => {
                let wait_status = self.recent[at].1;
                tell(&Answer::CopyEnded { pid, wait_status }, &[]);
            }
            None if self.asked.len() < usize::from(COPIES_MAX) => drop(self.asked.insert(pid)),
            None => {}
        }
    }
}

/// Waits for the seed, collects every other child that ends, and carries out requests on the status
/// socket. Ends the process when the daemon has ended.
pub(crate) fn wait(seed: i32, children: &OwnedFd, roots: &Roots) -> i32 {
    let mut ends = Ends::default();
    let mut entries = [
        sys::poll_entry(children.as_raw_fd(), libc::POLLIN),
        sys::poll_entry(STATUS_FD, libc::POLLIN),
    ];
    loop {
        if sys::poll(&mut entries, -1).is_err() {
            sys::exit_now(125);
        }
        if entries[0].revents != 0 {
            sys::drain_signals(children.as_fd());
            while let Some((pid, wait_status)) = sys::reap(-1) {
                if pid == seed {
                    return wait_status;
                }
                ends.ended(pid, wait_status);
            }
        }
        if entries[1].revents != 0 {
            let mut request = [0; REQUEST_BYTES_MAX];
            match message::receive(status(), &mut request) {
                Ok((1, _)) => {
                    let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
                    let refused = roots.enter(request[0]).err().map(errno);
                    tell(&Answer::RootEntered { refused }, &[]);
                }
                Ok((4, _)) => ends.ask(i32::from_le_bytes(request)),
                // The daemon has ended.
                _ => sys::exit_now(0),
            }
        }
    }
}
