//! The part of a data folder that happens in the sandbox's child: its mount gets the ids of the
//! instance.

use std::os::fd::{AsFd as _, BorrowedFd};

use crate::config::INSIDE_IDS;
use crate::data_folders::ATTRIBUTES;
use crate::image_root;
use crate::step::{Failure, StepName};
use crate::sys;

/// Restricts a mount that the daemon has sent, and shows the files of the folder as those of an
/// instance with the ids `host_ids`. Called by the child.
pub(crate) fn map(mount: BorrowedFd<'_>, host_ids: (u32, u32)) -> Result<(), Failure> {
    let mapping = image_root::id_mapping(INSIDE_IDS, host_ids)?;
    sys::map_mount(mount, ATTRIBUTES, mapping.as_fd()).step("map the ids of the data folder")
}
