//! A waiting instance becomes a function's: a short-lived child of the zygote mounts the function's
//! folders into its root.
//!
//! The instance itself has dropped every privilege and is under a filter that refuses mounts; no
//! program of a function has run in it yet. Its mount namespace belongs to the host's user
//! namespace, so a child of the zygote may enter it. Nothing changes but two folders and, where the
//! function's memory is not that of the waiting instance, the file that tells it.

use std::os::fd::{AsFd, OwnedFd};

use crate::message;
use crate::plan::{Adoption, Answer};
use crate::root;
use crate::step::{Failure, Step, die_with_parent};
use crate::sys;

/// Carries out the order, tells what became of it, and ends. Never returns.
pub(crate) fn run(adoption: &[u8], status: OwnedFd, mounts: OwnedFd) -> ! {
    let answer = match adopt(adoption, mounts) {
        Ok(()) => Answer::Adopted,
        Err(failure) => Answer::Failed {
            step: failure.step,
            errno: failure.source.raw_os_error().unwrap_or(libc::EINVAL),
        },
    };
    // A daemon that is gone needs no answer.
    let _ = message::send(status.as_fd(), &answer.encode(), &[], 0);
    sys::exit_now(0)
}

fn adopt(adoption: &[u8], mounts: OwnedFd) -> Result<(), Failure> {
    die_with_parent()?;
    let adoption: Adoption =
        serde_json::from_slice(adoption).map_err(std::io::Error::from).step("read the adoption")?;
    // Sources are opened in the host's tree, before the change of namespace.
    let mut opened = Vec::with_capacity(adoption.binds.len());
    for bind in &adoption.binds {
        opened.push((bind, root::open_bind(bind)?));
    }
    sys::enter_mounts(mounts.as_fd()).step("enter the mount namespace")?;
    for (bind, mount) in &opened {
        let shown = bind.target.display();
        let target = sys::cstring(bind.target.as_os_str().as_encoded_bytes())
            .step(format_args!("name {shown}"))?;
        sys::move_mount(mount.as_fd(), None, &target).step(format_args!("attach {shown}"))?;
    }
    if let Some((path, text)) = &adoption.file {
        root::rewrite(path, text)?;
    }
    Ok(())
}
