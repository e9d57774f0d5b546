//! Landlock: a second check of file access, in addition to the mounts.
//!
//! Everything visible may be read and executed. Only `/tmp` (and `/data` if the
//! function has it, `/packages` during an installation, and the whole root of an image) and the data
//! sinks in /dev may be written. Abstract sockets and signals cannot
//! leave the sandbox. Rights that the running kernel does not know are left out; `capabilities`
//! reports the kernel's version.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope, make_bitflags,
};

use mote_spec::files::DATA_DIR;

use crate::config::Layer;
use crate::copy_roots;
use crate::plan::{Plan, Program};
use crate::step::{Failure, StepName};
use crate::sys;

/// The newest version whose rights this module names. Older kernels receive only the rights that
/// they know.
const VERSION: ABI = ABI::V6;

/// Devices that may be written to, because writing has no effect. `/dev/urandom` is not among them,
/// because its pool is shared with the host.
const SINKS: &[&str] = &["/dev/null", "/dev/zero", "/dev/full"];

/// The version of landlock that this kernel offers; 0 for none. Does not block.
pub(crate) fn version() -> u32 {
    // SAFETY: with this flag the call takes no attribute and returns a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0usize,
            1u32,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

/// Restricts this process and all processes that it will start. Returns the rules for a process
/// that comes from elsewhere; `None` if the kernel has no landlock.
pub(crate) fn apply(plan: &Plan) -> Result<Option<OwnedFd>, Failure> {
    let restrict = || -> io::Result<Option<OwnedFd>> {
        let all = AccessFs::from_all(VERSION);
        let mut writable = all;
        writable.remove(make_bitflags!(AccessFs::{MakeChar | MakeBlock | IoctlDev}));
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(all)
            .and_then(|rules| rules.scope(Scope::AbstractUnixSocket | Scope::Signal))
            .and_then(Ruleset::create)
            .map_err(io::Error::other)?
            .no_new_privs(plan.has(Layer::NoNewPrivs));
        let mut allow = |path: &Path, rights: BitFlags<AccessFs>| -> io::Result<()> {
            let fd = open_path(path)?;
            let rule = PathBeneath::new(fd, rights).set_compatibility(CompatLevel::BestEffort);
            (&mut rules).add_rule(rule).map_err(io::Error::other)?;
            Ok(())
        };
        if plan.root.image.is_some() {
            // The whole root belongs to the instance, except /proc and /dev, whose mounts are
            // read-only.
            allow(Path::new("/"), writable)?;
        } else {
            allow(Path::new("/"), AccessFs::from_read(VERSION))?;
            allow(Path::new("/tmp"), writable)?;
        }
        if let Program::Seed { .. } = plan.program {
            for tmp in copy_roots::tmps() {
                allow(&tmp, writable)?;
            }
        }
        if plan.root.has_data {
            let data = Path::new(DATA_DIR);
            allow(data, writable)?;
            if let Program::Seed { .. } = plan.program {
                for place in copy_roots::in_each(data) {
                    allow(&place, writable)?;
                }
            }
        }
        for bind in plan.root.binds.iter().filter(|bind| bind.writable) {
            allow(&bind.target, writable)?;
        }
        if let Some(code) = &plan.root.own_code
            && plan.has(Layer::Root)
        {
            allow(&code.target, writable)?;
        }
        for sink in SINKS {
            allow(Path::new(sink), make_bitflags!(AccessFs::{ReadFile | WriteFile | Truncate}))?;
        }
        let kept = rules.try_clone()?;
        rules.restrict_self().map_err(io::Error::other)?;
        Ok(kept.into())
    };
    restrict().step("restrict files with landlock")
}

fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let path = sys::cstring(path.as_os_str().as_encoded_bytes())?;
    let fd = sys::openat(None, &path, libc::O_PATH, 0)?;
    sys::mode_of(fd.as_fd())?;
    Ok(fd)
}
