//! Memory: how much of it the node may use (all of the machine's, or the limit of a control group),
//! and how the node returns what it no longer needs.
//!
//! It must not know what the memory is used for. Start with [`machine_bytes`] and [`give_back`].

#![allow(unsafe_code, reason = "the allocator has no other interface")]

pub mod counting;
mod program_pages;

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pause between two checks of the allocator's free memory, after calls or after a check that found
/// another amount than the one before. After each other check the pause is twice as long, up to
/// `LOOK_MAX`: a check counts all free pieces, which takes milliseconds in a node with a hundred
/// functions.
const LOOK: Duration = Duration::from_secs(2);
const LOOK_MAX: Duration = Duration::from_secs(16);
/// Returning memory takes milliseconds, so the node does it only when no call has arrived for this
/// long.
const IDLE: Duration = Duration::from_secs(1);
/// A smaller amount is not worth the work.
const WORTH_BYTES: usize = 1 << 20;

/// How long no call has arrived when the node returns pages of its program files again.
const ASLEEP: Duration = Duration::from_secs(300);

/// Resident memory of this process in bytes; 0 where the system does not report it.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = kib.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Returns memory to the machine whenever no calls arrive: what deploys, bursts and closed
/// connections have left free in the allocator, and pages of program files, after the start and
/// after each long pause. `idle` tells how long no call has run; `None` while one does. Runs for the
/// life of the node.
pub async fn give_back(idle: impl Fn() -> Option<Duration>) {
    let mut kept = 0;
    // When pages of program files are returned; `None` once they are, until a call arrives.
    let mut pages_after = Some(IDLE);
    let mut before = Duration::ZERO;
    let mut pause = LOOK;
    let mut free_before = 0;
    loop {
        tokio::time::sleep(pause).await;
        let idle = idle().unwrap_or_default();
        pause = (2 * pause).min(LOOK_MAX);
        if idle < before || idle < IDLE {
            pages_after.get_or_insert(ASLEEP);
            pause = LOOK;
        }
        before = idle;
        // This check comes first, because counting locks the allocator that the data path uses.
        if idle < IDLE {
            continue;
        }
        if pages_after.is_some_and(|after| idle >= after) {
            let bytes = program_pages::give_back();
            tracing::debug!(bytes, "pages of program files were returned");
            pages_after = None;
        }
        let free = allocator::free_bytes();
        if free != std::mem::replace(&mut free_before, free) {
            pause = LOOK;
        }
        if free > kept + WORTH_BYTES {
            allocator::trim();
            kept = allocator::free_bytes();
            free_before = kept;
        }
        kept = kept.min(free);
    }
}

#[cfg(target_env = "gnu")]
mod allocator {
    /// Bytes that were freed but still belong to the process.
    pub(super) fn free_bytes() -> usize {
        // SAFETY: the function takes no arguments and locks each arena while it counts.
        unsafe { libc::mallinfo2() }.fordblks
    }

    pub(super) fn trim() {
        // SAFETY: the function returns only pages that hold nothing, under the allocator's own
        // locks.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Other C libraries return memory by themselves.
#[cfg(not(target_env = "gnu"))]
mod allocator {
    pub(super) fn free_bytes() -> usize {
        0
    }

    pub(super) fn trim() {}
}

/// Memory that this process could use, in bytes: the machine's, or less where a control group above
/// it sets a limit. `u64::MAX` if neither is known. Reads a few small files.
pub fn machine_bytes() -> u64 {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let info = read(Path::new("/proc/meminfo")).unwrap_or_default();
    let kib = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = kib.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let machine = kib.map_or(u64::MAX, |kib| kib << 10);
    group_limit_bytes(&groups, &read).map_or(machine, |limit| limit.min(machine))
}

/// The smallest memory limit of the groups that `groups` (a `/proc/PID/cgroup`) names and of all
/// their ancestors, as far as they are visible.
fn group_limit_bytes(groups: &str, read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    let mut limit: Option<u64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|controller| controller == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let file: PathBuf = [Path::new(root), group, Path::new(file)].iter().collect();
            // "max" and numbers near 2^63 mean that there is no limit; the machine's memory is
            // smaller than both.
            let bytes = read(&file).and_then(|text| text.trim().parse().ok());
            limit = limit.into_iter().chain(bytes).min();
        }
    }
    limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_above_us_holds() {
        let files = |known: &'static [(&str, &str)]| {
            move |path: &Path| {
                let found = known.iter().find(|(name, _)| Path::new(name) == path);
                found.map(|(_, text)| format!("{text}\n"))
            }
        };
        let v2 = files(&[
            ("/sys/fs/cgroup/a/b/memory.max", "max"),
            ("/sys/fs/cgroup/a/memory.max", "536870912"),
        ]);
        assert_eq!(group_limit_bytes("0::/a/b\n", &v2), Some(512 << 20));
        let own = files(&[("/sys/fs/cgroup/memory.max", "1048576")]);
        assert_eq!(group_limit_bytes("0::/\n", &own), Some(1 << 20), "a container's own root");
        let v1 = files(&[("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712")]);
        let groups = "3:cpu,cpuacct:/x\n2:memory:/x\n";
        assert_eq!(group_limit_bytes(groups, &v1), Some(9_223_372_036_854_771_712));
        assert_eq!(group_limit_bytes("nonsense", &v1), None);
        assert!(machine_bytes() > 1 << 20);
    }
}
