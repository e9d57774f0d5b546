//! The daemon's side: [`ProcessBackend`] turns requests into plans and watches what becomes of them.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mote_core::backend::{
    Backend, BoxFuture, Exit, InstanceControl, InstanceLimits, InstanceRequest, Launch, StartError,
    Started, Usage,
};
use mote_core::spec::Egress;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::cgroup::{Cgroups, InstanceCgroup};
use crate::config::{HostFacts, Layer, SandboxConfig};
use crate::identity::INSIDE_ID;
use crate::loopback::{EGRESS_MAX, egress_address};
use crate::message;
use crate::parked::{Parked, Pool, has_died};
use crate::plan::{ANSWER_BYTES_MAX, Answer, Bind, Parking, Plan, Program, RootPlan};
use crate::report::{self, Report};
use crate::sys;
use crate::zygote::ZygoteHandle;

/// A start that takes longer has failed: composing a sandbox is a matter of milliseconds.
pub const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a plan is offered again to a zygote that is behind.
const SEND_PAUSE: Duration = Duration::from_millis(1);
/// Instances alive at once at most; each has its own uid.
const SLOTS: u32 = 65_536;
/// Room for a runtime's own code and stacks where RLIMIT_DATA stands in for a memory controller.
const DATA_BYTES_EXTRA: u64 = 256 << 20;
const CODE_DIR: &str = "/function";
const PACKAGES_DIR: &str = "/packages";
const SHIMS_DIR: &str = "/mote";

/// Runs instances as processes in sandboxes. Cheap to clone.
#[derive(Clone)]
pub struct ProcessBackend {
    inner: Arc<Inner>,
}

struct Inner {
    zygote: ZygoteHandle,
    config: SandboxConfig,
    facts: HostFacts,
    cgroups: Arc<Cgroups>,
    userns: bool,
    rootless: bool,
    slots: Mutex<BTreeSet<u32>>,
    pool: Pool,
}

/// The number of one living instance, which decides its uid; free again on drop.
struct Slot {
    number: u32,
    inner: Arc<Inner>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut slots = self.inner.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.remove(&self.number);
    }
}

/// What must be undone when an instance has ended: its cgroups, then its slot.
pub(crate) struct Cleanup {
    cgroup: InstanceCgroup,
    slot: Option<Slot>,
}

impl ProcessBackend {
    /// A backend on this zygote. Looks at the host once and prepares cgroups: reads and writes a
    /// few small files, and ends what a dead daemon has left.
    pub fn new(zygote: ZygoteHandle, config: SandboxConfig) -> Self {
        let facts = HostFacts::detect(&config.runtime_prefixes);
        let backend = Self {
            inner: Arc::new(Inner {
                zygote,
                config,
                facts,
                cgroups: Cgroups::shared(),
                userns: report::user_namespaces().is_ok(),
                rootless: !sys::is_root(),
                slots: Mutex::new(BTreeSet::new()),
                pool: Pool::default(),
            }),
        };
        backend.fill();
        backend
    }

    /// Ends what still runs and removes every cgroup of this process. For the end of the daemon:
    /// no start succeeds afterwards. Blocks for up to two seconds.
    pub fn shut_down(&self) {
        self.inner.pool.close();
        self.inner.cgroups.remove_all();
    }

    /// What this machine lets the backend enforce. Reads a few small files.
    pub fn report(&self) -> Report {
        Report { items: report::items(&self.inner.cgroups) }
    }

    /// The host's user and group id an instance in `slot` runs as.
    fn host_ids(&self, slot: u32) -> (u32, u32) {
        if self.inner.rootless {
            sys::effective_ids()
        } else {
            let id = self.inner.config.uid_base.saturating_add(slot);
            (id, id)
        }
    }

    fn take_slot(&self) -> Result<Slot, StartError> {
        let mut slots = self.inner.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let number = (0..SLOTS)
            .find(|number| !slots.contains(number))
            .ok_or_else(|| StartError::Unavailable("65,536 instances are running".to_owned()))?;
        slots.insert(number);
        Ok(Slot { number, inner: self.inner.clone() })
    }

    /// The plan of an instance, but for its cgroups.
    fn plan(&self, request: &InstanceRequest, slot: &Slot) -> Plan {
        let inner = &*self.inner;
        let without = inner.config.without;
        let mut env = request.env.clone();
        let program = match request.launch.clone() {
            Launch::Shim { argv } => Program::Shim { argv },
            Launch::PerInvocation { argv } => Program::PerInvocation { argv },
            Launch::Server { argv, port } => {
                if !env.iter().any(|(name, _)| name == "PORT") {
                    env.push(("PORT".to_owned(), port.to_string()));
                }
                Program::Server { argv, port }
            }
        };
        let work_dir = if without & Layer::Root as u32 == 0 {
            PathBuf::from(CODE_DIR)
        } else {
            request.code_dir.clone()
        };
        let (egress, hosts) = egress_plan(&request.egress);
        let mut root = self.base_root(hosts, request.limits.disk_bytes);
        root.binds.push(bind(request.code_dir.clone(), CODE_DIR, false));
        if let Some(packages) = &request.packages_dir {
            root.binds.push(bind(packages.clone(), PACKAGES_DIR, false));
        }
        Plan {
            without,
            rootless: inner.rootless,
            userns: inner.userns,
            host_ids: self.host_ids(slot.number),
            cgroups: Vec::new(),
            root,
            program,
            env,
            work_dir,
            data_bytes: (!inner.cgroups.has("memory"))
                .then(|| request.limits.memory_bytes.saturating_add(DATA_BYTES_EXTRA)),
            processes: u64::from(request.limits.pids) + 1,
            egress,
            host_network: false,
        }
    }

    fn base_root(&self, hosts: String, tmp_bytes: u64) -> RootPlan {
        let facts = &self.inner.facts;
        let mut binds: Vec<_> = facts
            .binds
            .iter()
            .map(|path| Bind { source: path.clone(), target: path.clone(), writable: false })
            .collect();
        if let Some(shims) = &self.inner.config.shims_dir {
            binds.push(bind(shims.clone(), SHIMS_DIR, false));
        }
        let file = |path: &str, text: String| (PathBuf::from(path), text);
        RootPlan {
            binds,
            links: facts.links.clone(),
            files: vec![
                file("/etc/passwd", format!("function:x:{INSIDE_ID}:{INSIDE_ID}::/tmp:/bin/sh\n")),
                file("/etc/group", format!("function:x:{INSIDE_ID}:\n")),
                file("/etc/hostname", "function\n".to_owned()),
                file("/etc/hosts", hosts),
            ],
            tmp_bytes,
        }
    }

    async fn start_now(self, request: InstanceRequest) -> Result<Started, StartError> {
        if request.egress.len() > EGRESS_MAX {
            let source = io::Error::from_raw_os_error(libc::E2BIG);
            return Err(sandbox_error(&request.label, "at most 64 egress destinations", source));
        }
        let slot = self.take_slot()?;
        let plan = self.plan(&request, &slot);
        self.launch(&request.label, plan, &request.limits, slot).await
    }

    /// Sends a plan and waits for its program to run.
    pub(crate) async fn launch_build(
        &self,
        label: &str,
        limits: &InstanceLimits,
        make: impl FnOnce(
            RootPlan,
            (u32, u32),
        ) -> io::Result<(RootPlan, Vec<String>, Vec<(String, String)>)>,
    ) -> Result<Started, StartError> {
        let slot = self.take_slot()?;
        let inner = &*self.inner;
        let host_ids = self.host_ids(slot.number);
        let base = self.base_root(String::new(), limits.disk_bytes);
        let (root, argv, env) = make(base, host_ids)
            .map_err(|source| sandbox_error(label, "prepare the packages folder", source))?;
        let plan = Plan {
            without: inner.config.without,
            rootless: inner.rootless,
            userns: inner.userns,
            host_ids,
            cgroups: Vec::new(),
            root,
            program: Program::Shim { argv },
            env,
            work_dir: PathBuf::from(PACKAGES_DIR),
            data_bytes: None,
            processes: u64::from(limits.pids) + 1,
            egress: Vec::new(),
            host_network: true,
        };
        self.launch(label, plan, limits, slot).await
    }

    async fn launch(
        &self,
        label: &str,
        plan: Plan,
        limits: &InstanceLimits,
        slot: Slot,
    ) -> Result<Started, StartError> {
        let started = self.launch_now(label, plan, limits, slot).await;
        // Only now: making the next one must not slow this one.
        self.fill();
        started
    }

    async fn launch_now(
        &self,
        label: &str,
        mut plan: Plan,
        limits: &InstanceLimits,
        slot: Slot,
    ) -> Result<Started, StartError> {
        let failed = |step: &str, source: io::Error| sandbox_error(label, step, source);
        let sockets = || -> io::Result<_> {
            let kind = match plan.program {
                Program::Server { .. } => libc::SOCK_SEQPACKET,
                _ => libc::SOCK_STREAM,
            };
            let (channel, channel_inside) = sys::socket_pair(kind)?;
            let (output, output_inside) = sys::pipe()?;
            sys::set_nonblocking(channel.as_fd())?;
            sys::set_nonblocking(output.as_fd())?;
            Ok((channel, output, [channel_inside, output_inside]))
        };
        let (channel, output, inside) =
            sockets().map_err(|source| failed("create sockets", source))?;
        let whole = !matches!(plan.program, Program::PerInvocation { .. });
        let start = async {
            let mut taken = if plan.host_network { None } else { self.inner.pool.take() };
            loop {
                let waited = taken.is_some();
                let mut parked = match taken.take() {
                    Some(parked) => parked,
                    None => self.park(label, plan.host_network).await?,
                };
                if plan.has(Layer::Cgroup) {
                    plan.cgroups = parked.cleanup.cgroup(|cgroup| cgroup.values(limits, whole));
                }
                let message = plan.encode().map_err(|source| failed("write the plan", source))?;
                match parked.send(&message, &inside) {
                    Ok(()) => {
                        parked.cleanup.own(slot);
                        let egress = await_start(&parked.status, label).await?;
                        return Ok((parked, egress));
                    }
                    // It died while it waited, for instance of a machine-wide shortage of memory.
                    Err(error) if waited && has_died(&error) => {}
                    Err(source) => return Err(failed("hand over the plan", source)),
                }
            }
        };
        let (parked, egress) = match tokio::time::timeout(START_TIMEOUT, start).await {
            Ok(result) => result?,
            Err(_) => {
                let source = io::Error::from_raw_os_error(libc::ETIMEDOUT);
                return Err(failed("start within 10 s", source));
            }
        };
        drop(inside);
        let Parked { status, pidfd, cleanup } = parked;
        let pidfd = sys::watched(pidfd).map_err(|source| failed("watch the instance", source))?;
        let pidfd = Arc::new(pidfd);
        let cleanup = cleanup.started();
        let cgroup = cleanup.as_ref().map(|cleanup| cleanup.cgroup.clone());
        let (sender, exit) = watch::channel(None);
        tokio::spawn(watch_instance(pidfd.clone(), status, cleanup, sender));
        Ok(Started { channel, output, egress, control: Box::new(Control { pidfd, cgroup, exit }) })
    }

    /// Makes one child that waits for a plan.
    async fn park(&self, label: &str, host_network: bool) -> Result<Parked, StartError> {
        let inner = &*self.inner;
        let failed = |step: &str, source: io::Error| sandbox_error(label, step, source);
        let sockets = || -> io::Result<_> {
            let (status, inside) = sys::socket_pair(libc::SOCK_SEQPACKET)?;
            sys::set_nonblocking(status.as_fd())?;
            Ok((sys::watched(status)?, inside))
        };
        let (status, inside) = sockets().map_err(|source| failed("create sockets", source))?;
        let cgroup = inner.cgroups.place();
        let without = inner.config.without;
        let cgroups = if without & Layer::Cgroup as u32 == 0 { cgroup.paths() } else { Vec::new() };
        let parking = Parking { without, rootless: inner.rootless, host_network, cgroups };
        let message = parking.encode().map_err(|source| failed("write the plan", source))?;
        let cleanup = Unstarted(Some(Cleanup { cgroup, slot: None }));
        self.send(&message, &inside).await?;
        drop(inside);
        let pidfd = await_parked(&status, label).await?;
        Ok(Parked { status, pidfd, cleanup })
    }

    /// Parks children until there are enough, off every hot path. Does nothing outside a runtime.
    fn fill(&self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !self.inner.pool.begin_filling() {
            return;
        }
        let inner = Arc::downgrade(&self.inner);
        runtime.spawn(async move {
            // A weak reference between two children: filling must not keep a backend alive.
            while let Some(inner) = inner.upgrade() {
                let backend = Self { inner };
                let parking = backend.park("parked", false);
                let parked = tokio::time::timeout(START_TIMEOUT, parking).await;
                if !backend.inner.pool.add(parked.ok().and_then(Result::ok)) {
                    return;
                }
            }
        });
    }

    async fn send(&self, message: &[u8], status: &OwnedFd) -> Result<(), StartError> {
        loop {
            match self.inner.zygote.send(message, status.as_fd()) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(SEND_PAUSE).await;
                }
                Err(error) => {
                    return Err(StartError::Unavailable(format!("zygote is gone: {error}")));
                }
            }
        }
    }
}

impl Backend for ProcessBackend {
    fn start(&self, request: InstanceRequest) -> BoxFuture<Result<Started, StartError>> {
        Box::pin(self.clone().start_now(request))
    }
}

fn bind(source: PathBuf, target: &str, writable: bool) -> Bind {
    Bind { source, target: PathBuf::from(target), writable }
}

/// Listeners and /etc/hosts: each distinct host has one loopback address, so that a client that
/// looks its name up finds all of its ports there.
fn egress_plan(egress: &[Egress]) -> (Vec<(u8, u16)>, String) {
    let mut hosts = "127.0.0.1 localhost function\n::1 localhost\n".to_owned();
    let mut plan = Vec::with_capacity(egress.len());
    for (at, destination) in egress.iter().enumerate() {
        let number = egress.iter().position(|other| other.host == destination.host).unwrap_or(at);
        let plain = destination.host.bytes().all(|byte| {
            byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-' || byte == b'_'
        });
        // An address cannot be redirected by name; whoever wants it can use the loopback address.
        let is_address = destination.host.parse::<std::net::IpAddr>().is_ok();
        if number == at && plain && !is_address {
            hosts.push_str(&format!("{} {}\n", egress_address(number as u8), destination.host));
        }
        plan.push((number as u8, destination.port));
    }
    (plan, hosts)
}

fn sandbox_error(label: &str, step: &str, source: io::Error) -> StartError {
    StartError::Sandbox { label: label.to_owned(), step: step.to_owned(), source }
}

/// Cleans up after a start that failed, in any way, dropped futures included. Whatever was created
/// of it dies with the status socket.
pub(crate) struct Unstarted(Option<Cleanup>);

impl Unstarted {
    fn started(mut self) -> Option<Cleanup> {
        self.0.take()
    }

    /// From now on the slot is free only when the cgroups are gone.
    fn own(&mut self, slot: Slot) {
        if let Some(cleanup) = &mut self.0 {
            cleanup.slot = Some(slot);
        }
    }

    fn cgroup<T: Default>(&self, ask: impl FnOnce(&InstanceCgroup) -> T) -> T {
        self.0.as_ref().map(|cleanup| ask(&cleanup.cgroup)).unwrap_or_default()
    }
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        if let Some(cleanup) = self.0.take() {
            remove_later(cleanup);
        }
    }
}

/// Removing waits for the last processes to leave, so it is kept off the runtime's threads.
fn remove_later(cleanup: Cleanup) {
    let remove = move || {
        cleanup.cgroup.remove();
        // The slot, and with it the uid and our own directories, only after the last process.
        drop(cleanup.slot);
    };
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(remove)),
        Err(_) => remove(),
    }
}

/// One answer from a status socket; `None` when nobody holds its other end any more.
async fn next_answer(status: &AsyncFd<OwnedFd>) -> io::Result<Option<(Answer, Vec<OwnedFd>)>> {
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

/// Waits for both halves of a parking: the zygote's pidfd and the child's word.
async fn await_parked(status: &AsyncFd<OwnedFd>, label: &str) -> Result<OwnedFd, StartError> {
    let (mut pidfd, mut parked) = (None, false);
    loop {
        match next_step(status, label).await? {
            (Answer::Cloned { .. }, fds) => pidfd = fds.into_iter().next(),
            (Answer::Parked, _) => parked = true,
            _ => return Err(unexpected(label)),
        }
        if parked && let Some(pidfd) = pidfd.take() {
            return Ok(pidfd);
        }
    }
}

/// Waits for the program to run; its egress listeners.
async fn await_start(status: &AsyncFd<OwnedFd>, label: &str) -> Result<Vec<OwnedFd>, StartError> {
    match next_step(status, label).await? {
        (Answer::Started, listeners) => Ok(listeners),
        _ => Err(unexpected(label)),
    }
}

fn unexpected(label: &str) -> StartError {
    sandbox_error(label, "ended while starting", io::ErrorKind::UnexpectedEof.into())
}

/// The next answer of a start that goes on.
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

/// Waits for the end of one instance, tells it, and cleans up.
async fn watch_instance(
    pidfd: Arc<AsyncFd<OwnedFd>>,
    status: AsyncFd<OwnedFd>,
    cleanup: Option<Cleanup>,
    sender: watch::Sender<Option<Exit>>,
) {
    let mut exit = Exit {
        status: None,
        // Without a last word pid 1 was killed: by us, or by the kernel for memory.
        signal: Some(libc::SIGKILL),
        out_of_memory: false,
    };
    while let Ok(Some((answer, _))) = next_answer(&status).await {
        if let Answer::Ended { wait_status } = answer {
            exit = if libc::WIFSIGNALED(wait_status) {
                Exit {
                    status: None,
                    signal: Some(libc::WTERMSIG(wait_status)),
                    out_of_memory: false,
                }
            } else {
                Exit {
                    status: Some(libc::WEXITSTATUS(wait_status)),
                    signal: None,
                    out_of_memory: false,
                }
            };
        }
    }
    // The status socket closes when pid 1 is exiting, the pidfd tells that its namespace is empty.
    let _ = pidfd.readable().await;
    if let Some(cleanup) = cleanup {
        exit.out_of_memory = exit.status != Some(0) && cleanup.cgroup.out_of_memory();
        remove_later(cleanup);
    }
    let _ = sender.send(Some(exit));
}

struct Control {
    pidfd: Arc<AsyncFd<OwnedFd>>,
    cgroup: Option<InstanceCgroup>,
    exit: watch::Receiver<Option<Exit>>,
}

impl InstanceControl for Control {
    fn kill(&self) {
        // The only failure is that it has already ended.
        let _ = sys::pidfd_send_signal(self.pidfd.get_ref().as_fd(), libc::SIGKILL);
    }

    fn set_background(&self, background: bool) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.set_background(background);
        }
    }

    fn usage(&self) -> Option<Usage> {
        self.cgroup.as_ref()?.usage()
    }

    fn exited(&self) -> BoxFuture<Exit> {
        let mut exit = self.exit.clone();
        Box::pin(async move {
            let ended = exit.wait_for(Option::is_some).await.ok().and_then(|exit| *exit);
            // The watcher is gone only when the runtime is shutting down, which kills instances.
            ended.unwrap_or(Exit {
                status: None,
                signal: Some(libc::SIGKILL),
                out_of_memory: false,
            })
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.kill();
    }
}

impl std::fmt::Debug for ProcessBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessBackend").field("zygote", &self.inner.zygote.pid()).finish()
    }
}
