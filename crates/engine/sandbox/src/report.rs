//! The report of what this machine can enforce, worded for the user.

use std::os::fd::AsFd;
use std::sync::OnceLock;

use crate::cgroup::{Cgroups, Version};
use crate::data_folders::{self, DataError};
use crate::landlock_rules;
use crate::plan::Preparation;
use crate::subordinate::{self, Overlap};
use crate::sys;
use crate::user_namespaces;

/// The first kernel in which layers of an overlay can map ids.
const IDMAPPED_OVERLAYS: (u32, u32) = (5, 19);
/// The first kernel in which a tmpfs has the attributes that overlayfs needs without privileges.
const TMPFS_ATTRIBUTES: (u32, u32) = (6, 6);
/// Exit status of the child that tries namespaces: the ids could not be mapped.
const NOT_MAPPED: i32 = 1;
/// Exit status of the child that tries namespaces: `/proc` could not be mounted.
const NOT_MOUNTED: i32 = 2;

/// How well this machine enforces a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Enforced as promised.
    Enforced,
    /// Replaced by something weaker.
    Degraded,
    /// Not enforced at all.
    Missing,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// The name of the property, in one or two words.
    pub name: &'static str,
    /// How well it is enforced.
    pub state: State,
    /// How the property is enforced, or why it is not.
    pub detail: String,
    /// What the user can do about it; empty if nothing needs to be done.
    pub hint: String,
}

/// The report, for `mote doctor` and `mote up`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The items, in order of importance.
    pub items: Vec<Capability>,
}

/// Examines this machine for a daemon that this user runs and whose instances have the user ids
/// from `uid_base` on. Reads a few small files, and creates and removes one empty cgroup per
/// hierarchy. Takes milliseconds.
pub fn capabilities(uid_base: u32) -> Report {
    Report { items: items(&Cgroups::shared(), uid_base) }
}

pub(crate) fn items(cgroups: &Cgroups, uid_base: u32) -> Vec<Capability> {
    use State::{Degraded, Enforced, Missing};
    let mut items = Vec::new();
    let mut add = |name, state, detail: &str, hint: &str| {
        items.push(Capability { name, state, detail: detail.to_owned(), hint: hint.to_owned() });
    };
    if !sys::has_mount_setattr() {
        let why = "it has no mount_setattr, without which no sandbox can be made";
        add("kernel", Missing, why, "use Linux 5.12 or newer");
    }
    if sys::is_root() {
        let own = "root: each instance has its own uid";
        match subordinate::overlap(uid_base) {
            None => add("user", Enforced, own, ""),
            Some(Overlap { text, free }) => {
                let hint =
                    free.map(|free| format!("set `uid_base = {free}`, a range that nobody uses"));
                add(
                    "user",
                    Degraded,
                    &format!("{own}, starting at {uid_base}, but {text} too"),
                    &hint.unwrap_or_else(|| "choose ids from a free range".to_owned()),
                );
            }
        }
    } else {
        add(
            "user",
            Degraded,
            "ordinary user: all instances have your uid outside their sandboxes",
            "run as root, or as a system service, for one uid per instance",
        );
    }
    let version = match cgroups.version() {
        Version::V2 => "v2",
        Version::V1 => "v1",
        Version::None => "none usable",
    };
    // If one hierarchy fails, the others usually fail for the same reason, so only the first
    // problem is shown.
    let problems = match cgroups.problems() {
        [] => String::new(),
        [one] => one.clone(),
        [first, others @ ..] => format!("{first} (and {} more like it)", others.len()),
    };
    let delegate = "start it as a service with Delegate=yes, or with systemd-run --user --scope -p Delegate=yes";
    // A node that runs as an ordinary user works without delegation, but with weaker limits.
    let absent = if sys::is_root() { Missing } else { Degraded };
    match cgroups.version() {
        Version::None => add("cgroups", absent, &format!("{version}: {problems}"), delegate),
        _ if problems.is_empty() => add("cgroups", Enforced, version, ""),
        _ => add("cgroups", Degraded, &format!("{version}; {problems}"), delegate),
    }
    let by_cgroup = |controller: &str| cgroups.has(controller);
    match by_cgroup("memory") {
        true => add("memory", Enforced, "cgroup memory controller", ""),
        false => add(
            "memory",
            Degraded,
            "limits each process to the function's limit and 256 MiB (RLIMIT_DATA); child processes \
             and /tmp are not counted; usage is not shown",
            if sys::is_root() {
                "enable the memory controller (on some boards: cgroup_enable=memory on the kernel command line)"
            } else {
                delegate
            },
        ),
    }
    match by_cgroup("cpu") {
        true => add("cpu", Enforced, "cgroup cpu controller", ""),
        false => add("cpu", absent, "the CPU use of instances is not limited", delegate),
    }
    match by_cgroup("pids") {
        true => add("pids", Enforced, "cgroup pids controller", ""),
        false => add("pids", Degraded, "processes per user id (RLIMIT_NPROC)", delegate),
    }
    add("disk", Enforced, "/tmp is a tmpfs of limited size and file count", "");
    match data_folders::support() {
        Ok(()) => add("data folders", Enforced, "file systems (ext4) of limited size", ""),
        Err(DataError::Unsupported { why, hint }) => {
            let text = format!("functions cannot have [files] data: {why}");
            add("data folders", Degraded, &text, &hint);
        }
        Err(error) => add("data folders", Degraded, &error.to_string(), ""),
    }
    if prewarmed_programs(cgroups) {
        add("prewarming", Enforced, "interpreters are started in advance", "");
    } else {
        add(
            "prewarming",
            Degraded,
            "interpreters are not started in advance, so cold starts take longer",
            "run as root with a memory controller",
        );
    }
    match user_namespaces() {
        Ok(()) => add("user namespace", Enforced, "available", ""),
        Err(why) if sys::is_root() => add(
            "user namespace",
            Degraded,
            &format!("{why}: instances run as their own uid without one"),
            "allow user namespaces for root (sysctl user.max_user_namespaces)",
        ),
        Err(why) => add(
            "user namespace",
            Missing,
            &format!("{why}: no sandbox can be made"),
            "without user namespaces an ordinary user cannot run sandboxes: run as root, or allow user namespaces",
        ),
    }
    match images(user_namespaces().is_ok()) {
        Ok(()) => add("images", Enforced, "layers are joined by overlayfs", ""),
        Err((why, hint)) => {
            add("images", Missing, &format!("container images cannot run: {why}"), hint)
        }
    }
    add("network namespace", Enforced, "loopback only", "");
    match crate::seccomp::compile() {
        Ok(_) => add(
            "seccomp",
            Enforced,
            &format!("{} system calls allowed", crate::seccomp::allowed_count()),
            "",
        ),
        Err(error) => {
            add("seccomp", Missing, &error.to_string(), "this processor is not supported")
        }
    }
    match landlock_rules::version() {
        0 => add(
            "landlock",
            Missing,
            "not in this kernel; files are protected by mounts alone",
            "use a kernel from 5.13 with landlock in its list of security modules",
        ),
        version @ 1..6 => {
            add(
                "landlock",
                Degraded,
                &format!("version {version}; newer versions restrict more"),
                "",
            );
        }
        version => add("landlock", Enforced, &format!("version {version}"), ""),
    }
    items
}

/// Whether this machine can run container images, and if not, why and what helps.
fn images(has_namespaces: bool) -> Result<(), (&'static str, &'static str)> {
    if !has_namespaces {
        return Err(("they need user namespaces", "allow user namespaces"));
    }
    if !sys::has_file_system("overlay") {
        let hint = "load the module overlay, or use a kernel with overlayfs";
        return Err(("overlayfs is not in this kernel", hint));
    }
    match (sys::is_root(), sys::kernel_version()) {
        (true, version) if version < IDMAPPED_OVERLAYS => Err((
            "this kernel cannot show the files of an image as those of an instance",
            "use Linux 5.19 or newer; code that is not an image runs as before",
        )),
        (false, version) if version < TMPFS_ATTRIBUTES => Err((
            "in this kernel, an ordinary user cannot join the layers of an image",
            "use Linux 6.6 or newer, or run the node as root; code that is not an image runs as before",
        )),
        _ => Ok(()),
    }
}

/// Whether prewarmed programs can wait for a function. Both conditions are needed. First, an
/// ordinary user may not mount into a sandbox that is already closed. Second, without a memory
/// controller, the memory limit is an rlimit of the program's own processes, which cannot be
/// changed later.
pub(crate) fn prewarmed_programs(cgroups: &Cgroups) -> bool {
    sys::is_root() && cgroups.has("memory")
}

/// Whether this user may create user namespaces. The distributions' switches decide this. For an
/// ordinary user, a trial is needed as well, which takes a millisecond once per process.
pub(crate) fn user_namespaces() -> Result<(), String> {
    user_namespaces::switches()?;
    static TRIED: OnceLock<Result<(), String>> = OnceLock::new();
    if sys::is_root() { Ok(()) } else { TRIED.get_or_init(try_namespaces).clone() }
}

/// Makes the namespaces of a sandbox in a child that ends at once. The switches alone do not decide
/// this, because in many containers the kernel refuses a fresh `/proc`, and in many places
/// namespaces are limited.
fn try_namespaces() -> Result<(), String> {
    let preparation =
        Preparation { without: 0, mapped: Some(sys::effective_ids()), cgroups: Vec::new() };
    let (uid, gid) = sys::effective_ids();
    let maps = [
        (c"/proc/self/setgroups", "deny".to_owned()),
        (c"/proc/self/uid_map", format!("{uid} {uid} 1")),
        (c"/proc/self/gid_map", format!("{gid} {gid} 1")),
    ];
    // SAFETY: this process may have more threads, so the child only makes system calls and never
    // allocates, because another thread may have held the allocator's lock.
    let child = unsafe { sys::fork_into(preparation.clone_flags()) };
    match child {
        Err(error) => Err(format!("cannot create namespaces: {error}")),
        Ok(Some((pid, _pidfd))) => match sys::wait_for(pid) {
            0 => Ok(()),
            NOT_MAPPED => Err("the kernel refuses to map this user".to_owned()),
            _ => Err("the kernel refuses to mount /proc in a namespace".to_owned()),
        },
        Ok(None) => {
            let _ = sys::prctl(libc::PR_SET_DUMPABLE, 1, 0);
            for (file, text) in &maps {
                let written = sys::openat(None, file, libc::O_WRONLY, 0)
                    .and_then(|file| sys::write(file.as_fd(), text.as_bytes()));
                if written.is_err() {
                    sys::exit_now(NOT_MAPPED);
                }
            }
            let mounted = sys::new_mount(c"proc", &[(c"subset", c"pid")], 0);
            sys::exit_now(if mounted.is_ok() { 0 } else { NOT_MOUNTED });
        }
    }
}
