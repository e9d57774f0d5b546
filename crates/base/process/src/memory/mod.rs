//! How much memory the node may use (all of the machine's, or the limit of a control group), and
//! how the node returns memory that it no longer needs.
//!
//! This module must not know what the memory is used for. Start with [`machine_bytes`] and
//! [`give_back`].

#![allow(unsafe_code, reason = "the allocator has no other interface")]

pub mod counting;
mod program_pages;

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pause between two checks of the allocator's free memory. The pause is this short after calls,
/// and after a check that found a different amount than the previous one. Otherwise each pause is
/// twice as long as the one before, up to `LOOK_MAX`. The pauses grow because a check counts all
/// free pieces, which takes milliseconds in a node with a hundred functions.
const LOOK: Duration = Duration::from_secs(2);
const LOOK_MAX: Duration = Duration::from_secs(16);
/// The node returns memory only after no call has arrived for this long, because returning takes
/// milliseconds.
const IDLE: Duration = Duration::from_secs(1);
/// Less free memory than this is not worth returning.
const WORTH_BYTES: usize = 1 << 20;

/// After no call has arrived for this long, the node returns pages of its program files again.
const ASLEEP: Duration = Duration::from_secs(300);

/// Resident memory of this process in bytes; 0 where the system does not report it.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = kib.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Returns memory to the machine while no calls arrive. It returns the memory that deployments,
/// bursts and closed connections have left free in the allocator. It also returns pages of program
/// files, after the start and after each long pause. `idle` returns how long no call has run, or
/// `None` while one runs. Runs for the life of the node.
pub async fn give_back(idle: impl Fn() -> Option<Duration>) {
    let mut kept = 0;
    // How long the node must be idle before it returns pages of program files. `None` after they
    // were returned, until a call arrives.
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
        // Checked before counting, because counting locks the allocator that the data path uses.
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
    /// Bytes that were freed but that the process still holds.
    pub(super) fn free_bytes() -> usize {
        // SAFETY: the function takes no arguments and locks each arena while it counts.
        unsafe { libc::mallinfo2() }.fordblks
    }

    pub(super) fn trim() {
        // SAFETY: the function returns only pages that hold no data, and takes the allocator's own
        // locks.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Other C libraries return memory by themselves, so there is nothing to do.
#[cfg(not(target_env = "gnu"))]
mod allocator {
    pub(super) fn free_bytes() -> usize {
        0
    }

    pub(super) fn trim() {}
}

/// Memory that this process could use, in bytes: the machine's memory, or less if a control group
/// that contains the process sets a limit. `u64::MAX` if neither is known. Reads a few small files.
pub fn machine_bytes() -> u64 {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let info = read(Path::new("/proc/meminfo")).unwrap_or_default();
    let kib = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = kib.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let machine = kib.map_or(u64::MAX, |kib| kib << 10);
    group_limit_bytes(&groups, &read).map_or(machine, |limit| limit.min(machine))
}

/// The smallest memory limit of the groups named in `groups` (a `/proc/PID/cgroup`) and of all
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
            // "max" and numbers near 2^63 mean that there is no limit. The former does not parse, and
            // the latter exceeds the machine's memory, so neither has an effect.
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
