//! A prewarmed instance becomes an instance of one function: a short-lived child of the zygote
//! mounts the function's folders into its root.
//!
//! The instance itself has dropped every privilege and is under a filter that refuses mounts; no
//! program of a function has run in it yet. Its mount namespace belongs to the host's user
//! namespace, so a child of the zygote may enter it. Only two folders change and, where the
//! function's memory limit differs from that of the prewarmed instance, the file that shows the
//! limit.

use std::os::fd::{AsFd, OwnedFd};

use crate::message;
use crate::plan::{Answer, Assignment};
use crate::root;
use crate::step::{Failure, StepName, die_with_parent};
use crate::sys;

/// Carries out the order, reports the result, and ends. Never returns.
pub(crate) fn run(assignment: &[u8], status: OwnedFd, mounts: OwnedFd) -> ! {
    let answer = match assign(assignment, mounts) {
        Ok(()) => Answer::Assigned,
        Err(failure) => Answer::Failed {
            step: failure.step,
            errno: failure.source.raw_os_error().unwrap_or(libc::EINVAL),
        },
    };
    // If the daemon has ended, nobody needs the answer.
    let _ = message::send(status.as_fd(), &answer.encode(), &[], 0);
    sys::exit_now(0)
}

fn assign(assignment: &[u8], mounts: OwnedFd) -> Result<(), Failure> {
    die_with_parent()?;
    let assignment: Assignment = serde_json::from_slice(assignment)
        .map_err(std::io::Error::from)
        .step("read the assignment")?;
    // Sources are opened in the host's tree, before the change of namespace.
    let mut opened = Vec::with_capacity(assignment.binds.len());
    for bind in &assignment.binds {
        opened.push((bind, root::open_bind(bind)?));
    }
    sys::enter_mounts(mounts.as_fd()).step("enter the mount namespace")?;
    for (bind, mount) in &opened {
        let shown = bind.target.display();
        let target = sys::cstring(bind.target.as_os_str().as_encoded_bytes())
            .step(format_args!("name {shown}"))?;
        sys::move_mount(mount.as_fd(), None, &target).step(format_args!("attach {shown}"))?;
    }
    if let Some((path, text)) = &assignment.file {
        root::rewrite(path, text)?;
    }
    Ok(())
}
