//! The root of an instance that runs a container image: the image's layers below a folder to which
//! the instance may write, joined by overlayfs. Nothing is copied.
//!
//! The layers belong to the daemon's user. On the host, the instance is an ordinary user that may
//! not even read some of these files. So each layer is mounted with an id mapping that shows its
//! files as the instance's own. A file that the instance changes is copied to the instance's tmpfs
//! first, so the layers never change and `[limits] disk` bounds what is written. An ordinary user's
//! daemon has the same id as its instances and needs no mapping.
//!
//! The overlay becomes the root before anything is attached to it. The image's links then cannot
//! lead out of the root, wherever they point.

use std::ffi::CStr;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use mote_spec::files::DATA_DIR;

use crate::identity;
use crate::plan::{ImagePlan, Plan, RootPlan};
use crate::proc_files;
use crate::root::{self, Named, READ_ONLY};
use crate::step::{Failure, StepName, is_dir};
use crate::sys::{self, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY};

/// The folders of the staging tmpfs: what the instance writes, overlayfs's own folder, the joined
/// root, and the texts for /proc.
const UPPER: &CStr = c"upper";
const WORK: &CStr = c"work";
const JOINED: &CStr = c"root";
const TEXTS: &CStr = c"proc";
/// The tmpfs of /dev holds only mount points and links.
const DEV_OPTIONS: &[(&CStr, &CStr)] =
    &[(c"size", c"64k"), (c"nr_inodes", c"64"), (c"mode", c"0755")];
/// Links in /dev: name and target. The link for shared memory leads to /tmp, so shared memory
/// counts against the instance's quota.
const DEV_LINKS: &[(&CStr, &CStr)] = &[
    (c"fd", c"/proc/self/fd"),
    (c"stdin", c"/proc/self/fd/0"),
    (c"stdout", c"/proc/self/fd/1"),
    (c"stderr", c"/proc/self/fd/2"),
    (c"shm", c"/tmp"),
];
/// The maximum number of bytes that are read from an image's /etc/passwd or /etc/group.
const ACCOUNTS_BYTES_MAX: u64 = 1 << 20;
/// Overlayfs must not follow file attributes that lead it elsewhere. Layers have no such
/// attributes, because unpacking an image leaves them out.
const OVERLAY_OPTIONS: &str = "index=off,metacopy=off,redirect_dir=nofollow";

/// The user of an image, as its own files describe it.
pub(crate) struct User {
    /// User and group id inside.
    pub(crate) ids: (u32, u32),
    pub(crate) home: String,
}

/// The facts about a composed root that a child needs.
pub(crate) struct Composed {
    pub(crate) user: User,
    /// The root's /proc as a mount to which files can be written. The mount inside the root cannot
    /// be written to.
    pub(crate) proc: OwnedFd,
}

/// Composes the root in this process's private mount namespace, and moves into it.
///
/// `data` is the mount of the function's data folder.
pub(crate) fn compose(
    plan: &Plan,
    image: &ImagePlan,
    data: Option<&OwnedFd>,
) -> Result<Composed, Failure> {
    // If the daemon runs as an ordinary user, that user is already the owner.
    let owner = (!plan.rootless).then_some(plan.host_ids);
    let root_plan = &plan.root;
    let mut binds = Vec::with_capacity(root_plan.binds.len());
    for bind in &root_plan.binds {
        let mount = root::open_bind(bind)?;
        let folder = is_dir(&mount, &bind.source)?;
        binds.push((bind, mount, folder));
    }
    let devices = root::open_devices()?;
    let proc = root::new_proc()?;
    let staging = stage(root_plan, image, owner)?;
    let texts = proc_texts(root_plan, staging.as_fd())?;
    let joined = join(plan, image, staging)?;
    sys::move_mount(joined.as_fd(), None, c"/").step("attach the root")?;
    let joined = joined.as_fd();
    sys::pivot_into(joined).step("pivot into the root")?;

    // From here on, every path resolves within the image.
    let place = Place { root: joined, owner };
    for (bind, mount, is_folder) in &binds {
        place.attach(mount, &bind.target, *is_folder)?;
    }
    if let Some(data) = data {
        place.attach(data, Path::new(DATA_DIR), true)?;
    }
    attach_dev(&place, &devices)?;
    place.folder(Path::new("/proc"), 0o555)?;
    root::attach_proc(place.root, &proc, &texts)?;
    let writable_proc =
        sys::open_tree_at(place.root, c"proc").step("open /proc of the image for writing")?;
    // Landlock allows writing to the whole root of an image, so the mount forbids it here.
    sys::mount_setattr_single(proc.mount.as_fd(), READ_ONLY | MOUNT_ATTR_NOEXEC)
        .step("make /proc read-only")?;
    place.folder(Path::new("/tmp"), 0o1777)?;
    place.folder(&plan.work_dir, 0o755)?;
    for folder in &root_plan.folders {
        place.folder(folder, 0o755)?;
    }
    for (path, text) in &root_plan.files {
        place.file(path, text)?;
    }
    for (path, target) in &root_plan.links {
        place.link(path, target)?;
    }
    let user = find_user(&image.user).step(format_args!(
        "find the user {} in /etc/passwd and /etc/group of the image",
        image.user
    ))?;
    Ok(Composed { user, proc: writable_proc })
}

/// Makes the tmpfs for what the instance writes and attaches the layers to it, numbered from the
/// bottom. It is attached over this process's root only for the time being.
fn stage(
    plan: &RootPlan,
    image: &ImagePlan,
    owner: Option<(u32, u32)>,
) -> Result<OwnedFd, Failure> {
    let mapping = match (image.layers_belong_to, owner) {
        (Some(belong_to), Some(owner)) => Some(id_mapping(belong_to, owner)?),
        _ => None,
    };
    let mut layers = Vec::with_capacity(image.layers.len());
    for layer in &image.layers {
        let shown = layer.display();
        let mount = sys::cstring(layer.as_os_str().as_encoded_bytes())
            .and_then(|path| sys::open_tree(&path))
            .step(format_args!("open the layer {shown}"))?;
        match &mapping {
            Some(mapping) => sys::map_mount(mount.as_fd(), READ_ONLY, mapping.as_fd())
                .step(format_args!("map the ids of the layer {shown}")),
            None => sys::mount_setattr(mount.as_fd(), READ_ONLY)
                .step(format_args!("make the layer {shown} read-only")),
        }?;
        layers.push(mount);
    }
    let own = layers.len() as u64 + 32;
    let staging = root::new_tmp(plan.tmp_bytes, own, c"0755")
        .step("create the folder for what the instance writes")?;
    sys::move_mount(staging.as_fd(), None, c"/").step("attach the staging folder")?;
    let at = staging.as_fd();
    for (number, layer) in layers.iter().enumerate() {
        let name = sys::cstring(number.to_string()).step("name a layer")?;
        sys::mkdirat(at, &name, 0o755)
            .and_then(|()| sys::move_mount(layer.as_fd(), Some(at), &name))
            .step(format_args!("attach layer {number}"))?;
    }
    for folder in [UPPER, WORK, JOINED, TEXTS] {
        sys::mkdirat(at, folder, 0o755).step("create the staging folders")?;
    }
    // The root of the joined tree has the owner of this folder.
    if let Some(owner) = owner {
        sys::chownat(at, UPPER, owner).step("own the root")?;
    }
    Ok(staging)
}

/// Joins the layers and the writable folder, and removes the staging folder from sight. Returns the
/// joined tree as a detached mount.
fn join(plan: &Plan, image: &ImagePlan, staging: OwnedFd) -> Result<OwnedFd, Failure> {
    let mut options = String::from("lowerdir=");
    for number in (0..image.layers.len()).rev() {
        options.push_str(&number.to_string());
        options.push(if number == 0 { ',' } else { ':' });
    }
    options.push_str("upperdir=upper,workdir=work,");
    options.push_str(OVERLAY_OPTIONS);
    if plan.rootless {
        // Without privileges, overlayfs keeps its marks in attributes that ordinary users may set.
        options.push_str(",userxattr");
    }
    let join = || -> io::Result<OwnedFd> {
        sys::enter_folder(staging.as_fd())?;
        // The older call is used because it has room for the names of all layers on every kernel.
        sys::mount(c"overlay", JOINED, &sys::cstring(options)?, libc::MS_NOSUID | libc::MS_NODEV)?;
        let joined = sys::open_tree_at(staging.as_fd(), JOINED)?;
        sys::detach(c".")?;
        Ok(joined)
    };
    join().step("join the layers of the image with overlayfs")
}

/// A user namespace that shows files of `from` as files of `to`. The kernel can only take the
/// namespace from a process that is in it, so a child makes the namespace, and ends.
pub(crate) fn id_mapping(from: (u32, u32), to: (u32, u32)) -> Result<OwnedFd, Failure> {
    let make = || -> io::Result<OwnedFd> {
        // The child puts the namespace at this descriptor's number, because it shares the table of
        // descriptors.
        let place = sys::openat(None, c"/dev/null", libc::O_RDONLY, 0)?;
        let number = place.as_raw_fd();
        // SAFETY: this process has one thread.
        match unsafe { sys::fork_into(libc::CLONE_FILES as u64) }? {
            None => {
                let made = identity::change_user(to).and_then(|()| {
                    sys::unshare(libc::CLONE_NEWUSER)?;
                    identity::map_self(from, to, None)?;
                    let namespace = sys::openat(None, c"/proc/self/ns/user", libc::O_RDONLY, 0)?;
                    sys::place_at(namespace.as_fd(), number)
                });
                let status = made.err().map_or(0, |error| error.raw_os_error().unwrap_or(255));
                sys::exit_now(status);
            }
            Some((pid, _pidfd)) => match sys::wait_for(pid) {
                // SAFETY: the number now belongs to the namespace, which this process owns.
                0 => Ok(unsafe { OwnedFd::from_raw_fd(place.into_raw_fd()) }),
                errno => Err(io::Error::from_raw_os_error(errno)),
            },
        }
    };
    make().step("make a mapping of ids")
}

/// Attaches /dev: devices that hold no state of the host, and a few links.
fn attach_dev(place: &Place<'_>, devices: &[Named]) -> Result<(), Failure> {
    // Devices on this tmpfs must work. It becomes read-only, and no process of a sandbox may make a
    // device.
    let dev = sys::new_mount(c"tmpfs", DEV_OPTIONS, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC)
        .step("create /dev")?;
    place.attach(&dev, Path::new("/dev"), true)?;
    for (name, mount) in devices {
        let file = sys::cstring(*name).step(format_args!("name /dev/{name}"))?;
        if !made_unwritable(dev.as_fd(), &file, name) {
            sys::openat(Some(dev.as_fd()), &file, libc::O_CREAT | libc::O_WRONLY, 0o444)
                .and_then(|_| sys::move_mount(mount.as_fd(), Some(dev.as_fd()), &file))
                .step(format_args!("attach /dev/{name}"))?;
        }
    }
    for (name, target) in DEV_LINKS {
        sys::symlinkat(target, dev.as_fd(), name).step("create the links in /dev")?;
    }
    sys::mount_setattr_single(
        dev.as_fd(),
        MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC,
    )
    .step("make /dev read-only")
}

/// If the device is one of random numbers, makes a new device node. A function may not add to the
/// pool of random numbers, which the host uses too. For other functions, Landlock forbids writing
/// to these devices, but in an image it allows writing to the whole root. Here the mode of the file
/// forbids it.
fn made_unwritable(dev: BorrowedFd<'_>, file: &CStr, name: &str) -> bool {
    let minor = match name {
        "random" => 8,
        "urandom" => 9,
        _ => return false,
    };
    sys::mknodat(dev, file, libc::S_IFCHR | 0o444, libc::makedev(1, minor)).is_ok()
}

/// Writes the texts for /proc to the staging folder, and returns each as a detached mount.
fn proc_texts(plan: &RootPlan, staging: BorrowedFd<'_>) -> Result<Vec<Named>, Failure> {
    let mut mounts = Vec::new();
    for (name, text) in plan.machine.map(proc_files::texts).unwrap_or_default() {
        let path = Path::new("/proc").join(name);
        root::write_file(staging, &path, &text)?;
        mounts.push(root::open_text(staging, &path, name)?);
    }
    Ok(mounts)
}

/// The root of the image after the pivot, and the host user that owns new files; `None` for the
/// user of this process.
struct Place<'a> {
    root: BorrowedFd<'a>,
    owner: Option<(u32, u32)>,
}

impl Place<'_> {
    /// Creates a folder and its parents, unless they exist.
    fn folder(&self, path: &Path, mode: libc::mode_t) -> Result<(), Failure> {
        let mut done = PathBuf::from("/");
        for part in path.components().skip(1) {
            done.push(part);
            let make = || {
                let place = root::relative(&done)?;
                if sys::new_folder_at(self.root, &place, 0o755)? {
                    let mode = if done == path { mode } else { 0o755 };
                    sys::chmodat(self.root, &place, mode)?;
                    self.own(&place)?;
                }
                Ok(())
            };
            make().step(format_args!("create {} in the image", done.display()))?;
        }
        Ok(())
    }

    fn attach(&self, mount: &OwnedFd, target: &Path, is_folder: bool) -> Result<(), Failure> {
        let at = if is_folder { target } else { target.parent().unwrap_or(target) };
        self.folder(at, 0o755)?;
        let attach = || {
            let place = root::relative(target)?;
            if !is_folder {
                sys::openat(Some(self.root), &place, libc::O_CREAT | libc::O_WRONLY, 0o444)?;
            }
            sys::move_mount(mount.as_fd(), Some(self.root), &place)
        };
        attach().step(format_args!("attach {} to the image", target.display()))
    }

    /// Writes a file. A file or link of the image at this path is replaced.
    fn file(&self, path: &Path, text: &str) -> Result<(), Failure> {
        self.folder(path.parent().unwrap_or(path), 0o755)?;
        let shown = path.display();
        let place = root::relative(path).step(format_args!("name {shown}"))?;
        match sys::unlinkat(self.root, &place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).step(format_args!("replace {shown} of the image"));
            }
            _ => {}
        }
        root::write_file(self.root, path, text)?;
        self.own(&place).step(format_args!("own {shown}"))
    }

    fn own(&self, place: &CStr) -> io::Result<()> {
        self.owner.map_or(Ok(()), |owner| sys::chownat(self.root, place, owner))
    }

    /// Makes a link, unless the image already has something at this path.
    fn link(&self, path: &Path, target: &Path) -> Result<(), Failure> {
        self.folder(path.parent().unwrap_or(path), 0o755)?;
        let make = || {
            let target = sys::cstring(target.as_os_str().as_encoded_bytes())?;
            match sys::symlinkat(&target, self.root, &root::relative(path)?) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                result => result,
            }
        };
        make().step(format_args!("link {} in the image", path.display()))
    }
}

/// Looks up `USER` or `USER:GROUP` of an image, each a name or a number. An empty text means root.
fn find_user(user: &str) -> io::Result<User> {
    let read = |path: &str| accounts(path).unwrap_or_default();
    user_in(user, &read("/etc/passwd"), &read("/etc/group"))
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
}

fn user_in(user: &str, passwd: &str, group: &str) -> Option<User> {
    let (user, asked_group) = match user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (user, None),
    };
    let user = if user.is_empty() { "0" } else { user };
    let number = |text: &str| text.parse::<u32>().ok().filter(|id| *id != u32::MAX);
    // A line is NAME:PASSWORD:UID:GID:COMMENT:HOME:SHELL.
    let wanted = number(user);
    let entry = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|entry| {
        let id = entry.get(2).and_then(|id| number(id));
        entry.len() >= 6 && (entry[0] == user || wanted.is_some() && id == wanted)
    });
    let uid = wanted.or_else(|| number(entry.as_ref()?[2]))?;
    let gid = match asked_group.filter(|name| !name.is_empty()) {
        Some(name) => number(name).or_else(|| {
            let mut lines = group.lines().map(|line| line.split(':').collect::<Vec<_>>());
            number(lines.find(|entry| entry.len() >= 3 && entry[0] == name)?[2])
        })?,
        None => entry.as_ref().and_then(|entry| number(entry[3])).unwrap_or(0),
    };
    let home = entry.map(|entry| entry[5].to_owned()).filter(|home| home.starts_with('/'));
    Some(User { ids: (uid, gid), home: home.unwrap_or_else(|| "/".to_owned()) })
}

/// Reads a file of accounts. Does not block if the path is not a plain file.
fn accounts(path: &str) -> io::Result<String> {
    let flags = libc::O_RDONLY | libc::O_NONBLOCK;
    let file = sys::openat(None, &sys::cstring(path)?, flags, 0)?;
    if sys::mode_of(file.as_fd())? & libc::S_IFMT != libc::S_IFREG {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut text = Vec::new();
    std::fs::File::from(file).take(ACCOUNTS_BYTES_MAX).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_images() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34::/var/www:/bin/sh\nodd:x\n";
        let group = "root:x:0:\nadm:x:4:web\n";
        let found = |user: &str| user_in(user, passwd, group).map(|user| (user.ids, user.home));
        for (user, ids, home) in [
            ("", (0, 0), "/root"),
            ("root", (0, 0), "/root"),
            ("web", (33, 34), "/var/www"),
            ("33", (33, 34), "/var/www"),
            ("web:adm", (33, 4), "/var/www"),
            ("web:", (33, 34), "/var/www"),
            (":adm", (0, 4), "/root"),
            ("1000", (1000, 0), "/"),
            ("1000:1000", (1000, 1000), "/"),
        ] {
            assert_eq!(found(user), Some((ids, home.to_owned())), "{user}");
        }
        for unknown in ["nobody", "odd", "web:none", "4294967295", "-1"] {
            assert_eq!(found(unknown), None, "{unknown}");
        }
        assert_eq!(
            user_in("", "", "").map(|user| (user.ids, user.home)),
            Some(((0, 0), "/".into()))
        );
    }
}
