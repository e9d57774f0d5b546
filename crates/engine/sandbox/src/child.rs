//! The steps, in order, that turn a fresh clone of the zygote into an instance.
//!
//! First the child prepares. Namespaces and cgroups take most of the time and are the same for
//! every instance, so they are set up before an instance is requested. Then the child receives its
//! plan. Steps that need privileges come first, steps that remove privileges come last, and the
//! program starts only after all of them. If a step fails, the child reports it to the daemon and
//! ends.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use crate::seccomp::{self, BpfProgram};

use crate::config::Layer;
use crate::copy_roots;
use crate::data_mount;
use crate::identity;
use crate::image_root::{self, Composed};
use crate::init;
use crate::landlock_rules;
use crate::loopback;
use crate::message;
use crate::plan::{Answer, PLAN_BYTES_MAX, Plan, Preparation, Program};
use crate::root;
use crate::step::{CHANNEL_FD, Failure, STATUS_FD, StepName, die_with_parent};
use crate::sys;

/// If the whole machine runs out of memory, this makes the kernel kill an instance rather than the
/// daemon.
const OOM_SCORE_ADJ: i32 = 500;

/// The plan and the sockets that a prepared child has received.
struct Order {
    plan: Plan,
    channel: OwnedFd,
    output: OwnedFd,
    /// The mount of the function's data folder.
    data: Option<OwnedFd>,
}

/// The status socket of this process, which stays open until the process ends. Its number changes
/// once, when all descriptors are moved to their final numbers.
struct Status(RawFd);

impl Status {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: this process owns the socket, and nothing closes it at the number kept here.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

/// Prepares, waits for the plan, and becomes the instance. Never returns.
pub(crate) fn run(preparation: &[u8], status: OwnedFd, filter: &BpfProgram) -> ! {
    sys::set_signal(libc::SIGCHLD, libc::SIG_DFL);
    let mut status = Status(status.into_raw_fd());
    let result = prepare(preparation, &status).and_then(|()| {
        let order = wait_for_plan(&status)?;
        compose(order, &mut status, filter)
    });
    match result {
        Ok((plan, egress)) => init::run(&plan, egress, filter),
        Err(failure) => {
            let answer = Answer::Failed {
                step: failure.step,
                errno: failure.source.raw_os_error().unwrap_or(libc::EINVAL),
            };
            // If the daemon has ended, no process needs the answer.
            let _ = message::send(status.as_fd(), &answer.encode(), &[], 0);
            sys::exit_now(125)
        }
    }
}

/// The slow part, done before a caller waits. It is slow because joining a cgroup waits for all
/// processors of the machine.
fn prepare(preparation: &[u8], status: &Status) -> Result<(), Failure> {
    die_with_parent()?;
    // SAFETY: a fresh clone is never a group leader, which is the only case in which this call
    // fails.
    unsafe {
        libc::setsid();
    }
    let preparation: Preparation = serde_json::from_slice(preparation)
        .map_err(io::Error::from)
        .step("read the preparation")?;
    if preparation.has(Layer::FdClosing) {
        close_all_but(status).step("close the zygote's descriptors")?;
    }
    enter_cgroups(&preparation)?;
    if let Some(host_ids) = preparation.mapped {
        identity::map_self(identity::INSIDE_IDS, host_ids, None).step("map the user namespace")?;
    }
    raise_oom_score();
    // If the host refuses this, the only effect is that programs wait longer for the processor.
    let _ = sys::take_short_turns();
    if preparation.has(Layer::NetNamespace) {
        loopback::bring_up().step("bring up loopback")?;
        loopback::bound_buffers();
    }
    let mounts = sys::openat(None, c"/proc/self/ns/mnt", libc::O_RDONLY, 0)
        .step("open its mount namespace")?;
    let riders = [mounts.as_raw_fd()];
    message::send(status.as_fd(), &Answer::PreparedChild.encode(), &riders, 0)
        .step("say that it is prepared")
}

/// Closes the copy of the zygote's control socket, because this process may wait for hours.
fn close_all_but(status: &Status) -> io::Result<()> {
    let status = status.0;
    for fd in 0..status {
        // SAFETY: plain integer. Everything below is a copy of the zygote's descriptors, which this
        // process does not use.
        unsafe {
            libc::close(fd);
        }
    }
    sys::close_from(status + 1)
}

/// Waits for the plan while the daemon lives. If the daemon closes its end, this process is no
/// longer needed and ends without reporting a failure.
fn wait_for_plan(status: &Status) -> Result<Order, Failure> {
    let mut buffer = vec![0; PLAN_BYTES_MAX];
    let (length, fds) = message::receive(status.as_fd(), &mut buffer).step("receive the plan")?;
    let mut fds = fds.into_iter();
    let (Some(channel), Some(output)) = (fds.next(), fds.next()) else {
        sys::exit_now(0);
    };
    let data = fds.next();
    let plan =
        serde_json::from_slice(&buffer[..length]).map_err(io::Error::from).step("read the plan")?;
    Ok(Order { plan, channel, output, data })
}

fn compose(
    order: Order,
    status: &mut Status,
    filter: &BpfProgram,
) -> Result<(Plan, Vec<OwnedFd>), Failure> {
    let Order { mut plan, channel, output, data } = order;
    limit(&plan)?;
    let egress = loopback::egress_listeners(&plan.egress)?;
    set_host_name().step("set the host name")?;
    sys::make_mounts_private().step("make mounts private")?;
    if let Some(mount) = &data {
        data_mount::map(mount.as_fd(), plan.host_ids)?;
    }
    let mut image_user = None;
    let mut kept = egress;
    if let Some(image) = &plan.root.image {
        loopback::open_low_ports();
        let Composed { user, proc: writable } = image_root::compose(&plan, image, data.as_ref())?;
        image_user = Some(user.ids);
        kept.push(writable);
        if !plan.env.iter().any(|(name, _)| name == "HOME") {
            plan.env.push(("HOME".to_owned(), user.home));
        }
    } else if plan.has(Layer::Root) {
        let is_too_large = root::compose(&plan.root, data.as_ref())?;
        if is_too_large {
            let text =
                b"mote: the code takes more than half of [limits] disk, so its folder cannot be \
                written to; raise disk\n";
            // If the pipe is full, only the hint is lost.
            let _ = sys::write(output.as_fd(), text);
        }
        if let Program::Seed { .. } = plan.program {
            copy_roots::compose(plan.root.tmp_bytes)?;
        }
    }
    // It is attached. After the descriptors are placed, its number would be that of another one.
    drop(data);
    // The program may reopen its own stdout through /dev/stdout, which asks the pipe's owner.
    // SAFETY: plain integers on a descriptor we own.
    unsafe {
        libc::fchown(output.as_raw_fd(), plan.host_ids.0, plan.host_ids.1);
    }
    let null = sys::openat(None, c"/dev/null", libc::O_RDONLY, 0).step("open /dev/null")?;
    let mut egress = place_descriptors(&plan, null, output, channel, status, kept)?;
    let proc = if image_user.is_some() { egress.pop() } else { None };
    let proc_fd = proc.as_ref().map(AsFd::as_fd);
    let inside_ids = image_user.unwrap_or(identity::INSIDE_IDS);
    if !plan.rootless {
        identity::become_instance(&plan, inside_ids, proc_fd)?;
    } else if inside_ids != identity::INSIDE_IDS {
        identity::change_ids(inside_ids, proc_fd)?;
    }
    drop(proc);
    std::env::set_current_dir(&plan.work_dir)
        .step(format_args!("enter {}", plan.work_dir.display()))?;
    if plan.has(Layer::Rlimits) {
        identity::limit_resources(&plan).step("set resource limits")?;
    }
    // SAFETY: takes an integer, cannot fail.
    unsafe {
        libc::umask(0o022);
    }
    if plan.has(Layer::Capabilities) {
        identity::clear_capability_sets().step("drop the capability bounding set")?;
    } else if let Program::Template { .. } = plan.program {
        identity::keep_template_capabilities().step("limit the capabilities of a template")?;
    } else {
        identity::keep_capabilities().step("keep capabilities")?;
    }
    if plan.has(Layer::NoNewPrivs) {
        sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).step("set no_new_privs")?;
    }
    if let Program::Copy { .. } = plan.program {
        egress.extend(identity::open_namespaces(&plan).step("open its namespaces")?);
    }
    if plan.has(Layer::Landlock) {
        let rules = landlock_rules::apply(&plan)?;
        if let Program::Copy { .. } = plan.program {
            egress.extend(rules);
        }
    }
    // This comes after the last change of ids, because each change clears the setting.
    die_with_parent()?;
    sys::prctl(libc::PR_SET_DUMPABLE, 0, 0).step("become undumpable")?;
    // Pid 1 of a seed needs a call that no program may make. So it loads its filter after it has
    // started the program, which loads its own.
    let is_seed = matches!(plan.program, Program::Seed { .. });
    if plan.has(Layer::Seccomp) && !is_seed {
        let load = match image_user {
            Some((user, _)) => sys::load_filter(&seccomp::for_image(filter, user == 0)),
            None => sys::load_filter(filter),
        };
        load.step("load the system call filter")?;
    }
    if is_seed {
        identity::keep_chroot().step("drop capabilities")?;
    } else if plan.has(Layer::Capabilities) {
        identity::drop_capabilities().step("drop capabilities")?;
    }
    Ok((plan, egress))
}

fn enter_cgroups(preparation: &Preparation) -> Result<(), Failure> {
    for dir in &preparation.cgroups {
        let shown = dir.display();
        match std::fs::create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(error).step(format_args!("create cgroup {shown}"));
            }
            _ => {}
        }
        // In version 1, a thread that moves only itself may enter without taking a certain lock.
        // Every fork and exit on the machine takes that lock, so waiting for it takes seconds when
        // low-priority processes hold it.
        let own_thread = dir.join("tasks");
        let file = if own_thread.exists() { own_thread } else { dir.join("cgroup.procs") };
        std::fs::write(file, "0").step(format_args!("enter cgroup {shown}"))?;
    }
    Ok(())
}

/// Writes the limits of the groups that contain only this process, and then hides the path of the
/// groups.
///
/// The order matters. If the hierarchy is mounted with `nsdelegate`, as systemd does, a process in
/// a cgroup namespace cannot change the limits of the group at the namespace's root.
fn limit(plan: &Plan) -> Result<(), Failure> {
    for dir in &plan.cgroups {
        for (name, value, needed) in &dir.values {
            let file = dir.path.join(name);
            let written = std::fs::write(&file, value);
            if *needed {
                written.step(format_args!("write {value} to {}", file.display()))?;
            }
        }
    }
    if !plan.cgroups.is_empty() {
        // Some kernels refuse this to ordinary users. It is not essential, because nothing inside
        // can see cgroups.
        let _ = sys::unshare(libc::CLONE_NEWCGROUP);
    }
    Ok(())
}

fn raise_oom_score() {
    const FILE: &str = "/proc/self/oom_score_adj";
    let now = std::fs::read_to_string(FILE)
        .ok()
        .and_then(|text| text.trim().parse::<i32>().ok())
        .unwrap_or(0);
    if now < OOM_SCORE_ADJ {
        // Raising the score needs no privilege. If it fails nevertheless, only the order in which
        // processes are killed is different.
        let write = || std::fs::write(FILE, OOM_SCORE_ADJ.to_string());
        let _ = identity::as_owner_of_proc_files(write);
    }
}

fn set_host_name() -> io::Result<()> {
    let name = "function";
    // SAFETY: pointer and length belong together.
    sys::check(libc::c_long::from(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }))?;
    Ok(())
}

/// Moves all descriptors to their final numbers, and closes the rest. Returns the egress listeners,
/// which stay open above [`STATUS_FD`] until they are handed over.
fn place_descriptors(
    plan: &Plan,
    null: OwnedFd,
    output: OwnedFd,
    channel: OwnedFd,
    status: &mut Status,
    egress: Vec<OwnedFd>,
) -> Result<Vec<OwnedFd>, Failure> {
    // Every descriptor first moves away from the final numbers, and then to its own final number,
    // in order.
    const ASIDE: RawFd = 128;
    let aside = |fd: OwnedFd| -> io::Result<RawFd> {
        let raw = fd.into_raw_fd();
        // SAFETY: a descriptor that this process owns. Its old number is closed with all others
        // below.
        let high = unsafe { libc::fcntl(raw, libc::F_DUPFD_CLOEXEC, ASIDE) };
        Ok(sys::check(libc::c_long::from(high))? as RawFd)
    };
    let place = || -> io::Result<Vec<OwnedFd>> {
        let null = aside(null)?;
        let output = aside(output)?;
        let channel = aside(channel)?;
        // SAFETY: this process owns the socket. Its old number is closed or overwritten below.
        status.0 = aside(unsafe { OwnedFd::from_raw_fd(status.0) })?;
        let egress = egress.into_iter().map(aside).collect::<io::Result<Vec<_>>>()?;
        let mut placed = Vec::new();
        // SAFETY: descriptor numbers that this process owns. The targets are meant to be
        // overwritten.
        unsafe {
            let dup = |from, to, flags| sys::check(libc::c_long::from(libc::dup3(from, to, flags)));
            dup(null, 0, 0)?;
            dup(output, 1, 0)?;
            dup(output, 2, 0)?;
            dup(channel, CHANNEL_FD, libc::O_CLOEXEC)?;
            dup(status.0, STATUS_FD, libc::O_CLOEXEC)?;
            status.0 = STATUS_FD;
            for (index, fd) in egress.into_iter().enumerate() {
                let to = STATUS_FD + 1 + index as RawFd;
                dup(fd, to, libc::O_CLOEXEC)?;
                placed.push(OwnedFd::from_raw_fd(to));
            }
        }
        let first = STATUS_FD + 1 + placed.len() as RawFd;
        if plan.has(Layer::FdClosing) {
            sys::close_from(first)?;
        } else {
            for fd in first..ASIDE + 16 {
                // SAFETY: plain integers; a number that is not open is refused.
                unsafe {
                    libc::fcntl(fd, libc::F_SETFD, 0);
                }
            }
        }
        Ok(placed)
    };
    place().step("place descriptors")
}
