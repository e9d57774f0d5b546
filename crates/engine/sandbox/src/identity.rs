//! The identity of an instance: user namespace, ids, capabilities and resource limits.

use std::io;

use crate::config::Layer;
use crate::plan::Plan;
use crate::step::{Failure, StepName};
use crate::sys;

/// User and group id inside every sandbox.
pub(crate) const INSIDE_ID: u32 = 1000;
/// Soft and hard limit for open files: enough for servers, but too few to exhaust the machine.
const OPEN_FILES: (u64, u64) = (1024, 4096);

const SECBIT_NOROOT: libc::c_ulong = 1;
const SECBIT_NOROOT_LOCKED: libc::c_ulong = 1 << 1;
const SECBIT_NO_SETUID_FIXUP: libc::c_ulong = 1 << 2;
const SECBIT_NO_SETUID_FIXUP_LOCKED: libc::c_ulong = 1 << 3;
const SECBIT_KEEP_CAPS_LOCKED: libc::c_ulong = 1 << 5;
const SECBIT_NO_CAP_AMBIENT_RAISE: libc::c_ulong = 1 << 6;
const SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED: libc::c_ulong = 1 << 7;

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

/// Maps host ids (user, group) to 1000 in the user namespace that this process has just entered.
pub(crate) fn map_self(host_ids: (u32, u32)) -> io::Result<()> {
    as_owner_of_proc_files(|| {
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{INSIDE_ID} {} 1", host_ids.0))?;
        std::fs::write("/proc/self/gid_map", format!("{INSIDE_ID} {} 1", host_ids.1))
    })
}

/// Runs `write`, which writes to files of `/proc/self`. If this process is undumpable, those files
/// belong to root, but this process may be an ordinary user. It therefore becomes dumpable for the
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
/// The other namespaces were made earlier and belong to the host's user namespace. Even a full set
/// of capabilities inside the new user namespace would therefore give no power over them.
pub(crate) fn become_instance(plan: &Plan) -> Result<(), Failure> {
    let (uid, gid) = plan.host_ids;
    sys::prctl(libc::PR_SET_KEEPCAPS, 1, 0).step("keep capabilities over the change of user")?;
    // SAFETY: plain integers; a null list with length 0 is valid.
    unsafe {
        let null = std::ptr::null();
        sys::check(libc::c_long::from(libc::setgroups(0, null))).step("drop groups")?;
        sys::check(libc::c_long::from(libc::setresgid(gid, gid, gid))).step("change group")?;
        sys::check(libc::c_long::from(libc::setresuid(uid, uid, uid))).step("change user")?;
    }
    let mut sets = capabilities().step("read capabilities")?;
    for set in &mut sets {
        set.effective = set.permitted;
    }
    set_capabilities(sets).step("raise capabilities for set-up")?;
    if plan.userns && plan.has(Layer::UserNamespace) {
        sys::unshare(libc::CLONE_NEWUSER).step("create a user namespace")?;
        map_self(plan.host_ids).step("map the user namespace")?;
    }
    Ok(())
}

/// Sets the resource limits of each process. Cgroups limit the instance as a whole.
pub(crate) fn limit_resources(plan: &Plan) -> io::Result<()> {
    sys::limit_resource(libc::RLIMIT_NOFILE as _, OPEN_FILES.0, OPEN_FILES.1)?;
    // The limit is 1 and not 0, because at 0 the kernel still starts a program that reads dumps
    // from a pipe, as root and outside the sandbox. At 1 it starts no program, and no dump is that
    // small. The filter keeps programs from changing the limit.
    sys::limit_resource(libc::RLIMIT_CORE as _, 1, 1)?;
    if let Some(bytes) = plan.file_bytes {
        sys::limit_resource(libc::RLIMIT_FSIZE as _, bytes, bytes)?;
    }
    if let Some(bytes) = plan.data_bytes {
        // The address space is not limited, because runtimes reserve gigabytes of it that they
        // never use.
        sys::limit_resource(libc::RLIMIT_DATA as _, bytes, bytes)?;
    }
    sys::limit_resource(libc::RLIMIT_NPROC as _, plan.processes, plan.processes)
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
    sys::prctl(
        libc::PR_SET_SECUREBITS,
        SECBIT_NOROOT
            | SECBIT_NOROOT_LOCKED
            | SECBIT_NO_SETUID_FIXUP
            | SECBIT_NO_SETUID_FIXUP_LOCKED
            | SECBIT_KEEP_CAPS_LOCKED
            | SECBIT_NO_CAP_AMBIENT_RAISE
            | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED,
        0,
    )
}

/// Drops all capabilities of this process.
pub(crate) fn drop_capabilities() -> io::Result<()> {
    set_capabilities([CapData::default(); 2])
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
