//! Which revision of a function answers an invocation, and how a revision comes and goes.

use serde::{Deserialize, Serialize};

/// Revisions that share traffic at most: more cannot be told apart in a dashboard.
pub const SHARES_MAX: usize = 8;

/// Part of the traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Revision number.
    pub revision: u64,
    /// Percent of the invocations; 0 with a tag means reachable by its tag only.
    pub percent: u32,
    /// Name under which exactly this revision is reached, whatever its share.
    pub tag: Option<String>,
}

/// Why a split is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// Shares must be exactly everything.
    #[error("shares add up to {0} %, not 100 %")]
    Sum(u32),
    /// See [`SHARES_MAX`].
    #[error("{0} revisions share the traffic; at most 8 can")]
    TooMany(usize),
    /// A revision or tag stands twice.
    #[error("{0} is named twice")]
    Twice(String),
}

/// How the traffic of a function is split over its revisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    shares: Vec<Share>,
}

impl Split {
    /// Everything to one revision.
    pub fn whole(revision: u64) -> Self {
        Self { shares: vec![Share { revision, percent: 100, tag: None }] }
    }

    /// A checked split.
    pub fn new(shares: Vec<Share>) -> Result<Self, SplitError> {
        if shares.len() > SHARES_MAX {
            return Err(SplitError::TooMany(shares.len()));
        }
        let sum = shares.iter().map(|share| share.percent).fold(0, u32::saturating_add);
        if sum != 100 {
            return Err(SplitError::Sum(sum));
        }
        for (at, share) in shares.iter().enumerate() {
            for other in &shares[..at] {
                if share.revision == other.revision {
                    return Err(SplitError::Twice(format!("revision {}", share.revision)));
                }
                if share.tag.is_some() && share.tag == other.tag {
                    let tag = share.tag.as_deref().unwrap_or_default();
                    return Err(SplitError::Twice(format!("tag {tag}")));
                }
            }
        }
        Ok(Self { shares })
    }

    /// Its parts.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// The revision for an invocation. `key` is the invocation's id, or a hash of whatever shall
    /// stay with one revision (a user, a cookie): equal keys go to equal revisions as long as the
    /// split stays, and when one share grows at the next one's expense nobody else moves.
    pub fn pick(&self, key: u64) -> u64 {
        let mut left = (mix(key) % 100) as u32;
        for share in &self.shares {
            if left < share.percent {
                return share.revision;
            }
            left -= share.percent;
        }
        unreachable!("shares of a split add up to 100")
    }

    /// The revision with this tag.
    pub fn by_tag(&self, tag: &str) -> Option<u64> {
        self.shares
            .iter()
            .find(|share| share.tag.as_deref() == Some(tag))
            .map(|share| share.revision)
    }

    /// Whether the revision can be reached at all.
    pub fn reaches(&self, revision: u64) -> bool {
        let of = |share: &&Share| share.revision == revision;
        self.shares.iter().find(of).is_some_and(|share| share.percent > 0 || share.tag.is_some())
    }
}

/// Spreads consecutive keys (finaliser of SplitMix64, Steele et al., OOPSLA 2014).
fn mix(key: u64) -> u64 {
    let key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

/// Life of a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RevisionState {
    /// Its first instance has not been ready yet; it takes no traffic.
    Starting,
    /// An instance was ready once; no traffic is sent to it.
    Ready,
    /// The split reaches it.
    Active,
    /// The split does not reach it any more; what it holds is answered.
    Draining,
    /// Nothing is left of it but its record.
    Gone,
}

/// What happens to a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevisionEvent {
    /// An instance became ready.
    InstanceReady,
    /// Its first instance could not start.
    StartFailed,
    /// The split reaches it from now on.
    Reached,
    /// The split does not reach it any more.
    Left,
    /// Its queue and instances are empty.
    Emptied,
}

impl RevisionState {
    /// The state after an event; events without meaning in a state change nothing. A revision
    /// that never was ready never takes traffic, and one that drains can be reached again (roll
    /// back) until it is gone.
    pub fn after(self, event: RevisionEvent) -> Self {
        use RevisionEvent::*;
        use RevisionState::*;
        match (self, event) {
            (Starting, InstanceReady) => Ready,
            (Starting, StartFailed | Left) => Gone,
            (Ready | Draining, Reached) => Active,
            (Ready | Active, Left) => Draining,
            (Draining, Emptied) => Gone,
            (state, _) => state,
        }
    }

    /// Whether invocations may be sent to it.
    pub fn takes_traffic(self) -> bool {
        self == RevisionState::Active
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(revision: u64, percent: u32, tag: Option<&str>) -> Share {
        Share { revision, percent, tag: tag.map(str::to_owned) }
    }

    #[test]
    fn only_whole_splits() {
        let check = |shares: &[Share]| Split::new(shares.to_vec()).map(|_| ());
        assert_eq!(check(&[share(1, 90, None), share(2, 10, None)]), Ok(()));
        assert_eq!(check(&[share(1, 100, None), share(2, 0, Some("next"))]), Ok(()));
        assert_eq!(check(&[share(1, 90, None)]), Err(SplitError::Sum(90)));
        assert_eq!(check(&[]), Err(SplitError::Sum(0)));
        let twice = check(&[share(1, 50, None), share(1, 50, None)]);
        assert_eq!(twice, Err(SplitError::Twice("revision 1".into())));
        let twice = check(&[share(1, 50, Some("a")), share(2, 50, Some("a"))]);
        assert_eq!(twice, Err(SplitError::Twice("tag a".into())));
    }

    #[test]
    fn shares_are_kept_and_keys_stay() {
        let split = Split::new(vec![share(1, 90, None), share(2, 10, None)]).unwrap();
        let to_second = (0..100_000).filter(|key| split.pick(*key) == 2).count();
        assert!((9_500..10_500).contains(&to_second), "{to_second}");
        let wider = Split::new(vec![share(1, 70, None), share(2, 30, None)]).unwrap();
        for key in 0..10_000 {
            assert_eq!(split.pick(key), split.pick(key));
            if split.pick(key) == 2 {
                assert_eq!(wider.pick(key), 2, "who saw the new revision keeps seeing it");
            }
        }
    }

    #[test]
    fn tags_reach_what_shares_do_not() {
        let split = Split::new(vec![share(1, 100, None), share(2, 0, Some("next"))]).unwrap();
        assert_eq!(split.by_tag("next"), Some(2));
        assert_eq!(split.by_tag("old"), None);
        assert!(split.reaches(2) && !split.reaches(3));
        assert!((0..1_000).all(|key| split.pick(key) == 1));
    }

    #[test]
    fn life() {
        use RevisionEvent::*;
        use RevisionState::*;
        let walk = |events: &[RevisionEvent]| {
            events.iter().fold(Starting, |state, event| state.after(*event))
        };
        for (events, expected) in [
            (&[InstanceReady, Reached][..], Active),
            (&[Reached], Starting),
            (&[StartFailed], Gone),
            (&[InstanceReady, Reached, Left], Draining),
            (&[InstanceReady, Reached, Left, Reached], Active),
            (&[InstanceReady, Reached, Left, Emptied], Gone),
            (&[InstanceReady, Reached, Emptied], Active),
            (&[StartFailed, InstanceReady, Reached], Gone),
        ] {
            assert_eq!(walk(events), expected, "{events:?}");
        }
    }
}
