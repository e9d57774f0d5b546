//! A binary search tree over the numbers of system calls, as instructions for the kernel.
//!
//! A filter from seccompiler compares the number of a call with one number after the other. When a
//! filter is loaded, the kernel runs it once for each system call number, to learn which calls are
//! always allowed (`seccomp_cache_prepare` in kernel/seccomp.c). With a list of 200 numbers, that
//! takes half a millisecond for each instance. The tree finds a number with at most nine
//! comparisons.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use seccompiler::sock_filter;

const IS_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// What a filter decides about a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Refused,
    /// The call's arguments decide.
    Compared,
}

/// Makes instructions that return `allow` for the numbers in `allowed` and `refuse` for all numbers
/// in neither set. For the numbers in `compared`, they jump to the instruction after the tree. The
/// number of the call must already be loaded.
pub(crate) fn tree(
    allowed: &BTreeSet<u32>,
    compared: &BTreeSet<u32>,
    (allow, refuse): (u32, u32),
) -> io::Result<Vec<sock_filter>> {
    let verdict = |number| match number {
        number if compared.contains(&number) => Verdict::Compared,
        number if allowed.contains(&number) => Verdict::Allowed,
        _ => Verdict::Refused,
    };
    // Maps the first number of each range to the range's verdict.
    let mut ranges = BTreeMap::from([(0, verdict(0))]);
    for number in allowed.iter().chain(compared) {
        for begin in [*number, number.saturating_add(1)] {
            ranges.insert(begin, verdict(begin));
        }
    }
    let mut ranges: Vec<_> = ranges.into_iter().collect();
    ranges.dedup_by_key(|(_, verdict)| *verdict);
    let mut tree = node(&ranges, (allow, refuse))?;
    let length = tree.len();
    for (at, jump) in tree.iter_mut().enumerate().filter(|(_, one)| one.code == JUMP) {
        jump.k = u32::try_from(length - at - 1).map_err(io::Error::other)?;
    }
    Ok(tree)
}

/// Makes the instructions for these ranges. Jumps to the end of the tree do not have their distance
/// yet; [`tree`] sets it.
fn node(ranges: &[(u32, Verdict)], returned: (u32, u32)) -> io::Result<Vec<sock_filter>> {
    if let [(_, verdict)] = ranges {
        let (code, k) = match verdict {
            Verdict::Allowed => (RETURN, returned.0),
            Verdict::Refused => (RETURN, returned.1),
            Verdict::Compared => (JUMP, 0),
        };
        return Ok(vec![sock_filter { code, jt: 0, jf: 0, k }]);
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    let mut below = node(low, returned)?;
    let above = node(high, returned)?;
    // A conditional jump can skip at most 255 instructions.
    let jt = u8::try_from(below.len()).map_err(io::Error::other)?;
    below.insert(0, sock_filter { code: IS_AT_LEAST, jt, jf: 0, k: high[0].0 });
    below.extend(above);
    Ok(below)
}
