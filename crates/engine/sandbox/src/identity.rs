//! The identity of an instance: user namespace, ids, capabilities and resource limits.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::config::Layer;
use crate::plan::Plan;
use crate::step::{Failure, StepName};
use crate::sys;

pub(crate) use crate::config::{INSIDE_ID, INSIDE_IDS};

/// Soft and hard limit for open files: enough for servers, but too few to exhaust the machine.
const OPEN_FILES: (u64, u64) = (1024, 4096);

const SECBIT_NOROOT: libc::c_ulong = 1;
const SECBIT_NOROOT_LOCKED: libc::c_ulong = 1 << 1;
const SECBIT_NO_SETUID_FIXUP: libc::c_ulong = 1 << 2;
const SECBIT_NO_SETUID_FIXUP_LOCKED: libc::c_ulong = 1 << 3;
const SECBIT_KEEP_CAPS_LOCKED: libc::c_ulong = 1 << 5;
const SECBIT_NO_CAP_AMBIENT_RAISE: libc::c_ulong = 1 << 6;
const SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED: libc::c_ulong = 1 << 7;

/// The rules of a sandbox by which no program regains capabilities.
pub(crate) const SECURE_BITS: libc::c_ulong = SECBIT_NOROOT
    | SECBIT_NOROOT_LOCKED
    | SECBIT_NO_SETUID_FIXUP
    | SECBIT_NO_SETUID_FIXUP_LOCKED
    | SECBIT_KEEP_CAPS_LOCKED
    | SECBIT_NO_CAP_AMBIENT_RAISE
    | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
/// The capabilities of a template, by their numbers in `linux/capability.h`: `CAP_KILL`, to end a
/// sandbox that cannot be entered; `CAP_SETGID`, `CAP_SETUID` and `CAP_SETPCAP`, to become its
/// user; `CAP_SYS_CHROOT` and `CAP_SYS_ADMIN`, to enter its namespaces.
const OF_TEMPLATE: [libc::c_ulong; 6] = [5, 6, 7, 8, 18, 21];

/// The namespaces that a copy enters, in this order. The namespace of users is last, because the
/// others belong to the host's. The first one is of the processes that the template forks.
pub(crate) const NAMESPACES: [&CStr; 7] = [
    c"/proc/self/ns/pid",
    c"/proc/self/ns/mnt",
    c"/proc/self/ns/net",
    c"/proc/self/ns/ipc",
    c"/proc/self/ns/uts",
    c"/proc/self/ns/cgroup",
    c"/proc/self/ns/user",
];

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAP_VERSION_3: u32 = 0x2008_0522;

/// Maps ids (user, group) of the parent namespace to ids `inside` the user namespace that this
/// process has just entered. `proc` is a /proc to which files can be written; `None` for the /proc
/// in this process's root.
pub(crate) fn map_self(
    inside: (u32, u32),
    outside: (u32, u32),
    proc: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let write = |name: &str, text: String| {
        let own = if proc.is_some() { "self" } else { "/proc/self" };
        let file = sys::openat(proc, &sys::cstring(format!("{own}/{name}"))?, libc::O_WRONLY, 0)?;
        sys::write(file.as_fd(), text.as_bytes()).map(drop)
    };
    as_owner_of_proc_files(|| {
        write("setgroups", "deny".to_owned())?;
        write("uid_map", format!("{} {} 1", inside.0, outside.0))?;
        write("gid_map", format!("{} {} 1", inside.1, outside.1))
    })
}

/// Runs `write`, which writes to files of `/proc/self`. If this process is undumpable, those files
/// belong to root, but this process may be an ordinary user. So it becomes dumpable for the
/// duration of `write`. Call this only before a program of a function runs, because until then no
/// other process in the namespaces could trace this one.
pub(crate) fn as_owner_of_proc_files(write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    sys::prctl(libc::PR_SET_DUMPABLE, 1, 0)?;
    let written = write();
    sys::prctl(libc::PR_SET_DUMPABLE, 0, 0)?;
    written
}

/// Changes from root to the instance's own uid in its own user namespace.
///
/// The other namespaces were made earlier and belong to the host's user namespace. So even a full
/// set of capabilities inside the new user namespace would give no power over them.
pub(crate) fn become_instance(
    plan: &Plan,
    inside: (u32, u32),
    proc: Option<BorrowedFd<'_>>,
) -> Result<(), Failure> {
    change_user(plan.host_ids).step("change the user")?;
    if has_own_users(plan) {
        sys::unshare(libc::CLONE_NEWUSER).step("create a user namespace")?;
        map_self(inside, plan.host_ids, proc).step("map the user namespace")?;
    }
    Ok(())
}

/// Opens the namespaces of this process, which a copy enters. The template does not open them
/// itself, because it would need `CAP_SYS_PTRACE`, which service managers often withhold.
pub(crate) fn open_namespaces(plan: &Plan) -> io::Result<Vec<OwnedFd>> {
    namespaces(plan).iter().map(|name| sys::openat(None, name, libc::O_RDONLY, 0)).collect()
}

/// The namespaces that a copy with this plan enters.
pub(crate) fn namespaces(plan: &Plan) -> &'static [&'static CStr] {
    let others = NAMESPACES.len() - 1;
    if has_own_users(plan) { &NAMESPACES } else { &NAMESPACES[..others] }
}

pub(crate) fn has_own_users(plan: &Plan) -> bool {
    plan.userns && plan.has(Layer::UserNamespace)
}

/// Enters another user namespace, in which this process has the ids `inside`. Its ids so far are
/// [`INSIDE_IDS`]. All mounts belong to the namespace that it leaves.
pub(crate) fn change_ids(inside: (u32, u32), proc: Option<BorrowedFd<'_>>) -> Result<(), Failure> {
    sys::unshare(libc::CLONE_NEWUSER).step("create a user namespace for the image")?;
    map_self(inside, INSIDE_IDS, proc).step("map the user namespace of the image")
}

/// Changes the user and the group, gives up all other groups, and keeps the capabilities.
pub(crate) fn change_user((uid, gid): (u32, u32)) -> io::Result<()> {
    sys::prctl(libc::PR_SET_KEEPCAPS, 1, 0)?;
    // SAFETY: plain integers; a null list with length 0 is valid.
    unsafe {
        sys::check(libc::c_long::from(libc::setgroups(0, std::ptr::null())))?;
        sys::check(libc::c_long::from(libc::setresgid(gid, gid, gid)))?;
        sys::check(libc::c_long::from(libc::setresuid(uid, uid, uid)))?;
    }
    let mut sets = capabilities()?;
    for set in &mut sets {
        set.effective = set.permitted;
    }
    set_capabilities(sets)
}

/// Sets the resource limits of each process. Cgroups limit the instance as a whole.
pub(crate) fn limit_resources(plan: &Plan) -> io::Result<()> {
    for (resource, soft, hard) in resource_limits(plan) {
        sys::limit_resource(resource, soft, hard)?;
    }
    Ok(())
}

/// The resource limits of each process: number, soft limit, hard limit.
pub(crate) fn resource_limits(plan: &Plan) -> Vec<(libc::c_int, u64, u64)> {
    // The limit is 1 and not 0. At 0, the kernel still starts a program that reads dumps from a
    // pipe, as root and outside the sandbox. At 1, it starts no program, and no dump is that small.
    // The filter keeps programs from changing the limit.
    const CORE_BYTES: u64 = 1;
    let mut limits = vec![
        (libc::RLIMIT_NOFILE as _, OPEN_FILES.0, OPEN_FILES.1),
        (libc::RLIMIT_CORE as _, CORE_BYTES, CORE_BYTES),
    ];
    if let Some(bytes) = plan.file_bytes {
        limits.push((libc::RLIMIT_FSIZE as _, bytes, bytes));
    }
    if let Some(bytes) = plan.data_bytes {
        // The address space is not limited, because runtimes reserve gigabytes of it that they
        // never use.
        limits.push((libc::RLIMIT_DATA as _, bytes, bytes));
    }
    limits.push((libc::RLIMIT_NPROC as _, plan.processes, plan.processes));
    limits
}

/// Empties the bounding set and the ambient set, and locks the rules by which a program could
/// regain capabilities.
pub(crate) fn clear_capability_sets() -> io::Result<()> {
    for capability in 0..64 {
        match sys::prctl(libc::PR_CAPBSET_DROP, capability, 0) {
            // This number is past the last capability that the kernel knows.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            other => other?,
        }
    }
    sys::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0)?;
    sys::prctl(libc::PR_SET_SECUREBITS, SECURE_BITS, 0)
}

/// Whether this process has the capabilities that a template needs. A service manager often leaves
/// only some of them to a node that runs as root.
pub(crate) fn may_make_templates() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    OF_TEMPLATE.iter().all(|capability| set >> capability & 1 == 1)
}

/// Limits the capabilities of a template to those with which its copies enter a sandbox.
pub(crate) fn keep_template_capabilities() -> io::Result<()> {
    for capability in (0..64).filter(|capability| !OF_TEMPLATE.contains(capability)) {
        match sys::prctl(libc::PR_CAPBSET_DROP, capability, 0) {
            // This number is past the last capability that the kernel knows.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            other => other?,
        }
    }
    Ok(())
}

/// Drops all capabilities of this process.
pub(crate) fn drop_capabilities() -> io::Result<()> {
    set_capabilities([CapData::default(); 2])
}

/// Keeps only the capability to change the root. It ends when a program is executed.
pub(crate) fn keep_chroot() -> io::Result<()> {
    const CAP_SYS_CHROOT: u32 = 18;
    let mut sets = [CapData::default(); 2];
    sets[0].effective = 1 << CAP_SYS_CHROOT;
    sets[0].permitted = 1 << CAP_SYS_CHROOT;
    set_capabilities(sets)
}

/// Makes all capabilities survive the execution of a program. Only for tests that show the effect
/// of dropping them.
pub(crate) fn keep_capabilities() -> io::Result<()> {
    let mut sets = capabilities()?;
    for set in &mut sets {
        set.effective = set.permitted;
        set.inheritable = set.permitted;
    }
    set_capabilities(sets)?;
    for capability in 0..64 {
        let _ = sys::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong,
            capability,
        );
    }
    Ok(())
}

fn capabilities() -> io::Result<[CapData; 2]> {
    let mut header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let mut sets = [CapData::default(); 2];
    // SAFETY: version 3 reads the header and writes two data structs.
    sys::check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) })?;
    Ok(sets)
}

fn set_capabilities(sets: [CapData; 2]) -> io::Result<()> {
    let mut header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    // SAFETY: version 3 reads the header and two data structs.
    sys::check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) })?;
    Ok(())
}
