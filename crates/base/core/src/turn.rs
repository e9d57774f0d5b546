//! Limits how much one task may do before it lets the others run.
//!
//! All tasks of the data path share one thread. So a loop that runs for as long as its peer
//! supplies work can delay all other tasks indefinitely. Each such loop holds a [`Turn`], charges
//! its work to the turn, and yields to the runtime when the turn is over. This file only counts.
//! The caller yields, because core knows no async runtime:
//!
//! ```text
//! turn.charge(1, bytes);
//! if turn.is_over() {
//!     turn = Turn::new();
//!     tokio::task::yield_now().await;
//! }
//! ```
//!
//! In a poll function, poll `yield_now` once and return `Pending`. A task must not wake itself
//! instead: it would be queued again before the runtime checks for new events, which the runtime
//! does only after dozens of turns while tasks are ready.

/// Items (requests, frames, lines, datagrams) per turn. An item costs 1 to 5 µs, so a turn ends
/// after about 150 µs at most.
pub const TURN_ITEMS_MAX: u32 = 32;
/// Bytes per turn. Copying and checking this many bytes takes about as long as [`TURN_ITEMS_MAX`]
/// items.
pub const TURN_BYTES_MAX: usize = 128 << 10;

/// What is left of a task's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    items: u32,
    bytes: usize,
}

impl Default for Turn {
    fn default() -> Self {
        Self::new()
    }
}

impl Turn {
    /// A whole turn: [`TURN_ITEMS_MAX`] items and [`TURN_BYTES_MAX`] bytes.
    pub const fn new() -> Self {
        Self { items: TURN_ITEMS_MAX, bytes: TURN_BYTES_MAX }
    }

    /// Subtracts the work that was done. If the work exceeds the turn, the excess is not charged to
    /// the next turn.
    pub fn charge(&mut self, items: u32, bytes: usize) {
        self.items = self.items.saturating_sub(items);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Whether the task must yield before it handles anything else.
    pub fn is_over(&self) -> bool {
        self.items == 0 || self.bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_by_items_or_by_bytes() {
        let mut turn = Turn::new();
        for _ in 1..TURN_ITEMS_MAX {
            turn.charge(1, 100);
            assert!(!turn.is_over());
        }
        turn.charge(1, 100);
        assert!(turn.is_over());

        let mut turn = Turn::new();
        turn.charge(1, TURN_BYTES_MAX - 1);
        assert!(!turn.is_over());
        turn.charge(1, usize::MAX);
        assert!(turn.is_over());
        assert!(!Turn::default().is_over());
    }
}
