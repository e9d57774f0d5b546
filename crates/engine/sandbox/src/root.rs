//! The file system that an instance sees: a small read-only tmpfs with binds, and nothing else.
//!
//! Sources are turned into detached mounts before anything is attached, so their paths are resolved
//! in the host's tree. From then on, every step works below the descriptor of the sandbox's own new
//! tmpfs, where nobody else controls any path component.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use mote_spec::files::DATA_DIR;

use crate::own_code;
use crate::plan::{Bind, OwnCode, RootPlan};
use crate::proc_files;
use crate::step::{Failure, StepName, is_dir};
use crate::sys::{self, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY};

/// Options of the root's own tmpfs, which holds only mount points and a few generated files.
const ROOT_OPTIONS: &[(&std::ffi::CStr, &std::ffi::CStr)] =
    &[(c"size", c"1m"), (c"nr_inodes", c"2048"), (c"mode", c"0755")];
/// The bytes of quota for each file that /tmp may hold. This bounds the kernel memory that a flood
/// of empty files would use.
const TMP_BYTES_PER_INODE: u64 = 4096;
/// Devices that hold no state of the host.
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom"];
/// Links in /dev. The link for shared memory leads to /tmp, so shared memory counts against that
/// quota.
const DEV_LINKS: &[(&str, &str)] = &[
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"),
    ("dev/shm", "/tmp"),
    ("var/tmp", "/tmp"),
    ("run", "/tmp"),
];
/// Mode of generated files. Outside, their owner is root, but [`rewrite`] must be able to write
/// them without the right to ignore modes.
const FILE_MODE: libc::mode_t = 0o644;
pub(crate) const READ_ONLY: u64 = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;

/// Composes the root in this process's private mount namespace, and moves into it. `data` is the
/// mount of the function's data folder.
///
/// Returns whether the code is too large for a copy to which the instance may write.
pub(crate) fn compose(plan: &RootPlan, data: Option<&OwnedFd>) -> Result<bool, Failure> {
    let mut mounts = Vec::with_capacity(plan.binds.len());
    for bind in &plan.binds {
        mounts.push((bind, open_bind(bind)?));
    }
    let devices = open_devices()?;

    let root = sys::new_mount(c"tmpfs", ROOT_OPTIONS, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
        .step("create the root")?;
    sys::move_mount(root.as_fd(), None, c"/").step("attach the root")?;
    let root = root.as_fd();

    for (bind, mount) in &mounts {
        let what = if is_dir(mount, &bind.source)? { Shown::Folder } else { Shown::File };
        attach(root, mount, &bind.target, what)?;
    }
    if let Some(data) = data {
        attach(root, data, Path::new(DATA_DIR), Shown::Folder)?;
    }
    for (name, mount) in &devices {
        attach(root, mount, Path::new(&format!("/dev/{name}")), Shown::File)?;
    }
    attach_own(root, plan)?;
    let is_too_large = match &plan.own_code {
        Some(code) => attach_own_code(root, code)?,
        None => false,
    };
    for folder in &plan.folders {
        make_parents(root, &folder.join("inside"))?;
    }
    for (path, text) in &plan.files {
        make_parents(root, path)?;
        write_file(root, path, text)?;
    }
    // Links are made last. Until the pivot, a link leads into the host's tree, and anything placed
    // below it would be created there. In this order, a link at the path of a file or folder causes
    // an error instead.
    for (path, target) in &plan.links {
        make_parents(root, path)?;
        let target_text = sys::cstring(target.as_os_str().as_encoded_bytes());
        relative(path)
            .and_then(|link| sys::symlinkat(&target_text?, root, &link))
            .step(format_args!("link {}", path.display()))?;
    }
    for (link, target) in DEV_LINKS {
        make_parents(root, &Path::new("/").join(link))?;
        sys::cstring(*target)
            .and_then(|target| sys::symlinkat(&target, root, &sys::cstring(*link)?))
            .step(format_args!("link /{link}"))?;
    }
    sys::pivot_into(root).step("pivot into the root")?;
    // The root is made read-only only now. The writable mounts below it keep their own attributes.
    seal(root)?;
    Ok(is_too_large)
}

/// A name in /dev or /proc, and what is mounted there.
pub(crate) type Named = (&'static str, OwnedFd);

/// Opens the host's devices as separate mounts.
pub(crate) fn open_devices() -> Result<Vec<Named>, Failure> {
    let mut devices = Vec::with_capacity(DEVICES.len());
    for name in DEVICES {
        let mount = sys::cstring(format!("/dev/{name}"))
            .and_then(|source| sys::open_tree(&source))
            .step(format_args!("open /dev/{name}"))?;
        // `nodev` is not set, because these are devices. Read-only affects only their metadata.
        sys::mount_setattr(
            mount.as_fd(),
            MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC,
        )
        .step(format_args!("restrict the mount of /dev/{name}"))?;
        devices.push((*name, mount));
    }
    Ok(devices)
}

/// Attaches the mounts that only this instance has.
fn attach_own(root: BorrowedFd<'_>, plan: &RootPlan) -> Result<(), Failure> {
    let tmp = new_tmp(plan.tmp_bytes, 0, c"1777").step("create /tmp")?;
    attach(root, &tmp, Path::new("/tmp"), Shown::Folder)?;
    let mut texts = Vec::new();
    for (name, text) in plan.machine.map(proc_files::texts).unwrap_or_default() {
        let path = Path::new(proc_files::DIR).join(name);
        make_parents(root, &path)?;
        write_file(root, &path, &text)?;
        texts.push(open_text(root, &path, name)?);
    }
    attach_proc(root, &new_proc()?, &texts)
}

/// Makes a tmpfs of limited size for what an instance writes. The number of its files is limited in
/// proportion, plus `more` files of our own.
pub(crate) fn new_tmp(bytes: u64, more: u64, mode: &std::ffi::CStr) -> std::io::Result<OwnedFd> {
    let size = sys::cstring(bytes.max(4096).to_string())?;
    let inodes = (bytes / TMP_BYTES_PER_INODE).clamp(64, 65_536) + more;
    let inodes = sys::cstring(inodes.to_string())?;
    sys::new_mount(
        c"tmpfs",
        &[(c"size", &size), (c"nr_inodes", &inodes), (c"mode", mode)],
        MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV,
    )
}

/// Opens the text of a file of /proc as a separate, read-only mount.
pub(crate) fn open_text(
    root: BorrowedFd<'_>,
    path: &Path,
    name: &'static str,
) -> Result<Named, Failure> {
    let open = || {
        let mount = sys::open_tree_at(root, &relative(path)?)?;
        sys::mount_setattr(mount.as_fd(), READ_ONLY | MOUNT_ATTR_NOEXEC)?;
        Ok((name, mount))
    };
    open().step(format_args!("open the text of /proc/{name}"))
}

/// Shows a folder of /tmp, with a copy of the code in it, at the path of the code. Returns whether
/// the code was too large. In that case, the original is shown read-only.
fn attach_own_code(root: BorrowedFd<'_>, code: &OwnCode) -> Result<bool, Failure> {
    if let Some(source) = &code.source {
        match own_code::measure(source, code.tmp_bytes) {
            Err(error) if error.raw_os_error() == Some(libc::EFBIG) => {
                let target = code.target.clone();
                let bind = Bind { source: source.clone(), target, writable: false };
                attach(root, &open_bind(&bind)?, &code.target, Shown::Folder)?;
                return Ok(true);
            }
            measured => measured.step("measure the code")?,
        }
    }
    let made = || -> std::io::Result<()> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let tmp = sys::openat(Some(root), c"tmp", flags, 0)?;
        sys::mkdirat(tmp.as_fd(), own_code::PLACE, 0o755)?;
        let folder = sys::openat(Some(tmp.as_fd()), own_code::PLACE, flags, 0)?;
        if let Some(source) = &code.source {
            own_code::copy(source, folder.as_fd(), code.owner)?;
        }
        own_code::own(tmp.as_fd(), own_code::PLACE, code.owner)
    };
    made().step("copy the code")?;
    let mount = sys::open_tree_at(root, own_code::PATH).step("open the copy of the code")?;
    attach(root, &mount, &code.target, Shown::Folder)?;
    Ok(false)
}

/// A new /proc that is attached nowhere yet.
pub(crate) struct NewProc {
    pub(crate) mount: OwnedFd,
    context: OwnedFd,
}

/// Makes a /proc. An ordinary user may do this only while the host's /proc is visible.
pub(crate) fn new_proc() -> Result<NewProc, Failure> {
    let (mount, context) = sys::new_changeable_mount(
        c"proc",
        &[(c"hidepid", c"2")],
        MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC,
    )
    .step("create /proc")?;
    Ok(NewProc { mount, context })
}

/// Attaches /proc for processes, and covers, by name, the files that are generated for this
/// instance. Nothing else in /proc can be reached: once /proc is limited to processes
/// (`subset=pid`), only names on which something is mounted are found. The limit is switched on
/// last, because it also hides the names to mount on.
pub(crate) fn attach_proc(
    root: BorrowedFd<'_>,
    proc: &NewProc,
    texts: &[Named],
) -> Result<(), Failure> {
    attach(root, &proc.mount, Path::new("/proc"), Shown::Folder)?;
    for (name, text) in texts {
        cover(root, text, name).step(format_args!("cover /proc/{name}"))?;
    }
    sys::reconfigure(proc.context.as_fd(), &[(c"subset", c"pid")]).step("limit /proc to processes")
}

/// Mounts a text on a file of /proc. Does nothing if the kernel does not have that file.
fn cover(root: BorrowedFd<'_>, text: &OwnedFd, name: &str) -> std::io::Result<()> {
    match sys::move_mount(text.as_fd(), Some(root), &sys::cstring(format!("proc/{name}"))?) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Makes the root's own tmpfs read-only, but not the mounts below it.
fn seal(root: BorrowedFd<'_>) -> Result<(), Failure> {
    sys::mount_setattr_single(root, READ_ONLY).step("make the root read-only")
}

/// Opens a folder of the host as a separate, read-only mount.
pub(crate) fn open_bind(bind: &Bind) -> Result<OwnedFd, Failure> {
    let shown = bind.source.display();
    let mount = sys::cstring(bind.source.as_os_str().as_encoded_bytes())
        .and_then(|source| sys::open_tree(&source))
        .step(format_args!("open {shown}"))?;
    let attributes = if bind.writable { MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV } else { READ_ONLY };
    sys::mount_setattr(mount.as_fd(), attributes)
        .step(format_args!("restrict the mount of {shown}"))?;
    Ok(mount)
}

/// The kind of file that a mount shows.
#[derive(Clone, Copy)]
enum Shown {
    Folder,
    File,
}

fn attach(
    root: BorrowedFd<'_>,
    mount: &OwnedFd,
    target: &Path,
    what: Shown,
) -> Result<(), Failure> {
    let shown = target.display();
    make_parents(root, target)?;
    let place = relative(target).step(format_args!("name {shown}"))?;
    match what {
        Shown::Folder => {
            sys::mkdirat(root, &place, 0o755).step(format_args!("create {shown}"))?;
        }
        Shown::File => {
            sys::openat(Some(root), &place, libc::O_CREAT | libc::O_WRONLY, 0o444)
                .step(format_args!("create {shown}"))?;
        }
    }
    sys::move_mount(mount.as_fd(), Some(root), &place).step(format_args!("attach {shown}"))
}

fn make_parents(root: BorrowedFd<'_>, path: &Path) -> Result<(), Failure> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    let mut done = std::path::PathBuf::from("/");
    for part in parent.components().skip(1) {
        done.push(part);
        relative(&done)
            .and_then(|place| sys::mkdirat(root, &place, 0o755))
            .step(format_args!("create {}", done.display()))?;
    }
    Ok(())
}

pub(crate) fn write_file(root: BorrowedFd<'_>, path: &Path, text: &str) -> Result<(), Failure> {
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
    relative(path)
        .and_then(|place| sys::openat(Some(root), &place, flags, FILE_MODE))
        .and_then(|file| write_all(&file, text))
        .step(format_args!("write {}", path.display()))
}

/// Replaces the text of a generated file in the root of this process. The root stays read-only,
/// because the file is written through a mount that no other process has.
pub(crate) fn rewrite(path: &Path, text: &str) -> Result<(), Failure> {
    let write = || {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
        };
        let mount = sys::open_tree(&sys::cstring(folder.as_os_str().as_encoded_bytes())?)?;
        sys::make_writable(mount.as_fd())?;
        let name = sys::cstring(name.as_encoded_bytes())?;
        let flags = libc::O_WRONLY | libc::O_TRUNC | libc::O_NOFOLLOW;
        write_all(&sys::openat(Some(mount.as_fd()), &name, flags, 0)?, text)
    };
    write().step(format_args!("write {}", path.display()))
}

fn write_all(file: &OwnedFd, text: &str) -> std::io::Result<()> {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let put = sys::write(file.as_fd(), rest)?;
        rest = &rest[put..];
    }
    Ok(())
}

/// `path` without its leading slash.
pub(crate) fn relative(path: &Path) -> std::io::Result<std::ffi::CString> {
    let inside = path.strip_prefix("/").unwrap_or(path);
    sys::cstring(inside.as_os_str().as_encoded_bytes())
}
