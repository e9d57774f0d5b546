//! Waits until one of many sockets has an event or a point in time is reached.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::Nanos;
use crate::clock::{self, SECOND};

/// The token of the timer.
const TIMER: u64 = u64::MAX;
/// The maximum number of events that are fetched at once.
const EVENTS: usize = 256;

/// An event of a socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ready {
    /// The token that was given to [`Poller::add`].
    pub(crate) token: u64,
    pub(crate) flags: epoll::EventFlags,
}

/// An epoll instance with a timer. The timer is needed because `epoll_wait` alone supports only
/// whole milliseconds.
pub(crate) struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// The time to which the timer is set.
    armed: Nanos,
    events: Vec<epoll::Event>,
    next: usize,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        // The timer is edge-triggered, so that setting it again is enough and it need not be read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER), flags)?;
        Ok(Self { epoll, timer, armed: 0, events: Vec::with_capacity(EVENTS), next: 0 })
    }

    /// Watches a socket until it is closed.
    pub(crate) fn add(
        &self,
        socket: impl AsFd,
        token: u64,
        flags: epoll::EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token), flags)?)
    }

    /// The next event, or `None` when `until` is reached. Pending events are returned first.
    pub(crate) fn next(&mut self, until: Nanos) -> io::Result<Option<Ready>> {
        loop {
            while let Some(event) = self.events.get(self.next) {
                self.next += 1;
                let token = event.data.u64();
                if token != TIMER {
                    return Ok(Some(Ready { token, flags: event.flags }));
                }
            }
            let is_over = clock::now() >= until;
            self.fetch(until, is_over)?;
            if is_over && self.events.is_empty() {
                return Ok(None);
            }
        }
    }

    fn fetch(&mut self, until: Nanos, is_over: bool) -> io::Result<()> {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        if !is_over && self.armed != until {
            let value =
                Timespec { tv_sec: (until / SECOND) as i64, tv_nsec: (until % SECOND) as _ };
            let new = Itimerspec { it_interval: none, it_value: value };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &new)?;
            self.armed = until;
        }
        self.events.clear();
        self.next = 0;
        let wait = is_over.then_some(&none);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), wait) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Raises the limit of open files, so that each of many clients can have a socket. The usual limit
/// is 1,024.
pub(crate) fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If the machine refuses this, opening a socket reports the error.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
