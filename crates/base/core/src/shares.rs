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
    /// This owner already holds its whole share. Other owners may still take pieces.
    Share,
    /// All pieces of the resource are taken.
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
    /// Whether the pieces of each owner are counted.
    is_divided: bool,
    /// Whether an owner's share depends on what the others hold ([`even_share`]).
    is_even: bool,
    /// A leaf lock: while it is held, no other function is called and nothing is awaited.
    held: Mutex<Held<K>>,
}

#[derive(Debug)]
struct Held<K> {
    total: usize,
    /// Whether two owners have ever been present at once.
    is_shared: bool,
    /// Contains only owners that hold something, so the total bounds the size of the map.
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
        Self::with(total_max, share_max, true, false)
    }

    /// A resource of `total_max` pieces without shares: one owner may take all of them. The pieces
    /// of each owner are not counted, so taking a piece costs less.
    pub fn undivided(total_max: usize) -> Self {
        Self::with(total_max, usize::MAX, false, false)
    }

    /// A resource of `total_max` pieces that its owners (namespaces) divide among themselves. An
    /// owner that is alone may hold all of it. Once a second owner has asked, each may hold an
    /// [`even_share`], so no owner with less than half of an equal part is refused. To guarantee
    /// this, the total may be exceeded.
    pub fn even(total_max: usize) -> Self {
        Self::with(total_max, usize::MAX, true, true)
    }

    fn with(total_max: usize, share_max: usize, is_divided: bool, is_even: bool) -> Self {
        let held = Mutex::new(Held { total: 0, is_shared: false, each: HashMap::new() });
        Self(Arc::new(Resource { total_max, share_max, is_divided, is_even, held }))
    }

    /// Takes `pieces` for `owner`: either all of them or none. Does not block. Dropping the
    /// [`Share`] gives the pieces back.
    pub fn take(&self, owner: K, pieces: usize) -> Result<Share<K>, Exceeded> {
        self.0.take(&owner, pieces)?;
        Ok(Share { resource: self.0.clone(), owner, pieces })
    }

    /// The number of pieces that all owners have taken.
    pub fn taken(&self) -> usize {
        self.0.lock().total
    }

    /// The number of pieces that `owner` holds; 0 if that is not counted.
    pub fn taken_by(&self, owner: &K) -> usize {
        self.0.lock().each.get(owner).copied().unwrap_or(0)
    }

    /// Whether any owner for which `wanted` returns true holds pieces; `false` if that is not
    /// counted.
    pub fn is_taken_by(&self, wanted: impl FnMut(&K) -> bool) -> bool {
        self.0.lock().each.keys().any(wanted)
    }
}

impl<K> Resource<K> {
    fn lock(&self) -> MutexGuard<'_, Held<K>> {
        // No code panics while this lock is held, so a poisoned lock still holds correct counts.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash + Clone> Resource<K> {
    fn take(&self, owner: &K, pieces: usize) -> Result<(), Exceeded> {
        let mut held = self.lock();
        let found = if self.is_divided { held.each.get(owner).copied() } else { None };
        let own = found.unwrap_or(0);
        let sharers = held.each.len() + usize::from(found.is_none());
        held.is_shared |= self.is_even && sharers > 1;
        let mut share_max = self.share_max;
        let mut total_max = self.total_max;
        if held.is_shared {
            (share_max, total_max) = (even_share(total_max, held.total, sharers), usize::MAX);
        }
        if pieces > share_max.saturating_sub(own) {
            return Err(Exceeded::Share);
        }
        if pieces > total_max.saturating_sub(held.total) {
            return Err(Exceeded::Total);
        }
        held.total += pieces;
        if self.is_divided {
            held.each.insert(owner.clone(), own + pieces);
        }
        Ok(())
    }
}

/// How many of `total_max` pieces one of `sharers` owners may hold while `taken` pieces are held in
/// total. The result is the number of free pieces, so that others find some free, but never less
/// than half of an equal part. So one busy owner ends up with half of the pieces, and two with a
/// third each.
pub fn even_share(total_max: usize, taken: usize, sharers: usize) -> usize {
    let half_of_equal = total_max / (2 * sharers.max(1));
    total_max.saturating_sub(taken).max(half_of_equal).max(1)
}

/// Pieces of a resource; dropping it gives them back.
#[derive(Debug)]
pub struct Share<K: Eq + Hash> {
    resource: Arc<Resource<K>>,
    owner: K,
    pieces: usize,
}

impl<K: Eq + Hash + Clone> Share<K> {
    /// The number of pieces that this share holds.
    pub fn pieces(&self) -> usize {
        self.pieces
    }

    /// Takes `pieces` more for the same owner: either all of them or none. Does not block.
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

/// The owner to which an address is counted. An IPv4 address (even if written as IPv6) is its own
/// owner. An IPv6 address counts by its first 64 bits, because one machine usually has all
/// addresses with the same 64 bits. All of 127.0.0.0/8 is one owner, because every process of this
/// machine can use each of these addresses.
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

    type Name = &'static str;

    /// Takes pieces for an owner one by one until it is refused; returns the pieces and the reason.
    fn filled(shares: &Shares<Name>, owner: Name) -> (Vec<Share<Name>>, Exceeded) {
        let mut held = Vec::new();
        loop {
            match shares.take(owner, 1) {
                Ok(share) => held.push(share),
                Err(why) => return (held, why),
            }
        }
    }

    #[test]
    fn owners_divide_a_resource_once_there_are_two() {
        let shares = Shares::even(24);
        let (alone, why) = filled(&shares, "a");
        assert_eq!((alone.len(), why), (24, Exceeded::Total), "alone, all of it");
        let (late, why) = filled(&shares, "b");
        assert_eq!(
            (late.len(), why),
            (6, Exceeded::Share),
            "half of an equal part, beyond the total"
        );
        let (third, _) = filled(&shares, "c");
        assert_eq!(third.len(), 4);
        drop((alone, late, third));
        let counts = ["a", "b", "c", "a"].map(|owner| filled(&shares, owner).0);
        assert_eq!(counts.each_ref().map(Vec::len), [12, 6, 4, 0], "as much as is free");
        drop(counts);
        assert_eq!(shares.taken(), 0);
        assert_eq!(filled(&shares, "a").0.len(), 12, "others have asked since the beginning");
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
