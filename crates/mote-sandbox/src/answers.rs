//! How the daemon reads the answers that children send over their status sockets.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use mote_core::backend::StartError;
use tokio::io::unix::AsyncFd;

use crate::message;
use crate::plan::{ANSWER_BYTES_MAX, Answer};

/// One answer from a status socket; `None` when no process holds its other end any more.
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

/// Waits for both halves of a preparation: the zygote's pidfd and the child's mount namespace.
pub(crate) async fn await_prepared(
    status: &AsyncFd<OwnedFd>,
    label: &str,
) -> Result<Child, StartError> {
    let (mut pidfd, mut mounts) = (None, None);
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

/// Waits until a prewarmed instance has its folders.
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

/// Waits until the program runs; returns its egress listeners.
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

/// The next answer of a start that has not finished yet.
async fn next_step(
    status: &AsyncFd<OwnedFd>,
    label: &str,
) -> Result<(Answer, Vec<OwnedFd>), StartError> {
    let answer = next_answer(status)
        .await
        .map_err(|source| sandbox_error(label, "read the status socket", source))?;
    match answer {
        Some((Answer::Failed { step, errno }, _)) => {
            Err(sandbox_error(label, &step, io::Error::from_raw_os_error(errno)))
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

pub(crate) fn sandbox_error(label: &str, step: &str, source: io::Error) -> StartError {
    StartError::Sandbox { label: label.to_owned(), step: step.to_owned(), source }
}
