//! The side of the node: a program that answers one question and ends.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use crate::companion::supervision::relay;

/// How long a program may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest answer.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Where a program lies that is installed next to the one of this process.
pub fn program(name: &str) -> io::Result<PathBuf> {
    std::env::current_exe().map(|own| own.with_file_name(name))
}

/// Runs a program that is installed next to the one of this process, and returns what it writes to
/// its standard output. The environment of the node, which may contain secrets, does not reach it. It
/// is an error if the program is missing, takes too long, writes too much or fails.
pub async fn answer<A: AsRef<OsStr>>(name: &str, arguments: &[A]) -> io::Result<Vec<u8>> {
    let mut command = Command::new(program(name)?);
    command.args(arguments);
    run(command, None, PATIENCE).await
}

/// The same with another patience; the program's lines are written to the log of the node, behind
/// `label`.
pub async fn logged_answer<A: AsRef<OsStr>>(
    name: &str,
    label: &'static str,
    arguments: &[A],
    patience: Duration,
) -> io::Result<Vec<u8>> {
    let mut command = Command::new(program(name)?);
    command.args(arguments);
    run(command, Some(label), patience).await
}

async fn run(
    mut command: Command,
    label: Option<&'static str>,
    patience: Duration,
) -> io::Result<Vec<u8>> {
    command.env_clear().kill_on_drop(true).stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(if label.is_some() { Stdio::piped() } else { Stdio::inherit() });
    let mut child = command.spawn()?;
    if let (Some(label), Some(errors)) = (label, child.stderr.take()) {
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
