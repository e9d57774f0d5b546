//! Attempts to escape. Each is a function that says whether it succeeded.
//!
//! Inside a sandbox, all attempts must fail. Outside, as root, nearly all must succeed, because
//! attempts that cannot succeed anywhere prove nothing. Outside, each attempt runs in its own mount
//! and host-name namespaces, and every form is harmless: files are opened but not written, and
//! calls are made with arguments that the kernel refuses once the call has reached it.

#![allow(clippy::undocumented_unsafe_blocks, reason = "each is one system call on local values")]

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use libc::{c_int, c_long, c_ulong};

/// The facts that the battery passes to the probe through the environment.
pub(crate) struct Facts {
    /// A world-readable file of the host.
    pub(crate) canary: String,
    /// A process of the host.
    pub(crate) victim: i32,
    /// Ports of a TCP listener on the host's loopback, one on all addresses, one on IPv6 loopback,
    /// and a socket on loopback that answers datagrams.
    pub(crate) ports: [u16; 4],
    /// An abstract socket on the host.
    pub(crate) abstract_name: String,
    /// A System V shared memory segment of the host, open to all.
    pub(crate) shared_memory_key: i32,
    /// The host's namespaces ipc, net, user, pid, uts and mnt, as `readlink` shows them.
    pub(crate) namespaces: String,
    /// Inside the sandbox, pid 1. Outside, a process of the host, because the host's pid 1 is not
    /// the test's.
    pub(crate) init: i32,
    /// Another instance of the same backend: its process on the host, its abstract socket, and its
    /// port.
    pub(crate) neighbour: i32,
    pub(crate) neighbour_socket: String,
    pub(crate) neighbour_port: u16,
    /// The folder of the probe.
    pub(crate) code_dir: String,
}

impl Facts {
    pub(crate) fn from_env() -> Self {
        let get = |name: &str| std::env::var(name).unwrap_or_default();
        let mut ports =
            get("T_PORTS").split(',').map(|port| port.parse().unwrap_or(0)).collect::<Vec<_>>();
        ports.resize(4, 0);
        Self {
            canary: get("T_CANARY"),
            victim: get("T_VICTIM").parse().unwrap_or(0),
            ports: [ports[0], ports[1], ports[2], ports[3]],
            abstract_name: get("T_ABSTRACT"),
            shared_memory_key: get("T_SHM").parse().unwrap_or(0),
            namespaces: get("T_NAMESPACES"),
            init: get("T_INIT").parse().unwrap_or(1),
            neighbour: get("T_NEIGHBOUR").parse().unwrap_or(-1),
            neighbour_socket: get("T_NEIGHBOUR_SOCKET"),
            neighbour_port: get("T_NEIGHBOUR_PORT").parse().unwrap_or(0),
            code_dir: get("T_CODE"),
        }
    }
}

/// With version 2 of control groups, the kernel ends a whole instance that exceeds its memory, and
/// the probe with it.
pub(crate) const MAY_END_THE_INSTANCE: &str = "more_memory_than_allowed";

/// One attempt: its family, its name, and its action, which returns true if the attempt worked. An
/// optional check, made outside, returns true if the attempt cannot work anywhere on this machine.
pub(crate) struct Attempt {
    pub(crate) family: u8,
    pub(crate) name: &'static str,
    pub(crate) run: fn(&Facts) -> bool,
    pub(crate) impossible: Option<fn() -> bool>,
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

/// Whether a call passed the filter and the privilege checks: it either worked, or the kernel
/// rejected its arguments.
fn reached(value: c_long) -> bool {
    value >= 0 || ![libc::ENOSYS, libc::EPERM, libc::EACCES].contains(&errno())
}

macro_rules! call {
    ($name:ident $(, $argument:expr)*) => { reached(unsafe { libc::syscall(libc::$name $(, $argument)*) }) };
}

fn readable(path: &str) -> bool {
    fs::File::open(path).is_ok()
}

fn writable(path: &str) -> bool {
    OpenOptions::new().write(true).open(path).is_ok()
}

fn tells(path: &str, what: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.contains(what))
}

fn can_create(path: &str) -> bool {
    let made = OpenOptions::new().write(true).create_new(true).open(path).is_ok();
    let _ = fs::remove_file(path);
    made
}

fn mount(source: &str, target: &str, kind: &str, flags: c_ulong, data: &str) -> bool {
    let _ = fs::create_dir(target);
    let source = c(source);
    let target = c(target);
    let kind = c(kind);
    let data = c(data);
    unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast())
            == 0
    }
}

fn socket(family: c_int, kind: c_int, protocol: c_int) -> bool {
    unsafe { libc::socket(family, kind, protocol) >= 0 }
}

/// Whether the request for a socket family reached the kernel, even if the family is not built in.
fn family_reached(family: c_int, kind: c_int, protocol: c_int) -> bool {
    reached(c_long::from(unsafe { libc::socket(family, kind, protocol) }))
}

fn option_reached(level: c_int, option: c_int, value: &[u8]) -> bool {
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        reached(c_long::from(libc::setsockopt(
            socket,
            level,
            option,
            value.as_ptr().cast(),
            value.len() as u32,
        )))
    }
}

fn connects(address: &str) -> bool {
    std::net::TcpStream::connect(address).is_ok()
}

fn udp_route(address: &str) -> bool {
    std::net::UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.connect(address)).is_ok()
}

/// Whether a datagram to this address is answered.
fn answers(address: &str) -> bool {
    let ask = || {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(std::time::Duration::from_secs(5)))?;
        socket.connect(address)?;
        socket.send(b"ask")?;
        socket.recv(&mut [0; 8])
    };
    ask().is_ok()
}

/// Whether datagrams may be sent from addresses that belong to another host.
fn has_transparent_socket() -> bool {
    let yes: c_int = 1;
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        let length = size_of_val(&yes) as libc::socklen_t;
        libc::setsockopt(
            socket,
            libc::SOL_IP,
            libc::IP_TRANSPARENT,
            (&raw const yes).cast(),
            length,
        ) == 0
    }
}

fn same_namespace(facts: &Facts, kind: &str) -> bool {
    fs::read_link(format!("/proc/self/ns/{kind}"))
        .is_ok_and(|link| facts.namespaces.split(',').any(|known| link.as_os_str() == known))
}

fn open_fds() -> Vec<c_int> {
    (4..1024).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0).collect()
}

fn status_field(name: &str) -> String {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
}

fn unshare(flag: c_int) -> bool {
    unsafe { libc::unshare(flag) == 0 }
}

fn clone_with(flag: c_int) -> bool {
    let pid = unsafe { libc::syscall(libc::SYS_clone, flag | libc::SIGCHLD, 0, 0, 0, 0) };
    if pid == 0 {
        unsafe { libc::_exit(0) }
    }
    pid > 0
}

fn exec_from(path: &str, mode: u32) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, "x").is_ok()
        && fs::set_permissions(path, fs::Permissions::from_mode(mode)).is_ok()
}

fn node(kind: libc::mode_t, device: u64) -> bool {
    let path = c("/tmp/mote-node");
    let made = unsafe { libc::mknod(path.as_ptr(), kind | 0o600, device) == 0 };
    unsafe { libc::unlink(path.as_ptr()) };
    made
}

fn set_xattr(name: &str) -> bool {
    let _ = fs::write("/tmp/mote-xattr", "x");
    let path = c("/tmp/mote-xattr");
    let name = c(name);
    let value = [1u8, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let done =
        unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), 20, 0) == 0 };
    let _ = fs::remove_file("/tmp/mote-xattr");
    done
}

fn fill(path: &str, mib: usize) -> bool {
    use std::io::Write;
    let block = vec![1u8; 1 << 20];
    let filled = fs::File::create(path)
        .is_ok_and(|mut file| (0..mib).all(|_| file.write_all(&block).is_ok()));
    let _ = fs::remove_file(path);
    filled
}

fn many_processes(count: usize) -> bool {
    let mut pids = Vec::new();
    for _ in 0..count {
        match unsafe { libc::fork() } {
            0 => unsafe {
                libc::pause();
                libc::_exit(0)
            },
            pid if pid > 0 => pids.push(pid),
            _ => break,
        }
    }
    for pid in &pids {
        unsafe {
            libc::kill(*pid, libc::SIGKILL);
            libc::waitpid(*pid, std::ptr::null_mut(), 0);
        }
    }
    pids.len() == count
}

fn much_memory(mib: usize) -> bool {
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut bytes = vec![0u8; mib << 20];
        for at in (0..bytes.len()).step_by(4096) {
            bytes[at] = 1;
        }
        std::hint::black_box(&bytes);
        unsafe { libc::_exit(0) }
    }
    let mut status = 0;
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    status == 0
}

fn nosuid_missing(target: &str) -> bool {
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    let path = c(target);
    unsafe {
        libc::statvfs(path.as_ptr(), &raw mut stat) == 0 && stat.f_flag & libc::ST_NOSUID == 0
    }
}

/// Whether the file that the attempt needs is missing.
fn missing(path: &str) -> bool {
    !std::path::Path::new(path).exists()
}

/// Whether the kernel lacks the call. In that case, the error says that there is no such call, and
/// not that it is forbidden.
fn no_such_call(number: c_long) -> bool {
    unsafe { libc::syscall(number, -1, 0, 0, 0, 0, 0) == -1 && errno() == libc::ENOSYS }
}

/// Whether this process lacks a capability although it is root.
fn lacks_capability(number: u32) -> bool {
    let held = u64::from_str_radix(&status_field("CapEff:"), 16).unwrap_or(0);
    held & (1 << number) == 0
}

fn no_file_system(name: &str) -> bool {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    !known.lines().any(|line| line.split_whitespace().last() == Some(name))
}

fn text_file_busy() -> bool {
    OpenOptions::new()
        .write(true)
        .open("/proc/self/exe")
        .is_err_and(|error| error.raw_os_error() == Some(libc::ETXTBSY))
}

/// Runs a program of the code folder. Returns true if it exits with 0.
fn program_succeeds(path: &str, argument: &str) -> bool {
    std::process::Command::new(path).arg(argument).status().is_ok_and(|status| status.success())
}

/// Whether a socket connects to the platform and not to a program.
fn platform_socket(fd: c_int) -> bool {
    let mut kind = 0 as c_int;
    let mut length = 4u32;
    let asked = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_TYPE,
            (&raw mut kind).cast(),
            &raw mut length,
        )
    };
    asked == 0 && kind == libc::SOCK_SEQPACKET
}

const CAP_SYS_RESOURCE: u32 = 24;
const REL: &str = "../../../../../../../../../..";

macro_rules! attempts {
    ($($family:literal $name:ident $([$check:expr])? : $run:expr;)*) => {
        pub(crate) const ATTEMPTS: &[Attempt] = &[$(Attempt {
            family: $family,
            name: stringify!($name),
            run: $run,
            impossible: attempts!(@ $($check)?),
        }),*];
    };
    (@) => { None };
    (@ $check:expr) => { Some($check) };
}

attempts! {
    // 1: descriptors and working folders.
    1 inherited_descriptors: |_| !open_fds().is_empty();
    1 inherited_folder: |_| open_fds().iter().any(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) >= 0 && libc::openat(*fd, c"..".as_ptr(), libc::O_PATH) >= 0 });
    1 inherited_platform_socket: |_| open_fds().iter().any(|fd| platform_socket(*fd));
    1 climb_from_cwd: |f| readable(&format!("{REL}{}", f.canary));
    1 climb_from_proc_cwd: |f| readable(&format!("/proc/self/cwd/{REL}{}", f.canary));
    1 climb_from_proc_root: |f| readable(&format!("/proc/self/root/{REL}{}", f.canary));
    1 fds_of_pid_1: |f| fs::read_dir(format!("/proc/{}/fd", f.init)).is_ok_and(|mut dir| dir.next().is_some());
    1 root_of_pid_1: |f| readable(&format!("/proc/{}/root{}", f.init, f.canary));
    1 cwd_of_pid_1: |f| fs::read_dir(format!("/proc/{}/cwd", f.init)).is_ok();
    // 2: /proc, /sys, /dev and the files of the host.
    2 read_canary: |f| readable(&f.canary);
    2 write_program: |_| writable("/usr/bin/env");
    2 write_library_folder: |_| can_create("/usr/lib/mote-attempt");
    2 create_in_root: |_| can_create("/mote-attempt");
    2 create_in_etc: |_| can_create("/etc/mote-attempt");
    2 create_in_code: |f| can_create(&format!("{}/mote-attempt", f.code_dir));
    2 create_in_dev: |_| can_create("/dev/mote-attempt");
    2 write_own_program_file: |f| fs::rename(format!("{}/probe", f.code_dir), format!("{}/probe2", f.code_dir)).and_then(|()| fs::rename(format!("{}/probe2", f.code_dir), format!("{}/probe", f.code_dir))).is_ok();
    2 core_pattern: |_| writable("/proc/sys/kernel/core_pattern");
    2 modprobe_path: |_| readable("/proc/sys/kernel/hostname");
    2 sysrq_trigger [|| missing("/proc/sysrq-trigger")]: |_| writable("/proc/sysrq-trigger");
    2 kcore [|| missing("/proc/kcore")]: |_| readable("/proc/kcore");
    2 kallsyms: |_| readable("/proc/kallsyms");
    2 kmsg [|| missing("/proc/kmsg") && missing("/dev/kmsg")]: |_| readable("/proc/kmsg") || readable("/dev/kmsg");
    2 kernel_command_line: |_| readable("/proc/cmdline");
    2 host_memory_info: |_| tells("/proc/meminfo", "Committed_AS:");
    2 host_processor_times: |_| fs::read_to_string("/proc/stat").is_ok_and(|text| text.lines().any(|line| line.starts_with("cpu") && line.split_whitespace().skip(1).any(|time| time != "0")));
    2 host_processor_kind: |_| tells("/proc/cpuinfo", "\nflags") || tells("/proc/cpuinfo", "\nFeatures");
    2 host_paging: |_| tells("/proc/vmstat", "nr_free_pages");
    2 host_load: |_| readable("/proc/loadavg");
    2 host_uptime: |_| readable("/proc/uptime");
    2 host_modules [|| missing("/proc/modules")]: |_| readable("/proc/modules");
    2 host_disks [|| missing("/proc/diskstats")]: |_| readable("/proc/diskstats");
    2 host_version: |_| readable("/proc/version");
    2 host_settings: |_| fs::read_dir("/proc/sys").is_ok();
    2 uncover_memory_info [|| tells("/proc/meminfo", "Committed_AS:")]: |_| unsafe { libc::umount2(c"/proc/meminfo".as_ptr(), libc::MNT_DETACH) == 0 } && tells("/proc/meminfo", "Committed_AS:");
    2 rewrite_memory_info: |_| writable("/proc/meminfo") || writable("/var/lib/proc/meminfo");
    2 host_interrupts: |_| readable("/proc/interrupts");
    2 sys_kernel: |_| fs::read_dir("/sys/kernel").is_ok();
    2 dev_mem [|| missing("/dev/mem")]: |_| readable("/dev/mem");
    2 block_devices: |_| fs::read_dir("/dev").is_ok_and(|dir| dir.flatten().any(|entry| entry.file_type().is_ok_and(|kind| std::os::unix::fs::FileTypeExt::is_block_device(&kind))));
    2 feed_entropy_pool: |_| OpenOptions::new().write(true).open("/dev/urandom").is_ok_and(|mut file| std::io::Write::write(&mut file, b"x").is_ok());
    2 memory_of_pid_1: |f| OpenOptions::new().read(true).write(true).open(format!("/proc/{}/mem", f.init)).is_ok();
    2 environment_of_pid_1: |f| fs::read(format!("/proc/{}/environ", f.init)).is_ok();
    2 program_of_pid_1: |f| readable(&format!("/proc/{}/exe", f.init));
    2 oom_score_lowered [|| lacks_capability(CAP_SYS_RESOURCE)]: |_| fs::write("/proc/self/oom_score_adj", "-500").is_ok();
    // 3: mounts and namespaces.
    3 mount_tmpfs: |_| mount("x", "/tmp/mote-m", "tmpfs", 0, "");
    3 mount_proc: |_| mount("proc", "/tmp/mote-m", "proc", 0, "");
    3 mount_bind: |_| mount("/usr", "/tmp/mote-m", "", libc::MS_BIND, "");
    3 mount_overlay: |_| mount("x", "/tmp/mote-m", "tmpfs", 0, "") && { let _ = fs::create_dir("/tmp/mote-m/u"); let _ = fs::create_dir("/tmp/mote-m/w"); mount("o", "/tmp/mote-o", "overlay", 0, "lowerdir=/usr,upperdir=/tmp/mote-m/u,workdir=/tmp/mote-m/w") };
    3 remount_root_writable: |_| mount("", "/", "", libc::MS_REMOUNT | libc::MS_BIND, "");
    3 unmount_proc: |_| unsafe { libc::umount2(c"/proc".as_ptr(), libc::MNT_DETACH) == 0 };
    3 pivot_root: |_| mount("x", "/tmp/mote-m", "tmpfs", 0, "") && unsafe { libc::chdir(c"/tmp/mote-m".as_ptr()) == 0 && libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) == 0 };
    3 chroot: |_| unsafe { libc::chroot(c"/tmp".as_ptr()) == 0 };
    3 unshare_user: |_| unshare(libc::CLONE_NEWUSER);
    3 unshare_mount: |_| unshare(libc::CLONE_NEWNS);
    3 unshare_net: |_| unshare(libc::CLONE_NEWNET);
    3 unshare_pid: |_| unshare(libc::CLONE_NEWPID);
    3 unshare_time: |_| unshare(0x80);
    3 clone_user: |_| clone_with(libc::CLONE_NEWUSER);
    3 clone_user_and_net: |_| clone_with(libc::CLONE_NEWUSER | libc::CLONE_NEWNET);
    3 clone3_user: |_| { let mut a = [0u64; 8]; a[0] = libc::CLONE_NEWUSER as u64; a[4] = libc::SIGCHLD as u64; let pid = unsafe { libc::syscall(libc::SYS_clone3, a.as_mut_ptr(), 64) }; if pid == 0 { unsafe { libc::_exit(0) } } pid > 0 };
    3 setns_pid_1: |f| { let path = c(&format!("/proc/{}/ns/mnt", f.init)); let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) }; fd >= 0 && unsafe { libc::setns(fd, 0) == 0 } };
    3 setns_bad_descriptor: |_| call!(SYS_setns, -1, 0);
    3 open_tree_clone: |_| call!(SYS_open_tree, libc::AT_FDCWD, c"/usr".as_ptr(), 1);
    3 fsopen: |_| call!(SYS_fsopen, c"tmpfs".as_ptr(), 0);
    3 mount_setattr: |_| call!(SYS_mount_setattr, -1, c"".as_ptr(), 0x1000, [0u64; 4].as_ptr(), 32);
    3 move_mount: |_| call!(SYS_move_mount, -1, c"".as_ptr(), -1, c"".as_ptr(), 0);
    3 initial_user_namespace: |f| same_namespace(f, "user");
    3 host_pid_namespace: |f| same_namespace(f, "pid");
    3 host_mount_namespace: |f| same_namespace(f, "mnt");
    // 4: calls and forms of calls that must not reach the kernel's code.
    4 io_uring: |_| call!(SYS_io_uring_setup, 0, 0);
    4 io_uring_register: |_| call!(SYS_io_uring_register, -1, 0, 0, 0);
    4 bpf: |_| call!(SYS_bpf, 99, 0, 0);
    4 perf_event_open: |_| call!(SYS_perf_event_open, 0, 0, -1, -1, 0);
    4 add_key: |_| call!(SYS_add_key, c"user".as_ptr(), c"mote".as_ptr(), c"x".as_ptr(), 1, -1);
    4 request_key: |_| call!(SYS_request_key, c"user".as_ptr(), c"mote".as_ptr(), 0, 0);
    4 keyctl: |_| call!(SYS_keyctl, 0, -3, 0);
    4 userfaultfd: |_| call!(SYS_userfaultfd, 0);
    4 ptrace_traceme: |_| call!(SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0);
    4 process_vm_readv: |_| call!(SYS_process_vm_readv, libc::getpid(), 0, 0, 0, 0, 0);
    4 process_vm_writev: |_| call!(SYS_process_vm_writev, libc::getpid(), 0, 0, 0, 0, 0);
    4 kcmp [|| no_such_call(libc::SYS_kcmp)]: |_| call!(SYS_kcmp, libc::getpid(), libc::getpid(), 0, 0, 0);
    4 pidfd_getfd: |_| call!(SYS_pidfd_getfd, -1, 0, 0);
    4 process_madvise: |_| call!(SYS_process_madvise, -1, 0, 0, 0, 0);
    4 name_to_handle: |_| call!(SYS_name_to_handle_at, -1, c"".as_ptr(), 0, 0, 0);
    4 open_by_handle: |_| call!(SYS_open_by_handle_at, -1, 0, 0);
    4 init_module [|| no_such_call(libc::SYS_init_module)]: |_| call!(SYS_init_module, 0, 0, c"".as_ptr());
    4 delete_module [|| no_such_call(libc::SYS_delete_module)]: |_| call!(SYS_delete_module, c"mote_none".as_ptr(), 0);
    4 kexec_load [|| no_such_call(libc::SYS_kexec_load)]: |_| call!(SYS_kexec_load, 0, 99, 0, 0);
    4 reboot_bad_magic: |_| call!(SYS_reboot, 0, 0, 0, 0);
    4 swapoff: |_| call!(SYS_swapoff, c"/mote-none".as_ptr());
    4 set_time_nothing: |_| call!(SYS_settimeofday, 0, 0);
    4 clock_settime_bad: |_| call!(SYS_clock_settime, 99, 0);
    4 adjtimex: |_| call!(SYS_adjtimex, [0u64; 32].as_ptr());
    4 set_host_name: |_| call!(SYS_sethostname, c"x".as_ptr(), 1);
    4 kernel_log: |_| call!(SYS_syslog, 10, 0, 0);
    4 quotactl [|| no_such_call(libc::SYS_quotactl)]: |_| call!(SYS_quotactl, 0, 0, 0, 0);
    4 fanotify [|| no_such_call(libc::SYS_fanotify_init)]: |_| call!(SYS_fanotify_init, 0, 0);
    4 acct [|| no_such_call(libc::SYS_acct)]: |_| call!(SYS_acct, c"/mote-none".as_ptr());
    4 vmsplice: |_| call!(SYS_vmsplice, -1, 0, 0, 0);
    4 io_setup: |_| call!(SYS_io_setup, 0, 0);
    4 move_pages [|| no_such_call(libc::SYS_move_pages)]: |_| call!(SYS_move_pages, 0, 0, 0, 0, 0, 0);
    4 message_queue: |_| call!(SYS_mq_open, c"mote".as_ptr(), 0, 0, 0);
    4 sysv_messages: |_| call!(SYS_msgget, 0x4d4f_5445, 0);
    4 seccomp_call: |_| call!(SYS_seccomp, 99, 0, 0);
    4 memfd_secret [|| no_such_call(libc::SYS_memfd_secret)]: |_| call!(SYS_memfd_secret, 0);
    4 no_randomization: |_| call!(SYS_personality, 0x4_0000);
    4 ioctl_type_into_terminal: |_| call!(SYS_ioctl, 0, 0x5412, c"x".as_ptr());
    4 ioctl_type_high_bits: |_| call!(SYS_ioctl, 0, 0x1_0000_5412u64, c"x".as_ptr());
    4 ioctl_line_discipline: |_| call!(SYS_ioctl, 0, 0x5423, [0u32; 1].as_ptr());
    4 ioctl_console: |_| call!(SYS_ioctl, 0, 0x541c, [0u8; 1].as_ptr());
    4 prctl_set_memory_map [|| lacks_capability(CAP_SYS_RESOURCE)]: |_| call!(SYS_prctl, 35, 99, 0, 0, 0);
    4 prctl_keep_caps: |_| call!(SYS_prctl, libc::PR_SET_KEEPCAPS, 0, 0, 0, 0);
    4 prctl_set_securebits: |_| call!(SYS_prctl, libc::PR_SET_SECUREBITS, 0, 0, 0, 0);
    4 core_dump_to_a_program: |_| { let core = libc::rlimit { rlim_cur: 0, rlim_max: 0 }; unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const core) == 0 } };
    // 5: sockets.
    5 packet_socket: |_| socket(libc::AF_PACKET, libc::SOCK_RAW, 0);
    5 raw_ip: |_| socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP);
    5 raw_ip6: |_| socket(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_RAW);
    5 netlink_route: |_| socket(libc::AF_NETLINK, libc::SOCK_RAW, 0);
    5 netlink_netfilter [|| !socket(libc::AF_NETLINK, libc::SOCK_RAW, 12) && errno() == libc::EPROTONOSUPPORT]: |_| socket(libc::AF_NETLINK, libc::SOCK_RAW, 12);
    5 crypto_socket: |_| family_reached(libc::AF_ALG, libc::SOCK_SEQPACKET, 0);
    5 vsock: |_| family_reached(libc::AF_VSOCK, libc::SOCK_STREAM, 0);
    5 key_socket: |_| family_reached(libc::AF_KEY, libc::SOCK_RAW, 2);
    5 rxrpc: |_| family_reached(libc::AF_RXRPC, libc::SOCK_DGRAM, 0);
    5 tipc: |_| family_reached(libc::AF_TIPC, libc::SOCK_STREAM, 0);
    5 bluetooth: |_| family_reached(libc::AF_BLUETOOTH, libc::SOCK_RAW, 1);
    5 xdp: |_| family_reached(libc::AF_XDP, libc::SOCK_RAW, 0);
    5 sctp: |_| family_reached(libc::AF_INET, libc::SOCK_STREAM, 132);
    5 kernel_tls: |_| option_reached(libc::IPPROTO_TCP, 31, b"tls");
    5 tcp_repair: |_| option_reached(libc::IPPROTO_TCP, 19, &1u32.to_le_bytes());
    5 netfilter_replace: |_| option_reached(libc::IPPROTO_IP, 64, &[0; 96]);
    5 socket_filter: |_| option_reached(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &[0; 16]);
    5 socketpair_tipc: |_| { let mut fds = [0; 2]; reached(c_long::from(unsafe { libc::socketpair(libc::AF_TIPC, libc::SOCK_STREAM, 0, fds.as_mut_ptr()) })) };
    // 6: other processes.
    6 see_host_process: |f| unsafe { libc::kill(f.victim, 0) == 0 || errno() == libc::EPERM };
    6 signal_host_process: |f| unsafe { libc::kill(f.victim, 0) == 0 };
    6 pidfd_of_host_process: |f| unsafe { libc::syscall(libc::SYS_pidfd_open, f.victim, 0) >= 0 };
    6 attach_to_host_process: |f| unsafe { libc::ptrace(libc::PTRACE_SEIZE, f.victim, 0, 0) == 0 };
    6 attach_to_pid_1: |f| unsafe { libc::ptrace(libc::PTRACE_SEIZE, f.init, 0, 0) == 0 };
    6 memory_of_host_process: |f| readable(&format!("/proc/{}/mem", f.victim));
    6 limits_of_host_process: |f| unsafe { let mut limit: libc::rlimit = std::mem::zeroed(); libc::prlimit(f.victim, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut limit) == 0 };
    6 raise_priority: |_| unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) == 0 };
    6 realtime_priority: |_| { let level = [1i32]; reached(unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_FIFO, level.as_ptr()) }) };
    6 signal_neighbour: |f| unsafe { libc::kill(f.neighbour, 0) == 0 };
    6 pidfd_of_neighbour: |f| unsafe { libc::syscall(libc::SYS_pidfd_open, f.neighbour, 0) >= 0 };
    6 attach_to_neighbour: |f| unsafe { libc::ptrace(libc::PTRACE_SEIZE, f.neighbour, 0, 0) == 0 };
    6 memory_of_neighbour: |f| readable(&format!("/proc/{}/mem", f.neighbour));
    6 environment_of_neighbour: |f| fs::read(format!("/proc/{}/environ", f.neighbour)).is_ok();
    // 7: cgroups and quotas.
    7 mount_cgroup_v1 [|| no_file_system("cgroup")]: |_| mount("x", "/tmp/mote-c", "cgroup", 0, "memory");
    7 release_agent [|| no_file_system("cgroup")]: |_| mount("x", "/tmp/mote-c", "cgroup", 0, "memory") && writable("/tmp/mote-c/release_agent");
    7 mount_cgroup_v2: |_| mount("x", "/tmp/mote-c", "cgroup2", 0, "");
    7 cgroup_files: |_| fs::read_dir("/sys/fs/cgroup").is_ok_and(|mut dir| dir.next().is_some());
    7 more_processes_than_allowed: |_| many_processes(200);
    7 more_memory_than_allowed: |_| much_memory(200);
    7 more_disk_than_allowed: |_| fill("/tmp/mote-fill", 40);
    7 more_shared_memory_than_disk: |_| fill("/dev/shm/mote-fill", 40);
    7 more_files_than_allowed: |_| { let mut fds = Vec::new(); for _ in 0..5000 { unsafe { let mut now: libc::rlimit = std::mem::zeroed(); libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut now); now.rlim_cur = now.rlim_max; libc::setrlimit(libc::RLIMIT_NOFILE, &raw const now); fds.push(libc::dup(0)); } } fds.iter().all(|fd| *fd >= 0) };
    7 core_dumps: |_| unsafe { let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: 1 << 20 }; libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) == 0 };
    // 8: privileges through files and ids.
    8 become_root: |_| unsafe { libc::syscall(libc::SYS_setuid, 0) == 0 };
    8 become_another_user: |_| unsafe { libc::syscall(libc::SYS_setuid, 33) == 0 && libc::geteuid() == 33 };
    8 become_another_group: |_| unsafe { libc::syscall(libc::SYS_setgid, 33) == 0 && libc::getegid() == 33 };
    8 join_a_group: |_| unsafe { let groups = [33u32]; libc::syscall(libc::SYS_setgroups, 1, groups.as_ptr()) == 0 && libc::getgroups(0, std::ptr::null_mut()) == 1 };
    8 give_file_to_another_user: |_| fs::write("/tmp/mote-given", "x").is_ok() && std::os::unix::fs::chown("/tmp/mote-given", Some(33), Some(33)).is_ok() && fs::metadata("/tmp/mote-given").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 33);
    8 become_root_group: |_| unsafe { libc::syscall(libc::SYS_setgid, 0) == 0 };
    8 change_groups: |_| unsafe { libc::syscall(libc::SYS_setgroups, 0, 0) == 0 };
    8 hold_capability: |_| ["CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "CapInh:"].iter().any(|set| !status_field(set).trim_matches('0').is_empty());
    8 gain_privileges_by_exec: |_| status_field("NoNewPrivs:") != "1";
    8 run_set_id_root_program: |f| program_succeeds(&format!("{}/set-id", f.code_dir), "--is-root");
    8 unfiltered: |_| status_field("Seccomp:") != "2";
    8 set_id_root: |_| nosuid_missing("/");
    8 set_id_usr: |_| nosuid_missing("/usr");
    8 set_id_file_in_code: |f| nosuid_missing(&f.code_dir) && exec_from(&format!("{}/x", f.code_dir), 0o4755);
    8 file_capability: |_| set_xattr("security.capability");
    8 trusted_attribute: |_| set_xattr("trusted.mote");
    8 device_node_char: |_| node(libc::S_IFCHR, libc::makedev(1, 3));
    8 device_node_block: |_| node(libc::S_IFBLK, libc::makedev(7, 0));
    8 give_file_to_root: |_| fs::write("/tmp/mote-own", "x").is_ok() && std::os::unix::fs::chown("/tmp/mote-own", Some(0), Some(0)).is_ok();
    8 write_own_executable [text_file_busy]: |_| writable("/proc/self/exe");
    8 write_executable_through_link: |_| { let _ = std::os::unix::fs::symlink("/usr/bin/env", "/tmp/mote-link"); let done = writable("/tmp/mote-link"); let _ = fs::remove_file("/tmp/mote-link"); done };
    8 hard_link_to_program: |f| { let to = format!("{}/mote-hard", f.code_dir); let done = fs::hard_link(format!("{}/probe", f.code_dir), &to).is_ok(); let _ = fs::remove_file(&to); done };
    // 9: neighbours and the network.
    9 host_loopback: |f| connects(&format!("127.0.0.1:{}", f.ports[0]));
    9 host_any_address: |f| connects(&format!("127.0.0.1:{}", f.ports[1]));
    9 host_loopback_v6 [|| missing("/proc/net/if_inet6")]: |f| connects(&format!("[::1]:{}", f.ports[2]));
    9 host_datagrams: |f| answers(&format!("127.0.0.1:{}", f.ports[3]));
    9 send_from_foreign_address: |_| has_transparent_socket();
    9 host_abstract_socket: |f| SocketAddr::from_abstract_name(&f.abstract_name).is_ok_and(|address| UnixStream::connect_addr(&address).is_ok());
    9 link_local_metadata: |_| udp_route("169.254.169.254:80");
    9 outside_world: |_| udp_route("192.0.2.1:53");
    9 host_shared_memory: |f| unsafe { let id = libc::shmget(f.shared_memory_key, 0, 0); id >= 0 && libc::shmat(id, std::ptr::null(), libc::SHM_RDONLY) as isize != -1 };
    9 neighbour_port: |f| connects(&format!("127.0.0.1:{}", f.neighbour_port));
    9 neighbour_abstract_socket: |f| SocketAddr::from_abstract_name(&f.neighbour_socket).is_ok_and(|address| UnixStream::connect_addr(&address).is_ok());
    9 host_ipc_namespace: |f| same_namespace(f, "ipc");
    9 host_net_namespace: |f| same_namespace(f, "net");
    9 host_uts_namespace: |f| same_namespace(f, "uts");
}

/// Runs every attempt in its own process, and prints one line `name result` for each.
pub(crate) fn probe(outside: bool) {
    let facts = Facts::from_env();
    // The last attempt may end the instance, so all other results are printed before it.
    let (last, first): (Vec<_>, Vec<_>) =
        ATTEMPTS.iter().partition(|attempt| attempt.name == MAY_END_THE_INSTANCE);
    for (at, attempt) in first.iter().chain(&last).enumerate() {
        if at == first.len() {
            println!("end of attempts");
        }
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            unsafe {
                libc::setpgid(0, 0);
                libc::alarm(5);
            }
            // Outside, each attempt has its own namespaces, except those attempts that themselves
            // ask for namespaces.
            if outside && !attempt.name.ends_with("_namespace") {
                unshare(libc::CLONE_NEWNS | libc::CLONE_NEWUTS);
                unsafe {
                    libc::mount(
                        std::ptr::null(),
                        c"/".as_ptr(),
                        std::ptr::null(),
                        libc::MS_REC | libc::MS_PRIVATE,
                        std::ptr::null(),
                    )
                };
            }
            let succeeded = (attempt.run)(&facts);
            unsafe { libc::_exit(if succeeded { 0 } else { 1 }) }
        }
        let mut status = 0;
        unsafe {
            libc::waitpid(pid, &raw mut status, 0);
            // This ends all processes that an attempt left running when it timed out.
            libc::kill(-pid, libc::SIGKILL);
        }
        let result = if pid > 0 && status == 0 { "succeeded" } else { "blocked" };
        println!("{} {result}", attempt.name);
    }
}

/// Acts as another instance: listens, prints its port, and waits to be killed.
pub(crate) fn neighbour() {
    let facts = Facts::from_env();
    let address = SocketAddr::from_abstract_name(&facts.neighbour_socket).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    println!("listening {}", port.local_addr().unwrap().port());
    unsafe { libc::pause() };
}
