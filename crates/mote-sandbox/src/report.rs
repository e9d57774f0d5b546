//! What this machine lets us enforce, in words for the user.

use crate::cgroup::{Cgroups, Version};
use crate::landlock_rules;
use crate::seccomp;
use crate::sys;

/// How well something is enforced here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// As promised.
    Enforced,
    /// By something weaker.
    Degraded,
    /// Not at all.
    Missing,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// What, in a word or two.
    pub name: &'static str,
    /// How well.
    pub state: State,
    /// By what means, or why not.
    pub detail: String,
    /// What to do about it; empty when nothing needs doing.
    pub hint: String,
}

/// The report, for `mote doctor` and `mote up`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// In the order of importance.
    pub items: Vec<Capability>,
}

/// Looks at this machine with the eyes of a daemon run by this user. Reads a few small files and
/// creates and removes one empty cgroup per hierarchy; milliseconds.
pub fn capabilities() -> Report {
    Report { items: items(&Cgroups::shared()) }
}

pub(crate) fn items(cgroups: &Cgroups) -> Vec<Capability> {
    use State::{Degraded, Enforced, Missing};
    let mut items = Vec::new();
    let mut add = |name, state, detail: &str, hint: &str| {
        items.push(Capability { name, state, detail: detail.to_owned(), hint: hint.to_owned() });
    };
    if sys::is_root() {
        add("user", Enforced, "root: each instance has its own uid", "");
    } else {
        add(
            "user",
            Degraded,
            "ordinary user: all instances share your uid outside their sandboxes",
            "run as root, or as a system service, for one uid per instance",
        );
    }
    let version = match cgroups.version() {
        Version::V2 => "v2",
        Version::V1 => "v1",
        Version::None => "none usable",
    };
    let problems = cgroups.problems().join("; ");
    let delegate = "start it as a service with Delegate=yes, or with systemd-run --user --scope -p Delegate=yes";
    match cgroups.version() {
        Version::None => add("cgroups", Missing, &format!("{version}: {problems}"), delegate),
        _ if problems.is_empty() => add("cgroups", Enforced, version, ""),
        _ => add("cgroups", Degraded, &format!("{version}; {problems}"), delegate),
    }
    let by_cgroup = |controller: &str| cgroups.has(controller);
    match by_cgroup("memory") {
        true => add("memory", Enforced, "cgroup memory controller", ""),
        false => add(
            "memory",
            Degraded,
            "private memory of each process only (RLIMIT_DATA); usage is not shown",
            "enable the memory controller (on some boards: cgroup_enable=memory on the kernel command line)",
        ),
    }
    match by_cgroup("cpu") {
        true => add("cpu", Enforced, "cgroup cpu controller", ""),
        false => add("cpu", Missing, "instances share the CPU without caps", delegate),
    }
    match by_cgroup("pids") {
        true => add("pids", Enforced, "cgroup pids controller", ""),
        false => add("pids", Degraded, "processes per user id (RLIMIT_NPROC)", delegate),
    }
    add("disk", Enforced, "/tmp is a tmpfs of limited size and file count", "");
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
            &why,
            "an ordinary user cannot run sandboxes without: run as root or allow user namespaces",
        ),
    }
    add("network namespace", Enforced, "loopback only", "");
    match seccomp::compile() {
        Ok(_) => add(
            "seccomp",
            Enforced,
            &format!("{} system calls allowed", seccomp::allowed_count()),
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
            add("landlock", Degraded, &format!("version {version}, newer ones confine more"), "");
        }
        version => add("landlock", Enforced, &format!("version {version}"), ""),
    }
    items
}

/// Whether this user may create user namespaces, by the switches distributions have.
pub(crate) fn user_namespaces() -> Result<(), String> {
    let read = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
    if !std::path::Path::new("/proc/self/ns/user").exists() {
        return Err("not in this kernel".to_owned());
    }
    if read("/proc/sys/user/max_user_namespaces").as_deref() == Some("0") {
        return Err("user.max_user_namespaces is 0".to_owned());
    }
    for (path, off) in [
        ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
    ] {
        if !sys::is_root() && read(path).as_deref() == Some(off) {
            return Err(format!("{path} is {off}"));
        }
    }
    Ok(())
}
