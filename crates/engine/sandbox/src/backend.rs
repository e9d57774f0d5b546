//! The daemon's side: [`ProcessBackend`] turns requests into plans, and watches the resulting
//! instances.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mote_core::backend::{
    Backend, BoxFuture, ImageRoot, InstanceLimits, InstanceRequest, Launch, Prewarmed, Seed,
    SeedStart, StartError, Started,
};
use mote_spec::{ANY_HOST, Egress, Transport};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::answers::{Child, await_assigned, await_prepared, await_start, sandbox_error};
use crate::cgroup::Cgroups;
use crate::cleanup::Unstarted;
use crate::config::{HostFacts, Layer, SandboxConfig};
use crate::copy_roots::{self, COPIES_MAX};
use crate::data_folders::DataFolders;
use crate::identity::INSIDE_ID;
use crate::loopback::{EGRESS_MAX, egress_address};
use crate::plan::{
    Assignment, Bind, Data, ImagePlan, Listen, OwnCode, Plan, Preparation, Program, RootPlan,
};
use crate::prepared::{Pool, PreparedChild, has_died};
use crate::prewarmed::PrewarmedPool;
use crate::proc_files::{self, Machine};
use crate::report::{self, Report};
use crate::running::Running;
use crate::seed::{Answers, Parts, ProcessSeed, SeedHandle};
use crate::slots::{Slot, Slots};
use crate::template::{self, Template, Templates};
use crate::zygote::ZygoteHandle;
use crate::{open_network, seccomp, sys};

/// A start that takes longer counts as failed. This is generous: composing a sandbox takes
/// milliseconds.
pub const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a plan is offered again to a zygote that could not take it in time.
const SEND_PAUSE: Duration = Duration::from_millis(1);
/// Prewarmed programs are started only while at most this many other starts are under way. The
/// number is not 0, because a steady sequence of single starts must not keep the pool empty. A
/// burst of starts has priority.
const STARTS_BESIDE_FILLING: usize = 1;
/// The longest time for which a burst delays the next prewarmed program. Without this limit the
/// delay could last for minutes, because functions may take that long to load.
const BURST_MAX: Duration = Duration::from_secs(1);
/// Pause between a start and the refilling of the pools that it used.
const FILL_PAUSE: Duration = Duration::from_millis(20);
/// Extra room for a runtime's own code and stacks on machines where RLIMIT_DATA replaces the memory
/// controller.
const DATA_BYTES_EXTRA: u64 = 256 << 20;
const CODE_DIR: &str = "/function";
const PACKAGES_DIR: &str = "/packages";
const SHIMS_DIR: &str = "/mote";

/// Runs instances as processes in sandboxes. Cloning it is cheap.
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
    slots: Slots,
    pool: Pool,
    waiting: PrewarmedPool,
    templates: Templates,
    data: Arc<DataFolders>,
    /// The number of starts for which callers wait. Each counts until its instance serves. While
    /// there are many, no other programs are brought up, because that would slow these starts:
    /// composing a sandbox takes machine-wide locks.
    under_way: watch::Sender<usize>,
}

/// One start for which a caller waits. Dropping it ends the count, whether or not the start
/// succeeded.
struct UnderWay(ProcessBackend);

impl UnderWay {
    fn begin(backend: &ProcessBackend) -> Self {
        backend.inner.under_way.send_modify(|starts| *starts += 1);
        Self(backend.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.inner.under_way.send_modify(|starts| *starts -= 1);
        self.0.fill_prewarmed();
    }
}

impl ProcessBackend {
    /// Makes a backend that uses this zygote. Examines the host once and prepares cgroups. For
    /// this, it reads and writes a few small files, and ends the processes that a dead daemon has
    /// left.
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
                slots: Slots::default(),
                pool: Pool::default(),
                waiting: PrewarmedPool::default(),
                templates: Templates::default(),
                data: Arc::default(),
                under_way: watch::Sender::new(0),
            }),
        };
        backend.fill();
        backend
    }

    /// Ends the processes that still run and removes every cgroup of this process. Call this only
    /// when the daemon ends, because no start succeeds afterwards. Blocks for up to ten seconds.
    pub fn shut_down(&self) {
        self.inner.waiting.close();
        self.inner.templates.keep_for(Vec::new());
        self.inner.pool.close();
        self.inner.cgroups.remove_all();
    }

    /// Resolves when the zygote, which makes sandboxes, has ended. All its instances end with it,
    /// and no start succeeds afterwards. A process with threads cannot safely fork another zygote,
    /// so the node should end too (docs/decisions/0002-own-sandbox.md). If the zygote's end cannot
    /// be watched, this never resolves.
    pub async fn helper_ended(&self) {
        if self.inner.zygote.ended().await.is_err() {
            std::future::pending().await
        }
    }

    /// Reports what this machine lets the backend enforce. Reads a few small files.
    pub fn report(&self) -> Report {
        Report { items: report::items(&self.inner.cgroups, self.inner.config.uid_base) }
    }

    /// The most private memory that each process of an instance with this limit may have. `None` on
    /// machines that can limit the memory of the whole instance.
    pub fn process_bytes(&self, memory_bytes: u64) -> Option<u64> {
        let is_whole = self.inner.cgroups.has("memory");
        (!is_whole).then(|| memory_bytes.saturating_add(DATA_BYTES_EXTRA))
    }

    /// The data folders of functions.
    pub fn data_folders(&self) -> &Arc<DataFolders> {
        &self.inner.data
    }

    /// Mounts the data folder of a function, if it has one, and makes a mount of it for one
    /// instance. This runs on another thread, because it may wait for the disk.
    async fn data(&self, request: &InstanceRequest) -> Result<Option<Data>, StartError> {
        let Some(wanted) = request.folders.data.clone() else { return Ok(None) };
        let folders = self.inner.data.clone();
        let mounted = tokio::task::spawn_blocking(move || -> io::Result<Data> {
            let folder = folders.open(&wanted.image, wanted.bytes).map_err(io::Error::other)?;
            let mount = Arc::new(folder.for_instance()?);
            Ok(Data { folder, mount })
        });
        let mounted = mounted.await.map_err(io::Error::other).flatten();
        mounted
            .map(Some)
            .map_err(|source| sandbox_error(&request.label, "mount the data folder", source))
    }

    /// The user and group id on the host under which an instance in `slot` runs.
    fn host_ids(&self, slot: u32) -> (u32, u32) {
        if self.inner.rootless {
            sys::effective_ids()
        } else {
            let id = self.inner.config.uid_base.saturating_add(slot);
            (id, id)
        }
    }

    /// Makes the plan of an instance, without its cgroups.
    fn plan(&self, request: &InstanceRequest, slot: &Slot) -> Plan {
        let inner = &*self.inner;
        let without = inner.config.without;
        let mut env = request.env.clone();
        let program = match request.launch.clone() {
            Launch::Shim { argv, .. } | Launch::Worker { argv } => Program::Shim { argv },
            Launch::PerInvocation { argv } => Program::PerInvocation { argv },
            Launch::Server { argv, port } => {
                if !env.iter().any(|(name, _)| name == "PORT") {
                    env.push(("PORT".to_owned(), port.to_string()));
                }
                let own = request.image.as_ref().and_then(|image| image.stop_signal);
                Program::Server { argv, port, stop_signal: own.unwrap_or(libc::SIGTERM) }
            }
        };
        let work_dir = if let Some(image) = &request.image {
            image.work_dir.clone()
        } else if without & Layer::Root as u32 == 0 {
            PathBuf::from(CODE_DIR)
        } else {
            request.code_dir.clone()
        };
        let own_port = match request.launch {
            Launch::Server { port, .. } => Some(port),
            _ => None,
        };
        let (egress, hosts) = egress_plan(&request.egress, own_port);
        let mut root = match &request.image {
            Some(image) => self.image_root(image, hosts, request.limits.disk_bytes),
            None => self.base_root(hosts, request.limits.disk_bytes),
        };
        if egress.iter().any(Listen::is_for_any_host) {
            let text = format!("nameserver {}\n", open_network::NAME_SERVER.ip());
            root.files.push((PathBuf::from("/etc/resolv.conf"), text));
        }
        if request.image.is_some() {
            // An image contains its code.
        } else if request.writable_code {
            let ids = self.host_ids(slot.number());
            root.own_code = Some(self.own_code(request, ids));
        } else {
            root.binds.push(bind(request.code_dir.clone(), CODE_DIR, false));
        }
        if let Some(packages) = &request.packages_dir {
            root.binds.push(bind(packages.clone(), PACKAGES_DIR, false));
        }
        for (from, inside) in &request.folders.host {
            root.binds.push(Bind { source: from.clone(), target: inside.clone(), writable: false });
        }
        root.files.extend(request.files.iter().cloned());
        let memory = request.shows_memory.then_some(request.limits.memory_bytes);
        root.machine = Some(Machine::look(memory));
        // Links inside a folder that is bound from the host are left out, because that folder is
        // read-only.
        let binds = &root.binds;
        let hidden = |link: &Path| binds.iter().any(|bind| link.starts_with(&bind.target));
        root.links.extend(request.links.iter().filter(|(link, _)| !hidden(link)).cloned());
        Plan {
            without,
            rootless: inner.rootless,
            userns: inner.userns,
            host_ids: self.host_ids(slot.number()),
            cgroups: Vec::new(),
            root,
            program,
            env,
            work_dir,
            data_bytes: self.process_bytes(request.limits.memory_bytes),
            file_bytes: None,
            processes: u64::from(request.limits.pids) + 1,
            egress,
            data: None,
            debug_port: request.debug_port,
        }
    }

    /// Describes the writable copy of the code for an instance with these ids.
    fn own_code(&self, request: &InstanceRequest, ids: (u32, u32)) -> OwnCode {
        OwnCode {
            source: Some(request.code_dir.clone()),
            target: PathBuf::from(CODE_DIR),
            owner: (!self.inner.rootless).then_some(ids),
            tmp_bytes: request.limits.disk_bytes,
        }
    }

    /// The root of an instance that runs a container image: nothing of the host except the image's
    /// layers.
    fn image_root(&self, image: &ImageRoot, hosts: String, tmp_bytes: u64) -> RootPlan {
        let file = |path: &str, text: String| (PathBuf::from(path), text);
        RootPlan {
            files: vec![file("/etc/hostname", "function\n".to_owned()), file("/etc/hosts", hosts)],
            tmp_bytes,
            image: Some(ImagePlan {
                layers: image.layers.clone(),
                layers_belong_to: (!self.inner.rootless).then(sys::effective_ids),
                user: image.user.clone(),
            }),
            ..RootPlan::default()
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
            folders: Vec::new(),
            machine: None,
            tmp_bytes,
            has_data: false,
            own_code: None,
            image: None,
        }
    }

    async fn start_now(self, request: InstanceRequest) -> Result<Started, StartError> {
        // The limit is one lower than the message allows, because the socket for names may need one
        // more descriptor.
        if request.egress.len() >= EGRESS_MAX {
            let source = io::Error::from_raw_os_error(libc::E2BIG);
            return Err(sandbox_error(&request.label, "at most 63 egress destinations", source));
        }
        if request.image.is_some() && !self.inner.userns {
            let source = io::Error::from_raw_os_error(libc::EPERM);
            return Err(sandbox_error(&request.label, "user namespaces for an image", source));
        }
        let under_way = UnderWay::begin(&self);
        if let Some((like, running)) = self.inner.waiting.take(&request) {
            // If the assignment fails, for instance because the prewarmed instance already uses
            // more memory than the function's limit, that instance is gone. The function then
            // starts as if there had been none.
            if let Ok(running) = self.assign(running, &like.limits, &request).await {
                return started(&request.label, running, true, Box::new(under_way));
            }
        }
        let running = self.run_or_copy(&request.label, &request, |_| ()).await;
        // The next child is made only now, so that making it does not slow this start.
        self.fill();
        started(&request.label, running?, false, Box::new(under_way))
    }

    /// Starts a seed: an ordinary sandbox, which has a root for each copy in addition.
    async fn start_seed_now(
        self,
        request: InstanceRequest,
    ) -> Result<(Started, Arc<dyn Seed>), StartError> {
        let inner = &*self.inner;
        let label = &request.label;
        let can_copy = matches!(request.launch, Launch::Shim { forks: true, .. });
        let is_plain =
            request.image.is_none() && request.debug_port.is_none() && !request.writable_code;
        if !(can_copy && is_plain && report::prewarmed_programs(&inner.cgroups))
            || inner.config.without != 0
        {
            let why = "no copies can be made of this program on this node".to_owned();
            return Err(StartError::Unavailable(why));
        }
        let slot = inner.slots.take()?;
        let mut plan = self.plan(&request, &slot);
        plan.give(self.data(&request).await?);
        let Program::Shim { argv } = plan.program else {
            return Err(StartError::Unavailable("only shims have seeds".to_owned()));
        };
        plan.program = Program::Seed { argv };
        plan.root.folders.extend(copy_roots::folders());
        // The kernel counts the processes of all copies together, because they have the same user.
        // The groups count those of each copy.
        plan.processes *= u64::from(COPIES_MAX) + 1;
        let host_ids = plan.host_ids;
        let running = self.run(label, plan, &request.limits, slot, None).await?;
        self.fill();
        let failed = |source| sandbox_error(label, "watch the seed", source);
        let cgroup = running.prepared.cleanup.cgroup(|cgroup| Some(cgroup.clone()));
        let parts = Parts {
            begin: {
                let backend = self.clone();
                Box::new(move || Box::new(UnderWay::begin(&backend)))
            },
            cgroups: inner.cgroups.clone(),
            label: label.clone(),
            limits: request.limits.clone(),
            host_ids,
            own_group: cgroup.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?,
            channel: running.channel.try_clone().map_err(failed)?,
            status: running.prepared.status.get_ref().try_clone().map_err(failed)?,
        };
        let (answers, replies) = Answers::new();
        let seed = ProcessSeed::new(parts, replies).map_err(failed)?;
        // Its copies are the starts under way.
        let started = running
            .into_started(false, Box::new(()), move |answer| answers.take(answer))
            .map_err(failed)?;
        Ok((started, Arc::new(SeedHandle(seed))))
    }

    /// Sends a plan, and waits until its program runs.
    pub(crate) async fn launch_build(
        &self,
        label: &str,
        limits: &InstanceLimits,
        (egress, file_bytes): (Vec<SocketAddrV4>, u64),
        make: impl FnOnce(
            RootPlan,
            (u32, u32),
        ) -> io::Result<(RootPlan, Vec<String>, Vec<(String, String)>)>,
    ) -> Result<Started, StartError> {
        let slot = self.inner.slots.take()?;
        let inner = &*self.inner;
        let host_ids = self.host_ids(slot.number());
        let (_, hosts) = egress_plan(&[], None);
        let tcp =
            |address: SocketAddrV4| Listen { address: address.into(), transport: Transport::Tcp };
        let egress = egress.into_iter().map(tcp).collect();
        let base = self.base_root(hosts, limits.disk_bytes);
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
            data_bytes: self.process_bytes(limits.memory_bytes),
            file_bytes: Some(file_bytes),
            processes: u64::from(limits.pids) + 1,
            egress,
            data: None,
            debug_port: None,
        };
        let running = self.run(label, plan, limits, slot, None).await;
        self.fill();
        let running = running?;
        // An installation may take minutes, which its caller expects, so it does not count among
        // the starts under way.
        started(label, running, false, Box::new(()))
    }

    /// Starts the program of a request, after `change` to its plan: as a copy of the template if
    /// there is one, and otherwise by executing it.
    async fn run_or_copy(
        &self,
        label: &str,
        request: &InstanceRequest,
        change: impl Fn(&mut Plan),
    ) -> Result<Running, StartError> {
        let mut template = self.inner.templates.get(request);
        loop {
            let slot = self.inner.slots.take()?;
            let mut plan = self.plan(request, &slot);
            plan.give(self.data(request).await?);
            change(&mut plan);
            if let (Some(_), Program::Shim { argv }) = (&template, &mut plan.program) {
                plan.program = Program::Copy { argv: std::mem::take(argv) };
            }
            let running = self.run(label, plan, &request.limits, slot, template.as_deref()).await;
            let Some(used) = template.take() else { return running };
            if let Ok(mut running) = running {
                let speaks = is_up(&running, label).await.is_ok();
                let is_copied = speaks && sys::has_bytes(running.channel.as_fd());
                self.inner.templates.copied(&used, is_copied);
                if is_copied {
                    if let Some(cgroup) = running.prepared.cleanup.cgroup_mut() {
                        cgroup.borrow_from_template(&request.limits, true);
                    }
                    return Ok(running);
                }
                let mut text = [0; 512];
                let length = sys::read(running.output.as_fd(), &mut text).unwrap_or(0);
                let why = String::from_utf8_lossy(&text[..length]);
                tracing::warn!(why = why.trim(), "a copy of the template did not start");
            }
            // The template has ended, or a copy could not enter the sandbox. The program can still
            // be executed.
        }
    }

    /// Gives a prewarmed program to a function: first mounts the function's folders, then sets its
    /// limits.
    async fn assign(
        &self,
        mut running: Running,
        before: &InstanceLimits,
        request: &InstanceRequest,
    ) -> Result<Running, StartError> {
        let label = &request.label;
        let failed = |step: &str, source: io::Error| sandbox_error(label, step, source);
        running.prepared.cleanup.cgroup(|cgroup| cgroup.set_modest(false));
        let mut binds = Vec::new();
        let own_code = request
            .writable_code
            .then(|| self.own_code(request, self.host_ids(running.prepared.cleanup.slot_number())));
        if own_code.is_none() {
            binds.push(bind(request.code_dir.clone(), CODE_DIR, false));
        }
        if let Some(packages) = &request.packages_dir {
            binds.push(bind(packages.clone(), PACKAGES_DIR, false));
        }
        let changed = request.shows_memory && before.memory_bytes != request.limits.memory_bytes;
        let file = changed.then(|| proc_files::memory_file(request.limits.memory_bytes));
        let message = Assignment { binds, own_code, file }
            .encode()
            .map_err(|source| failed("write the assignment", source))?;
        let (status, inside) = status_pair().map_err(|source| failed("create sockets", source))?;
        let assigned = async {
            self.send(&message, &inside, Some(running.prepared.mounts.as_fd())).await?;
            drop(inside);
            await_assigned(&status, label).await
        };
        tokio::time::timeout(START_TIMEOUT, assigned).await.map_err(|_| {
            failed("mount within 10 s", io::Error::from_raw_os_error(libc::ETIMEDOUT))
        })??;
        if let Some(cgroup) = running.prepared.cleanup.cgroup_mut() {
            let whole = !matches!(request.launch, Launch::PerInvocation { .. });
            cgroup
                .change(before, &request.limits, whole)
                .map_err(|source| failed("set its limits", source))?;
        }
        Ok(running)
    }

    /// Starts prewarmed programs one at a time until there are enough. Starting many at once would
    /// delay the starts that callers wait for. The programs start with a small share of the
    /// processor. After a failure, nothing more is tried until the next start. Does nothing outside
    /// a runtime.
    fn fill_prewarmed(&self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !self.inner.waiting.begin_filling() {
            return;
        }
        let inner = Arc::downgrade(&self.inner);
        let mut starts = self.inner.under_way.subscribe();
        runtime.spawn(async move {
            // The instance that started last is now loading its function, and a caller waits for
            // it.
            tokio::time::sleep(FILL_PAUSE).await;
            loop {
                let calm = starts.wait_for(|starts| *starts <= STARTS_BESIDE_FILLING);
                // After a timeout, filling continues as on a calm node. If the backend is gone,
                // there is nothing to fill.
                let _ = tokio::time::timeout(BURST_MAX, calm).await;
                let Some(inner) = inner.upgrade() else { return };
                let backend = Self { inner };
                let Some(like) = backend.inner.waiting.next() else { return };
                if backend.inner.templates.is_missing(&like)
                    && crate::identity::may_make_templates()
                {
                    let template = backend
                        .start_template(&like)
                        .await
                        .inspect_err(|why| tracing::warn!(%why, "a template did not start"))
                        .ok();
                    if backend.inner.templates.set(&like, template) {
                        backend.watch_template();
                    }
                }
                let Ok(running) = backend.bring_up(&like).await else {
                    return backend.inner.waiting.give_up();
                };
                backend.inner.waiting.add(like, running);
            }
        });
    }

    /// Starts a program in a complete sandbox that lacks only a function's folders. Resolves when
    /// the program is up.
    async fn bring_up(&self, like: &InstanceRequest) -> Result<Running, StartError> {
        let running = self.run_or_copy("waiting", like, without_function).await?;
        self.fill();
        running.prepared.cleanup.cgroup(|cgroup| cgroup.set_modest(true));
        is_up(&running, "waiting").await?;
        Ok(running)
    }

    /// Ends the template when it has not been copied for some time.
    fn watch_template(&self) {
        let inner = Arc::downgrade(&self.inner);
        tokio::spawn(async move {
            while let Some(rest) = inner.upgrade().and_then(|inner| inner.templates.let_rest()) {
                tokio::time::sleep(rest).await;
            }
        });
    }

    /// Starts a template for programs of this kind. Resolves when it can be copied.
    async fn start_template(&self, like: &InstanceRequest) -> Result<Template, StartError> {
        const LABEL: &str = "template";
        let inner = &*self.inner;
        let slot = inner.slots.take()?;
        let mut plan = self.plan(like, &slot);
        without_function(&mut plan);
        let Program::Shim { argv } = plan.program else {
            return Err(StartError::Unavailable("only shims have templates".to_owned()));
        };
        let program = argv.first().map(Path::new);
        let files = program.into_iter().chain(inner.config.shims_dir.as_deref());
        if !template::belong_to_root(files) {
            let why = "other users than root can change the interpreter or its shim".to_owned();
            return Err(StartError::Unavailable(why));
        }
        plan.program = Program::Template { argv };
        plan.without = template::LEFT_TO_COPIES;
        plan.host_ids = (0, 0);
        plan.egress.clear();
        let running = self.run(LABEL, plan, &like.limits, slot, None).await?;
        seccomp::compile()
            .and_then(|filter| Template::begin(&running, &filter))
            .map_err(|source| sandbox_error(LABEL, "hand over the filter", source))?;
        is_up(&running, LABEL).await?;
        if !sys::has_bytes(running.channel.as_fd()) {
            return Err(sandbox_error(LABEL, "load its shim", io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(Template::new(like, running))
    }

    async fn run(
        &self,
        label: &str,
        mut plan: Plan,
        limits: &InstanceLimits,
        slot: Slot,
        template: Option<&Template>,
    ) -> Result<Running, StartError> {
        let failed = |step: &str, source: io::Error| sandbox_error(label, step, source);
        let sockets = || -> io::Result<_> {
            let kind = match plan.program {
                Program::Server { .. } | Program::Template { .. } => libc::SOCK_SEQPACKET,
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
            // Prepared children have the namespaces and groups of an instance.
            let is_template = matches!(plan.program, Program::Template { .. });
            let mut taken = if is_template { None } else { self.inner.pool.take() };
            loop {
                let waited = taken.is_some();
                let mut prepared = match taken.take() {
                    Some(prepared) => prepared,
                    None => self.prepare(label, plan.without).await?,
                };
                if plan.has(Layer::Cgroup) {
                    plan.cgroups = prepared.cleanup.cgroup(|cgroup| cgroup.values(limits, whole));
                }
                let message = plan.encode().map_err(|source| failed("write the plan", source))?;
                let mount = plan.data.as_ref().map(|data| &*data.mount);
                match prepared.send(&message, &inside, mount) {
                    Ok(()) => {
                        let folder = plan.data.as_ref().map(|data| data.folder.clone());
                        prepared.cleanup.own(slot, folder);
                        let egress = await_start(&prepared.status, label).await?;
                        return Ok((prepared, egress));
                    }
                    // The child died while it waited, for instance because the whole machine ran
                    // out of memory. A new child is made in its place.
                    Err(error) if waited && has_died(&error) => {}
                    Err(source) => return Err(failed("hand over the plan", source)),
                }
            }
        };
        let (prepared, mut egress) = match tokio::time::timeout(START_TIMEOUT, start).await {
            Ok(result) => result?,
            Err(_) => {
                let source = io::Error::from_raw_os_error(libc::ETIMEDOUT);
                return Err(failed("start within 10 s", source));
            }
        };
        if let Some(template) = template {
            // A socket for names belongs to the listeners of an open network.
            let is_open = plan.egress.iter().any(Listen::is_for_any_host);
            let listeners = plan.egress.len() + usize::from(is_open);
            let from_init = egress.split_off(listeners.min(egress.len()));
            let groups = prepared.cleanup.cgroup(|cgroup| cgroup.paths());
            template
                .copy(&plan, &prepared.pidfd, &inside, &groups, &from_init)
                .map_err(|source| failed("order a copy of the template", source))?;
        }
        drop(inside);
        let debugger = plan.debug_port.and_then(|_| egress.pop());
        Ok(Running { channel, output, egress, debugger, prepared })
    }

    /// Makes one child that waits for a plan.
    async fn prepare(&self, label: &str, without: u32) -> Result<PreparedChild, StartError> {
        let inner = &*self.inner;
        let failed = |step: &str, source: io::Error| sandbox_error(label, step, source);
        let (status, inside) = status_pair().map_err(|source| failed("create sockets", source))?;
        let cgroup = inner.cgroups.place();
        let cgroups = if without & Layer::Cgroup as u32 == 0 { cgroup.paths() } else { Vec::new() };
        let mapped = inner.rootless.then(sys::effective_ids);
        let preparation = Preparation { without, mapped, cgroups };
        let message = preparation.encode().map_err(|source| failed("write the plan", source))?;
        let cleanup = Unstarted::new(cgroup);
        self.send(&message, &inside, None).await?;
        drop(inside);
        let Child { init, pidfd, mounts } = await_prepared(&status, label).await?;
        Ok(PreparedChild { status, init, pidfd, mounts, cleanup })
    }

    /// Prepares children until there are enough. This happens outside every hot path. Does nothing
    /// outside a runtime.
    fn fill(&self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !self.inner.pool.begin_filling() {
            return;
        }
        let inner = Arc::downgrade(&self.inner);
        runtime.spawn(async move {
            // Between two children only a weak reference remains, because filling must not keep a
            // backend alive.
            while let Some(inner) = inner.upgrade() {
                let backend = Self { inner };
                let preparation = backend.prepare("prepared", backend.inner.config.without);
                let prepared = tokio::time::timeout(START_TIMEOUT, preparation).await;
                if !backend.inner.pool.add(prepared.ok().and_then(Result::ok)) {
                    return;
                }
            }
        });
    }

    async fn send(
        &self,
        message: &[u8],
        status: &OwnedFd,
        mounts: Option<BorrowedFd<'_>>,
    ) -> Result<(), StartError> {
        loop {
            match self.inner.zygote.send(message, status.as_fd(), mounts) {
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

    fn start_seed(&self, request: InstanceRequest) -> SeedStart {
        Box::pin(self.clone().start_seed_now(request))
    }

    fn keep_prewarmed(&self, wanted: Vec<Prewarmed>) {
        let inner = &*self.inner;
        if !report::prewarmed_programs(&inner.cgroups) || inner.config.without != 0 {
            return;
        }
        inner.templates.keep_for(wanted.iter().map(|wanted| wanted.like.clone()).collect());
        inner.waiting.want(wanted);
        self.fill_prewarmed();
    }
}

/// Takes from a plan what belongs to a function: the program starts before its function is known.
fn without_function(plan: &mut Plan) {
    let folders = [CODE_DIR, PACKAGES_DIR].map(PathBuf::from);
    plan.root.binds.retain(|bind| !folders.contains(&bind.target));
    plan.root.folders = folders.into();
    // Until the packages are mounted, a link to a folder among them leads to an empty folder. Bun
    // remembers from its start which links lead to folders.
    let is_in_packages = |target: &&PathBuf| target.starts_with(PACKAGES_DIR);
    let targets = plan.root.links.iter().map(|(_, target)| target);
    plan.root.folders.extend(targets.filter(is_in_packages).cloned());
    if let Some(code) = &mut plan.root.own_code {
        code.source = None;
        plan.root.folders.retain(|folder| *folder != code.target);
    }
    plan.work_dir = PathBuf::from("/");
    if let Program::PerInvocation { argv } = &mut plan.program {
        argv.clear();
    }
}

/// Waits for the first word of a program.
async fn is_up(running: &Running, label: &str) -> Result<(), StartError> {
    tokio::time::timeout(START_TIMEOUT, running.speaks())
        .await
        .map_err(io::Error::from)
        .flatten()
        .map_err(|source| sandbox_error(label, "hear of its program within 10 s", source))
}

fn bind(source: PathBuf, target: &str, writable: bool) -> Bind {
    Bind { source, target: PathBuf::from(target), writable }
}

/// Plans the sockets for destinations, and the text of /etc/hosts. A destination that is an address
/// gets its socket at that address. Each distinct name gets one loopback address, so that a client
/// that looks up the name finds all of its ports there.
fn egress_plan(egress: &[Egress], own_port: Option<u16>) -> (Vec<Listen>, String) {
    let names_localhost = egress.iter().any(|to| to.host == "localhost");
    let mut hosts = "127.0.0.1 localhost function\n".to_owned();
    if !names_localhost {
        // Otherwise, a client that tries only ::1 would not find `localhost` in /etc/hosts.
        hosts.push_str("::1 localhost\n");
    }
    let mut plan = Vec::with_capacity(egress.len());
    let named = || egress.iter().filter(|destination| destination.host != ANY_HOST);
    let mut at = 0;
    for destination in egress {
        let mut add = |ip: IpAddr| {
            let address = SocketAddr::new(ip, destination.port);
            plan.push(Listen { address, transport: destination.transport });
        };
        if destination.host == ANY_HOST {
            add(Ipv4Addr::UNSPECIFIED.into());
            continue;
        }
        let number = named().position(|other| other.host == destination.host).unwrap_or(at);
        let own = egress_address(number as u8);
        match destination.literal().filter(|ip| can_stand_inside(*ip)) {
            // The function's own server listens at this address, so the destination gets another
            // one.
            Some(ip) if ip.is_loopback() && own_port == Some(destination.port) => add(own.into()),
            Some(ip) => add(ip),
            None => {
                let plain = destination.host.bytes().all(|byte| {
                    byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-' || byte == b'_'
                });
                let is_address = destination.host.parse::<IpAddr>().is_ok();
                if number == at && plain && !is_address {
                    hosts.push_str(&format!("{own} {}\n", destination.host));
                }
                add(own.into());
            }
        }
        at += 1;
    }
    (plan, hosts)
}

/// Whether a sandbox can have a socket at this address. The loopback addresses that stand for names
/// are taken, and an IPv6 address needs IPv6 in the kernel.
fn can_stand_inside(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.octets()[..2] != egress_address(0).octets()[..2],
        IpAddr::V6(_) => Path::new("/proc/net/if_inet6").exists(),
    }
}

/// Makes a pair of status sockets: the watched end, and the end for the child.
fn status_pair() -> io::Result<(AsyncFd<OwnedFd>, OwnedFd)> {
    let (status, inside) = sys::socket_pair(libc::SOCK_SEQPACKET)?;
    sys::set_nonblocking(status.as_fd())?;
    Ok((sys::watched(status)?, inside))
}

fn started(
    label: &str,
    running: Running,
    waited: bool,
    under_way: Box<dyn Send + Sync>,
) -> Result<Started, StartError> {
    running
        .into_started(waited, under_way, drop)
        .map_err(|source| sandbox_error(label, "watch the instance", source))
}

impl std::fmt::Debug for ProcessBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessBackend").field("zygote", &self.inner.zygote.pid()).finish()
    }
}
