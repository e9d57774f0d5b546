//! The template of an interpreter: a process that has loaded its shim once. A copy of it replaces
//! the start of an interpreter in a new sandbox.
//!
//! A copy must have everything that an executed program inherits from pid 1. Pid 1 composes its
//! sandbox as usual, but does not execute a program. It reports its landlock rules instead, and the
//! daemon orders a copy. The copy enters the control groups and namespaces of pid 1 and gives up
//! its privileges (`shims/python/mote_template.py`). Pid 1 then becomes its parent.
//!
//! To enter namespaces that belong to the host's user namespace, the template needs some of root's
//! capabilities. So it is like the zygote: it reads only what the daemon sends, and runs no
//! function. It has its own read-only root and no network. There is no template if a user other
//! than root could change the interpreter or the shim.
//!
//! All copies share the layout of their memory, the seed of Python's hashes and the canaries of the
//! C library (docs/decisions/0100-templates.md). So a template is replaced after a number of
//! copies.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mote_core::backend::{InstanceRequest, Launch};
use serde::Serialize;

use crate::cgroup::open_entry;
use crate::config::Layer;
use crate::identity;
use crate::message::{self, FDS_MAX};
use crate::plan::Plan;
use crate::prewarmed::is_readable;
use crate::running::Running;
use crate::seccomp::BpfProgram;

/// The layers that only the copies get. The template keeps the host's process ids, because a
/// process can enter only namespaces below its own.
pub(crate) const LEFT_TO_COPIES: u32 = Layer::UserNamespace as u32
    | Layer::Seccomp as u32
    | Layer::Landlock as u32
    | Layer::Capabilities as u32
    | Layer::PidNamespace as u32
    | Layer::Cgroup as u32
    | Layer::Rlimits as u32;
/// A template is replaced after this many copies. A function that reads its own memory therefore
/// learns the seed and the layout of a limited number of other instances. A new template costs as
/// much as one start without a template.
const COPIES_MAX: u32 = 256;
/// How long a template is kept without another copy. It is started when two programs of its kind are
/// prewarmed within this time. So a node at rest holds no template, and a rare start does not cost
/// more than without one.
const REST: Duration = Duration::from_secs(60);
/// After this many failures in a row, programs are executed again. One failure may have another
/// reason, but a machine that does not permit copies would make each start fail first.
const FAILURES_MAX: u32 = 3;
/// The most descriptors, besides its listeners, that a copy's pid 1 sends.
const FROM_INIT_MAX: usize = identity::NAMESPACES.len() + 1;

/// A running template. Dropping this ends it. Its copies continue.
pub(crate) struct Template {
    launch: Launch,
    env: Vec<(String, String)>,
    running: Running,
    copies: AtomicU32,
    last_copy: Mutex<Instant>,
}

/// What the template must know about a copy. The descriptors follow in this order: pid 1, the
/// channel, the output, the control groups, the namespaces, and the landlock rules if there are
/// any.
#[derive(Serialize)]
struct Order<'a> {
    groups: usize,
    landlock: bool,
    work_dir: &'a Path,
    limits: Vec<(libc::c_int, u64, u64)>,
    secure_bits: libc::c_ulong,
    ids: (u32, u32),
}

impl Template {
    /// Takes over a process that has said that it is up.
    pub(crate) fn new(like: &InstanceRequest, running: Running) -> Self {
        let (launch, env) = (like.launch.clone(), like.env.clone());
        Self {
            launch,
            env,
            running,
            copies: AtomicU32::new(0),
            last_copy: Mutex::new(Instant::now()),
        }
    }

    /// Hands the system call filter to a template that has just been executed.
    pub(crate) fn begin(running: &Running, filter: &BpfProgram) -> io::Result<()> {
        let instruction = |one: &seccompiler::sock_filter| {
            let [low, high] = one.code.to_ne_bytes();
            let [a, b, c, d] = one.k.to_ne_bytes();
            [low, high, one.jt, one.jf, a, b, c, d]
        };
        let bytes: Vec<u8> = filter.iter().flat_map(instruction).collect();
        message::send(running.channel.as_fd(), &bytes, &[], libc::MSG_DONTWAIT)
    }

    fn is_for(&self, request: &InstanceRequest) -> bool {
        self.launch == request.launch
            && self.env == request.env
            && request.image.is_none()
            && request.debug_port.is_none()
    }

    /// How long it will be kept if no further copy is made.
    fn rest_left(&self) -> Duration {
        let last = *self.last_copy.lock().unwrap_or_else(PoisonError::into_inner);
        REST.saturating_sub(last.elapsed())
    }

    /// Whether it has neither ended nor made all its copies.
    fn lasts(&self) -> bool {
        self.copies.load(Ordering::Relaxed) < COPIES_MAX
            && !is_readable(self.running.prepared.status_fd())
    }

    /// Orders a copy that becomes the program of `plan`, in the sandbox of `init`. `inside` holds
    /// the channel and the output, and `from_init` what pid 1 has sent: its namespaces, and its
    /// landlock rules if the kernel has landlock.
    pub(crate) fn copy(
        &self,
        plan: &Plan,
        init: &OwnedFd,
        inside: &[OwnedFd; 2],
        groups: &[PathBuf],
        from_init: &[OwnedFd],
    ) -> io::Result<()> {
        self.copies.fetch_add(1, Ordering::Relaxed);
        *self.last_copy.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let order = Order {
            groups: groups.len(),
            landlock: from_init.len() > identity::namespaces(plan).len(),
            work_dir: &plan.work_dir,
            limits: identity::resource_limits(plan),
            secure_bits: identity::SECURE_BITS,
            ids: if identity::has_own_users(plan) { identity::INSIDE_IDS } else { plan.host_ids },
        };
        let groups = groups.iter().map(|dir| open_entry(dir)).collect::<io::Result<Vec<_>>>()?;
        let fds: Vec<RawFd> = std::iter::once(init)
            .chain(inside)
            .chain(&groups)
            .chain(from_init)
            .map(AsRawFd::as_raw_fd)
            .collect();
        let order = serde_json::to_vec(&order)?;
        message::send(self.running.channel.as_fd(), &order, &fds, libc::MSG_DONTWAIT)
    }
}

/// The template of one backend. There is at most one, for the first kind of program that can copy
/// itself.
#[derive(Default)]
pub(crate) struct Templates {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    wanted: Vec<InstanceRequest>,
    up: Option<Arc<Template>>,
    /// When a program that can copy itself was last prewarmed.
    last_prewarmed: Option<Instant>,
    /// Whether a task waits to end the template.
    is_watched: bool,
    /// The programs that could not become a template. They are not tried again.
    failed: Vec<Launch>,
    /// Templates that did not start, and copies that did not become a program, since the last copy
    /// that did.
    failures: u32,
}

impl Templates {
    /// The living template from which an instance of this request can be copied.
    pub(crate) fn get(&self, request: &InstanceRequest) -> Option<Arc<Template>> {
        let template = self.lock().up.clone()?;
        // A copy enters the groups of its sandbox before it forks the program: one process more.
        // The message to it has room for fewer descriptors than a start.
        let fits = request.limits.pids > 1 && request.egress.len() + FROM_INIT_MAX < FDS_MAX;
        (fits && template.is_for(request) && template.lasts()).then_some(template)
    }

    /// Whether a template must be started before another program of this kind is prewarmed.
    pub(crate) fn is_missing(&self, like: &InstanceRequest) -> bool {
        let Launch::Shim { forks: true, .. } = like.launch else { return false };
        let mut state = self.lock();
        let last = state.last_prewarmed.replace(Instant::now());
        let is_frequent = last.is_some_and(|last| last.elapsed() < REST);
        let is_there = state.up.as_ref().is_some_and(|up| up.lasts());
        is_frequent
            && !is_there
            && like.debug_port.is_none()
            && !state.failed.contains(&like.launch)
    }

    /// Ends the template if no copy was made for some time. Returns when to look again; `None` if
    /// there is no template any more.
    pub(crate) fn let_rest(&self) -> Option<Duration> {
        let mut state = self.lock();
        let left = state.up.as_ref().map(|up| up.rest_left()).filter(|left| !left.is_zero());
        if left.is_some() {
            return left;
        }
        state.is_watched = false;
        let former = state.up.take();
        drop(state);
        drop(former);
        None
    }

    /// Replaces the template, or notes that there is none for this kind of program. If this returns
    /// true, the caller must call [`Templates::let_rest`] until that returns `None`.
    pub(crate) fn set(&self, like: &InstanceRequest, template: Option<Template>) -> bool {
        let mut state = self.lock();
        if template.is_none() {
            state.fail(&like.launch);
        }
        let template = template.filter(|template| state.needs(template));
        let former = std::mem::replace(&mut state.up, template.map(Arc::new));
        let is_unwatched = state.up.is_some() && !std::mem::replace(&mut state.is_watched, true);
        drop(state);
        // Dropping a template ends it. This happens outside the lock.
        drop(former);
        is_unwatched
    }

    /// Notes whether a copy became a program.
    pub(crate) fn copied(&self, template: &Template, succeeded: bool) {
        let mut state = self.lock();
        if succeeded {
            state.failures = 0;
        } else if state.fail(&template.launch) {
            let former = state.up.take();
            drop(state);
            drop(former);
        }
    }

    /// Notes which programs are wanted, and ends a template that none of them needs.
    pub(crate) fn keep_for(&self, wanted: Vec<InstanceRequest>) {
        let mut state = self.lock();
        state.wanted = wanted;
        let is_needed = state.up.as_ref().is_some_and(|up| state.needs(up));
        let former = if is_needed { None } else { state.up.take() };
        drop(state);
        drop(former);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Counts a failure. Returns whether programs are executed from now on.
    fn fail(&mut self, launch: &Launch) -> bool {
        self.failures += 1;
        let ends = self.failures >= FAILURES_MAX && !self.failed.contains(launch);
        if ends {
            self.failed.push(launch.clone());
        }
        ends
    }

    fn needs(&self, template: &Template) -> bool {
        self.wanted.iter().any(|like| template.is_for(like))
    }
}

/// Whether only root can change these files, and the folders on the way to them.
pub(crate) fn belong_to_root<'a>(paths: impl IntoIterator<Item = &'a Path>) -> bool {
    let safe = |path: &Path| {
        let Ok(path) = path.canonicalize() else { return false };
        path.ancestors().all(|part| {
            std::fs::metadata(part).is_ok_and(|meta| {
                let others = if meta.gid() == 0 { 0o002 } else { 0o022 };
                // In a sticky folder, as /tmp, nobody else can replace a file of root.
                let is_closed = meta.mode() & others == 0 || meta.mode() & libc::S_ISVTX != 0;
                meta.uid() == 0 && is_closed
            })
        })
    };
    paths.into_iter().all(safe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_that_others_can_change_are_no_template() {
        assert!(belong_to_root([Path::new("/usr/bin/env")]));
        let file = std::env::temp_dir().join(format!("mote-test-owned-{}", std::process::id()));
        std::fs::write(&file, "").unwrap();
        let is_root = std::fs::metadata(&file).unwrap().uid() == 0;
        assert_eq!(belong_to_root([file.as_path()]), is_root);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o646)).unwrap();
        assert!(!belong_to_root([Path::new("/usr/bin/env"), file.as_path()]));
        std::fs::remove_file(&file).unwrap();
        assert!(!belong_to_root([file.as_path()]));
    }
}
