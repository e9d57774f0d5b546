//! Shares of the node's outgoing connections and look-ups, by function and instance.

use std::pin::pin;
use std::sync::{Arc, OnceLock};

use mote_core::shares::{Share, Shares};
use tokio::sync::Notify;

/// The maximum number of simultaneous connections per destination and instance.
pub(crate) const CONNECTIONS_MAX: usize = 64;
/// The number of descriptors for each connection, over all functions. A connection has two
/// descriptors, so all connections together use at most half of the descriptors that the node may
/// open.
const CONNECTIONS_PER_DESCRIPTOR: usize = 4;
/// Bounds on the number of connections, for nodes that may open very few descriptors or millions.
const CONNECTIONS_TOTAL: std::ops::RangeInclusive<usize> = 64..=16_384;
/// One function gets a fourth of all connections, and one instance gets an eighth. Both get at
/// least as many as one destination may have.
const FUNCTION_SHARE: usize = 4;
const INSTANCE_SHARE: usize = 8;
/// The maximum number of simultaneous look-ups. Each takes a thread for as long as the resolver
/// waits, which is tens of seconds for a name that no server answers.
pub(crate) const LOOKUPS_MAX: usize = 32;
/// The maximum number of simultaneous look-ups for one function.
const LOOKUPS_PER_FUNCTION: usize = 4;

/// The places that the connections and look-ups of all functions share. The places are created on
/// first use, because most nodes need none.
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

/// A bounded number of places. Owners are identified by numbers, and wait when their share is used
/// up.
pub(crate) struct Room {
    shares: Shares<u64>,
    given_back: Notify,
}

/// One place of a [`Room`]. Dropping it gives the place back.
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

    /// Waits until there is a place for this owner, and takes it.
    pub(crate) async fn take(self: &Arc<Self>, owner: u64) -> Place {
        let mut given_back = pin!(self.given_back.notified());
        loop {
            // The notification is enabled before the attempt, so that a place that is given back
            // after the attempt is not missed.
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
