//! Limits how much one task may do before it lets the others run.
//!
//! Every task of the data path shares one thread. A loop that continues for as long as its peer
//! supplies work therefore delays all other tasks for as long as the peer likes. Each such loop
//! holds a [`Turn`], charges the work that it handles to it, and yields to the runtime when the
//! turn is over. This file only counts; the caller yields, because core knows no async runtime:
//!
//! ```text
//! turn.charge(1, bytes);
//! if turn.is_over() {
//!     turn = Turn::new();
//!     tokio::task::yield_now().await;
//! }
//! ```
//!
//! In a function that is polled, `yield_now` is polled once and `Pending` is returned. A task must
//! not wake itself instead: it would be back in the queue before the runtime checks for new events,
//! which it does only after dozens of turns while tasks are ready.

/// Items (requests, frames, lines, datagrams) per turn. An item costs 1 to 5 µs, so a turn ends
/// after some 150 µs at the most.
pub const TURN_ITEMS_MAX: u32 = 32;
/// Bytes per turn: copying and checking them takes about as long as [`TURN_ITEMS_MAX`] items do.
pub const TURN_BYTES_MAX: usize = 128 << 10;

/// The rest of a task's turn.
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

    /// Subtracts the handled work. Never fails: an excess is not carried over.
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
