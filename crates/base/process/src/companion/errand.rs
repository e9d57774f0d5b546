//! The node's side: runs a companion that answers one question and ends.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use super::role::{OWN_PROGRAM, Role};
use super::supervision::relay;

/// The longest answer.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Runs a companion, and returns what the companion writes to standard output. Lines on its
/// standard error go to the node's log, prefixed with `label`. Returns an error if the companion
/// takes longer than `patience`, writes too much or fails.
pub async fn logged_answer<A: AsRef<OsStr>>(
    role: Role,
    label: &'static str,
    arguments: &[A],
    patience: Duration,
) -> io::Result<Vec<u8>> {
    let mut command = role.command(Path::new(OWN_PROGRAM));
    command.args(arguments);
    run(command.into(), label, patience).await
}

async fn run(mut command: Command, label: &'static str, patience: Duration) -> io::Result<Vec<u8>> {
    command.kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(errors) = child.stderr.take() {
        tokio::spawn(relay(errors, label));
    }
    let answered = async {
        let mut answer = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(ANSWER_BYTES_MAX + 1).read_to_end(&mut answer).await?;
        }
        if answer.len() as u64 > ANSWER_BYTES_MAX {
            return Err(io::Error::other("its answer is too long"));
        }
        let status = child.wait().await?;
        if status.success() { Ok(answer) } else { Err(io::Error::other(status.to_string())) }
    };
    timeout(patience, answered).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
