//! Decides which revision of a function answers an invocation, and how traffic moves between
//! revisions.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The maximum number of revisions that may have a share or a tag. A dashboard could not show more
/// of them distinctly.
pub const SHARES_MAX: usize = 8;
/// Longest tag in bytes; a function's name has the same limit.
pub const TAG_BYTES_MAX: usize = 63;
/// The maximum number of revisions remembered for rolling back. The store keeps the same number.
pub const HISTORY_MAX: usize = 10;

/// One revision's part of the traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Revision number.
    pub revision: u64,
    /// Percent of the invocations. A revision with 0 percent and a tag is reachable only by the
    /// tag.
    pub percent: u32,
    /// A name that always leads to this revision, whatever its share is.
    pub tag: Option<String>,
}

/// Why a split is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// The shares must add up to 100 %.
    #[error("shares add up to {0} %, not 100 %")]
    Sum(u32),
    /// See [`SHARES_MAX`].
    #[error("{0} revisions have a share or a tag; at most 8 can")]
    TooMany(usize),
    /// A revision or a tag occurs twice.
    #[error("{0} is named twice")]
    Twice(String),
    /// A tag does not have the required form, so readers could mistake it for something else.
    #[error(
        "tag `{0}`: 1\u{2013}63 characters of a\u{2013}z, 0\u{2013}9 and -, beginning with a letter and not ending with -"
    )]
    Tag(String),
}

/// A change of one revision's share or tag.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edit {
    /// Revision number.
    pub revision: u64,
    /// The new share; `None` leaves the share unchanged.
    pub percent: Option<u32>,
    /// The new tag. It is taken away from the revision that had it before. An empty tag removes the
    /// revision's tag, and `None` leaves the tag unchanged.
    pub tag: Option<String>,
}

/// Checks the form of a tag. A tag begins with a letter, because it could otherwise be mistaken for
/// a revision number.
pub fn check_tag(tag: &str) -> Result<(), SplitError> {
    let good = tag.len() <= TAG_BYTES_MAX
        && tag.starts_with(|first: char| first.is_ascii_lowercase())
        && !tag.ends_with('-')
        && tag.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if good {
        return Ok(());
    }
    let shown: String = tag.chars().take(TAG_BYTES_MAX + 1).flat_map(char::escape_debug).collect();
    Err(SplitError::Tag(shown))
}

/// How the traffic of a function is split over its revisions. The shares are in ascending order of
/// revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Share>", into = "Vec<Share>")]
pub struct Split {
    shares: Vec<Share>,
}

impl TryFrom<Vec<Share>> for Split {
    type Error = SplitError;
    fn try_from(shares: Vec<Share>) -> Result<Self, SplitError> {
        Self::new(shares)
    }
}

impl From<Split> for Vec<Share> {
    fn from(split: Split) -> Self {
        split.shares
    }
}

impl Split {
    /// Sends all traffic to one revision.
    pub fn whole(revision: u64) -> Self {
        Self { shares: vec![Share { revision, percent: 100, tag: None }] }
    }

    /// A checked split. Revisions with neither share nor tag are left out.
    pub fn new(mut shares: Vec<Share>) -> Result<Self, SplitError> {
        shares.retain(|share| share.percent > 0 || share.tag.is_some());
        // With a fixed order, a share grows only at the expense of its neighbour (see `pick`).
        shares.sort_unstable_by_key(|share| share.revision);
        if shares.len() > SHARES_MAX {
            return Err(SplitError::TooMany(shares.len()));
        }
        let sum = shares.iter().map(|share| share.percent).fold(0, u32::saturating_add);
        if sum != 100 {
            return Err(SplitError::Sum(sum));
        }
        for (at, share) in shares.iter().enumerate() {
            share.tag.as_deref().map_or(Ok(()), check_tag)?;
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

    /// The parts of the split.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// Chooses the revision for an invocation. `key` is the invocation's number, or a hash of the
    /// property that should stay with one revision (a user, a cookie). Equal keys lead to equal
    /// revisions until the split changes. If one share then grows at the expense of the next one,
    /// all other keys keep their revision.
    pub fn pick(&self, key: u64) -> u64 {
        self.shares[self.pick_index(key)].revision
    }

    /// Like [`Split::pick`], but returns an index into [`Split::shares`].
    pub fn pick_index(&self, key: u64) -> usize {
        let mut left = (mix(key) % 100) as u32;
        for (at, share) in self.shares.iter().enumerate() {
            if left < share.percent {
                return at;
            }
            left -= share.percent;
        }
        unreachable!("shares of a split add up to 100")
    }

    /// The revision with the largest share; among equals, the newest. It represents the function
    /// wherever only one revision can.
    pub fn main(&self) -> u64 {
        let largest = self.shares.iter().max_by_key(|share| (share.percent, share.revision));
        largest.expect("a split has shares").revision
    }

    /// Whether several revisions take traffic.
    pub fn is_divided(&self) -> bool {
        self.shares.iter().filter(|share| share.percent > 0).count() > 1
    }

    /// Sends all traffic to `revision`. All tags stay where they are.
    pub fn all_to(&self, revision: u64) -> Result<Self, SplitError> {
        self.edited(&[Edit { revision, percent: Some(100), tag: None }])
    }

    /// The split after some edits. If any edit sets a share, the revisions that no edit names lose
    /// their shares, so that only the given shares apply. Tags stay until an edit removes them.
    pub fn edited(&self, edits: &[Edit]) -> Result<Self, SplitError> {
        let mut shares = self.shares.clone();
        if edits.iter().any(|edit| edit.percent.is_some_and(|percent| percent > 0)) {
            shares.iter_mut().for_each(|share| share.percent = 0);
        }
        for (at, edit) in edits.iter().enumerate() {
            if edits[..at].iter().any(|other| other.revision == edit.revision) {
                return Err(SplitError::Twice(format!("revision {}", edit.revision)));
            }
            let tag = edit.tag.as_ref().filter(|tag| !tag.is_empty());
            if let Some(tag) = tag {
                if edits[..at].iter().any(|other| other.tag.as_ref() == Some(tag)) {
                    return Err(SplitError::Twice(format!("tag {tag}")));
                }
                let had = shares.iter_mut().find(|share| share.tag.as_ref() == Some(tag));
                had.into_iter().for_each(|share| share.tag = None);
            }
            let known = shares.iter().position(|share| share.revision == edit.revision);
            let place = known.unwrap_or_else(|| {
                shares.push(Share { revision: edit.revision, percent: 0, tag: None });
                shares.len() - 1
            });
            let share = &mut shares[place];
            share.percent = edit.percent.unwrap_or(share.percent);
            if edit.tag.is_some() {
                share.tag = tag.cloned();
            }
        }
        Self::new(shares)
    }

    /// A revision's share in percent; 0 if it has none.
    pub fn percent(&self, revision: u64) -> u32 {
        let share = self.shares.iter().find(|share| share.revision == revision);
        share.map_or(0, |share| share.percent)
    }

    /// The revision with this tag.
    pub fn by_tag(&self, tag: &str) -> Option<u64> {
        self.shares
            .iter()
            .find(|share| share.tag.as_deref() == Some(tag))
            .map(|share| share.revision)
    }

    /// Whether the revision can be reached, by its share or by a tag.
    pub fn reaches(&self, revision: u64) -> bool {
        let of = |share: &&Share| share.revision == revision;
        self.shares.iter().find(of).is_some_and(|share| share.percent > 0 || share.tag.is_some())
    }
}

impl fmt::Display for Split {
    /// For example, `@3 90 %, @4:next 10 %`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, share) in self.shares.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}@{}", share.revision)?;
            if let Some(tag) = &share.tag {
                write!(f, ":{tag}")?;
            }
            write!(f, " {} %", share.percent)?;
        }
        Ok(())
    }
}

/// The current split of a function's traffic, and its history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// The current split.
    pub split: Split,
    /// Earlier main revisions, the latest last. Revisions that were rolled back are removed from
    /// this list, so that a second rollback goes further back.
    #[serde(default)]
    pub before: Vec<u64>,
    /// While traffic is divided: the revision that had all traffic when the division began. `None`
    /// if traffic is not divided, or if the division began before this field existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_before: Option<u64>,
    /// Whether the function's schedules and MQTT subscriptions run on another cell of the cluster
    /// instead of this one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
}

impl Traffic {
    /// A split without a history.
    pub fn new(split: Split) -> Self {
        Self { split, before: Vec::new(), whole_before: None, elsewhere: false }
    }

    /// All traffic to one revision, as when a function has only its first revision.
    pub fn whole(revision: u64) -> Self {
        Self::new(Split::whole(revision))
    }

    /// The traffic after a change of the split to `split`.
    pub fn moved(&self, split: Split) -> Self {
        let from = self.split.main();
        let to = split.main();
        let mut before = self.before.clone();
        if from != to {
            before.retain(|revision| *revision != from && *revision != to);
            before.push(from);
            before.drain(..before.len().saturating_sub(HISTORY_MAX));
        }
        let whole_before = match (self.split.is_divided(), split.is_divided()) {
            (_, false) => None,
            (false, true) => Some(from),
            (true, true) => self.whole_before,
        };
        Self { split, before, whole_before, elsewhere: self.elsewhere }
    }

    /// The traffic after rolling everything back to `revision`.
    pub fn rolled_back(&self, revision: u64) -> Result<Self, SplitError> {
        let split = self.split.all_to(revision)?;
        let known = self.before.iter().position(|before| *before == revision);
        let before = self.before[..known.unwrap_or(self.before.len())].to_vec();
        Ok(Self { split, before, whole_before: None, elsewhere: self.elsewhere })
    }

    /// The target of a rollback that does not name a revision. While traffic is divided, this is
    /// the revision that had all traffic before. Otherwise, it is the revision that was live
    /// before.
    pub fn back(&self) -> Option<u64> {
        if self.whole_before.is_some() {
            return self.whole_before;
        }
        if self.split.is_divided() {
            let before = self.before.iter().rev().find(|r| self.split.percent(**r) > 0).copied();
            return Some(before.unwrap_or(self.split.main()));
        }
        self.before.last().copied()
    }

    /// Whether the revision must be kept, because it can be reached or is the target of the next
    /// rollback.
    pub fn needs(&self, revision: u64) -> bool {
        self.split.reaches(revision) || self.back() == Some(revision)
    }
}

/// Computes a key for [`Split::pick`] from the property that should stay with one revision. The key
/// is the same on every node and after every restart (FNV-1a, Fowler, Noll and Vo).
pub fn sticky_key(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Spreads consecutive keys evenly (finaliser of SplitMix64, Steele et al., OOPSLA 2014).
fn mix(key: u64) -> u64 {
    let key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}
