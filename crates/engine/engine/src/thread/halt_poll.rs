//! Decides how long to poll before sleeping. The rule is pure and adaptive. KVM and the kernel's
//! `haltpoll` governor use the same rule for idle processors.
//!
//! Waking a sleeping thread on an idle core costs tens of microseconds, which is more than a whole
//! invocation of a short function. If the next request usually arrives sooner than that, polling
//! for it is cheaper than sleeping. If it does not, the window closes at once and costs nothing.

/// The longest window, and the longest wait that opens a window, in nanoseconds. A wait that is
/// measured across a sleep includes the wake-up of the thread and that of the caller. Each of them
/// takes up to 0.1 ms in a virtual machine whose idle processors are given back to the host.
pub(crate) const POLL_MAX_NS: u64 = 300_000;
/// The window after the first short wait.
const POLL_FIRST_NS: u64 = 12_500;

/// The polling window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HaltPoll {
    window_ns: u64,
}

impl HaltPoll {
    /// How long to poll for the next request before sleeping, in nanoseconds; 0 means to sleep at
    /// once.
    pub(crate) fn window_ns(self) -> u64 {
        self.window_ns
    }

    /// Learns from one wait. A short wait that was longer than the window doubles the window; a
    /// long wait closes it.
    pub(crate) fn waited(&mut self, wait_ns: u64) {
        if wait_ns > POLL_MAX_NS {
            self.window_ns = 0;
        } else if wait_ns > self.window_ns {
            self.window_ns = (self.window_ns * 2).clamp(POLL_FIRST_NS, POLL_MAX_NS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_open_the_window_and_a_long_one_closes_it() {
        let mut poll = HaltPoll::default();
        assert_eq!(poll.window_ns(), 0, "nothing is known yet");
        for expected in [12_500, 25_000, 50_000, 100_000, 200_000, POLL_MAX_NS, POLL_MAX_NS] {
            poll.waited(290_000);
            assert_eq!(poll.window_ns(), expected);
        }
        poll.waited(POLL_MAX_NS + 1);
        assert_eq!(poll.window_ns(), 0);
    }

    #[test]
    fn a_window_that_suffices_stays() {
        let mut poll = HaltPoll::default();
        for _ in 0..100 {
            poll.waited(20_000);
        }
        assert_eq!(poll.window_ns(), 25_000, "no longer than what is needed");
    }
}
