//! What each user may still publish while clients hold much unread.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::limits::NODE_USER;

/// Memory in use from which on each user has a share of what is left: what clients have not read
/// yet is most of it.
const MUCH_BYTES: usize = 192 << 20;
/// Memory in use at which everybody waits. Every connection may also hold one packet, and both must
/// fit into the limit of the process.
const FULL_BYTES: usize = 224 << 20;
/// What a user may publish between the two, at once and in each second.
const SHARE_BYTES: u64 = 1 << 20;
const SHARE_BYTES_PER_SECOND: u64 = 16 << 10;

/// What users have published since much memory was in use.
#[derive(Default)]
pub(crate) struct Shares {
    used: Mutex<HashMap<User, Used>>,
}

/// The name of a user; clients without one count as one user.
type User = Option<Arc<str>>;
/// Bytes, and when they were counted.
type Used = (u64, Instant);

impl Shares {
    /// Whether a message of this user must wait until clients have read more.
    pub(crate) fn waits(&self, user: Option<&str>, memory: usize, now: Instant) -> bool {
        if memory <= MUCH_BYTES {
            self.used.lock().clear();
            return false;
        }
        if memory > FULL_BYTES {
            return true;
        }
        if user == Some(NODE_USER) {
            return false;
        }
        let used = self.used.lock();
        let found = used.get(&user.map(Arc::from));
        found.is_some_and(|(bytes, since)| left_over(*bytes, *since, now) > SHARE_BYTES)
    }

    /// Whether what users publish counts now.
    pub(crate) fn count(memory: usize) -> bool {
        memory > MUCH_BYTES
    }

    /// Notes what a user has published, or how much memory that took.
    pub(crate) fn published(&self, user: User, bytes: usize, now: Instant) {
        let mut used = self.used.lock();
        let (sum, since) = used.entry(user).or_insert((0, now));
        *sum = left_over(*sum, *since, now).saturating_add(bytes as u64);
        *since = now;
    }
}

/// What still counts of `bytes` after some time.
fn left_over(bytes: u64, since: Instant, now: Instant) -> u64 {
    let elapsed = now.saturating_duration_since(since).as_millis();
    let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
    bytes.saturating_sub(elapsed.saturating_mul(SHARE_BYTES_PER_SECOND) / 1_000)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_user_waits_after_its_share_and_others_do_not() {
        let shares = Shares::default();
        let now = Instant::now();
        let between = MUCH_BYTES + 1;
        let bob = Some("bob");
        assert!(!shares.waits(bob, between, now));
        shares.published(bob.map(Arc::from), 2 << 20, now);
        assert!(shares.waits(bob, between, now));
        for other in [None, Some("alice"), Some(NODE_USER)] {
            assert!(!shares.waits(other, between, now), "{other:?}");
            assert!(shares.waits(other, FULL_BYTES + 1, now), "{other:?}");
        }
        // The node has no share of its own: it stops only when the memory is full.
        shares.published(Some(NODE_USER.into()), 8 << 20, now);
        assert!(!shares.waits(Some(NODE_USER), between, now));
        // The share grows again with the time, and is whole after clients have read.
        assert!(shares.waits(bob, between, now + Duration::from_secs(60)));
        assert!(!shares.waits(bob, between, now + Duration::from_secs(64)));
        assert!(!shares.waits(bob, MUCH_BYTES, now));
        assert!(!shares.waits(bob, between, now));
    }
}
