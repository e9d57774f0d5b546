//! What differs between processors: the calls that only some of them have, and the number by which
//! the kernel names a processor to a filter.

use std::io;

use seccompiler::{BpfProgram, SeccompFilter};

/// rseq(2), which libc does not name for every C library.
#[cfg(target_arch = "x86_64")]
const RSEQ: libc::c_long = 334;
/// rseq(2), which libc does not name for every C library.
#[cfg(target_arch = "arm")]
const RSEQ: libc::c_long = 398;
/// rseq(2), which libc does not name for every C library.
#[cfg(not(any(target_arch = "x86_64", target_arch = "arm")))]
const RSEQ: libc::c_long = 293;

/// Calls allowed with any arguments on this processor: here, older forms.
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
    libc::SYS_pause,
];

/// Calls allowed with any arguments on this processor.
#[cfg(target_arch = "aarch64")]
pub(super) const ALLOWED_HERE: &[libc::c_long] =
    &[RSEQ, libc::SYS_newfstatat, libc::SYS_mmap, libc::SYS_renameat];

/// Calls allowed with any arguments on this processor: here, also those that a compiler at run time
/// needs, because instructions that were written are not seen by all cores at once.
#[cfg(target_arch = "riscv64")]
pub(super) const ALLOWED_HERE: &[libc::c_long] =
    &[RSEQ, libc::SYS_newfstatat, libc::SYS_mmap, RISCV_HWPROBE, RISCV_FLUSH_ICACHE];
/// riscv_flush_icache(2).
#[cfg(target_arch = "riscv64")]
const RISCV_FLUSH_ICACHE: libc::c_long = 259;
/// riscv_hwprobe(2): which instructions a processor has.
#[cfg(target_arch = "riscv64")]
const RISCV_HWPROBE: libc::c_long = 258;

/// Calls allowed with any arguments on this processor: here, older forms, those with numbers of 64
/// bits, and the kernel's own for this processor (`__ARM_NR_*`: the instruction cache, the address of
/// the data of a thread).
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
    time64::CLOCK_GETTIME64,
    time64::CLOCK_GETRES_TIME64,
    time64::CLOCK_NANOSLEEP_TIME64,
    time64::TIMER_SETTIME64,
    time64::TIMERFD_SETTIME64,
    time64::UTIMENSAT_TIME64,
    time64::PSELECT6_TIME64,
    time64::PPOLL_TIME64,
    time64::RECVMMSG_TIME64,
    time64::RT_SIGTIMEDWAIT_TIME64,
    time64::FUTEX_TIME64,
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

/// Calls with times of 64 bits, which have the same numbers on all processors of 32 bits and which libc
/// does not name.
#[cfg(target_arch = "arm")]
mod time64 {
    use libc::c_long;

    pub(super) const CLOCK_GETTIME64: c_long = 403;
    pub(super) const CLOCK_GETRES_TIME64: c_long = 406;
    pub(super) const CLOCK_NANOSLEEP_TIME64: c_long = 407;
    pub(super) const TIMER_SETTIME64: c_long = 409;
    pub(super) const TIMERFD_SETTIME64: c_long = 411;
    pub(super) const UTIMENSAT_TIME64: c_long = 412;
    pub(super) const PSELECT6_TIME64: c_long = 413;
    pub(super) const PPOLL_TIME64: c_long = 414;
    pub(super) const RECVMMSG_TIME64: c_long = 417;
    pub(super) const RT_SIGTIMEDWAIT_TIME64: c_long = 421;
    pub(super) const FUTEX_TIME64: c_long = 422;
}

/// The name of this processor for seccompiler.
#[cfg(not(target_arch = "arm"))]
pub(super) fn target() -> io::Result<seccompiler::TargetArch> {
    let name = std::env::consts::ARCH;
    name.try_into().map_err(|error| io::Error::other(format!("{error:?}")))
}

/// The name of a processor whose filters have the same form; see [`finish`].
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
/// struct on all processors (`struct seccomp_data`, whose arguments have 64 bits everywhere), so that
/// the only difference is the processor that it expects: its second instruction compares that one.
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
