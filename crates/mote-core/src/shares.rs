//! Limits how much of a bounded resource one owner may hold, so that no owner can take all of it.
//!
//! A resource (connections, look-ups, waiting calls, bytes) has a total, and each owner of it (an
//! address, an instance, a function) has a share that is smaller than the total. Code that takes a
//! piece holds a [`Share`] and gives the piece back by dropping it.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why a piece was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exceeded {
    /// This owner holds its whole share; others may still take.
    Share,
    /// All of the resource is taken.
    Total,
}

/// A resource, and how much of it each owner holds. Cloning gives another handle to the same
/// resource.
#[derive(Debug)]
pub struct Shares<K: Eq + Hash>(Arc<Resource<K>>);

#[derive(Debug)]
struct Resource<K> {
    total_max: usize,
    share_max: usize,
    /// Whether what each owner holds is counted.
    is_divided: bool,
    /// A leaf lock: no other function is called and nothing is awaited while it is held.
    held: Mutex<Held<K>>,
}

#[derive(Debug)]
struct Held<K> {
    total: usize,
    /// Only owners that hold something, so the total bounds the map.
    each: HashMap<K, usize>,
}

impl<K: Eq + Hash> Clone for Shares<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Eq + Hash + Clone> Shares<K> {
    /// A resource of `total_max` pieces of which one owner may hold `share_max` at once.
    pub fn new(total_max: usize, share_max: usize) -> Self {
        let held = Mutex::new(Held { total: 0, each: HashMap::new() });
        Self(Arc::new(Resource { total_max, share_max, is_divided: true, held }))
    }

    /// A resource of `total_max` pieces without shares: one owner may take all of them. It does not
    /// count what each owner holds, so taking a piece costs less.
    pub fn undivided(total_max: usize) -> Self {
        let held = Mutex::new(Held { total: 0, each: HashMap::new() });
        Self(Arc::new(Resource { total_max, share_max: usize::MAX, is_divided: false, held }))
    }

    /// Takes `pieces` for `owner`, all or none. Does not block. Dropping the [`Share`] gives them
    /// back.
    pub fn take(&self, owner: K, pieces: usize) -> Result<Share<K>, Exceeded> {
        self.0.take(&owner, pieces)?;
        Ok(Share { resource: self.0.clone(), owner, pieces })
    }

    /// Taken pieces, of all owners.
    pub fn taken(&self) -> usize {
        self.0.lock().total
    }

    /// Pieces that `owner` holds; 0 if that is not counted.
    pub fn taken_by(&self, owner: &K) -> usize {
        self.0.lock().each.get(owner).copied().unwrap_or(0)
    }
}

impl<K> Resource<K> {
    fn lock(&self) -> MutexGuard<'_, Held<K>> {
        // No code panics while it is held, so a poisoned lock still holds correct counts.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash + Clone> Resource<K> {
    fn take(&self, owner: &K, pieces: usize) -> Result<(), Exceeded> {
        let mut held = self.lock();
        let own = if self.is_divided { held.each.get(owner).copied().unwrap_or(0) } else { 0 };
        if pieces > self.share_max.saturating_sub(own) {
            return Err(Exceeded::Share);
        }
        if pieces > self.total_max.saturating_sub(held.total) {
            return Err(Exceeded::Total);
        }
        held.total += pieces;
        if self.is_divided {
            held.each.insert(owner.clone(), own + pieces);
        }
        Ok(())
    }
}

/// Pieces of a resource; dropping it gives them back.
#[derive(Debug)]
pub struct Share<K: Eq + Hash> {
    resource: Arc<Resource<K>>,
    owner: K,
    pieces: usize,
}

impl<K: Eq + Hash + Clone> Share<K> {
    /// How many pieces it holds.
    pub fn pieces(&self) -> usize {
        self.pieces
    }

    /// Takes `pieces` more for the same owner, all or none. Does not block.
    pub fn grow(&mut self, pieces: usize) -> Result<(), Exceeded> {
        self.resource.take(&self.owner, pieces)?;
        self.pieces += pieces;
        Ok(())
    }
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let mut held = self.resource.lock();
        held.total -= self.pieces;
        if self.resource.is_divided
            && let Some(own) = held.each.get_mut(&self.owner)
        {
            *own -= self.pieces;
            if *own == 0 {
                held.each.remove(&self.owner);
            }
        }
    }
}

/// The owner that an address counts as: an IPv4 address counts by itself (also if it is written as
/// IPv6), and an IPv6 address by its first 64 bits, because one machine usually has all of those.
/// All of 127.0.0.0/8 is one owner, because every process of this machine has all of those.
pub fn address_owner(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(v4) if v4.is_loopback() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(v6) if !v6.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_may_take_an_undivided_resource_whole() {
        let places = Shares::undivided(3);
        let mut held = places.take("a", 2).expect("free");
        assert_eq!(held.grow(2), Err(Exceeded::Total));
        assert_eq!(places.take("b", 4).err(), Some(Exceeded::Total), "more than there is");
        assert!(held.grow(1).is_ok());
        assert_eq!(places.take("b", 1).err(), Some(Exceeded::Total));
        assert_eq!((places.taken(), places.taken_by(&"a")), (3, 0));
        drop(held);
        assert!(places.take("b", 3).is_ok());
        assert_eq!(places.taken(), 0);
    }

    #[test]
    fn an_owner_ends_at_its_share_and_everybody_at_the_total() {
        let shares = Shares::new(4, 3);
        let first = shares.take("a", 3).unwrap();
        assert_eq!(shares.take("a", 1).unwrap_err(), Exceeded::Share);
        let second = shares.take("b", 1).unwrap();
        assert_eq!(shares.take("c", 1).unwrap_err(), Exceeded::Total);
        assert_eq!((shares.taken(), shares.taken_by(&"a")), (4, 3));
        drop(first);
        assert_eq!((shares.taken(), shares.taken_by(&"a")), (1, 0));
        assert_eq!(shares.take("c", 4).unwrap_err(), Exceeded::Share);
        assert!(shares.take("c", 3).is_ok());
        drop(second);
        assert_eq!(shares.taken(), 0);
        assert!(shares.0.lock().each.is_empty(), "owners without pieces are forgotten");
    }

    #[test]
    fn addresses_of_one_machine_are_one_owner() {
        let owner = |text: &str| address_owner(text.parse().unwrap());
        assert_eq!(owner("::ffff:10.0.0.1"), owner("10.0.0.1"));
        assert_ne!(owner("10.0.0.1"), owner("10.0.0.2"));
        assert_eq!(owner("2001:db8::1"), owner("2001:db8::2"));
        assert_ne!(owner("2001:db8::1"), owner("2001:db8:0:1::1"));
        assert_ne!(owner("::1"), owner("::"));
        assert_eq!(owner("127.0.0.1"), owner("127.9.9.9"));
    }

    #[test]
    fn a_share_grows_up_to_what_its_owner_may_hold() {
        let shares = Shares::new(10, 6);
        let mut first = shares.take("a", 0).unwrap();
        assert_eq!(first.grow(7), Err(Exceeded::Share));
        assert_eq!(first.grow(5), Ok(()));
        let mut second = shares.take("b", 5).unwrap();
        assert_eq!(second.grow(1), Err(Exceeded::Total));
        assert_eq!((shares.taken_by(&"a"), shares.taken()), (5, 10));
        drop(first);
        assert_eq!(second.grow(1), Ok(()));
        drop(second);
        assert_eq!(shares.taken(), 0);
        assert!(shares.0.lock().each.is_empty(), "owners without pieces are forgotten");
    }
}
