//! The differences between processors: system calls that only some of them have, and the number
//! that identifies a processor to a filter.

use std::io;

use seccompiler::{BpfProgram, SeccompFilter};

/// rseq(2). libc does not name it for every C library.
const RSEQ: libc::c_long = if cfg!(target_arch = "x86_64") {
    334
} else if cfg!(target_arch = "arm") {
    398
} else {
    293
};

/// Calls allowed with any arguments on this processor. It also has older forms of some calls.
#[cfg(target_arch = "x86_64")]
pub(super) const ALLOWED_HERE: &[libc::c_long] = &[
    RSEQ,
    libc::SYS_newfstatat,
    libc::SYS_mmap,
    libc::SYS_renameat,
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_arch_prctl,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_getpgrp,
    libc::SYS_alarm,
    libc::SYS_time,
    libc::SYS_pause,
];

/// Calls allowed with any arguments on this processor.
#[cfg(target_arch = "aarch64")]
pub(super) const ALLOWED_HERE: &[libc::c_long] =
    &[RSEQ, libc::SYS_newfstatat, libc::SYS_mmap, libc::SYS_renameat];

/// Calls allowed with any arguments on this processor. It also has two calls that just-in-time
/// compilers need, because not all cores see newly written instructions at once.
#[cfg(target_arch = "riscv64")]
pub(super) const ALLOWED_HERE: &[libc::c_long] =
    &[RSEQ, libc::SYS_newfstatat, libc::SYS_mmap, RISCV_HWPROBE, RISCV_FLUSH_ICACHE];
/// riscv_flush_icache(2).
#[cfg(target_arch = "riscv64")]
const RISCV_FLUSH_ICACHE: libc::c_long = 259;
/// riscv_hwprobe(2) tells which instructions a processor has.
#[cfg(target_arch = "riscv64")]
const RISCV_HWPROBE: libc::c_long = 258;

/// Calls allowed with any arguments on this processor. It also has older forms, forms with 64-bit
/// numbers, and the kernel's own calls for this processor (`__ARM_NR_*`: the instruction cache, the
/// address of a thread's data).
#[cfg(target_arch = "arm")]
pub(super) const ALLOWED_HERE: &[libc::c_long] = &[
    RSEQ,
    libc::SYS_mmap2,
    libc::SYS__llseek,
    libc::SYS_fcntl64,
    libc::SYS_fstat64,
    libc::SYS_fstatat64,
    libc::SYS_stat64,
    libc::SYS_lstat64,
    libc::SYS_statfs64,
    libc::SYS_fstatfs64,
    libc::SYS_truncate64,
    libc::SYS_ftruncate64,
    libc::SYS_sendfile64,
    libc::SYS_getuid32,
    libc::SYS_geteuid32,
    libc::SYS_getgid32,
    libc::SYS_getegid32,
    libc::SYS_getresuid32,
    libc::SYS_getresgid32,
    libc::SYS_getgroups32,
    libc::SYS_chown32,
    libc::SYS_fchown32,
    libc::SYS_lchown32,
    libc::SYS_ugetrlimit,
    // Forms with 64-bit times. libc does not name these calls.
    403, // clock_gettime64
    406, // clock_getres_time64
    407, // clock_nanosleep_time64
    409, // timer_settime64
    411, // timerfd_settime64
    412, // utimensat_time64
    413, // pselect6_time64
    414, // ppoll_time64
    417, // recvmmsg_time64
    421, // rt_sigtimedwait_time64
    422, // futex_time64
    libc::SYS_sigreturn,
    libc::SYS_sigaction,
    libc::SYS_sigprocmask,
    libc::SYS_send,
    libc::SYS_recv,
    libc::SYS_renameat,
    libc::SYS_open,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_chmod,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_poll,
    libc::SYS__newselect,
    libc::SYS_epoll_wait,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_getpgrp,
    libc::SYS_pause,
    ARM_CACHEFLUSH,
    ARM_SET_TLS,
];
/// `__ARM_NR_cacheflush`.
#[cfg(target_arch = "arm")]
const ARM_CACHEFLUSH: libc::c_long = 0x0f_0002;
/// `__ARM_NR_set_tls`.
#[cfg(target_arch = "arm")]
const ARM_SET_TLS: libc::c_long = 0x0f_0005;

/// Older forms of allowed calls, which programs of images still use, for instance nginx. Programs of
/// the host have newer ones.
#[cfg(target_arch = "x86_64")]
pub(super) const OLDER_FORMS: &[libc::c_long] = &[
    libc::SYS_epoll_create,
    libc::SYS_eventfd,
    libc::SYS_signalfd,
    libc::SYS_inotify_init,
    libc::SYS_creat,
    libc::SYS_getdents,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_getrlimit,
];
/// Older forms of allowed calls: there are none on this processor.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OLDER_FORMS: &[libc::c_long] = &[];

/// Other forms of the calls that change the owner of a file.
#[cfg(target_arch = "x86_64")]
pub(super) const OWNER_CALLS_HERE: &[libc::c_long] = &[libc::SYS_chown, libc::SYS_lchown];
/// See above.
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
pub(super) const OWNER_CALLS_HERE: &[libc::c_long] = &[];
/// See above.
#[cfg(target_arch = "arm")]
pub(super) const OWNER_CALLS_HERE: &[libc::c_long] =
    &[libc::SYS_chown, libc::SYS_lchown, libc::SYS_chown32, libc::SYS_fchown32, libc::SYS_lchown32];

/// Other forms of the calls that change the user or the groups. C libraries call the forms for ids
/// of 32 bits.
#[cfg(target_arch = "arm")]
pub(super) const USER_CALLS_HERE: &[libc::c_long] = &[
    libc::SYS_setuid32,
    libc::SYS_setgid32,
    libc::SYS_setreuid32,
    libc::SYS_setregid32,
    libc::SYS_setresuid32,
    libc::SYS_setresgid32,
    libc::SYS_setgroups32,
];
/// See above.
#[cfg(not(target_arch = "arm"))]
pub(super) const USER_CALLS_HERE: &[libc::c_long] = &[];

/// seccompiler's name for this processor.
#[cfg(not(target_arch = "arm"))]
pub(super) fn target() -> io::Result<seccompiler::TargetArch> {
    let name = std::env::consts::ARCH;
    name.try_into().map_err(|error| io::Error::other(format!("{error:?}")))
}

/// The name of a processor that seccompiler knows and whose filters have the same form; see
/// [`finish`].
#[cfg(target_arch = "arm")]
pub(super) fn target() -> io::Result<seccompiler::TargetArch> {
    Ok(seccompiler::TargetArch::aarch64)
}

/// Compiles a filter for this processor.
#[cfg(not(target_arch = "arm"))]
pub(super) fn finish(filter: SeccompFilter) -> io::Result<BpfProgram> {
    filter.try_into().map_err(io::Error::other)
}

/// Compiles a filter for this processor, which seccompiler does not know. A filter reads the same
/// struct on all processors (`struct seccomp_data`, whose arguments have 64 bits everywhere). The
/// only difference is the processor that the filter expects. The second instruction compares it, so
/// that instruction is changed here.
#[cfg(target_arch = "arm")]
pub(super) fn finish(filter: SeccompFilter) -> io::Result<BpfProgram> {
    /// `AUDIT_ARCH_AARCH64` (linux/audit.h).
    const COMPILED: u32 = 0xc000_00b7;
    /// `AUDIT_ARCH_ARM`.
    const WANTED: u32 = 0x4000_0028;
    let mut program: BpfProgram = filter.try_into().map_err(io::Error::other)?;
    match program.get_mut(1) {
        Some(comparison) if comparison.k == COMPILED => comparison.k = WANTED,
        _ => return Err(io::Error::other("the filter does not begin with the processor")),
    }
    Ok(program)
}
