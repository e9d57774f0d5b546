//! Limits what each user may publish while clients have much unread.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::limits::NODE_USER;

/// Memory in use above which each user may publish only a share of the rest. Most of this memory
/// holds what clients have not read yet.
const MUCH_BYTES: usize = 192 << 20;
/// Memory in use above which all publishers wait. Every connection may hold one packet in addition,
/// and both together must fit into the memory limit of the process.
const FULL_BYTES: usize = 224 << 20;
/// How much a user may publish between these two levels, at once and in each second.
const SHARE_BYTES: u64 = 1 << 20;
const SHARE_BYTES_PER_SECOND: u64 = 16 << 10;

/// What each user has published since the memory in use became large.
#[derive(Default)]
pub(crate) struct Shares {
    used: Mutex<HashMap<User, Used>>,
}

/// The name of a user. All clients without a name count as one user.
type User = Option<Arc<str>>;
/// A number of bytes, and the time at which they were counted.
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

    /// Whether the bytes that users publish must be counted now.
    pub(crate) fn count(memory: usize) -> bool {
        memory > MUCH_BYTES
    }

    /// Notes how many bytes a user has published, or how much memory they have taken.
    pub(crate) fn published(&self, user: User, bytes: usize, now: Instant) {
        let mut used = self.used.lock();
        let (sum, since) = used.entry(user).or_insert((0, now));
        *sum = left_over(*sum, *since, now).saturating_add(bytes as u64);
        *since = now;
    }
}

/// Returns how much of `bytes` still counts after some time.
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
        // The node has no share. It waits only when the memory is full.
        shares.published(Some(NODE_USER.into()), 8 << 20, now);
        assert!(!shares.waits(Some(NODE_USER), between, now));
        // The share grows again with time, and is whole again after clients have read.
        assert!(shares.waits(bob, between, now + Duration::from_secs(60)));
        assert!(!shares.waits(bob, between, now + Duration::from_secs(64)));
        assert!(!shares.waits(bob, MUCH_BYTES, now));
        assert!(!shares.waits(bob, between, now));
    }
}
