//! Reads the answers that children send to the daemon over their status sockets.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use mote_core::backend::StartError;
use tokio::io::unix::AsyncFd;

use crate::message;
use crate::plan::{ANSWER_BYTES_MAX, Answer};
use crate::report::user_namespaces;
use crate::zygote::CLONE;

/// Reads one answer from a status socket. Returns `None` if no process holds the other end any
/// more.
pub(crate) async fn next_answer(
    status: &AsyncFd<OwnedFd>,
) -> io::Result<Option<(Answer, Vec<OwnedFd>)>> {
    let mut buffer = [0; ANSWER_BYTES_MAX];
    loop {
        let mut ready = status.readable().await?;
        let received = ready.try_io(|fd| message::receive(fd.get_ref().as_fd(), &mut buffer));
        match received {
            Ok(Ok((0, _))) => return Ok(None),
            Ok(Ok((length, fds))) => {
                return Ok(Some((serde_json::from_slice(&buffer[..length])?, fds)));
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
}

/// A prepared child.
pub(crate) struct Child {
    /// The child's process id on the host.
    pub(crate) init: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) mounts: OwnedFd,
}

/// Waits for both results of a preparation: the zygote's pidfd and the child's mount namespace.
pub(crate) async fn await_prepared(
    status: &AsyncFd<OwnedFd>,
    label: &str,
) -> Result<Child, StartError> {
    let mut pidfd = None;
    let mut mounts = None;
    loop {
        match next_step(status, label).await? {
            (Answer::Cloned { pid }, fds) => pidfd = fds.into_iter().next().map(|fd| (pid, fd)),
            (Answer::PreparedChild, fds) => mounts = fds.into_iter().next(),
            _ => return Err(unexpected(label)),
        }
        match (pidfd, mounts) {
            (Some((init, pidfd)), Some(mounts)) => return Ok(Child { init, pidfd, mounts }),
            halves => (pidfd, mounts) = halves,
        }
    }
}

/// Waits until a prewarmed instance has received its folders.
pub(crate) async fn await_assigned(
    status: &AsyncFd<OwnedFd>,
    label: &str,
) -> Result<(), StartError> {
    loop {
        match next_step(status, label).await? {
            (Answer::Cloned { .. }, _) => {}
            (Answer::Assigned, _) => return Ok(()),
            _ => return Err(unexpected(label)),
        }
    }
}

/// Waits until the program runs, and returns its egress listeners.
pub(crate) async fn await_start(
    status: &AsyncFd<OwnedFd>,
    label: &str,
) -> Result<Vec<OwnedFd>, StartError> {
    match next_step(status, label).await? {
        (Answer::Started, listeners) => Ok(listeners),
        _ => Err(unexpected(label)),
    }
}

fn unexpected(label: &str) -> StartError {
    sandbox_error(label, "ended while starting", io::ErrorKind::UnexpectedEof.into())
}

/// Reads the next answer of a start that has not finished yet.
async fn next_step(
    status: &AsyncFd<OwnedFd>,
    label: &str,
) -> Result<(Answer, Vec<OwnedFd>), StartError> {
    let answer = next_answer(status)
        .await
        .map_err(|source| sandbox_error(label, "read the status socket", source))?;
    match answer {
        Some((Answer::Failed { step, errno }, _)) => {
            let source = io::Error::from_raw_os_error(errno);
            let source =
                if step == CLONE { namespace_error(source, user_namespaces()) } else { source };
            Err(sandbox_error(label, &step, source))
        }
        Some((Answer::NotExecuted { program, errno }, _)) => Err(StartError::Exec {
            label: label.to_owned(),
            program,
            source: io::Error::from_raw_os_error(errno),
        }),
        Some((Answer::Ended { .. }, _)) | None => Err(unexpected(label)),
        Some(step) => Ok(step),
    }
}

/// Explains why the kernel refuses namespaces. An explanation is needed because the kernel reports
/// a full disk when its limit on namespaces is reached, even if that limit is 0.
fn namespace_error(source: io::Error, allowed: Result<(), String>) -> io::Error {
    match (allowed, source.raw_os_error()) {
        (Err(why), _) => io::Error::new(
            source.kind(),
            format!("{why}; run the node as root, or allow user namespaces (see mote doctor)"),
        ),
        (Ok(()), Some(libc::ENOSPC | libc::EUSERS)) => io::Error::new(
            source.kind(),
            "the kernel's limit of namespaces is reached; raise user.max_user_namespaces, \
             user.max_net_namespaces and the others with sysctl",
        ),
        (Ok(()), _) => source,
    }
}

pub(crate) fn sandbox_error(label: &str, step: &str, source: io::Error) -> StartError {
    StartError::Sandbox { label: label.to_owned(), step: step.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_namespaces_are_no_full_disk() {
        let refused = |errno, allowed: Result<(), &str>| {
            let source = io::Error::from_raw_os_error(errno);
            namespace_error(source, allowed.map_err(str::to_owned)).to_string()
        };
        let off = refused(libc::ENOSPC, Err("user.max_user_namespaces is 0"));
        assert!(off.starts_with("user.max_user_namespaces is 0; run the node as root"), "{off}");
        let reached = refused(libc::ENOSPC, Ok(()));
        assert!(reached.starts_with("the kernel's limit of namespaces is reached"), "{reached}");
        assert!(refused(libc::ENOMEM, Ok(())).contains("memory"));
    }
}
