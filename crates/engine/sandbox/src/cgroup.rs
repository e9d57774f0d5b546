//! Control groups: finds the hierarchies, chooses where to create groups, reads groups, and removes
//! them.
//!
//! The daemon decides paths and values. The zygote's child creates and enters its directories when
//! it prepares. Before it does anything else for an instance, it writes the limits, so that they
//! hold before the program's first instruction, and even while the root is composed. Hybrid systems
//! have version 1 hierarchies next to an (almost) empty version 2 tree, and count as version 1.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use mote_core::backend::{InstanceLimits, Peaks, Usage};

use crate::plan::CgroupDir;
use crate::sys;

/// The period for CPU quotas. This is the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// The smallest quota that the kernel accepts.
const CPU_QUOTA_US_MIN: u64 = 1_000;
/// The sandbox's pid 1, which is counted in addition to the processes that a function may have.
const OWN_PROCESSES: u64 = 1;
/// Where socket buffers are counted separately, their limit is this fraction of the instance's
/// memory limit, in addition to that limit, but at least the minimum below. The minimum is enough
/// for a dozen busy connections.
const SOCKET_SHARE: u64 = 8;
const SOCKET_BYTES_MIN: u64 = 4 << 20;
/// How often a group's processes are listed while they are being paused. A few rounds suffice,
/// because an idle instance forks nothing.
const PAUSE_ROUNDS: u32 = 4;
/// How often a removal is tried. More than one try is needed, because a dying process leaves its
/// group only a moment after its end is seen.
const REMOVE_TRIES: u32 = 400;
const REMOVE_PAUSE: Duration = Duration::from_millis(5);
/// How long the removal of all groups of a daemon may take. Killed processes need processor time to
/// end, and other programs may leave them little of it.
const REMOVE_ALL_MAX: Duration = Duration::from_secs(10);

/// The kind of cgroups that this machine offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// One tree for all controllers.
    V2,
    /// One tree per controller.
    V1,
    /// No cgroups to which this process may write.
    None,
}

/// The cgroups of one daemon: `<its own cgroup>/mote-<pid>` in each hierarchy.
#[derive(Debug)]
pub(crate) struct Cgroups {
    version: Version,
    /// Maps a controller's name to the daemon's directory. Several controllers may share a
    /// directory.
    bases: BTreeMap<&'static str, PathBuf>,
    /// The reasons why controllers are missing.
    problems: Vec<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct InstanceCgroup {
    version: Version,
    dirs: BTreeMap<&'static str, PathBuf>,
    /// The instance's share of the processor, as it was before the instance first went into the
    /// background.
    shares: Arc<OnceLock<String>>,
    /// Memory in bytes that the instance uses and another group pays for.
    borrowed: u64,
}

/// What a copy of a template shares with it, in bytes. Measured: an idle instance of Python 3.11
/// needs 6.0 MiB if it is executed, and 2.5 MiB of its own as a copy. A function must need as much memory in a copy as without a template, or it would work only
/// while there is one.
const SHARED_WITH_TEMPLATE: u64 = 7 << 19;
/// The lowest memory limit of a group, in bytes.
const MEMORY_MIN: u64 = 1 << 20;

const CONTROLLERS: [&str; 4] = ["memory", "pids", "cpu", "cpuacct"];

/// The cgroups of this process. There is only one set, however many parts of the daemon ask for it.
static SHARED: Mutex<Shared> = Mutex::new(Shared { current: Weak::new(), present: false });

/// Signalled when the directories of the set have been removed.
static REMOVED: Condvar = Condvar::new();

/// Number of the next instance's directories. No number is used twice, because an instance's
/// directories may be removed only after its set is gone.
static NEXT: AtomicU64 = AtomicU64::new(1);

struct Shared {
    current: Weak<Cgroups>,
    /// Whether the directories of a set exist. This stays true for a moment after the last
    /// reference to the set is dropped, because the directories are removed after that. A new set
    /// must wait until then, because its directories would have the same names.
    present: bool,
}

impl Cgroups {
    /// The cgroups of this process. The first call prepares them and writes a few files. It blocks
    /// for up to two seconds while another thread removes the previous set.
    pub(crate) fn shared() -> Arc<Self> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(cgroups) = shared.current.upgrade() {
                return cgroups;
            }
            if !shared.present {
                break;
            }
            shared = REMOVED.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
        let cgroups = Arc::new(Self::prepare());
        *shared = Shared { current: Arc::downgrade(&cgroups), present: true };
        cgroups
    }

    /// Finds the hierarchies, creates the daemon's directories, and removes those of dead daemons.
    /// Writes a few files.
    fn prepare() -> Self {
        let pid = std::process::id();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mut found =
            Self { version: Version::None, bases: BTreeMap::new(), problems: Vec::new() };
        found.prepare_v1(pid, &mounts, &own);
        if found.bases.contains_key("memory") || found.bases.contains_key("pids") {
            found.version = Version::V1;
            return found;
        }
        if let Err(error) = found.prepare_v2(pid, &mounts, &own) {
            found.problems.push(error);
        }
        if !found.bases.is_empty() {
            found.version = Version::V2;
        }
        found
    }

    fn prepare_v1(&mut self, pid: u32, mounts: &str, own: &str) {
        for controller in CONTROLLERS {
            let Some(home) = own_directory(mounts, own, Some(controller)) else {
                continue;
            };
            remove_leftovers(&home);
            let base = home.join(format!("mote-{pid}"));
            match create_own(&home, &base) {
                Ok(()) => {
                    self.bases.insert(controller, base);
                }
                Err(error) => {
                    self.problems.push(format!("cannot create {}: {error}", base.display()));
                }
            }
        }
    }

    fn prepare_v2(&mut self, pid: u32, mounts: &str, own: &str) -> Result<(), String> {
        let home = own_directory(mounts, own, None).ok_or("no cgroup file system is mounted")?;
        let say = |what: &str, error: io::Error| format!("{what} in {}: {error}", home.display());
        // A daemon that was restarted in the same unit starts inside the leaf of the previous run.
        // The new groups belong above that leaf.
        let home = match home.file_name().and_then(|name| name.to_str()) {
            Some("daemon") => home.parent().unwrap_or(&home).to_owned(),
            _ => home.clone(),
        };
        let offered = fs::read_to_string(home.join("cgroup.controllers")).unwrap_or_default();
        let wanted: Vec<_> = CONTROLLERS
            .into_iter()
            .filter(|name| offered.split_whitespace().any(|offer| offer == *name))
            .collect();
        if wanted.is_empty() {
            return Err(format!("no controllers are delegated to {}", home.display()));
        }
        remove_leftovers(&home);
        let base = home.join(format!("mote-{pid}"));
        create_own(&home, &base).map_err(|error| say("cannot create a group", error))?;
        let enable = |dir: &Path| -> io::Result<()> {
            for name in &wanted {
                fs::write(dir.join("cgroup.subtree_control"), format!("+{name}"))?;
            }
            Ok(())
        };
        if enable(&home).is_err() {
            // A group with processes cannot delegate controllers, so the daemon's processes move to
            // a leaf. This includes the zygote, which is already forked.
            let leaf = home.join("daemon");
            create(&leaf).map_err(|error| say("cannot create a leaf", error))?;
            let procs = fs::read_to_string(home.join("cgroup.procs")).unwrap_or_default();
            for process in procs.lines() {
                let ours = process == pid.to_string() || parent_of(process) == Some(pid);
                if ours {
                    fs::write(leaf.join("cgroup.procs"), process)
                        .map_err(|error| say("cannot move the daemon to a leaf", error))?;
                }
            }
            enable(&home).map_err(|error| {
                say("cannot hand down controllers (does another process run there?)", error)
            })?;
        }
        enable(&base).map_err(|error| say("cannot hand down controllers", error))?;
        for name in wanted {
            self.bases.insert(name, base.clone());
        }
        // Version 2 counts CPU time without a controller.
        self.bases.insert("cpuacct", base);
        Ok(())
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    pub(crate) fn has(&self, controller: &str) -> bool {
        self.bases.contains_key(controller)
    }

    pub(crate) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Chooses the names of an instance's directories. The directories are not created yet.
    pub(crate) fn place(&self) -> InstanceCgroup {
        let name = format!("instance-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        // In the hierarchy of the `cpu` controller, instances are siblings of the daemon's group
        // and not below it. Only then does the kernel compare a background instance directly with
        // the daemon and with callers, so that these get the processor at once.
        let beside = (self.version == Version::V1).then(|| self.bases.get("cpu")).flatten();
        let dirs = self.bases.iter().map(|(controller, base)| {
            let dir = if Some(base) == beside {
                base.with_file_name(format!("mote-{}-{name}", std::process::id()))
            } else {
                base.join(&name)
            };
            (*controller, dir)
        });
        InstanceCgroup {
            version: self.version,
            dirs: dirs.collect(),
            shares: Arc::default(),
            borrowed: 0,
        }
    }

    /// Removes all groups of this daemon, and ends the processes that still run in them. Blocks for
    /// up to ten seconds.
    pub(crate) fn remove_all(&self) {
        let until = Instant::now() + REMOVE_ALL_MAX;
        for base in self.bases.values() {
            remove_base(base, until);
        }
        let ours = std::process::id();
        if let Some(home) = self.bases.get("cpu").and_then(|base| base.parent()) {
            // These groups come last. A child that is being prepared needs all of its groups, so
            // after it has failed to create one of the others, it creates no group here.
            for (path, pid) in groups_below(home) {
                if pid == ours {
                    remove_base(&path, until);
                }
            }
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.remove_all();
        SHARED.lock().unwrap_or_else(PoisonError::into_inner).present = false;
        REMOVED.notify_all();
    }
}

impl InstanceCgroup {
    /// The directories, without duplicates.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let mut paths: Vec<_> = self.dirs.values().cloned().collect();
        paths.dedup();
        paths
    }

    /// The values to write, by file. `whole` says that the kernel kills the whole instance when it
    /// kills one process because of memory.
    pub(crate) fn values(&self, limits: &InstanceLimits, whole: bool) -> Vec<CgroupDir> {
        let memory_bytes = limits.memory_bytes.saturating_sub(self.borrowed).max(MEMORY_MIN);
        let limits = &InstanceLimits { memory_bytes, ..limits.clone() };
        let mut plans: Vec<CgroupDir> = Vec::new();
        for (controller, path) in &self.dirs {
            let values = match self.version {
                Version::V2 => values_v2(controller, limits, whole),
                _ => values_v1(controller, limits),
            };
            match plans.iter_mut().find(|plan| plan.path == *path) {
                Some(plan) => plan.values.extend(values),
                None => plans.push(CgroupDir { path: path.clone(), values }),
            }
        }
        plans
    }
}

fn values_v1(controller: &str, limits: &InstanceLimits) -> Vec<(String, String, bool)> {
    let entry = |name: &str, value: u64, needed| (name.to_owned(), value.to_string(), needed);
    match controller {
        "memory" => vec![
            entry("memory.limit_in_bytes", limits.memory_bytes, true),
            // The file exists only if swap accounting is on. Its value must not be below the memory
            // limit above.
            entry("memory.memsw.limit_in_bytes", limits.memory_bytes, false),
            entry("memory.swappiness", 0, false),
            // Version 1 counts socket buffers separately, and only if they have a limit.
            entry(
                "memory.kmem.tcp.limit_in_bytes",
                (limits.memory_bytes / SOCKET_SHARE).max(SOCKET_BYTES_MIN),
                false,
            ),
        ],
        "pids" => vec![entry("pids.max", u64::from(limits.pids) + OWN_PROCESSES, true)],
        "cpu" => {
            let Some(millis) = limits.cpu_millis else {
                return Vec::new();
            };
            vec![
                entry("cpu.cfs_period_us", CPU_PERIOD_US, false),
                entry("cpu.cfs_quota_us", quota_us(millis), true),
                entry("cpu.shares", (u64::from(millis) * 1024 / 1000).max(2), false),
            ]
        }
        _ => Vec::new(),
    }
}

fn values_v2(
    controller: &str,
    limits: &InstanceLimits,
    whole: bool,
) -> Vec<(String, String, bool)> {
    let entry = |name: &str, value: String, needed| (name.to_owned(), value, needed);
    match controller {
        "memory" => vec![
            entry("memory.max", limits.memory_bytes.to_string(), true),
            entry("memory.swap.max", "0".to_owned(), false),
            entry("memory.oom.group", u8::from(whole).to_string(), false),
        ],
        "pids" => {
            vec![entry("pids.max", (u64::from(limits.pids) + OWN_PROCESSES).to_string(), true)]
        }
        "cpu" => match limits.cpu_millis {
            Some(millis) => {
                vec![entry("cpu.max", format!("{} {CPU_PERIOD_US}", quota_us(millis)), true)]
            }
            None => Vec::new(),
        },
        _ => Vec::new(),
    }
}

fn quota_us(cpu_millis: u32) -> u64 {
    (u64::from(cpu_millis) * CPU_PERIOD_US / 1000).max(CPU_QUOTA_US_MIN)
}

impl InstanceCgroup {
    /// The instance's current usage; `None` if no controller counts it.
    pub(crate) fn usage(&self) -> Option<Usage> {
        let number = |controller: &str, file: &str| -> Option<u64> {
            let text = fs::read_to_string(self.dirs.get(controller)?.join(file)).ok()?;
            text.trim().parse().ok()
        };
        let usage = match self.version {
            Version::None => return None,
            Version::V1 => Usage {
                memory_bytes: number("memory", "memory.usage_in_bytes").unwrap_or(0)
                    + self.borrowed,
                cpu_ns: number("cpuacct", "cpuacct.usage").unwrap_or(0),
                pids: number("pids", "pids.current").unwrap_or(0) as u32,
            },
            Version::V2 => Usage {
                memory_bytes: number("memory", "memory.current").unwrap_or(0) + self.borrowed,
                cpu_ns: self.field("cpuacct", "cpu.stat", "usage_usec").unwrap_or(0) * 1000,
                pids: number("pids", "pids.current").unwrap_or(0) as u32,
            },
        };
        Some(usage)
    }

    /// What the instance has used since its start; `None` if no controller counts it.
    pub(crate) fn peaks(&self) -> Option<Peaks> {
        let Usage { memory_bytes, cpu_ns, .. } = self.usage()?;
        let (memory_file, held_back_ns) = match self.version {
            Version::V1 => {
                ("memory.max_usage_in_bytes", self.field("cpu", "cpu.stat", "throttled_time"))
            }
            _ => {
                let held_back_us = self.field("cpu", "cpu.stat", "throttled_usec");
                ("memory.peak", held_back_us.map(|us| us * 1_000))
            }
        };
        let peak = self.dirs.get("memory").map(|dir| dir.join(memory_file));
        let peak = peak.and_then(|path| fs::read_to_string(path).ok()?.trim().parse().ok());
        // Kernels before 5.19 do not keep the peak.
        let memory_bytes = memory_bytes.max(peak.unwrap_or(0) + self.borrowed);
        Some(Peaks { memory_bytes, cpu_ns, held_back_ns: held_back_ns.unwrap_or(0) })
    }

    /// Lets the instance run only when nothing else needs the processor, or restores the usual
    /// priority. Kernels before 5.15 have no such switch; on them, nothing changes.
    pub(crate) fn set_background(&self, background: bool) {
        let Some(path) = self.dirs.get("cpu") else { return };
        let file = path.join(if self.version == Version::V1 { "cpu.shares" } else { "cpu.weight" });
        if background && self.shares.get().is_none() {
            let _ = fs::read_to_string(&file).map(|shares| self.shares.set(shares));
        }
        let _ = fs::write(path.join("cpu.idle"), if background { "1" } else { "0" });
        // The kernel forgets the share of a group while it is in the background, so the share is
        // written again.
        if !background && let Some(shares) = self.shares.get() {
            let _ = fs::write(&file, shares.trim());
        }
    }

    /// Gives the instance either a tenth of the share that others get when they compete for the
    /// processor, or the full share. The background is not used for this, because on a machine that
    /// is always busy, nothing would ever start in the background.
    pub(crate) fn set_modest(&self, modest: bool) {
        let Some(path) = self.dirs.get("cpu") else { return };
        let (file, share) = match (self.version, modest) {
            (Version::V1, true) => ("cpu.shares", "102"),
            (Version::V1, false) => ("cpu.shares", "1024"),
            (_, true) => ("cpu.weight", "10"),
            (_, false) => ("cpu.weight", "100"),
        };
        let _ = fs::write(path.join(file), share);
    }

    /// Counts the memory that a copy shares with its template as if it were the copy's own. If the
    /// copy already needs more than the limit leaves, the limit stays.
    pub(crate) fn borrow_from_template(&mut self, limits: &InstanceLimits, whole: bool) {
        let held = self.values(limits, whole);
        self.borrowed = SHARED_WITH_TEMPLATE;
        for (dir, held) in self.values(limits, whole).into_iter().zip(held) {
            for entry in dir.values.iter().filter(|entry| !held.values.contains(entry)) {
                let _ = fs::write(dir.path.join(&entry.0), &entry.1);
            }
        }
    }

    /// Gives a running instance other limits than those with which it was started. Writes only the
    /// values that differ.
    pub(crate) fn change(
        &mut self,
        before: &InstanceLimits,
        limits: &InstanceLimits,
        whole: bool,
    ) -> io::Result<()> {
        // The remembered share belongs to the previous limits.
        self.shares = Arc::default();
        let held = self.values(before, whole);
        for dir in self.values(limits, whole) {
            let held = held.iter().find(|held| held.path == dir.path);
            let is_held = |entry| held.is_some_and(|held| held.values.contains(entry));
            let mut values: Vec<_> = dir.values.iter().filter(|entry| !is_held(entry)).collect();
            // The limit that includes swap must never be below the one without swap, so it is
            // raised first and lowered last.
            if limits.memory_bytes > before.memory_bytes {
                values.reverse();
            }
            for (name, value, needed) in values {
                let written = fs::write(dir.path.join(name), value);
                if *needed {
                    written?;
                }
            }
        }
        Ok(())
    }

    /// Stops the instance's processes, or lets them continue. `init`, the instance's pid 1, is left
    /// out, because it runs no code of a function and answers the daemon. The group of a copy of a
    /// seed has no pid 1. Signals are used instead
    /// of the freezer, because processes that version 1's freezer holds cannot be killed, and so
    /// would outlive a daemon that died.
    pub(crate) fn set_paused(&self, init: Option<i32>, paused: bool) -> bool {
        let signal = if paused { libc::SIGSTOP } else { libc::SIGCONT };
        let mut told = BTreeSet::new();
        // Listed again, because processes that were not stopped yet may have forked meanwhile.
        for _ in 0..PAUSE_ROUNDS {
            let is_meant = |pid: &i32| Some(*pid) != init && told.insert(*pid);
            let fresh: Vec<i32> = self.processes().into_iter().filter(is_meant).collect();
            if fresh.is_empty() {
                return !told.is_empty();
            }
            for pid in fresh {
                // SAFETY: plain integers. The process was listed a moment ago in a group that only
                // this instance uses.
                unsafe {
                    libc::kill(pid, signal);
                }
            }
        }
        // The instance forks faster than it can be stopped, so it is not idle, and may continue.
        if paused {
            self.set_paused(init, false);
        }
        !paused
    }

    /// The processes in the group, by their numbers in this process's namespace.
    fn processes(&self) -> Vec<i32> {
        let Some(dir) = self.dirs.get("pids").or_else(|| self.dirs.values().next()) else {
            return Vec::new();
        };
        let listed = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        listed.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect()
    }

    /// Creates the directories and writes the limits, for an instance that no child of the zygote
    /// prepares. Writes about ten small files.
    pub(crate) fn create(&self, limits: &InstanceLimits) -> io::Result<()> {
        for dir in self.values(limits, true) {
            create(&dir.path)?;
            for (name, value, needed) in dir.values {
                let written = fs::write(dir.path.join(name), value);
                if needed {
                    written?;
                }
            }
        }
        Ok(())
    }

    /// Opens the files through which a process with one thread enters the groups.
    pub(crate) fn entries(&self) -> io::Result<Vec<OwnedFd>> {
        self.paths().iter().map(|dir| open_entry(dir)).collect()
    }

    /// Makes sure that a process is in every directory of the group. A process that entered the
    /// group itself is only looked up.
    pub(crate) fn ensure_member(&self, pid: i32) -> io::Result<()> {
        for dir in self.paths() {
            let file = dir.join("cgroup.procs");
            let number = pid.to_string();
            if !fs::read_to_string(&file)?.lines().any(|line| line == number) {
                fs::write(&file, number)?;
            }
        }
        Ok(())
    }

    /// Counts memory of the instance for which another group pays.
    pub(crate) fn borrow(&mut self, bytes: u64) {
        self.borrowed = bytes;
    }

    /// Lowers the memory limit of a running instance.
    pub(crate) fn limit_memory(&self, bytes: u64) -> io::Result<()> {
        let Some(dir) = self.dirs.get("memory") else { return Ok(()) };
        if self.version != Version::V1 {
            return fs::write(dir.join("memory.max"), bytes.to_string());
        }
        fs::write(dir.join("memory.limit_in_bytes"), bytes.to_string())?;
        // The file exists only if swap accounting is on.
        let _ = fs::write(dir.join("memory.memsw.limit_in_bytes"), bytes.to_string());
        Ok(())
    }

    /// Kills all processes of a group that has no pid 1 of its own. They cannot escape by forking,
    /// because the group admits no further process.
    pub(crate) fn kill_all(&self) {
        if let Some(dir) = self.dirs.get("pids") {
            let _ = fs::write(dir.join("pids.max"), "0");
        }
        for pid in self.processes() {
            // SAFETY: plain integers. The process was listed a moment ago in a group that only this
            // instance uses.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
            }
        }
    }

    /// Whether the kernel killed a process in the group because it ran out of memory.
    pub(crate) fn out_of_memory(&self) -> bool {
        let (file, field) = match self.version {
            Version::None => return false,
            Version::V1 => ("memory.oom_control", "oom_kill"),
            Version::V2 => ("memory.events", "oom_kill"),
        };
        self.field("memory", file, field).is_some_and(|count| count > 0)
    }

    fn field(&self, controller: &str, file: &str, field: &str) -> Option<u64> {
        let text = fs::read_to_string(self.dirs.get(controller)?.join(file)).ok()?;
        text.lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(name, _)| *name == field)
            .and_then(|(_, value)| value.trim().parse().ok())
    }

    /// Removes the directories of an instance that has ended. Blocks for up to two seconds while
    /// the instance's last processes leave.
    pub(crate) fn remove(&self) {
        for dir in self.dirs.values() {
            for _ in 0..REMOVE_TRIES {
                match fs::remove_dir(dir) {
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                        std::thread::sleep(REMOVE_PAUSE);
                    }
                    _ => break,
                }
            }
        }
    }
}

/// Opens the file of a control group through which a process with one thread enters the group; see
/// `child`.
pub(crate) fn open_entry(dir: &Path) -> io::Result<OwnedFd> {
    let open = |name| {
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(libc::O_CLOEXEC).open(dir.join(name)).map(OwnedFd::from)
    };
    match open("tasks") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => open("cgroup.procs"),
        opened => opened,
    }
}

fn create(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Creates the daemon's group `base` in `home`. Container runtimes mount a container's own groups
/// read-only. A daemon that may change mounts makes them writable again. That affects only the
/// container, because everything above its groups stays out of its reach.
fn create_own(home: &Path, base: &Path) -> io::Result<()> {
    match create(base) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            let mounts = home.ancestors().take_while(|dir| dir.starts_with("/sys/fs"));
            // The change succeeds only at the root of a mount, so the first success is the right
            // mount.
            if mounts.into_iter().any(|dir| sys::allow_writes(dir).is_ok()) {
                create(base)
            } else {
                Err(error)
            }
        }
        other => other,
    }
}

/// The path at which this process's own cgroup is mounted: the cgroup of `controller`, or with
/// `None`, that of version 2.
fn own_directory(mounts: &str, own: &str, controller: Option<&str>) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let _ = parts.next()?;
        let controllers = parts.next()?;
        let path = parts.next()?;
        let matches = match controller {
            Some(name) => controllers.split(',').any(|one| one == name),
            None => controllers.is_empty(),
        };
        matches.then_some(path)
    })?;
    mounts.lines().find_map(|line| {
        // id parent major:minor root mountpoint options - type source super-options
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let root = left.next()?;
        let mount_point = left.next()?;
        let mut right = right.split(' ');
        let kind = right.next()?;
        let _ = right.next()?;
        let options = right.next()?;
        let matches = match controller {
            Some(name) => kind == "cgroup" && options.split(',').any(|one| one == name),
            None => kind == "cgroup2",
        };
        if !matches {
            return None;
        }
        let below = Path::new(path).strip_prefix(root).ok()?;
        Some(Path::new(mount_point).join(below))
    })
}

fn parent_of(process: &str) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    text.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Removes groups of daemons that have ended, and ends the processes that still run in them.
fn remove_leftovers(home: &Path) {
    for (path, pid) in groups_below(home) {
        let alive = pid != std::process::id() && Path::new(&format!("/proc/{pid}")).exists();
        if !alive {
            remove_base(&path, Instant::now() + REMOVE_PAUSE * REMOVE_TRIES);
        }
    }
}

/// The groups that daemons made below `home`, each with its daemon's pid: `mote-PID` and
/// `mote-PID-…`.
fn groups_below(home: &Path) -> Vec<(PathBuf, u32)> {
    let entries = fs::read_dir(home).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let rest = name.to_str()?.strip_prefix("mote-")?;
            let pid = rest.split('-').next()?.parse().ok()?;
            entry.path().is_dir().then(|| (entry.path(), pid))
        })
        .collect()
}

/// Removes a group and the groups below it, and ends the processes in them. Blocks until `until` at most.
fn remove_base(base: &Path, until: Instant) {
    loop {
        // Listed again on each try, because a child that is being prepared may still add a group.
        for below in fs::read_dir(base).into_iter().flatten().flatten() {
            if below.path().is_dir() {
                end_processes(&below.path());
                let _ = fs::remove_dir(below.path());
            }
        }
        end_processes(base);
        match fs::remove_dir(base) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < until => {
                std::thread::sleep(REMOVE_PAUSE);
            }
            // Either the group is gone, or it belongs to another owner and stays. In both cases,
            // there is nothing to wait for.
            _ => return,
        }
    }
}

fn end_processes(group: &Path) {
    let procs = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for process in procs.lines().filter_map(|line| line.parse::<i32>().ok()) {
        if process > 0 {
            // SAFETY: plain integers. The process was listed in a group that only this daemon, or
            // an earlier one that has died, can have filled.
            unsafe {
                libc::kill(process, libc::SIGKILL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_that_is_being_removed_takes_no_directory_of_the_next() {
        for _ in 0..200 {
            let last = Cgroups::shared();
            if last.bases.is_empty() {
                println!("SKIPPED: there are no control groups that this user may write");
                return;
            }
            for base in last.bases.values() {
                for number in 0..4 {
                    create(&base.join(format!("instance-{number}"))).unwrap();
                }
            }
            let removal = std::thread::spawn(move || drop(last));
            let next = Cgroups::shared();
            removal.join().unwrap();
            for base in next.bases.values() {
                assert!(base.is_dir(), "{} is gone", base.display());
            }
        }
    }

    #[test]
    fn a_group_that_is_added_meanwhile_is_removed_as_well() {
        let set = Cgroups::shared();
        let Some(base) = set.bases.get("pids").or_else(|| set.bases.values().next()) else {
            println!("SKIPPED: there are no control groups that this user may write");
            return;
        };
        let base = base.join("removed-while-it-grows");
        for _ in 0..50 {
            create(&base).unwrap();
            let groups = base.clone();
            let adding = std::thread::spawn(move || {
                let mut number = 0;
                while fs::create_dir(groups.join(format!("instance-{number}"))).is_ok() {
                    number += 1;
                    std::thread::yield_now();
                    if number == 200 {
                        break;
                    }
                }
            });
            while !base.join("instance-0").exists() && !adding.is_finished() {
                std::thread::yield_now();
            }
            remove_base(&base, Instant::now() + REMOVE_ALL_MAX);
            adding.join().unwrap();
            assert!(!base.exists());
        }
    }

    #[test]
    fn a_group_that_cannot_be_removed_holds_nobody_up() {
        let dir = std::env::temp_dir().join(format!("mote-kept-{}", std::process::id()));
        fs::create_dir_all(dir.join("kept/inner")).unwrap();
        let begun = Instant::now();
        // The removal fails for a reason other than processes that are still ending. A group of
        // another user would fail in the same way.
        remove_base(&dir, Instant::now() + REMOVE_ALL_MAX);
        let took = begun.elapsed();
        assert!(dir.exists());
        fs::remove_dir_all(&dir).unwrap();
        assert!(took < REMOVE_ALL_MAX / 2, "it was tried again and again: {took:?}");
    }

    #[test]
    fn own_directories() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                      31 23 0:27 /docker/x /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      32 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let own = "4:memory:/a/b\n3:cpu,cpuacct:/docker/x/y\n0::/\n";
        let check = |controller, expected: Option<&str>| {
            assert_eq!(own_directory(mounts, own, controller), expected.map(PathBuf::from));
        };
        check(Some("memory"), Some("/sys/fs/cgroup/memory/a/b"));
        check(Some("cpu"), Some("/sys/fs/cgroup/cpu,cpuacct/y"));
        check(Some("pids"), None);
        check(None, Some("/sys/fs/cgroup/unified/"));
    }
}
