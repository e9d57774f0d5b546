//! Loop devices: block devices whose content is a file.
//!
//! The kernel releases a device by itself when nothing uses it any more (`AUTOCLEAR`), so a node
//! that is killed leaves none behind.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::sys;

const CONTROL: &str = "/dev/loop-control";
/// Another program may take the device that the kernel has named as free.
const ATTEMPTS_MAX: u32 = 16;
/// The size of the sectors: that of the blocks of the file system.
const SECTOR_BYTES: u32 = 4096;

// Numbers of linux/loop.h.
const SET_CAPACITY: u32 = 0x4C07;
const GET_STATUS64: u32 = 0x4C05;
const CONFIGURE: u32 = 0x4C0A;
const CONTROL_GET_FREE: u32 = 0x4C82;
const FLAG_AUTOCLEAR: u32 = 4;
const FLAG_DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
struct Status {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct Configuration {
    file: u32,
    block_size: u32,
    status: Status,
    reserved: [u64; 8],
}

/// A device that shows a file. The device exists at least as long as this.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    path: PathBuf,
    /// Open for reading only: newer kernels do not mount a device that is open for writing.
    device: File,
}

impl LoopDevice {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Notices that the file has grown.
    pub(crate) fn follow_size(&self) -> io::Result<()> {
        control(&self.device, SET_CAPACITY, 0).map(drop)
    }
}

/// Shows `file` as a block device. If a device shows it already, that one is used: two file systems
/// on one file would destroy each other. This happens while the last instance of a node that was
/// killed is still ending.
pub(crate) fn attach(file: &File) -> io::Result<LoopDevice> {
    for _ in 0..ATTEMPTS_MAX {
        if let Some(found) = bound_to(file)? {
            return Ok(found);
        }
        let options = || File::options().read(true).write(true).clone();
        let number = control(&options().open(CONTROL)?, CONTROL_GET_FREE, 0)?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = options().open(&path)?;
        match configure(&device, file, FLAG_AUTOCLEAR | FLAG_DIRECT_IO) {
            // The file system below cannot write past the page cache.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                match configure(&device, file, FLAG_AUTOCLEAR) {
                    Err(error) if is_taken(&error) => continue,
                    configured => configured?,
                }
            }
            Err(error) if is_taken(&error) => continue,
            configured => configured?,
        }
        return Ok(LoopDevice { device: File::open(&path)?, path });
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

fn is_taken(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

/// The device that shows `file`, if there is one.
pub(crate) fn bound_to(file: &File) -> io::Result<Option<LoopDevice>> {
    let wanted = file.metadata()?;
    for entry in Path::new("/sys/block").read_dir()?.flatten() {
        let name = entry.file_name();
        if !name.as_encoded_bytes().starts_with(b"loop") || !entry.path().join("loop").exists() {
            continue;
        }
        let path = Path::new("/dev").join(name);
        let Ok(device) = File::open(&path) else { continue };
        // A released device has no status. As long as `device` is open, the kernel does not release
        // it.
        let Ok(status) = status(&device) else { continue };
        if (status.device, status.inode) == (wanted.dev(), wanted.ino()) {
            return Ok(Some(LoopDevice { path, device }));
        }
    }
    Ok(None)
}

fn configure(device: &File, file: &File, flags: u32) -> io::Result<()> {
    // SAFETY: all-zero numbers are valid.
    let mut configuration: Configuration = unsafe { std::mem::zeroed() };
    configuration.file = u32::try_from(file.as_raw_fd()).unwrap_or(u32::MAX);
    configuration.block_size = SECTOR_BYTES;
    configuration.status.flags = flags;
    control(device, CONFIGURE, (&raw const configuration).addr()).map(drop)
}

fn status(device: &File) -> io::Result<Status> {
    // SAFETY: all-zero numbers are valid.
    let mut status: Status = unsafe { std::mem::zeroed() };
    control(device, GET_STATUS64, (&raw mut status).expose_provenance())?;
    Ok(status)
}

/// Calls `ioctl`. `argument` is 0, or the address of a struct that the request reads or writes.
fn control(device: &File, request: u32, argument: usize) -> io::Result<libc::c_long> {
    // SAFETY: the callers pass the address of a living struct with the layout of the request.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), request as _, argument) };
    sys::check(libc::c_long::from(result))
}
