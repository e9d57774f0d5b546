//! Turns a prewarmed instance into an instance of one function: a short-lived child of the zygote
//! mounts the function's folders into the instance's root.
//!
//! The instance itself cannot mount anything, because it has dropped every privilege and is under a
//! filter that refuses mounts. No program of a function has run in it yet. Its mount namespace
//! belongs to the host's user namespace, so a child of the zygote may enter it. Only two folders
//! change. If the function's memory limit differs from that of the prewarmed instance, the file
//! that shows the limit changes too.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::message;
use crate::own_code;
use crate::plan::{Answer, Assignment, OwnCode};
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
    // If the daemon has ended, no process needs the answer.
    let _ = message::send(status.as_fd(), &answer.encode(), &[], 0);
    sys::exit_now(0)
}

fn assign(assignment: &[u8], mounts: OwnedFd) -> Result<(), Failure> {
    die_with_parent()?;
    let assignment: Assignment = serde_json::from_slice(assignment)
        .map_err(std::io::Error::from)
        .step("read the assignment")?;
    // Sources are opened in the host's tree, before this process changes its mount namespace.
    let mut opened = Vec::with_capacity(assignment.binds.len());
    for bind in &assignment.binds {
        opened.push((bind, root::open_bind(bind)?));
    }
    if let Some(code) = &assignment.own_code {
        fill(code, mounts.as_fd())?;
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

/// Copies the code into the instance's folder for it. If the code is too large, the assignment
/// fails, and the function starts without a prewarmed instance.
fn fill(code: &OwnCode, mounts: BorrowedFd<'_>) -> Result<(), Failure> {
    let Some(source) = &code.source else { return Ok(()) };
    let shown = code.target.display();
    own_code::measure(source, code.tmp_bytes).step("measure the code")?;
    let own = sys::openat(None, c"/proc/self/ns/mnt", libc::O_RDONLY, 0)
        .step("open its own mount namespace")?;
    sys::enter_mounts(mounts).step("enter the mount namespace")?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let folder = sys::cstring(code.target.as_os_str().as_encoded_bytes())
        .and_then(|target| sys::openat(None, &target, flags, 0))
        .step(format_args!("open {shown}"))?;
    sys::enter_mounts(own.as_fd()).step("leave the mount namespace")?;
    own_code::copy(source, folder.as_fd(), code.owner)
        .step(format_args!("copy the code to {shown}"))
}
