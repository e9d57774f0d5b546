//! Limits the lines that one instance may write into its function's log.
//!
//! A line costs the data path about a microsecond, and the log keeps only the last thousand. So a
//! function that writes faster than any reader can read loses lines, instead of taking the
//! processor from other functions. The log reports how many were lost. Pure: the caller passes the
//! time.

/// Lines per second from one source. A source is an instance's output, or its worker's LOG frames.
/// This is five times the number of lines that the log keeps, and costs at most half a percent of a
/// core.
pub const LINES_PER_S: u32 = 5_000;
/// Bytes of lines per second and source.
pub const LINE_BYTES_PER_S: usize = 4 << 20;
const SECOND_NS: u64 = 1_000_000_000;

/// What is left of the budget for the current second.
#[derive(Debug, Clone, Copy, Default)]
pub struct LineBudget {
    since_ns: u64,
    lines: u32,
    bytes: usize,
    dropped: u64,
}

/// What happens to a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// The line is kept.
    Kept,
    /// The line is kept. This many lines before it were dropped, and the log should report them
    /// first.
    KeptAfter(u64),
    /// The line is dropped, and it is the first dropped line of this second. The log should report
    /// that.
    FirstDropped,
    /// The line is dropped.
    Dropped,
}

impl LineBudget {
    /// Decides about one line of `bytes` that arrived at `now_ns` (monotonic).
    pub fn admit(&mut self, bytes: usize, now_ns: u64) -> Line {
        self.admit_within(LINES_PER_S, bytes, now_ns)
    }

    /// Like [`LineBudget::admit`], with a limit of `lines_per_s` lines in a second.
    pub fn admit_within(&mut self, lines_per_s: u32, bytes: usize, now_ns: u64) -> Line {
        if self.since_ns == 0 || now_ns.saturating_sub(self.since_ns) >= SECOND_NS {
            let dropped = std::mem::take(&mut self.dropped);
            *self = Self { since_ns: now_ns.max(1), lines: 1, bytes, dropped: 0 };
            return if dropped > 0 { Line::KeptAfter(dropped) } else { Line::Kept };
        }
        if self.lines < lines_per_s && self.bytes.saturating_add(bytes) <= LINE_BYTES_PER_S {
            self.lines += 1;
            self.bytes += bytes;
            return Line::Kept;
        }
        self.dropped += 1;
        if self.dropped == 1 { Line::FirstDropped } else { Line::Dropped }
    }

    /// The number of dropped lines that no [`Line::KeptAfter`] has reported. Asked when an instance
    /// ends.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_room_for_so_many_lines_and_bytes() {
        let mut budget = LineBudget::default();
        for _ in 0..LINES_PER_S {
            assert_eq!(budget.admit(10, 5), Line::Kept);
        }
        assert_eq!(budget.admit(10, 6), Line::FirstDropped);
        assert_eq!(budget.admit(10, 7), Line::Dropped);
        assert_eq!(budget.dropped(), 2);
        assert_eq!(budget.admit(10, 5 + SECOND_NS), Line::KeptAfter(2));
        assert_eq!(budget.admit(10, 6 + SECOND_NS), Line::Kept);
        assert_eq!(budget.dropped(), 0);

        let mut budget = LineBudget::default();
        for _ in 0..4 {
            assert_eq!(budget.admit(LINE_BYTES_PER_S / 4, 5), Line::Kept);
        }
        assert_eq!(budget.admit(1, 5), Line::FirstDropped);
    }
}
