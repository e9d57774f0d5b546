//! Shares of the node's outgoing connections and look-ups, by function and instance.

use std::pin::pin;
use std::sync::{Arc, OnceLock};

use mote_core::shares::{Share, Shares};
use tokio::sync::Notify;

/// Connections per destination and instance at once.
pub(crate) const CONNECTIONS_MAX: usize = 64;
/// Connections of all functions: with two descriptors each, they use half of those that the node
/// may open.
const CONNECTIONS_PER_DESCRIPTOR: usize = 4;
/// The bounds of that number where the node may open very few descriptors, or millions.
const CONNECTIONS_TOTAL: std::ops::RangeInclusive<usize> = 64..=16_384;
/// One function's share of them is a fourth and one instance's an eighth. Neither is less than the
/// limit of one destination.
const FUNCTION_SHARE: usize = 4;
const INSTANCE_SHARE: usize = 8;
/// Names looked up at once. Each takes a thread for as long as the resolver waits, which is tens of
/// seconds for a name that no server answers.
pub(crate) const LOOKUPS_MAX: usize = 32;
/// Names looked up at once for one function.
const LOOKUPS_PER_FUNCTION: usize = 4;

/// The resources that the connections of all functions share. Made on first use: most nodes need
/// none.
#[derive(Default)]
pub struct EgressShares(OnceLock<Rooms>);

pub(crate) struct Rooms {
    pub(crate) functions: Arc<Room>,
    pub(crate) instances: Arc<Room>,
    pub(crate) lookups: Arc<Room>,
}

impl EgressShares {
    pub(crate) fn get(&self) -> &Rooms {
        self.0.get_or_init(|| {
            use rustix::process::{Resource, getrlimit};
            let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
            let (least, most) = CONNECTIONS_TOTAL.into_inner();
            let total = (descriptors / CONNECTIONS_PER_DESCRIPTOR).clamp(least, most);
            let share = |of: usize| Room::new(total, (total / of).max(CONNECTIONS_MAX));
            Rooms {
                functions: share(FUNCTION_SHARE),
                instances: share(INSTANCE_SHARE),
                lookups: Room::new(LOOKUPS_MAX, LOOKUPS_PER_FUNCTION),
            }
        })
    }
}

/// A bounded resource whose owners, identified by numbers, wait for their share of it.
pub(crate) struct Room {
    shares: Shares<u64>,
    given_back: Notify,
}

/// One piece of a [`Room`]; dropping it gives it back.
pub(crate) struct Place {
    room: Arc<Room>,
    share: Option<Share<u64>>,
}

impl Room {
    fn new(total_max: usize, share_max: usize) -> Arc<Self> {
        Arc::new(Self { shares: Shares::new(total_max, share_max), given_back: Notify::new() })
    }

    pub(crate) fn try_take(self: &Arc<Self>, owner: u64) -> Option<Place> {
        let share = self.shares.take(owner, 1).ok()?;
        Some(Place { room: self.clone(), share: Some(share) })
    }

    /// Waits until there is room for this owner.
    pub(crate) async fn take(self: &Arc<Self>, owner: u64) -> Place {
        let mut given_back = pin!(self.given_back.notified());
        loop {
            // Enabled before the attempt, so that a place that is given back after it is not
            // missed.
            given_back.as_mut().enable();
            if let Some(place) = self.try_take(owner) {
                return place;
            }
            given_back.as_mut().await;
            given_back.set(self.given_back.notified());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.share = None;
        self.room.given_back.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn look_ups_of_one_function_leave_room_for_others() {
        let room = Room::new(LOOKUPS_MAX, LOOKUPS_PER_FUNCTION);
        let held: Vec<_> = (0..LOOKUPS_PER_FUNCTION).map(|_| room.try_take(1).unwrap()).collect();
        let mut waiting = pin!(room.take(1));
        assert!(is_pending(waiting.as_mut()).await);
        let other = room.take(2).await;
        drop(other);
        assert!(is_pending(waiting.as_mut()).await, "another's piece is not ours");
        drop(held);
        waiting.await;
    }

    async fn is_pending<T>(mut future: std::pin::Pin<&mut impl Future<Output = T>>) -> bool {
        std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending()))
            .await
    }
}
