//! Shared parts of the steps that compose a sandbox: their errors, and the final numbers of
//! descriptors.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use crate::message;
use crate::plan::Answer;
use crate::sys;

/// After set-up, pid 1 has the standard descriptors, then this one and [`STATUS_FD`], and no
/// others.
pub(crate) const CHANNEL_FD: RawFd = 3;
/// See [`CHANNEL_FD`].
pub(crate) const STATUS_FD: RawFd = 4;

pub(crate) struct Failure {
    pub(crate) step: String,
    pub(crate) source: io::Error,
}

/// Adds the name of the step to an error.
pub(crate) trait StepName<T> {
    fn step(self, step: impl Display) -> Result<T, Failure>;
}

impl<T> StepName<T> for io::Result<T> {
    fn step(self, step: impl Display) -> Result<T, Failure> {
        self.map_err(|source| Failure { step: step.to_string(), source })
    }
}

/// Makes this process end with the zygote.
pub(crate) fn die_with_parent() -> Result<(), Failure> {
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0)
        .step("ask to die with the zygote")
}

/// Whether `path` is a folder. Used to compose binds.
pub(crate) fn is_dir(fd: &OwnedFd, path: &Path) -> Result<bool, Failure> {
    let mode = sys::mode_of(fd.as_fd()).step(format_args!("look at {}", path.display()))?;
    Ok(mode & libc::S_IFMT == libc::S_IFDIR)
}

/// The status socket of pid 1. It stays open for the whole life of pid 1.
pub(crate) fn status() -> BorrowedFd<'static> {
    // SAFETY: set-up has placed the socket at this number, and nothing closes it.
    unsafe { BorrowedFd::borrow_raw(STATUS_FD) }
}

pub(crate) fn tell(answer: &Answer, fds: &[RawFd]) {
    // If the daemon has ended, no process needs the answer.
    let _ = message::send(status(), &answer.encode(), fds, 0);
}
