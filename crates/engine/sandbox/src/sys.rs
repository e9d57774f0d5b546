//! System calls that the standard library does not wrap, one thin function each.
//!
//! All of them take and return owned or borrowed descriptors and `io::Error`. So the modules that
//! compose a sandbox can be read as lists of steps.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Mount attribute bits of mount_setattr(2) and fsmount(2).
pub(crate) const MOUNT_ATTR_RDONLY: u64 = 0x1;
/// See [`MOUNT_ATTR_RDONLY`].
pub(crate) const MOUNT_ATTR_NOSUID: u64 = 0x2;
/// See [`MOUNT_ATTR_RDONLY`].
pub(crate) const MOUNT_ATTR_NODEV: u64 = 0x4;
/// See [`MOUNT_ATTR_RDONLY`].
pub(crate) const MOUNT_ATTR_NOEXEC: u64 = 0x8;
const MOUNT_ATTR_IDMAP: u64 = 0x10_0000;

const OPEN_TREE_CLONE: libc::c_uint = 1;
const OPEN_TREE_CLOEXEC: libc::c_uint = libc::O_CLOEXEC as libc::c_uint;
const AT_RECURSIVE: libc::c_uint = 0x8000;
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_SET_FLAG: libc::c_uint = 0;
const FSCONFIG_SET_STRING: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const FSCONFIG_CMD_RECONFIGURE: libc::c_uint = 7;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;

/// Turns a raw return value into a result.
pub(crate) fn check(value: libc::c_long) -> io::Result<libc::c_long> {
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

fn owned(value: libc::c_long) -> io::Result<OwnedFd> {
    let fd = check(value)?;
    // SAFETY: the kernel has just returned this descriptor, and no other code knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Makes a C string. Fails if the text contains a NUL byte.
pub(crate) fn cstring(text: impl Into<Vec<u8>>) -> io::Result<std::ffi::CString> {
    std::ffi::CString::new(text)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "holds a NUL byte"))
}

/// Opens a detached copy of the mount tree at `path`.
pub(crate) fn open_tree(path: &CStr) -> io::Result<OwnedFd> {
    open_tree_from(libc::AT_FDCWD, path)
}

/// Like [`open_tree`], for a path below `dir`.
pub(crate) fn open_tree_at(dir: BorrowedFd<'_>, path: &CStr) -> io::Result<OwnedFd> {
    open_tree_from(dir.as_raw_fd(), path)
}

fn open_tree_from(dir: RawFd, path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the path is NUL-terminated and outlives the call.
    owned(unsafe {
        libc::syscall(
            libc::SYS_open_tree,
            dir,
            path.as_ptr(),
            OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE,
        )
    })
}

/// Sets attributes of a mount and of all mounts below it, and makes them private.
pub(crate) fn mount_setattr(mount: BorrowedFd<'_>, set: u64) -> io::Result<()> {
    set_mount_attributes(mount, set, AT_RECURSIVE)
}

/// Like [`mount_setattr`], but leaves the mounts below alone.
pub(crate) fn mount_setattr_single(mount: BorrowedFd<'_>, set: u64) -> io::Result<()> {
    set_mount_attributes(mount, set, 0)
}

/// Whether this kernel has the call at all. The check passes a wrong size, which the kernel refuses
/// before it changes anything.
pub(crate) fn has_mount_setattr() -> bool {
    // SAFETY: no memory is passed.
    let refused = check(unsafe {
        libc::syscall(libc::SYS_mount_setattr, -1, c"".as_ptr(), 0, std::ptr::null::<u8>(), 0)
    });
    !refused.is_err_and(|error| error.raw_os_error() == Some(libc::ENOSYS))
}

fn set_mount_attributes(mount: BorrowedFd<'_>, set: u64, flags: libc::c_uint) -> io::Result<()> {
    change_mount_attributes(mount, (set, 0), flags)
}

fn change_mount_attributes(
    mount: BorrowedFd<'_>,
    (set, clear): (u64, u64),
    flags: libc::c_uint,
) -> io::Result<()> {
    write_mount_attributes(mount, (set, clear), 0, flags)
}

/// Sets attributes of a detached mount, and maps the ids of its files as the user namespace does.
pub(crate) fn map_mount(
    mount: BorrowedFd<'_>,
    set: u64,
    namespace: BorrowedFd<'_>,
) -> io::Result<()> {
    let namespace = namespace.as_raw_fd() as u64;
    write_mount_attributes(mount, (set | MOUNT_ATTR_IDMAP, 0), namespace, AT_RECURSIVE)
}

fn write_mount_attributes(
    mount: BorrowedFd<'_>,
    (set, clear): (u64, u64),
    userns_fd: u64,
    flags: libc::c_uint,
) -> io::Result<()> {
    /// libc's constant has a different type on 32-bit machines.
    const MS_PRIVATE: u64 = 1 << 18;
    #[repr(C)]
    struct MountAttr {
        set: u64,
        clear: u64,
        propagation: u64,
        userns_fd: u64,
    }
    let attr = MountAttr { set, clear, propagation: MS_PRIVATE, userns_fd };
    // SAFETY: the struct has the kernel's layout and its size is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH as libc::c_uint | flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    })?;
    Ok(())
}

/// Attaches a detached mount at `path` below `dir`. An absolute path ignores `dir`.
pub(crate) fn move_mount(
    mount: BorrowedFd<'_>,
    dir: Option<BorrowedFd<'_>>,
    path: &CStr,
) -> io::Result<()> {
    let dir = dir.map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd());
    // SAFETY: both paths are NUL-terminated and outlive the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            dir,
            path.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    })?;
    Ok(())
}

/// Lets files be written through a mount, as far as their permissions allow it.
pub(crate) fn make_writable(mount: BorrowedFd<'_>) -> io::Result<()> {
    change_mount_attributes(mount, (0, MOUNT_ATTR_RDONLY), 0)
}

/// Like [`make_writable`], for the mount at `path`. Fails unless a mount begins there.
pub(crate) fn allow_writes(path: &std::path::Path) -> io::Result<()> {
    let path = cstring(path.as_os_str().as_encoded_bytes())?;
    make_writable(openat(None, &path, libc::O_PATH, 0)?.as_fd())
}

/// Makes a new detached file system with string options.
pub(crate) fn new_mount(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    attributes: u64,
) -> io::Result<OwnedFd> {
    new_changeable_mount(kind, options, attributes).map(|(mount, _)| mount)
}

/// Like [`new_mount`], but also returns the context that [`reconfigure`] takes.
pub(crate) fn new_changeable_mount(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    attributes: u64,
) -> io::Result<(OwnedFd, OwnedFd)> {
    let context = open_context(kind)?;
    set_options(context.as_fd(), options, FSCONFIG_CMD_CREATE)?;
    Ok((mount_context(context.as_fd(), attributes)?, context))
}

/// Makes a detached mount of the file system on the device `source`. The options `flags` have no
/// values.
pub(crate) fn mount_device(
    kind: &CStr,
    source: &CStr,
    flags: &[&CStr],
    values: &[(&CStr, &CStr)],
    attributes: u64,
) -> io::Result<OwnedFd> {
    let context = open_context(kind)?;
    for key in flags {
        // SAFETY: the key is NUL-terminated and outlives the call; an option without a value has
        // no other argument.
        check(unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                context.as_raw_fd(),
                FSCONFIG_SET_FLAG,
                key.as_ptr(),
                std::ptr::null::<libc::c_char>(),
                0,
            )
        })?;
    }
    let values: Vec<_> =
        std::iter::once((c"source", source)).chain(values.iter().copied()).collect();
    set_options(context.as_fd(), &values, FSCONFIG_CMD_CREATE)?;
    mount_context(context.as_fd(), attributes)
}

fn open_context(kind: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the name is NUL-terminated and outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) })
}

fn mount_context(context: BorrowedFd<'_>, attributes: u64) -> io::Result<OwnedFd> {
    // SAFETY: plain integers.
    owned(unsafe {
        libc::syscall(
            libc::SYS_fsmount,
            context.as_raw_fd(),
            FSMOUNT_CLOEXEC,
            attributes as libc::c_uint,
        )
    })
}

/// Changes options of a file system that is already mounted.
pub(crate) fn reconfigure(context: BorrowedFd<'_>, options: &[(&CStr, &CStr)]) -> io::Result<()> {
    set_options(context, options, FSCONFIG_CMD_RECONFIGURE)
}

fn set_options(
    context: BorrowedFd<'_>,
    options: &[(&CStr, &CStr)],
    command: libc::c_uint,
) -> io::Result<()> {
    for (key, value) in options {
        // SAFETY: key and value are NUL-terminated and outlive the call.
        check(unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                context.as_raw_fd(),
                FSCONFIG_SET_STRING,
                key.as_ptr(),
                value.as_ptr(),
                0,
            )
        })?;
    }
    // SAFETY: this command takes no key and no value.
    check(unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            command,
            std::ptr::null::<libc::c_char>(),
            std::ptr::null::<libc::c_char>(),
            0,
        )
    })?;
    Ok(())
}

/// Makes every mount of this namespace private, so that changes are not visible outside.
pub(crate) fn make_mounts_private() -> io::Result<()> {
    // SAFETY: constant paths; the ignored arguments may be null.
    check(libc::c_long::from(unsafe {
        libc::mount(
            std::ptr::null(),
            c"/".as_ptr(),
            std::ptr::null(),
            libc::MS_REC | libc::MS_PRIVATE,
            std::ptr::null(),
        )
    }))?;
    Ok(())
}

/// Mounts a file system of `kind` at `target` with mount(2), with options in one text.
pub(crate) fn mount(
    kind: &CStr,
    target: &CStr,
    options: &CStr,
    flags: libc::c_ulong,
) -> io::Result<()> {
    // SAFETY: all texts are NUL-terminated and outlive the call.
    check(libc::c_long::from(unsafe {
        libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast())
    }))?;
    Ok(())
}

/// Takes the mount at `path` out of the tree, with everything below it.
pub(crate) fn detach(path: &CStr) -> io::Result<()> {
    // SAFETY: NUL-terminated path.
    let detached = unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    check(libc::c_long::from(detached)).map(drop)
}

/// fchdir(2).
pub(crate) fn enter_folder(folder: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain integer.
    check(libc::c_long::from(unsafe { libc::fchdir(folder.as_raw_fd()) })).map(drop)
}

/// Makes a folder the root and the working folder of this process, and of those that share them.
pub(crate) fn change_root(folder: BorrowedFd<'_>) -> io::Result<()> {
    enter_folder(folder)?;
    // SAFETY: a constant path.
    check(libc::c_long::from(unsafe { libc::chroot(c".".as_ptr()) })).map(drop)
}

/// Makes the mounted tree behind `root` the root of this process, and detaches the old root.
pub(crate) fn pivot_into(root: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain descriptor and constant paths. With both arguments ".", the old root lands on
    // top of the new one, where the detach finds it (pivot_root(2), notes).
    unsafe {
        check(libc::c_long::from(libc::fchdir(root.as_raw_fd())))?;
        match check(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr())) {
            // The system call filter of a container may refuse only this call. The new root already
            // covers the old one, so it is the top of the namespace's root. Nothing can climb out
            // of the new root, and only a process that may unmount it could reach the old one.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                check(libc::c_long::from(libc::chroot(c".".as_ptr())))?;
                return Ok(());
            }
            other => other?,
        };
        check(libc::c_long::from(libc::umount2(c".".as_ptr(), libc::MNT_DETACH)))?;
    }
    Ok(())
}

/// Creates a folder below `dir`. An existing folder is not an error.
pub(crate) fn mkdirat(dir: BorrowedFd<'_>, path: &CStr, mode: libc::mode_t) -> io::Result<()> {
    // SAFETY: NUL-terminated path.
    match check(libc::c_long::from(unsafe { libc::mkdirat(dir.as_raw_fd(), path.as_ptr(), mode) }))
    {
        Err(error) if error.raw_os_error() != Some(libc::EEXIST) => Err(error),
        _ => Ok(()),
    }
}

/// Like [`mkdirat`], but says whether the folder is new.
pub(crate) fn new_folder_at(
    dir: BorrowedFd<'_>,
    path: &CStr,
    mode: libc::mode_t,
) -> io::Result<bool> {
    // SAFETY: NUL-terminated path.
    match check(libc::c_long::from(unsafe { libc::mkdirat(dir.as_raw_fd(), path.as_ptr(), mode) }))
    {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        made => made.map(|_| true),
    }
}

/// Changes the owner of a file below `dir`. If the file is a link, changes the link and not its
/// target.
pub(crate) fn chownat(dir: BorrowedFd<'_>, path: &CStr, owner: (u32, u32)) -> io::Result<()> {
    // SAFETY: NUL-terminated path.
    check(libc::c_long::from(unsafe {
        libc::fchownat(dir.as_raw_fd(), path.as_ptr(), owner.0, owner.1, libc::AT_SYMLINK_NOFOLLOW)
    }))
    .map(drop)
}

/// Changes the mode of a file below `dir`.
pub(crate) fn chmodat(dir: BorrowedFd<'_>, path: &CStr, mode: libc::mode_t) -> io::Result<()> {
    // SAFETY: NUL-terminated path.
    let changed = unsafe { libc::fchmodat(dir.as_raw_fd(), path.as_ptr(), mode, 0) };
    check(libc::c_long::from(changed)).map(drop)
}

/// Removes a file or link below `dir`.
pub(crate) fn unlinkat(dir: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    // SAFETY: NUL-terminated path.
    check(libc::c_long::from(unsafe { libc::unlinkat(dir.as_raw_fd(), path.as_ptr(), 0) }))
        .map(drop)
}

/// Removes an empty folder below `dir`.
pub(crate) fn remove_folder_at(dir: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    // SAFETY: NUL-terminated path.
    let removed = unsafe { libc::unlinkat(dir.as_raw_fd(), path.as_ptr(), libc::AT_REMOVEDIR) };
    check(libc::c_long::from(removed)).map(drop)
}

/// Makes a device below `dir`. `mode` includes the kind.
pub(crate) fn mknodat(
    dir: BorrowedFd<'_>,
    path: &CStr,
    mode: libc::mode_t,
    device: libc::dev_t,
) -> io::Result<()> {
    // SAFETY: NUL-terminated path.
    let made = unsafe { libc::mknodat(dir.as_raw_fd(), path.as_ptr(), mode, device) };
    check(libc::c_long::from(made)).map(drop)
}

/// Creates a symbolic link below `dir`.
pub(crate) fn symlinkat(target: &CStr, dir: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    // SAFETY: NUL-terminated paths.
    check(libc::c_long::from(unsafe {
        libc::symlinkat(target.as_ptr(), dir.as_raw_fd(), path.as_ptr())
    }))?;
    Ok(())
}

/// openat(2), close-on-exec.
pub(crate) fn openat(
    dir: Option<BorrowedFd<'_>>,
    path: &CStr,
    flags: libc::c_int,
    mode: libc::mode_t,
) -> io::Result<OwnedFd> {
    let dir = dir.map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd());
    // SAFETY: NUL-terminated path.
    owned(libc::c_long::from(unsafe {
        libc::openat(dir, path.as_ptr(), flags | libc::O_CLOEXEC, libc::c_uint::from(mode))
    }))
}

/// File type and permission bits of an open file.
pub(crate) fn mode_of(fd: BorrowedFd<'_>) -> io::Result<libc::mode_t> {
    // SAFETY: an all-zero stat is a valid value to be overwritten.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is valid for writing.
    check(libc::c_long::from(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) }))?;
    Ok(stat.st_mode)
}

/// clone3(2) without a new stack, that is a fork with `flags`: `None` in the child, pid and pidfd
/// in the parent.
///
/// # Safety
/// The process must be single-threaded, because the child continues with a copy of its memory.
/// Otherwise, the child may only make system calls until it ends.
pub(crate) unsafe fn fork_into(flags: u64) -> io::Result<Option<(i32, OwnedFd)>> {
    let mut pidfd: RawFd = -1;
    /// `struct clone_args` of the kernel as of Linux 5.7, which has all fields that are used here.
    /// The libc crate has it only for some C libraries.
    #[repr(C)]
    #[derive(Default)]
    struct CloneArgs {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
        cgroup: u64,
    }
    let mut args = CloneArgs {
        flags: flags | libc::CLONE_PIDFD as u64,
        pidfd: &raw mut pidfd as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    // SAFETY: the struct has the kernel's layout, and its size is passed. Without a stack, the
    // child runs on its own copy of this process's stack.
    let pid =
        check(unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) })?;
    if pid == 0 {
        return Ok(None);
    }
    // SAFETY: CLONE_PIDFD has stored a descriptor that only we know.
    Ok(Some((pid as i32, unsafe { OwnedFd::from_raw_fd(pidfd) })))
}

/// Sends a signal to the process behind a pidfd.
pub(crate) fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: plain integers; a null siginfo means the defaults of kill(2).
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    })?;
    Ok(())
}

/// Closes every descriptor from `first` on.
pub(crate) fn close_from(first: RawFd) -> io::Result<()> {
    // SAFETY: callers own every descriptor from `first` on and do not use them afterwards.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) })?;
    Ok(())
}

/// The first two numbers of the kernel's version; zeros if it has another form.
pub(crate) fn kernel_version() -> (u32, u32) {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers =
        text.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether the kernel has a file system. A module that is not loaded yet is loaded if this process
/// may do that.
pub(crate) fn has_file_system(kind: &str) -> bool {
    let known = || {
        let all = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        all.lines().any(|line| line.split_whitespace().last() == Some(kind))
    };
    if known() {
        return true;
    }
    if let Ok(kind) = cstring(kind) {
        let _ = open_context(&kind);
    }
    known()
}

/// prctl(2) with up to two arguments.
pub(crate) fn prctl(option: libc::c_int, a: libc::c_ulong, b: libc::c_ulong) -> io::Result<()> {
    let zero: libc::c_ulong = 0;
    // SAFETY: only options that take integers are passed by this crate.
    check(libc::c_long::from(unsafe { libc::prctl(option, a, b, zero, zero) }))?;
    Ok(())
}

/// Enters a mount namespace. The namespace's root becomes the root and the working folder.
pub(crate) fn enter_mounts(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a descriptor that outlives the call, and plain integers.
    let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS) };
    check(libc::c_long::from(entered)).map(drop)
}

/// Makes `number` a close-on-exec copy of this descriptor. Closes any descriptor that had this
/// number.
pub(crate) fn place_at(fd: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: plain integers; the caller owns both descriptors.
    let placed = unsafe { libc::dup3(fd.as_raw_fd(), number, libc::O_CLOEXEC) };
    check(libc::c_long::from(placed)).map(drop)
}

/// unshare(2).
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: plain integer.
    check(libc::c_long::from(unsafe { libc::unshare(flags) }))?;
    Ok(())
}

/// Sets one resource limit. If the hard limit is already lower, it is kept.
pub(crate) fn limit_resource(resource: libc::c_int, soft: u64, hard: u64) -> io::Result<()> {
    // SAFETY: both structs are valid for the calls; the cast covers libcs that type the first
    // argument differently.
    unsafe {
        let mut now: libc::rlimit = std::mem::zeroed();
        check(libc::c_long::from(libc::getrlimit(resource as _, &raw mut now)))?;
        let hard = hard.min(now.rlim_max);
        let limit = libc::rlimit { rlim_cur: soft.min(hard), rlim_max: hard };
        check(libc::c_long::from(libc::setrlimit(resource as _, &raw const limit)))?;
    }
    Ok(())
}

/// Makes a connected pair of Unix sockets of this type, close-on-exec.
pub(crate) fn socket_pair(kind: libc::c_int) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds: [RawFd; 2] = [-1; 2];
    // SAFETY: the array has room for both descriptors.
    check(libc::c_long::from(unsafe {
        libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr())
    }))?;
    // SAFETY: both descriptors are new and ours.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Makes a close-on-exec pipe: read end, write end.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds: [RawFd; 2] = [-1; 2];
    // SAFETY: the array has room for both descriptors.
    check(libc::c_long::from(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) }))?;
    // SAFETY: both descriptors are new and ours.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Like [`set_nonblocking`], for an end of a new pipe. A new pipe has no other status flags, so one
/// system call is enough.
pub(crate) fn set_new_pipe_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain integers on a descriptor that is open while borrowed.
    check(libc::c_long::from(unsafe {
        libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK)
    }))?;
    Ok(())
}

/// Makes reads and writes return `WouldBlock` instead of waiting.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain integers on a descriptor that is open while borrowed.
    unsafe {
        let flags = check(libc::c_long::from(libc::fcntl(fd.as_raw_fd(), libc::F_GETFL)))?;
        check(libc::c_long::from(libc::fcntl(
            fd.as_raw_fd(),
            libc::F_SETFL,
            flags as libc::c_int | libc::O_NONBLOCK,
        )))?;
    }
    Ok(())
}

/// read(2).
pub(crate) fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer is valid for its length.
    let got = check(unsafe {
        libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) as libc::c_long
    })?;
    Ok(got as usize)
}

/// write(2).
pub(crate) fn write(fd: BorrowedFd<'_>, buffer: &[u8]) -> io::Result<usize> {
    // SAFETY: the buffer is valid for its length.
    let put = check(unsafe {
        libc::write(fd.as_raw_fd(), buffer.as_ptr().cast(), buffer.len()) as libc::c_long
    })?;
    Ok(put as usize)
}

/// poll(2). An interrupted wait returns no event.
pub(crate) fn poll(entries: &mut [libc::pollfd], timeout_ms: libc::c_int) -> io::Result<usize> {
    // SAFETY: the slice is valid for its length.
    let ready =
        unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, timeout_ms) };
    match check(libc::c_long::from(ready)) {
        Ok(count) => Ok(count as usize),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}

pub(crate) fn poll_entry(fd: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

/// Collects one dead child (`pid`, or any child for -1) without waiting. Returns pid and wait
/// status.
pub(crate) fn reap(pid: i32) -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: the status is valid for writing.
    let got = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
    (got > 0).then_some((got, status))
}

/// Waits for the end of a child. Returns the child's exit status, or -1 if a signal ended it.
pub(crate) fn wait_for(pid: i32) -> i32 {
    let mut status = 0;
    loop {
        // SAFETY: the status is valid for writing.
        let got = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if got == pid {
            return if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 };
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return -1;
        }
    }
}

/// Blocks SIGCHLD, and returns a non-blocking descriptor that becomes readable when the signal
/// arrives.
pub(crate) fn child_signal_fd() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        check(libc::c_long::from(libc::sigprocmask(
            libc::SIG_BLOCK,
            &raw const set,
            std::ptr::null_mut(),
        )))?;
        owned(libc::c_long::from(libc::signalfd(
            -1,
            &raw const set,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        )))
    }
}

/// Sets a signal's disposition to either the default or ignore.
pub(crate) fn set_signal(signal: libc::c_int, disposition: libc::sighandler_t) {
    // SAFETY: only SIG_DFL and SIG_IGN are passed, so no handler of ours can run.
    unsafe {
        libc::signal(signal, disposition);
    }
}

pub(crate) fn unblock_signals() {
    // SAFETY: the set is initialised by sigemptyset before use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// Ends this process at once. Does not run destructors or exit handlers that were copied from a
/// parent.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: _exit never returns and touches no memory.
    unsafe { libc::_exit(status) }
}

/// Bytes that an ordinary user may still write on the file system of `path`.
pub(crate) fn free_bytes(path: &std::path::Path) -> io::Result<u64> {
    let path = cstring(path.as_os_str().as_encoded_bytes())?;
    // SAFETY: an all-zero statvfs is a valid value to be overwritten; the path is NUL-terminated.
    let stat = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        check(libc::c_long::from(libc::statvfs(path.as_ptr(), &raw mut stat)))?;
        stat
    };
    #[allow(clippy::useless_conversion, reason = "both have 32 bits on some processors")]
    Ok(u64::from(stat.f_bavail).saturating_mul(stat.f_frsize.into()))
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is valid for writing; this clock always exists.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time);
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The number of processors that this process may use, at least one.
pub(crate) fn processors() -> usize {
    // SAFETY: an all-zero set is an empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid for writing and its size is passed.
    let found = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    // SAFETY: the set is valid for reading.
    let count = if found == 0 { unsafe { libc::CPU_COUNT(&set) } } else { 1 };
    usize::try_from(count).unwrap_or(1).max(1)
}

/// The time at which the machine was booted, in seconds since 1970.
pub(crate) fn booted_s() -> u64 {
    // SAFETY: an all-zero timespec is a valid value to be overwritten.
    let mut since: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut since) };
    let up_s = u64::try_from(since.tv_sec).unwrap_or(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs()).saturating_sub(up_s)
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Effective user and group of this process.
pub(crate) fn effective_ids() -> (u32, u32) {
    // SAFETY: takes nothing, cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Registers a descriptor with the current async runtime.
pub(crate) fn watched(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays open and the same file until it is dropped, after deregistration.
    unsafe { tokio::io::unix::AsyncFd::register(fd) }.map_err(io::Error::from)
}

/// Length of a turn, in nanoseconds: how long the data path and programs in sandboxes run before
/// another program may have their core. This is the smallest value that the kernel accepts.
const TURN_NS: u64 = 100_000;

/// Asks the scheduler for short turns, both for the calling thread and for the programs that it
/// starts from now on. A program that wakes up then does not have to wait until the running
/// program's turn is over. Otherwise, the kernel checks for the end of a turn only once per tick,
/// up to 4 ms later. Each program's share of the processor stays the same. Kernels before 6.12
/// ignore the request, and others may refuse it.
pub(crate) fn take_short_turns() -> io::Result<()> {
    // SAFETY: an all-zero struct is a valid value to be overwritten.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the struct is valid for writing, and its size is passed.
    check(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) })?;
    attributes.size = size;
    attributes.sched_runtime = TURN_NS;
    // SAFETY: the struct is valid for reading, and its size is inside.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })?;
    Ok(())
}

/// A filter as the kernel reads it. It points into `filter`, which must outlive its use.
pub(crate) fn filter_program(filter: &crate::seccomp::BpfProgram) -> libc::sock_fprog {
    libc::sock_fprog {
        len: filter.len() as libc::c_ushort,
        filter: filter.as_ptr().cast_mut().cast(),
    }
}

/// Applies a system call filter to this process. Needs no_new_privs or CAP_SYS_ADMIN.
pub(crate) fn load_filter(filter: &crate::seccomp::BpfProgram) -> io::Result<()> {
    let program = filter_program(filter);
    // SAFETY: the program points at `len` instructions that outlive the call, in the kernel's layout.
    check(libc::c_long::from(unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER as libc::c_ulong,
            &raw const program,
            0,
            0,
        )
    }))?;
    Ok(())
}

/// Whether a socket has bytes to read. False if the peer has closed its end.
pub(crate) fn has_bytes(socket: BorrowedFd<'_>) -> bool {
    let mut byte = [0u8; 1];
    // SAFETY: the buffer is valid for its length.
    let got = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            byte.as_mut_ptr().cast(),
            byte.len(),
            libc::MSG_PEEK | libc::MSG_DONTWAIT,
        )
    };
    got > 0
}

/// Empties a signalfd. Afterwards, the caller learns from waitpid what happened.
pub(crate) fn drain_signals(children: BorrowedFd<'_>) {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>() * 4];
    while read(children, &mut info).is_ok_and(|got| got > 0) {}
}
