//! Seeds: instances that load a function, serve no calls, and make copies of themselves.
//!
//! A seed has run code of its function, so it has no rights, as any instance. Its copies stay in
//! its sandbox: they have the same user, namespaces and filter. Each copy has control groups and a
//! `/tmp` of its own (`copy_roots`). A copy is made in these steps:
//!
//! 1. The daemon creates the control groups and writes the limits.
//! 2. Pid 1 enters the root of the copy, and with it the seed (`seed_init`).
//! 3. The daemon orders the copy on the seed's channel, in a message of one byte with descriptors:
//!    the copy's channel, its output, and the entries of its groups.
//! 4. The seed forks. The child enters the groups, forks again and ends, so that pid 1 becomes the
//!    parent of the copy (`shims/python/mote_seed.py`).
//! 5. The copy answers with its number and a pidfd. The daemon checks that it is in its groups.
//!
//! What a seed says is not trusted: it can name only processes of its own sandbox.
//! docs/decisions/0101-seeds.md gives the reasons.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mote_core::backend::{
    BoxFuture, Exit, InstanceControl, InstanceLimits, Peaks, Seed, StartError, Started, Usage,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch};

use crate::answers::sandbox_error;
use crate::cgroup::{Cgroups, InstanceCgroup};
use crate::cleanup::Unstarted;
use crate::copy_roots::COPIES_MAX;
use crate::message;
use crate::plan::Answer;
use crate::running::{KILLED, exit_of, listening_at};
use crate::sys;

/// A copy that takes longer counts as failed. Making one takes some milliseconds.
const COPY_MAX: Duration = Duration::from_secs(10);
/// The order for a copy.
const COPY: &[u8] = b"c";
/// The longest answer to an order: a number, or the text of an error.
const ANSWER_BYTES_MAX: usize = 256;
/// How long pid 1 may take to report how a copy ended. The end itself is known already.
const REPORT_MAX: Duration = Duration::from_millis(200);
/// Memory that a waiting seed may use in addition to what it holds: to fork, the kernel copies the
/// tables of its pages.
const FORK_BYTES: u64 = 16 << 20;

/// Begins something that lasts until the returned value is dropped.
type Begin = Box<dyn Fn() -> Box<dyn Send + Sync> + Send + Sync>;

/// The parts of a seed that its copies need.
pub(crate) struct Parts {
    /// Begins to count a start for which a caller waits.
    pub(crate) begin: Begin,
    pub(crate) cgroups: Arc<Cgroups>,
    pub(crate) label: String,
    pub(crate) limits: InstanceLimits,
    pub(crate) host_ids: (u32, u32),
    /// The groups of the seed itself.
    pub(crate) own_group: InstanceCgroup,
    /// The daemon's end of the seed's channel.
    pub(crate) channel: OwnedFd,
    /// The daemon's end of the status socket of pid 1.
    pub(crate) status: OwnedFd,
}

/// What pid 1 answers to requests.
pub(crate) struct Answers {
    entered: mpsc::Sender<Option<i32>>,
    ends: Ends,
}

/// The copies that run, by their numbers inside the sandbox.
type Ends = Arc<Mutex<HashMap<i32, oneshot::Sender<i32>>>>;

struct Orders {
    channel: AsyncFd<OwnedFd>,
    entered: mpsc::Receiver<Option<i32>>,
    made: u8,
    /// Whether every order so far was answered. After another one, an answer could belong to it.
    is_sound: bool,
}

/// A running seed. Its sandbox belongs to the control of its instance.
pub(crate) struct ProcessSeed {
    begin: Begin,
    cgroups: Arc<Cgroups>,
    label: String,
    limits: InstanceLimits,
    host_ids: (u32, u32),
    own_group: InstanceCgroup,
    status: OwnedFd,
    /// The memory that a copy shares with the seed, in bytes.
    shared_bytes: AtomicU64,
    orders: tokio::sync::Mutex<Orders>,
    ends: Ends,
}

impl Answers {
    /// Prepares for the answers of one seed. Returns also what [`ProcessSeed::new`] needs.
    pub(crate) fn new() -> (Self, Replies) {
        let (sender, entered) = mpsc::channel(1);
        let ends = Ends::default();
        (Self { entered: sender, ends: ends.clone() }, Replies { entered, ends })
    }

    /// Passes on one answer.
    pub(crate) fn take(&self, answer: Answer) {
        match answer {
            // Requests are made one after the other, so there is room.
            Answer::RootEntered { refused } => drop(self.entered.try_send(refused)),
            Answer::CopyEnded { pid, wait_status } => {
                let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(end) = ends.remove(&pid) {
                    let _ = end.send(wait_status);
                }
            }
            _ => {}
        }
    }
}

/// The receiving side of [`Answers`].
pub(crate) struct Replies {
    entered: mpsc::Receiver<Option<i32>>,
    ends: Ends,
}

impl ProcessSeed {
    /// Must be called within a runtime.
    pub(crate) fn new(parts: Parts, replies: Replies) -> io::Result<Arc<Self>> {
        let Parts { begin, cgroups, label, limits, host_ids, own_group, channel, status } = parts;
        let Replies { entered, ends } = replies;
        let channel = sys::watched(channel)?;
        let orders = Orders { channel, entered, made: 0, is_sound: true };
        Ok(Arc::new(Self {
            begin,
            cgroups,
            label,
            limits,
            host_ids,
            own_group,
            status,
            shared_bytes: AtomicU64::new(0),
            orders: tokio::sync::Mutex::new(orders),
            ends,
        }))
    }

    async fn copy_now(self: Arc<Self>) -> Result<Started, StartError> {
        let failed = |step: &str, source: io::Error| sandbox_error(&self.label, step, source);
        let mut orders = self.orders.lock().await;
        if !orders.is_sound || orders.made == COPIES_MAX {
            return Err(StartError::Unavailable("the seed makes no more copies".to_owned()));
        }
        let under_way = (self.begin)();
        let mut group = Unstarted::new(self.cgroups.place());
        let (new, limits) = (group.cgroup(|group| Some(group.clone())), self.limits.clone());
        let entries = blocking(move || {
            let Some(new) = new else { return Ok(Vec::new()) };
            new.create(&limits)?;
            new.entries()
        })
        .await
        .map_err(|source| failed("create the control groups of a copy", source))?;
        orders.is_sound = false;
        let order = tokio::time::timeout(COPY_MAX, self.order(&mut orders, &entries));
        let copied = order.await.map_err(io::Error::from).flatten();
        let Copied { channel, output, pidfd, pid, inner_pid } =
            copied.map_err(|source| failed("make a copy of the seed", source))?;
        orders.is_sound = true;
        drop(orders);
        if let Some(group) = group.cgroup_mut() {
            group.borrow(self.shared_bytes.load(Ordering::Relaxed));
        }
        let group = group.cgroup(|group| Some(group.clone())).map(|kept| (kept, group));
        let Some((group, unstarted)) = group else {
            return Err(failed(
                "find the control groups of a copy",
                io::ErrorKind::NotFound.into(),
            ));
        };
        let member = group.clone();
        let is_member = blocking(move || member.ensure_member(pid)).await;
        let pidfd =
            sys::watched(pidfd).map(Arc::new).map_err(|source| failed("watch a copy", source))?;
        let (sender, exit) = watch::channel(None);
        // From here on, dropping the control ends the copy, and its watcher removes its groups.
        let control = CopyControl { pid, pidfd: pidfd.clone(), group: group.clone(), exit };
        let ended = self.ask_for_end(inner_pid);
        drop(unstarted.started());
        tokio::spawn(watch_copy(pidfd, ended, group, sender));
        is_member.map_err(|source| failed("put a copy into its control groups", source))?;
        Ok(Started {
            channel,
            output,
            egress: Vec::new(),
            debugger: None,
            control: Box::new(control),
            prewarmed: false,
            under_way,
        })
    }

    /// Orders a copy, and waits for its answer.
    async fn order(&self, orders: &mut Orders, entries: &[OwnedFd]) -> io::Result<Copied> {
        let number = orders.made;
        orders.made += 1;
        message::send(self.status.as_fd(), &[number], &[], libc::MSG_DONTWAIT)?;
        match orders.entered.recv().await {
            Some(None) => {}
            Some(Some(errno)) => return Err(io::Error::from_raw_os_error(errno)),
            None => return Err(io::ErrorKind::BrokenPipe.into()),
        }
        let (channel, channel_inside) = sys::socket_pair(libc::SOCK_STREAM)?;
        let (output, output_inside) = sys::pipe()?;
        sys::set_nonblocking(channel.as_fd())?;
        sys::set_nonblocking(output.as_fd())?;
        let (uid, gid) = self.host_ids;
        std::os::unix::fs::fchown(&output_inside, Some(uid), Some(gid))?;
        let inside = [&channel_inside, &output_inside];
        let fds: Vec<_> = inside.into_iter().chain(entries).map(AsRawFd::as_raw_fd).collect();
        message::send(orders.channel.get_ref().as_fd(), COPY, &fds, libc::MSG_DONTWAIT)?;
        let (answer, pidfd) = answer_of(&orders.channel).await?;
        let inner_pid = answer.parse::<i32>().ok().filter(|pid| *pid > 1);
        let (Some(pidfd), Some(inner_pid)) = (pidfd, inner_pid) else {
            return Err(io::Error::other(answer));
        };
        let pid = pid_of(&pidfd)?;
        Ok(Copied { channel, output, pidfd, pid, inner_pid })
    }

    /// Asks pid 1 to report how a copy ends.
    fn ask_for_end(&self, inner_pid: i32) -> oneshot::Receiver<i32> {
        let (sender, receiver) = oneshot::channel();
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).insert(inner_pid, sender);
        // If pid 1 has ended, so has the copy.
        let request = inner_pid.to_le_bytes();
        let _ = message::send(self.status.as_fd(), &request, &[], libc::MSG_DONTWAIT);
        receiver
    }
}

/// A copy that has answered.
struct Copied {
    channel: OwnedFd,
    output: OwnedFd,
    pidfd: OwnedFd,
    /// The number of the process on the host, and the one inside the sandbox.
    pid: i32,
    inner_pid: i32,
}

/// Receives one answer on the channel of a seed.
async fn answer_of(channel: &AsyncFd<OwnedFd>) -> io::Result<(String, Option<OwnedFd>)> {
    let mut buffer = [0; ANSWER_BYTES_MAX];
    loop {
        let mut ready = channel.readable().await?;
        let received = ready.try_io(|fd| message::receive(fd.get_ref().as_fd(), &mut buffer));
        match received {
            Ok(Ok((0, _))) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(Ok((length, fds))) => {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                return Ok((text, fds.into_iter().next()));
            }
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
}

/// The number on the host of the process behind a pidfd.
fn pid_of(pidfd: &OwnedFd) -> io::Result<i32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"));
    // The number is -1 if the process has ended.
    let pid = pid.and_then(|pid| pid.trim().parse().ok()).filter(|pid| *pid > 0);
    pid.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Runs file operations away from the data path.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

impl Seed for SeedHandle {
    fn settle(&self) -> u64 {
        let seed = &self.0;
        let held = seed.own_group.usage().map_or(0, |usage| usage.memory_bytes);
        seed.shared_bytes.store(held, Ordering::Relaxed);
        let whole = seed.limits.memory_bytes;
        let bytes = held.saturating_add(FORK_BYTES);
        if bytes >= whole || seed.own_group.limit_memory(bytes).is_err() {
            return whole;
        }
        bytes
    }

    fn copy(&self) -> BoxFuture<Result<Started, StartError>> {
        Box::pin(self.0.clone().copy_now())
    }
}

/// A seed as the engine sees it.
pub(crate) struct SeedHandle(pub(crate) Arc<ProcessSeed>);

/// Waits for the end of a copy, ends what it has left, removes its groups, and reports the end.
async fn watch_copy(
    pidfd: Arc<AsyncFd<OwnedFd>>,
    ended: oneshot::Receiver<i32>,
    group: InstanceCgroup,
    sender: watch::Sender<Option<Exit>>,
) {
    let _ = pidfd.readable().await;
    let report = tokio::time::timeout(REPORT_MAX, ended).await;
    let mut exit = report.ok().and_then(Result::ok).map_or(KILLED, exit_of);
    let removed = tokio::task::spawn_blocking(move || {
        let out_of_memory = group.out_of_memory();
        group.kill_all();
        group.remove();
        out_of_memory
    });
    let out_of_memory = removed.await.unwrap_or(false);
    exit.out_of_memory = exit.status != Some(0) && out_of_memory;
    let _ = sender.send(Some(exit));
}

/// Controls a copy.
struct CopyControl {
    pid: i32,
    pidfd: Arc<AsyncFd<OwnedFd>>,
    group: InstanceCgroup,
    exit: watch::Receiver<Option<Exit>>,
}

impl InstanceControl for CopyControl {
    fn kill(&self) {
        self.group.kill_all();
        // The only possible failure is that the process has already ended.
        let _ = sys::pidfd_send_signal(self.pidfd.get_ref().as_fd(), libc::SIGKILL);
    }

    fn set_background(&self, background: bool) {
        self.group.set_background(background);
    }

    fn set_paused(&self, paused: bool) -> bool {
        self.group.set_paused(None, paused)
    }

    fn listening(&self) -> Vec<u16> {
        listening_at(self.pid)
    }

    fn pid(&self) -> Option<u32> {
        u32::try_from(self.pid).ok()
    }

    fn program(&self) -> Option<u32> {
        self.pid()
    }

    fn usage(&self) -> Option<Usage> {
        self.group.usage()
    }

    fn peaks(&self) -> Option<Peaks> {
        self.group.peaks()
    }

    fn exited(&self) -> BoxFuture<Exit> {
        let mut exit = self.exit.clone();
        Box::pin(async move {
            let ended = exit.wait_for(Option::is_some).await.ok().and_then(|exit| *exit);
            // As for any instance, a watcher is missing only while the runtime is shutting down.
            ended.unwrap_or(KILLED)
        })
    }
}

impl Drop for CopyControl {
    fn drop(&mut self) {
        self.kill();
    }
}
