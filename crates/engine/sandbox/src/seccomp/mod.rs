//! The system call filter: an allow-list for general runtimes, the same for every instance.
//!
//! A call that is not on the list (such as clone3 or io_uring) fails with ENOSYS, as on an older
//! kernel, so C libraries and runtimes fall back to older calls. The list omits everything that
//! published escapes used: namespaces, mounts, io_uring, bpf, perf, keys, userfaultfd, ptrace,
//! reading other processes, odd socket families, kernel TLS. If only some forms of a call are
//! needed, the filter also compares the call's arguments. A filter can compare integers only, so
//! pointers are never trusted.
//!
//! This module only compiles the filter. `child.rs` loads it.

mod architecture;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

pub use seccompiler::BpfProgram;
use seccompiler::{
    SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// For each call, the forms in which it is allowed. An empty list allows every form.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The result of a call that is not on the list, or not in an allowed form.
const REFUSED: SeccompAction = SeccompAction::Errno(libc::ENOSYS as u32);
/// The number of instructions at the beginning of every filter of seccompiler. The last of them
/// loads the number of the call.
const PROLOGUE: usize = 4;
const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// The offset of the call's number in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;

/// All CLONE_NEW* flags except CLONE_NEWTIME, which clone(2) does not accept.
const CLONE_NAMESPACES: u64 = 0x7e02_0000;

/// Calls allowed with any arguments, on every architecture.
const ALLOWED: &[libc::c_long] = &[
    // Files and folders.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_readlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_utimensat,
    libc::SYS_truncate,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_umask,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_copy_file_range,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    libc::SYS_memfd_create,
    // Waiting.
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_setitimer,
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_delete,
    // Memory.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_msync,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_membarrier,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmdt,
    libc::SYS_shmctl,
    // Processes, threads, signals.
    libc::SYS_execve,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpgid,
    libc::SYS_setpgid,
    libc::SYS_getsid,
    libc::SYS_setsid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrandom,
    // Sockets. The permitted families are checked where sockets are created.
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
];

/// prctl(2) options that programs use on themselves. None of them changes capabilities, filters or
/// tracing.
const PRCTL_OPTIONS: &[libc::c_int] = &[
    libc::PR_SET_PDEATHSIG,
    libc::PR_GET_PDEATHSIG,
    libc::PR_GET_DUMPABLE,
    libc::PR_SET_DUMPABLE,
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_CAPBSET_READ,
    libc::PR_GET_SECCOMP,
    libc::PR_GET_SECUREBITS,
    libc::PR_SET_TIMERSLACK,
    libc::PR_GET_TIMERSLACK,
    libc::PR_SET_CHILD_SUBREAPER,
    libc::PR_GET_CHILD_SUBREAPER,
    libc::PR_SET_NO_NEW_PRIVS,
    libc::PR_GET_NO_NEW_PRIVS,
    libc::PR_SET_THP_DISABLE,
    libc::PR_GET_THP_DISABLE,
    libc::PR_SET_VMA,
    libc::PR_GET_KEEPCAPS,
];

/// Refused ioctl(2) requests: those that type into a terminal, and line disciplines.
const IOCTL_REFUSED: &[u64] = &[0x5412, 0x541c, 0x5423];
/// Refused SOL_SOCKET options: those that load packet filters into the kernel.
const SOCKET_OPTIONS_REFUSED: &[libc::c_int] = &[
    libc::SO_ATTACH_FILTER,
    libc::SO_ATTACH_BPF,
    libc::SO_ATTACH_REUSEPORT_CBPF,
    libc::SO_ATTACH_REUSEPORT_EBPF,
];
/// Largest allowed IPPROTO_IP and IPPROTO_IPV6 option. The options of netfilter begin above it.
const IP_OPTION_MAX: u64 = 63;
const TCP_ULP: u64 = 31;
const TCP_REPAIR: u64 = 19;
/// The personality(2) value that only queries.
const PERSONALITY_QUERY: u64 = 0xffff_ffff;

/// The number of calls on the list, for reports.
pub fn allowed_count() -> usize {
    rules().map_or(0, |rules| rules.len())
}

/// Compiles the filter for this machine, in the form that the kernel reads (`struct sock_fprog`).
/// Only computes.
///
/// # Errors
/// If this processor is not supported.
pub fn compile() -> io::Result<BpfProgram> {
    let (allowed, compared): (Rules, Rules) =
        rules()?.into_iter().partition(|(_, forms)| forms.is_empty());
    let numbers = |rules: &Rules| {
        let numbers = rules.keys().map(|number| u32::try_from(*number));
        numbers.collect::<Result<BTreeSet<_>, _>>().map_err(io::Error::other)
    };
    let returned = (u32::from(SeccompAction::Allow), u32::from(REFUSED));
    let tree = tree::tree(&numbers(&allowed)?, &numbers(&compared)?, returned)?;
    // The tree is inserted between the instruction that loads the number and those that compare
    // arguments. This is safe because all jumps are relative and none of seccompiler's jumps
    // crosses this place.
    let mut program = one_by_one(compared)?;
    program.splice(PROLOGUE..PROLOGUE, tree);
    Ok(program)
}

/// The calls that change the user or the groups. A sandbox has one user, so no such call could have
/// an effect.
const USER_CALLS: &[libc::c_long] = &[
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
];

/// The calls that change the owner of a file.
const OWNER_CALLS: &[libc::c_long] = &[libc::SYS_fchown, libc::SYS_fchownat];

/// The filter for a container image. Programs that begin as root often give files to a second user,
/// or change to that user, and fail if this is refused. For root, such calls report success without
/// an effect: the calls are not executed, so they cannot change anything. For any other user, they
/// are refused, as in a container. Older forms of allowed calls are allowed too. See
/// docs/decisions/0097-images-in-sandboxes.md.
pub(crate) fn for_image(filter: &BpfProgram, is_root: bool) -> BpfProgram {
    let user_calls = USER_CALLS.iter().chain(architecture::USER_CALLS_HERE);
    let owner_calls = OWNER_CALLS.iter().chain(architecture::OWNER_CALLS_HERE);
    let mut calls: Vec<&libc::c_long> = user_calls.collect();
    if is_root {
        calls.extend(owner_calls);
    }
    let errno = if is_root { 0 } else { libc::EPERM as u32 };
    let answered = calls.into_iter().map(|call| (call, SeccompAction::Errno(errno)));
    let older = architecture::OLDER_FORMS.iter().map(|call| (call, SeccompAction::Allow));
    let answers = answered.chain(older).flat_map(|(call, action)| {
        // Compare the number, and skip the answer if the number differs.
        let answer = statement(RETURN, u32::from(action), (0, 0));
        [statement(JUMP_IF_EQUAL, *call as u32, (0, 1)), answer]
    });
    let mut program = filter.clone();
    program.splice(PROLOGUE..PROLOGUE, answers);
    program
}

/// The filter for pid 1 of a seed, which changes its root. The program does not get this filter.
pub(crate) fn for_seed_init(filter: &BpfProgram) -> BpfProgram {
    let mut program = filter.clone();
    let allow = statement(RETURN, u32::from(SeccompAction::Allow), (0, 0));
    let compare = statement(JUMP_IF_EQUAL, libc::SYS_chroot as u32, (0, 1));
    program.splice(PROLOGUE..PROLOGUE, [compare, allow]);
    program
}

fn statement(code: u16, k: u32, (jt, jf): (u8, u8)) -> seccompiler::sock_filter {
    seccompiler::sock_filter { code, jt, jf, k }
}

/// The filter that compares the numbers of calls one after the other.
fn one_by_one(rules: Rules) -> io::Result<BpfProgram> {
    let filter = SeccompFilter::new(rules, REFUSED, SeccompAction::Allow, architecture::target()?);
    let program = architecture::finish(filter.map_err(io::Error::other)?)?;
    let loads_number =
        program.get(PROLOGUE - 1).is_some_and(|last| (last.code, last.k) == (LOAD, NUMBER_AT));
    match loads_number {
        true => Ok(program),
        false => Err(io::Error::other("the filter does not begin by loading the number")),
    }
}

fn rules() -> io::Result<Rules> {
    #![allow(clippy::useless_conversion, reason = "c_long has 32 bits on some processors")]
    let mut rules = BTreeMap::new();
    for call in ALLOWED.iter().chain(architecture::ALLOWED_HERE) {
        rules.insert(i64::from(*call), Vec::new());
    }
    let mut limit = |call: libc::c_long, forms: Vec<SeccompRule>| {
        rules.insert(i64::from(call), forms);
    };

    limit(libc::SYS_clone, vec![all(&[(0, Op::MaskedEq(CLONE_NAMESPACES), 0)])?]);
    let unix = libc::AF_UNIX as u64;
    let mut sockets = Vec::new();
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        sockets.push(all(&[(0, Op::Eq, unix), (1, Op::MaskedEq(0xf), kind as u64)])?);
    }
    for family in [libc::AF_INET, libc::AF_INET6] {
        for (kind, protocol) in
            [(libc::SOCK_STREAM, libc::IPPROTO_TCP), (libc::SOCK_DGRAM, libc::IPPROTO_UDP)]
        {
            for protocol in [0, protocol] {
                sockets.push(all(&[
                    (0, Op::Eq, family as u64),
                    (1, Op::MaskedEq(0xf), kind as u64),
                    (2, Op::Eq, protocol as u64),
                ])?);
            }
        }
    }
    limit(libc::SYS_socket, sockets);
    limit(libc::SYS_socketpair, vec![all(&[(0, Op::Eq, unix)])?]);

    let mut options = Vec::new();
    let mut at_level = vec![(1, Op::Eq, libc::SOL_SOCKET as u64)];
    for refused in SOCKET_OPTIONS_REFUSED {
        at_level.push((2, Op::Ne, *refused as u64));
    }
    options.push(all(&at_level)?);
    for level in [libc::IPPROTO_IP, libc::IPPROTO_IPV6] {
        options.push(all(&[(1, Op::Eq, level as u64), (2, Op::Le, IP_OPTION_MAX)])?);
    }
    options.push(all(&[
        (1, Op::Eq, libc::IPPROTO_IPV6 as u64),
        (2, Op::Eq, libc::IPV6_RECVTCLASS as u64),
    ])?);
    options.push(all(&[
        (1, Op::Eq, libc::IPPROTO_IPV6 as u64),
        (2, Op::Eq, libc::IPV6_TCLASS as u64),
    ])?);
    options.push(all(&[
        (1, Op::Eq, libc::IPPROTO_TCP as u64),
        (2, Op::Ne, TCP_ULP),
        (2, Op::Ne, TCP_REPAIR),
    ])?);
    for option in [libc::UDP_CORK, libc::UDP_SEGMENT, libc::UDP_GRO] {
        options.push(all(&[(1, Op::Eq, libc::IPPROTO_UDP as u64), (2, Op::Eq, option as u64)])?);
    }
    limit(libc::SYS_setsockopt, options);

    let refused: Vec<_> = IOCTL_REFUSED.iter().map(|request| (1, Op::Ne, *request)).collect();
    limit(libc::SYS_ioctl, vec![all(&refused)?]);
    limit(
        libc::SYS_prctl,
        PRCTL_OPTIONS
            .iter()
            .map(|option| all(&[(0, Op::Eq, *option as u64)]))
            .collect::<io::Result<_>>()?,
    );
    limit(
        libc::SYS_personality,
        vec![all(&[(0, Op::Eq, 0)])?, all(&[(0, Op::Eq, PERSONALITY_QUERY)])?],
    );
    // Programs may set resource limits, except the limit of core dumps. The limit of core dumps may
    // only be read, so the pointer to its new value must be null. All 64 bits of the pointer are
    // compared.
    let nothing_set = SeccompCondition::new(2, Len::Qword, Op::Eq, 0).map_err(io::Error::other)?;
    limit(
        libc::SYS_prlimit64,
        vec![
            all(&[(1, Op::Ne, libc::RLIMIT_CORE as u64)])?,
            SeccompRule::new(vec![nothing_set]).map_err(io::Error::other)?,
        ],
    );
    // Named pipes and plain files are allowed, but not device nodes.
    let kinds = [libc::S_IFIFO, libc::S_IFREG, 0];
    let mode_is = |argument, kind: libc::mode_t| {
        all(&[(argument, Op::MaskedEq(u64::from(libc::S_IFMT)), u64::from(kind))])
    };
    limit(
        libc::SYS_mknodat,
        kinds.iter().map(|kind| mode_is(2, *kind)).collect::<io::Result<_>>()?,
    );
    #[cfg(any(target_arch = "x86_64", target_arch = "arm"))]
    limit(libc::SYS_mknod, kinds.iter().map(|kind| mode_is(1, *kind)).collect::<io::Result<_>>()?);
    Ok(rules)
}

/// A rule that matches if all comparisons hold. The kernel reads these arguments as 32-bit
/// integers, so it is enough to compare the lower half: the upper half has no effect.
fn all(conditions: &[(u8, Op, u64)]) -> io::Result<SeccompRule> {
    let conditions = conditions
        .iter()
        .map(|(argument, operator, value)| {
            SeccompCondition::new(*argument, Len::Dword, operator.clone(), *value)
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(io::Error::other)?;
    SeccompRule::new(conditions).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_short_and_compiles() {
        let count = allowed_count();
        // 32-bit processors have a second form of many calls, for large files and for times after
        // 2038.
        let most = if cfg!(target_pointer_width = "32") { 240 } else { 200 };
        assert!((150..=most).contains(&count), "{count} calls");
        assert!(!compile().unwrap().is_empty());
    }

    #[test]
    fn the_filter_of_an_image_answers_calls_that_change_the_user() {
        let filter = compile().unwrap();
        let processor = filter[1].k;
        let result = |program: &BpfProgram, call: libc::c_long| {
            let number = u32::try_from(call).unwrap();
            run(program, Call { processor, number, arguments: [33, 33, 33, 0, 0, 0] }).0
        };
        let refused = u32::from(REFUSED);
        let errno = |errno: libc::c_int| u32::from(SeccompAction::Errno(errno as u32));
        let allow = u32::from(SeccompAction::Allow);
        let [as_root, as_user] = [true, false].map(|is_root| for_image(&filter, is_root));
        for call in USER_CALLS.iter().chain(architecture::USER_CALLS_HERE) {
            let results = [&filter, &as_root, &as_user].map(|program| result(program, *call));
            assert_eq!(results, [refused, errno(0), errno(libc::EPERM)], "{call}");
        }
        for call in OWNER_CALLS.iter().chain(architecture::OWNER_CALLS_HERE) {
            let results = [&filter, &as_root, &as_user].map(|program| result(program, *call));
            assert_eq!(results, [allow, errno(0), allow], "{call}");
        }
        for call in architecture::OLDER_FORMS {
            let results = [&filter, &as_root, &as_user].map(|program| result(program, *call));
            assert_eq!(results, [refused, allow, allow], "{call}");
        }
        // All other calls have the same results as in every sandbox.
        let changed = |number: libc::c_long| {
            let own = USER_CALLS.iter().chain(OWNER_CALLS).chain(architecture::OLDER_FORMS);
            let here = architecture::USER_CALLS_HERE.iter().chain(architecture::OWNER_CALLS_HERE);
            own.chain(here).any(|call| *call == number)
        };
        for number in (0..=470).filter(|number| !changed(*number)) {
            assert_eq!(result(&as_root, number), result(&filter, number), "{number}");
        }
    }

    /// A call as a filter sees it (`struct seccomp_data`).
    #[derive(Debug, Clone, Copy)]
    struct Call {
        processor: u32,
        number: u32,
        arguments: [u64; 6],
    }

    impl Call {
        fn word(&self, at: u32) -> u32 {
            match at {
                NUMBER_AT => self.number,
                4 => self.processor,
                16.. => {
                    let argument = self.arguments[(at as usize - 16) / 8];
                    let is_high = (at / 4 % 2 == 1) == cfg!(target_endian = "little");
                    (argument >> if is_high { 32 } else { 0 }) as u32
                }
                _ => panic!("no filter reads {at}"),
            }
        }
    }

    /// The result of a filter, and the number of instructions until the result.
    fn run(program: &BpfProgram, call: Call) -> (u32, usize) {
        let mut at = 0;
        let mut loaded = 0;
        let mut steps = 0;
        loop {
            let one = &program[at];
            (at, steps) = (at + 1, steps + 1);
            let is = match u32::from(one.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    loaded = call.word(one.k);
                    continue;
                }
                code if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => {
                    loaded &= one.k;
                    continue;
                }
                code if code == libc::BPF_RET | libc::BPF_K => return (one.k, steps),
                code if code == libc::BPF_JMP | libc::BPF_JA => {
                    at += one.k as usize;
                    continue;
                }
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => loaded == one.k,
                code if code == libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K => loaded >= one.k,
                code if code == libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K => loaded > one.k,
                code => panic!("unknown instruction {code:#x}"),
            };
            at += usize::from(if is { one.jt } else { one.jf });
        }
    }

    #[test]
    fn the_tree_decides_as_the_list_does() {
        let tree = compile().unwrap();
        let list = one_by_one(rules().unwrap()).unwrap();
        assert!(tree.len() < list.len(), "{} and {} instructions", tree.len(), list.len());
        // All values that a rule compares with, and their neighbours.
        let forms = rules().unwrap().into_iter().filter(|(_, forms)| !forms.is_empty()).collect();
        let forms: Rules = forms;
        let compared = one_by_one(forms.clone()).unwrap();
        let compared: BTreeSet<u64> = compared.iter().map(|one| u64::from(one.k)).collect();
        let values: BTreeSet<u64> = compared
            .iter()
            .flat_map(|value| [value.wrapping_sub(1), *value, value + 1, value | 1 << 32])
            .collect();
        let values: Vec<u64> = values.into_iter().collect();
        let processor = list[1].k;
        let last = u32::try_from(*rules().unwrap().keys().last().unwrap()).unwrap();
        let far = [last - 1, last, last + 1, 0x4000_0000, 0x4000_0001, u32::MAX - 1, u32::MAX];
        let mut steps = 0;
        let mut returned = BTreeSet::new();
        for number in (0..1_024).chain(far) {
            let mut check = |arguments: [u64; 6], processor| {
                let call = Call { processor, number, arguments };
                let (by_tree, taken) = run(&tree, call);
                assert_eq!(by_tree, run(&list, call).0, "{call:?}");
                returned.insert(by_tree);
                steps = taken.max(steps);
            };
            check([0; 6], processor ^ 1);
            check([0; 6], processor);
            check([u64::MAX; 6], processor);
            if forms.contains_key(&i64::from(number)) {
                for (at, one) in values.iter().enumerate() {
                    check([*one; 6], processor);
                    // Combinations of two and three arguments that belong together, such as family
                    // and kind.
                    for other in values.iter().skip(at % 13).step_by(13) {
                        check([*one, *other, 0, 0, 0, 0], processor);
                        check([0, *one, *other, 0, 0, 0], processor);
                        check([2, 1, *other, *one, 0, 0], processor);
                    }
                }
            }
        }
        let expected = [u32::from(SeccompAction::Allow), u32::from(REFUSED)];
        assert!(expected.iter().all(|one| returned.contains(one)), "{returned:?}");
        assert!(steps < list.len() / 2, "{steps} steps");
    }

    #[test]
    fn a_number_is_found_with_few_comparisons() {
        let tree = compile().unwrap();
        for number in rules().unwrap().into_iter().filter(|(_, forms)| forms.is_empty()) {
            let number = u32::try_from(number.0).unwrap();
            let call = Call { processor: tree[1].k, number, arguments: [0; 6] };
            let (returned, steps) = run(&tree, call);
            assert_eq!(returned, u32::from(SeccompAction::Allow), "{number}");
            assert!(steps <= PROLOGUE + 10, "{steps} steps for {number}");
        }
    }
}
