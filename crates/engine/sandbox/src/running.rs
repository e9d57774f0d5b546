//! Instances from the start of their program to their end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use mote_core::backend::{BoxFuture, Exit, InstanceControl, Peaks, Started, Usage};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::answers::next_answer;
use crate::cgroup::InstanceCgroup;
use crate::cleanup::{Cleanup, remove_later};
use crate::plan::Answer;
use crate::prepared::PreparedChild;
use crate::sys;

/// The end of a process of which nothing else is known: it was killed, either by the daemon or by
/// the kernel because of memory.
pub(crate) const KILLED: Exit =
    Exit { status: None, signal: Some(libc::SIGKILL), out_of_memory: false };

/// How a program ended, from the status that its parent received.
pub(crate) fn exit_of(wait_status: i32) -> Exit {
    if libc::WIFSIGNALED(wait_status) {
        Exit { signal: Some(libc::WTERMSIG(wait_status)), ..KILLED }
    } else {
        Exit { status: Some(libc::WEXITSTATUS(wait_status)), signal: None, out_of_memory: false }
    }
}

/// An instance whose program runs. Dropping this ends the instance and removes its cgroups.
pub(crate) struct Running {
    pub(crate) channel: OwnedFd,
    pub(crate) output: OwnedFd,
    pub(crate) egress: Vec<OwnedFd>,
    pub(crate) debugger: Option<OwnedFd>,
    pub(crate) prepared: PreparedChild,
}

impl Running {
    /// Waits for the program's first output, or for its end. Must be called within a runtime.
    pub(crate) async fn speaks(&self) -> io::Result<()> {
        sys::watched(self.channel.try_clone()?)?.readable().await.map(drop)
    }

    /// Starts to watch the instance. Must be called within a runtime. What pid 1 says besides the
    /// end of its program is passed to `answers`.
    pub(crate) fn into_started(
        self,
        prewarmed: bool,
        under_way: Box<dyn Send + Sync>,
        answers: impl FnMut(Answer) + Send + 'static,
    ) -> io::Result<Started> {
        let Self { channel, output, egress, debugger, prepared } = self;
        let PreparedChild { status, init, pidfd, mounts: _, cleanup } = prepared;
        let pidfd = Arc::new(sys::watched(pidfd)?);
        let cleanup = cleanup.started();
        let cgroup = cleanup.as_ref().map(|cleanup| cleanup.cgroup.clone());
        let (sender, exit) = watch::channel(None);
        tokio::spawn(watch_instance(pidfd.clone(), status, cleanup, sender, answers));
        let control = Box::new(Control { init, pidfd, cgroup, exit });
        Ok(Started { channel, output, egress, debugger, control, prewarmed, under_way })
    }
}

/// Waits for the end of an instance, reports it, and cleans up. All other answers of pid 1 are
/// passed on.
async fn watch_instance(
    pidfd: Arc<AsyncFd<OwnedFd>>,
    status: AsyncFd<OwnedFd>,
    cleanup: Option<Cleanup>,
    sender: watch::Sender<Option<Exit>>,
    mut other: impl FnMut(Answer) + Send,
) {
    let mut exit = KILLED;
    while let Ok(Some((answer, _))) = next_answer(&status).await {
        match answer {
            Answer::Ended { wait_status } => exit = exit_of(wait_status),
            answer => other(answer),
        }
    }
    // The status socket closes while pid 1 is exiting. Only the pidfd shows that its namespace is
    // empty.
    let _ = pidfd.readable().await;
    if let Some(cleanup) = cleanup {
        exit.out_of_memory = exit.status != Some(0) && cleanup.cgroup.out_of_memory();
        remove_later(cleanup);
    }
    let _ = sender.send(Some(exit));
}

struct Control {
    /// The process id of the instance's pid 1 on the host.
    init: i32,
    pidfd: Arc<AsyncFd<OwnedFd>>,
    cgroup: Option<InstanceCgroup>,
    exit: watch::Receiver<Option<Exit>>,
}

impl InstanceControl for Control {
    fn kill(&self) {
        // The only possible failure is that the process has already ended.
        let _ = sys::pidfd_send_signal(self.pidfd.get_ref().as_fd(), libc::SIGKILL);
    }

    fn set_background(&self, background: bool) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.set_background(background);
        }
    }

    fn set_paused(&self, paused: bool) -> bool {
        self.cgroup.as_ref().is_some_and(|cgroup| cgroup.set_paused(Some(self.init), paused))
    }

    fn listening(&self) -> Vec<u16> {
        listening_at(self.init)
    }

    fn pid(&self) -> Option<u32> {
        u32::try_from(self.init).ok()
    }

    fn program(&self) -> Option<u32> {
        let path = format!("/proc/{0}/task/{0}/children", self.init);
        std::fs::read_to_string(path).ok()?.split(' ').next()?.parse().ok()
    }

    fn usage(&self) -> Option<Usage> {
        self.cgroup.as_ref()?.usage()
    }

    fn peaks(&self) -> Option<Peaks> {
        self.cgroup.as_ref()?.peaks()
    }

    fn exited(&self) -> BoxFuture<Exit> {
        let mut exit = self.exit.clone();
        Box::pin(async move {
            let ended = exit.wait_for(Option::is_some).await.ok().and_then(|exit| *exit);
            // A watcher is missing only while the runtime is shutting down, which kills all
            // instances.
            ended.unwrap_or(KILLED)
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The ports on which the programs of a process's network namespace listen.
pub(crate) fn listening_at(pid: i32) -> Vec<u16> {
    let tables = ["tcp", "tcp6"].map(|name| format!("/proc/{pid}/net/{name}"));
    let texts = tables.map(|table| std::fs::read_to_string(table).unwrap_or_default());
    let mut ports: Vec<u16> = texts.iter().flat_map(|text| listening_in(text)).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// The ports of listening sockets in a table of the kernel (proc(5), `/proc/net/tcp`).
fn listening_in(table: &str) -> impl Iterator<Item = u16> {
    const LISTEN: &str = "0A";
    table.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next()?;
        let state = words.nth(1)?;
        let (_, port) = local.rsplit_once(':')?;
        (state == LISTEN).then(|| u16::from_str_radix(port, 16).ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_ports_are_read_from_the_table_of_the_kernel() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n   \
            0: 0100007F:0BB8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000\n   \
            1: 0100007F:9C40 0100007F:0BB8 01 00000000:00000000 00:00000000 00000000  1000\n   \
            2: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 0\n";
        assert_eq!(listening_in(table).collect::<Vec<_>>(), [3000, 8080]);
        assert_eq!(listening_in("").count(), 0);
    }
}
