//! The node's side: starts a companion process, watches it, and starts it again.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::role::{OWN_PROGRAM, Role};

/// How long a process may take to exit after the node has stopped serving it.
pub const END_PATIENCE: Duration = Duration::from_secs(8);
/// After a process has lasted this long, the next pause is the shortest again.
const STABLE: Duration = Duration::from_secs(60);
/// The longest line of a companion's log.
const LINE_BYTES_MAX: u64 = 1 << 10;
/// Log lines per second. Further lines are dropped, because clients may be able to cause lines.
const LINES_PER_S: u32 = 20;

/// The work of [`Companion::serve`].
pub type Serving<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + Send + 'a>>;

/// A program that a node keeps running.
pub trait Companion: Send {
    /// The name that precedes each line of the program's log.
    fn label(&self) -> &'static str;

    /// The first pause before the program is started again, and the longest one.
    fn pauses(&self) -> (Duration, Duration);

    /// The command for the next start. The program does not inherit the node's environment, because
    /// the environment may contain secrets.
    fn command(&mut self) -> io::Result<Command>;

    /// Serves a process until the process has ended or the node stops. Afterwards the process has
    /// [`END_PATIENCE`] to end. If this returns an error, the process is killed.
    fn serve<'a>(
        &'a mut self,
        child: &'a mut Child,
        stopped: &'a mut watch::Receiver<bool>,
    ) -> Serving<'a>;

    /// Reports that the process no longer runs. It will be started again unless the node
    /// `is_stopping`.
    fn ended(&mut self, ended: &io::Result<String>, is_stopping: bool);
}

/// The command that starts a companion in `folder`.
pub fn command(role: Role, folder: &Path) -> Command {
    command_of(Path::new(OWN_PROGRAM), role, folder)
}

/// Like [`command`], with another file of `mote`, for tests.
pub fn command_of(program: &Path, role: Role, folder: &Path) -> Command {
    let mut command = role.command(program);
    command.arg("run").current_dir(folder);
    command.into()
}

/// Keeps a program running until the node stops. The pauses between starts grow.
pub async fn keep(mut companion: impl Companion, mut stopped: watch::Receiver<bool>) {
    let (first, longest) = companion.pauses();
    let mut pause = first;
    while !*stopped.borrow() {
        let began = Instant::now();
        let ended = run(&mut companion, &mut stopped).await;
        let is_stopping = *stopped.borrow();
        companion.ended(&ended, is_stopping);
        if is_stopping {
            return;
        }
        if began.elapsed() >= STABLE {
            pause = first;
        }
        tokio::select! {
            () = sleep(pause) => {}
            _ = stopped.changed() => {}
        }
        pause = (pause * 2).min(longest);
    }
}

/// Runs one process from its start to its end, and returns how the process ended.
async fn run(
    companion: &mut dyn Companion,
    stopped: &mut watch::Receiver<bool>,
) -> io::Result<String> {
    let mut command = companion.command()?;
    let mut child = command.stderr(Stdio::piped()).kill_on_drop(true).spawn()?;
    // The command may hold the other end of a socket. Closing that end tells the process to end.
    drop(command);
    let label = companion.label();
    let log = child.stderr.take().map(|errors| tokio::spawn(relay(errors, label)));
    let ended = match companion.serve(&mut child, stopped).await {
        Ok(()) => match timeout(END_PATIENCE, child.wait()).await {
            Ok(status) => Ok(status?.to_string()),
            Err(_) => {
                child.kill().await?;
                Ok("it did not end in time, and was killed".to_owned())
            }
        },
        Err(error) => {
            child.kill().await?;
            Err(error)
        }
    };
    if let Some(log) = log {
        let _ = timeout(Duration::from_secs(1), log).await;
    }
    ended
}

/// Copies the lines that a process writes into the log of the node.
pub(crate) async fn relay(errors: ChildStderr, label: &'static str) {
    let mut errors = BufReader::new(errors);
    let mut since = Instant::now();
    let mut lines = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut errors).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if since.elapsed() >= Duration::from_secs(1) {
            (since, lines) = (Instant::now(), 0);
        }
        lines += 1;
        if lines > LINES_PER_S {
            continue;
        }
        let text = String::from_utf8_lossy(&line);
        match text.trim().split_once(' ') {
            Some(("ERROR", text)) => tracing::error!("{label}: {}", text.trim()),
            Some(("WARN", text)) => tracing::warn!("{label}: {}", text.trim()),
            Some(("INFO", text)) => tracing::info!("{label}: {}", text.trim()),
            _ => tracing::warn!("{label}: {}", text.trim()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// A program that ends at once with a growing status, until the node stops.
    struct Counting {
        starts: u8,
        ends: mpsc::UnboundedSender<(String, bool)>,
    }

    impl Companion for Counting {
        fn label(&self) -> &'static str {
            "counting"
        }

        fn pauses(&self) -> (Duration, Duration) {
            (Duration::from_millis(1), Duration::from_millis(2))
        }

        fn command(&mut self) -> io::Result<Command> {
            self.starts += 1;
            if self.starts == 2 {
                return Err(io::Error::other("not now"));
            }
            let mut command = Command::new("sh");
            let last = if self.starts == 4 { "exec sleep 600" } else { "exit $0" };
            command.args(["-c", last]).arg(self.starts.to_string());
            Ok(command)
        }

        fn serve<'a>(
            &'a mut self,
            child: &'a mut Child,
            stopped: &'a mut watch::Receiver<bool>,
        ) -> Serving<'a> {
            if self.starts == 4 {
                let _ = self.ends.send(("runs".to_owned(), false));
            }
            Box::pin(async move {
                tokio::select! {
                    ended = child.wait() => ended.map(|_| ()),
                    // This program does not end by itself, so the error causes it to be killed.
                    _ = stopped.changed() => Err(io::Error::other("stopped")),
                }
            })
        }

        fn ended(&mut self, ended: &io::Result<String>, is_stopping: bool) {
            let text = match ended {
                Ok(status) => status.clone(),
                Err(error) => error.to_string(),
            };
            let _ = self.ends.send((text, is_stopping));
        }
    }

    #[tokio::test]
    async fn a_program_is_started_again_until_the_node_stops() {
        let (ends, mut told) = mpsc::unbounded_channel();
        let (stopping, stopped) = watch::channel(false);
        let keeping = tokio::spawn(keep(Counting { starts: 0, ends }, stopped));
        for expected in ["exit status: 1", "not now", "exit status: 3", "runs"] {
            assert_eq!(told.recv().await, Some((expected.to_owned(), false)));
        }
        stopping.send_replace(true);
        assert_eq!(told.recv().await, Some(("stopped".to_owned(), true)));
        keeping.await.expect("it ends");
        assert_eq!(told.recv().await, None);
    }
}
