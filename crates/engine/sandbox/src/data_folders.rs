//! The folders to which functions write and that outlive their instances.
//!
//! Each is a file system in a file of the node (`ext4`), so its size limits the bytes and the
//! number of files of all instances together, and the kernel counts both. It is mounted through a
//! loop device when the function's first instance starts, and until its last instance has ended.
//! The mount has no path: it belongs to a descriptor of this process, from which each instance gets
//! a mount of its own. So no other process of the host sees it, and it vanishes with the node and
//! its instances, however they end.
//!
//! On the disk, all files belong to [`INSIDE_IDS`](crate::config::INSIDE_IDS). An instance sees
//! them as its own, through the mapping of its mount. Programs cannot be executed from the folder.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::loop_device::{self, LoopDevice};
use crate::sys::{self, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID};
use crate::{ext4, user_namespaces};

/// `MOUNT_ATTR_NOATIME`: reading a file must not write to the disk.
const MOUNT_ATTR_NOATIME: u64 = 0x10;
pub(crate) const ATTRIBUTES: u64 = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
/// The suffix of a file in which a file system is being made.
const UNFINISHED: &str = ".new";

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// This machine, or this user, cannot have such folders.
    #[error("{why}")]
    Unsupported {
        /// The reason.
        why: String,
        /// What helps.
        hint: String,
    },
    /// A step failed.
    #[error("{step} for the data folder {}", image.display())]
    Failed {
        /// The step.
        step: &'static str,
        /// The file that contains the folder.
        image: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl DataError {
    /// Whether the disk of the node is full.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Failed { source, .. } if source.kind() == io::ErrorKind::StorageFull)
    }
}

/// The folders that are mounted. Each function blocks, because it waits for disks and programs.
#[derive(Debug, Default)]
pub struct DataFolders {
    open: Mutex<HashMap<PathBuf, Entry>>,
}

type Entry = Arc<Mutex<Weak<DataFolder>>>;

/// A mounted folder. When this and all instances that use the folder are gone, the kernel writes
/// what it has not written yet, and releases the device. That takes time, so within a runtime it
/// happens on another thread.
#[derive(Debug)]
pub struct DataFolder {
    /// `None` only while this is dropped.
    mounted: Option<Mounted>,
}

#[derive(Debug)]
struct Mounted {
    // Dropped before the device, which would otherwise stay for as long as the mount is in use.
    mount: OwnedFd,
    device: LoopDevice,
}

impl DataFolders {
    /// Mounts the folder in the file `image`. If it is smaller than `bytes`, it is enlarged now if
    /// the kernel permits that, otherwise the next time that it is mounted. If the file is missing,
    /// an empty folder is made and the log says so: the file may be missing in a backup.
    pub fn open(&self, image: &Path, bytes: u64) -> Result<Arc<DataFolder>, DataError> {
        self.mount(image, bytes, true)
    }

    /// Like [`DataFolders::open`], for a folder that may be new.
    pub fn open_or_make(&self, image: &Path, bytes: u64) -> Result<Arc<DataFolder>, DataError> {
        self.mount(image, bytes, false)
    }

    fn mount(
        &self,
        image: &Path,
        bytes: u64,
        must_exist: bool,
    ) -> Result<Arc<DataFolder>, DataError> {
        let bytes = ext4::rounded(bytes);
        let entry = self.entry(image);
        let mut entry = lock(&entry);
        let failed = |step| move |source| failed(step, image, source);
        if let Some(open) = entry.upgrade() {
            open.enlarge(image, bytes)?;
            return Ok(open);
        }
        support()?;
        if !image.exists() {
            make(image, bytes).map_err(failed("make a file system"))?;
            if must_exist {
                let image = image.display();
                tracing::warn!("the data folder {image} was missing: a new, empty one was made");
            }
        }
        let file = open_file(image).map_err(failed("open the file"))?;
        let bound = loop_device::bound_to(&file).map_err(failed("look for its loop device"))?;
        let in_use = bound.is_some();
        let device = match bound {
            Some(device) => device,
            None => {
                mend(image, &file, bytes)?;
                loop_device::attach(&file).map_err(failed("attach a loop device"))?
            }
        };
        let mount = mount(&device).map_err(failed("mount the file system"))?;
        let folder = Arc::new(DataFolder { mounted: Some(Mounted { mount, device }) });
        // mke2fs and e2fsck make this folder for lost files. The function could neither read nor
        // remove it. A folder that contains something stays.
        let _ = sys::remove_folder_at(folder.root(), c"lost+found");
        if in_use {
            folder.enlarge(image, bytes)?;
        }
        *entry = Arc::downgrade(&folder);
        Ok(folder)
    }

    /// The size of the folder in `image`; `None` if there is no such folder.
    pub fn bytes(&self, image: &Path) -> Result<Option<u64>, DataError> {
        let facts = match File::open(image) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.and_then(|file| ext4::facts(&file)),
        };
        let facts = facts.map_err(|source| failed("read its size", image, source))?;
        Ok(facts.map(|facts| facts.bytes))
    }

    /// Removes the file with the folder. Instances that still use it keep it until they end.
    /// Returns whether there was one.
    pub fn remove(&self, image: &Path) -> Result<bool, DataError> {
        let entry = self.entry(image);
        let mut entry = lock(&entry);
        *entry = Weak::new();
        match std::fs::remove_file(image) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            removed => {
                removed.map_err(|source| failed("remove the file", image, source))?;
                Ok(true)
            }
        }
    }

    /// The entry of a folder, whose lock keeps others from mounting the same file.
    fn entry(&self, image: &Path) -> Entry {
        let mut open = lock(&self.open);
        let is_used = |entry: &Entry| {
            let is_open = || entry.try_lock().is_ok_and(|folder| folder.strong_count() > 0);
            Arc::strong_count(entry) > 1 || is_open()
        };
        open.retain(|_, entry| is_used(entry));
        open.entry(image.to_owned()).or_default().clone()
    }
}

impl DataFolder {
    /// The folder itself. Files below it may be anything that a function can make, so every name
    /// must be resolved below it and without links.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.mounted().mount.as_fd()
    }

    fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().expect("it is taken only when this is dropped")
    }

    /// Another mount of the same file system, for one instance.
    pub(crate) fn for_instance(&self) -> io::Result<OwnedFd> {
        mount(&self.mounted().device)
    }

    /// Enlarges the folder to `bytes`. If the kernel does not permit that now, it happens when the
    /// folder is mounted again.
    fn enlarge(&self, image: &Path, bytes: u64) -> Result<(), DataError> {
        let enlarge = || -> io::Result<()> {
            let file = open_file(image)?;
            if ext4::facts(&file)?.is_some_and(|facts| facts.bytes >= bytes) {
                return Ok(());
            }
            ext4::lengthen(&file, bytes)?;
            self.mounted().device.follow_size()?;
            match ext4::enlarge_mounted(self.root(), bytes) {
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
                enlarged => enlarged,
            }
        };
        enlarge().map_err(|source| failed("enlarge the file system", image, source))
    }
}

impl Drop for DataFolder {
    fn drop(&mut self) {
        let mounted = self.mounted.take();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn_blocking(move || drop(mounted)));
        }
    }
}

/// The size of the folder that is made for `bytes`.
pub fn file_system_bytes(bytes: u64) -> u64 {
    ext4::rounded(bytes)
}

/// Whether this machine can have data folders, and if not, why and what helps. Reads a few small
/// files.
pub fn support() -> Result<(), DataError> {
    let refused = |why: &str, hint: &str| {
        Err(DataError::Unsupported { why: why.to_owned(), hint: hint.to_owned() })
    };
    if !sys::is_root() {
        let why = "an ordinary user cannot mount a file system, without which nothing limits the \
                   size of a folder";
        return refused(why, "run the node as root or as a system service");
    }
    if user_namespaces::switches().is_err() {
        return refused("there are no user namespaces", "allow user namespaces (see mote doctor)");
    }
    if !Path::new("/dev/loop-control").exists() {
        let hint =
            "load the module loop; in a container, make the loop devices of the host visible";
        return refused("there are no loop devices (/dev/loop-control)", hint);
    }
    if !sys::has_file_system("ext4") {
        let hint = "load the module ext4, or use a kernel with ext4";
        return refused("ext4 is not in this kernel", hint);
    }
    if let Some(missing) = ext4::PROGRAMS.iter().find(|name| ext4::program(name).is_none()) {
        return refused(&format!("{missing} is not installed"), "install the package e2fsprogs");
    }
    Ok(())
}

/// Makes a file system under another name, so that no file ever contains half of one.
fn make(image: &Path, bytes: u64) -> io::Result<()> {
    let folder = image.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder)?;
    let mut unfinished = image.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    let unfinished = PathBuf::from(unfinished);
    let made = || -> io::Result<()> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(&unfinished)?;
        ext4::make(&unfinished, &file, bytes)?;
        std::fs::rename(&unfinished, image)?;
        File::open(folder)?.sync_all()
    };
    made().inspect_err(|_| {
        // The next attempt makes the file again.
        let _ = std::fs::remove_file(&unfinished);
    })
}

fn open_file(image: &Path) -> io::Result<File> {
    File::options().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(image)
}

/// Repairs and enlarges a file system that is not mounted.
fn mend(image: &Path, file: &File, bytes: u64) -> Result<(), DataError> {
    let facts = ext4::facts(file).map_err(|source| failed("read its size", image, source))?;
    let none = || failed("find a file system", image, io::ErrorKind::InvalidData.into());
    let facts = facts.ok_or_else(none)?;
    if facts.is_damaged {
        ext4::check(image).map_err(|source| failed("repair the file system", image, source))?;
    }
    if facts.bytes < bytes {
        ext4::enlarge(image, file, bytes)
            .map_err(|source| failed("enlarge the file system", image, source))?;
    }
    Ok(())
}

fn mount(device: &LoopDevice) -> io::Result<OwnedFd> {
    let source = sys::cstring(device.path().as_os_str().as_encoded_bytes())?;
    // Without `noinit_itable`, the kernel writes to every part of a new file system once. What
    // happens after an error is not left to the image, which could ask for the end of the machine.
    let flags = [c"noinit_itable"];
    let values = [(c"errors", c"remount-ro")];
    sys::mount_device(c"ext4", &source, &flags, &values, ATTRIBUTES | MOUNT_ATTR_NOATIME)
}

fn failed(step: &'static str, image: &Path, source: io::Error) -> DataError {
    DataError::Failed { step, image: image.to_owned(), source }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
