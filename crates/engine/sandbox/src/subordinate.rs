//! Ranges of user and group ids that belong to other users. `/etc/subuid` and `/etc/subgid` say
//! which ids a user may map into that user's own namespaces, for instance those of a container
//! engine. If such an id is also the id of an instance, the user can read the instance's files and
//! end its processes.

use std::fs;
use std::ops::Range;

use crate::slots::SLOTS;

/// Step size in the search for a free range.
const STEP: u64 = 1_000_000;

/// A range that belongs to another user and overlaps the ids of instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Overlap {
    /// The owner of the range, its file, and its ids.
    pub(crate) text: String,
    /// The lowest first id for instances, in steps of [`STEP`], with which no range of another user
    /// overlaps; `None` if there is none.
    pub(crate) free: Option<u32>,
}

/// Finds an overlap between the ids of instances from `base` on and the ids that are given to
/// others on this machine. Reads two small files.
pub(crate) fn overlap(base: u32) -> Option<Overlap> {
    let read = |path: &'static str| (path, fs::read_to_string(path).unwrap_or_default());
    overlap_in(&[read("/etc/subuid"), read("/etc/subgid")], base)
}

fn overlap_in(files: &[(&str, String)], base: u32) -> Option<Overlap> {
    let all: Vec<_> = files
        .iter()
        .flat_map(|(path, text)| text.lines().filter_map(|line| Some((*path, range(line)?))))
        .collect();
    let taken = |base: u64| {
        let own = ids(base);
        let meets = move |range: &Range<u64>| range.start < own.end && own.start < range.end;
        all.iter().find(|(_, (_, range))| meets(range))
    };
    let (path, (owner, range)) = taken(base.into())?;
    let owner: String = owner.chars().take(64).flat_map(char::escape_debug).collect();
    let text = format!("{path} assigns {} to {} to {owner}", range.start, range.end - 1);
    let mut bases = (1..).map(|n| n * STEP).take_while(|base| ids(*base).end < u32::MAX.into());
    let free = bases.find(|base| taken(*base).is_none()).and_then(|base| u32::try_from(base).ok());
    Some(Overlap { text, free })
}

/// The ids of instances if the first is `base`.
fn ids(base: u64) -> Range<u64> {
    base..base + u64::from(SLOTS)
}

/// Parses a line `NAME:FIRST:COUNT`, see subuid(5).
fn range(line: &str) -> Option<(&str, Range<u64>)> {
    let mut parts = line.trim().split(':');
    let owner = parts.next()?;
    let first = parts.next()?;
    let count = parts.next()?;
    let first = u64::from(first.parse::<u32>().ok()?);
    let count = u64::from(count.parse::<u32>().ok()?);
    (count > 0 && !owner.starts_with('#')).then(|| (owner, first..first + count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(subuid: &str, subgid: &str, base: u32) -> Option<(String, Option<u32>)> {
        let files = [("/etc/subuid", subuid.to_owned()), ("/etc/subgid", subgid.to_owned())];
        overlap_in(&files, base).map(|overlap| (overlap.text, overlap.free))
    }

    #[test]
    fn ranges_of_others_are_found() {
        let usual = "alice:100000:65536\nbob:165536:65536\n";
        assert_eq!(found(usual, usual, 1_000_000), None);
        assert_eq!(found("", "", 1_000_000), None);
        // Adjacent ranges do not overlap.
        assert_eq!(found("a:934464:65536\nb:1065536:65536", "", 1_000_000), None);
        for (subuid, subgid, told) in [
            ("a:1000000:65536", "", "/etc/subuid assigns 1000000 to 1065535 to a"),
            (usual, "incus:1000000:500000000", "/etc/subgid assigns 1000000 to 500999999 to incus"),
            ("a:934465:65536", "", "/etc/subuid assigns 934465 to 1000000 to a"),
            ("a:1065535:1", "", "/etc/subuid assigns 1065535 to 1065535 to a"),
        ] {
            let (text, free) = found(subuid, subgid, 1_000_000).expect(told);
            assert_eq!(text, told);
            let free = free.expect("there is room");
            assert_eq!(found(subuid, subgid, free), None, "{free} is not free");
        }
        assert_eq!(found("a:1000000:65536", "", 2_000_000), None);
    }

    #[test]
    fn lines_that_are_none_are_skipped() {
        let odd = "\n# a:1000000:65536\na:b:c\na:1000000\na:1000000:0\na:99999999999:5\na::\n";
        assert_eq!(found(odd, odd, 1_000_000), None);
        let all = "a:0:4294967295\n";
        assert_eq!(found(all, "", 1_000_000).expect("all").1, None);
    }
}
