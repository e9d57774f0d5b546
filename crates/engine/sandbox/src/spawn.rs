//! Starts a program from pid 1 of a sandbox, fast.
//!
//! The child shares this process's memory until it executes the program (CLONE_VM | CLONE_VFORK).
//! So nothing is copied, and if the execution fails, the child simply leaves the error in memory.

use std::ffi::CString;
use std::io;
use std::os::fd::RawFd;
use std::path::Path;

use crate::seccomp::BpfProgram;
use crate::sys;

/// The PATH for programs without a slash in their name, if the environment has none.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";
/// Stack of the child until it executes the program. The child makes only a handful of system
/// calls.
const STACK_BYTES: usize = 64 << 10;
/// The lowest descriptor that a program must not inherit.
const FIRST_CLOSED_FD: libc::c_uint = 4;

/// A program with its arguments, ready to be executed many times.
pub(crate) struct Command {
    shown: String,
    candidates: Vec<CString>,
    argv: Vec<CString>,
    /// The arguments for the next start, if they are not those in `argv`.
    arguments: Option<Vec<CString>>,
    env: Vec<CString>,
    stack: Vec<u8>,
    close_others: bool,
}

/// The descriptors that become the program's 0 to 3. For `None`, the program inherits the
/// descriptor of pid 1. All given descriptors must be above 3.
#[derive(Default)]
pub(crate) struct Stdio {
    pub(crate) input: Option<RawFd>,
    pub(crate) output: Option<RawFd>,
    pub(crate) error: Option<RawFd>,
    pub(crate) extra: Option<RawFd>,
}

/// A running program. Only this pid 1 collects it, so its number stays valid until then.
pub(crate) struct Child {
    pub(crate) pid: i32,
}

/// The data for the child. It is on the parent's stack, which is safe because the parent waits.
struct Order {
    candidates: Vec<*const libc::c_char>,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    stdio: [Option<RawFd>; 4],
    close_others: bool,
    filter: Option<libc::sock_fprog>,
    errno: i32,
}

impl Command {
    /// Prepares `argv`. A program with a slash is relative to `work_dir`. A program without a slash
    /// is looked up in `work_dir` first, and then in the PATH of `env`.
    pub(crate) fn new(
        argv: &[String],
        env: &[(String, String)],
        work_dir: &Path,
        close_others: bool,
    ) -> io::Result<Self> {
        let Some(program) = argv.first().filter(|program| !program.is_empty()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no program given"));
        };
        let here = work_dir.join(program);
        let mut candidates = vec![sys::cstring(here.as_os_str().as_encoded_bytes())?];
        if !program.contains('/') {
            let path = env
                .iter()
                .find(|(name, _)| name == "PATH")
                .map_or(PATH_DEFAULT, |(_, value)| value);
            for folder in path.split(':').filter(|folder| folder.starts_with('/')) {
                candidates.push(sys::cstring(format!("{folder}/{program}"))?);
            }
        }
        Ok(Self {
            shown: program.clone(),
            candidates,
            argv: argv.iter().map(|text| sys::cstring(text.as_str())).collect::<io::Result<_>>()?,
            arguments: None,
            env: env
                .iter()
                .map(|(name, value)| sys::cstring(format!("{name}={value}")))
                .collect::<io::Result<_>>()?,
            stack: vec![0; STACK_BYTES],
            close_others,
        })
    }

    /// The program as written by the user.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Sets other arguments for the next start; `None` restores the program's own arguments. If the
    /// program is a shell, the text that it runs is kept.
    pub(crate) fn replace_arguments(&mut self, with: Option<Vec<String>>) -> io::Result<()> {
        self.arguments = match with {
            Some(words) => {
                let kept = if self.shown == "sh" { 2 } else { 1 };
                let own = self.argv.iter().take(kept).cloned().map(Ok);
                Some(own.chain(words.into_iter().map(sys::cstring)).collect::<io::Result<_>>()?)
            }
            None => None,
        };
        Ok(())
    }

    /// Checks that some candidate can be executed, without executing it.
    pub(crate) fn probe(&self) -> io::Result<()> {
        let mut last = io::Error::from_raw_os_error(libc::ENOENT);
        for candidate in &self.candidates {
            // SAFETY: NUL-terminated path.
            let found = unsafe { libc::access(candidate.as_ptr(), libc::X_OK) };
            match sys::check(libc::c_long::from(found)) {
                Ok(_) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Executes the program in its own process group, with `more` added to its environment. Returns
    /// once the program has been executed, or returns the error from execve(2).
    pub(crate) fn spawn(&mut self, stdio: &Stdio, more: &[CString]) -> io::Result<Child> {
        self.spawn_with(stdio, more, 0, None)
    }

    /// Like [`Command::spawn`], for a program that shares its root and its working folder with this
    /// process. Only the program gets the filter.
    pub(crate) fn spawn_in_same_root(&mut self, filter: Option<&BpfProgram>) -> io::Result<Child> {
        let filter = filter.map(sys::filter_program);
        self.spawn_with(&Stdio::default(), &[], libc::CLONE_FS, filter)
    }

    fn spawn_with(
        &mut self,
        stdio: &Stdio,
        more: &[CString],
        shared: libc::c_int,
        filter: Option<libc::sock_fprog>,
    ) -> io::Result<Child> {
        let end = std::iter::once(std::ptr::null());
        let argv = self.arguments.as_ref().unwrap_or(&self.argv);
        let mut order = Order {
            candidates: self.candidates.iter().map(|text| text.as_ptr()).collect(),
            argv: argv.iter().map(|text| text.as_ptr()).chain(end.clone()).collect(),
            env: self.env.iter().chain(more).map(|text| text.as_ptr()).chain(end).collect(),
            stdio: [stdio.input, stdio.output, stdio.error, stdio.extra],
            close_others: self.close_others,
            filter,
            errno: 0,
        };
        // SAFETY: the child runs `execute` on its own stack. Meanwhile, this thread, the only one,
        // is suspended until the child executes or exits, and `order` lives longer than that. The
        // stack grows down, and its end is rounded down to 16 bytes.
        let pid = unsafe {
            let top = self.stack.as_mut_ptr().add(self.stack.len());
            let top = top.sub(top as usize % 16);
            libc::clone(
                execute,
                top.cast(),
                libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD | shared,
                (&raw mut order).cast(),
            )
        };
        sys::check(libc::c_long::from(pid))?;
        if order.errno != 0 {
            wait_for(pid);
            return Err(io::Error::from_raw_os_error(order.errno));
        }
        Ok(Child { pid })
    }
}

impl Child {
    /// Kills the program's whole process group.
    pub(crate) fn kill_group(&self) {
        // SAFETY: plain integers. The group's number is that of a child that has not been collected
        // yet, or that cannot have been reused within this single-threaded pid 1.
        unsafe {
            libc::kill(-self.pid, libc::SIGKILL);
        }
    }
}

fn wait_for(pid: i32) {
    // SAFETY: a null status is allowed.
    unsafe {
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

/// Runs in the child, on shared memory. Makes only system calls and does not allocate.
extern "C" fn execute(order: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the parent passes a valid Order and waits; no other thread accesses it meanwhile. All
    // pointers in it are NUL-terminated strings or null-terminated lists that outlive the call.
    unsafe {
        let order = &mut *order.cast::<Order>();
        libc::setpgid(0, 0);
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        for (to, from) in order.stdio.iter().enumerate() {
            let to = to as RawFd;
            let done = match from {
                Some(from) => libc::dup2(*from, to),
                // Pid 1's descriptors 0 to 2 are already right, and its others are close-on-exec.
                // Descriptor 3 is kept only if it was given.
                None => 0,
            };
            if done < 0 {
                order.errno = *libc::__errno_location();
                libc::_exit(127);
            }
        }
        if order.close_others {
            libc::syscall(libc::SYS_close_range, FIRST_CLOSED_FD, libc::c_uint::MAX, 0);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        if let Some(filter) = &order.filter
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER as libc::c_ulong,
                std::ptr::from_ref(filter),
                0,
                0,
            ) < 0
        {
            order.errno = *libc::__errno_location();
            libc::_exit(127);
        }
        let mut errno = libc::ENOENT;
        for candidate in &order.candidates {
            libc::execve(*candidate, order.argv.as_ptr(), order.env.as_ptr());
            let failed = *libc::__errno_location();
            // As in a shell, a candidate that exists but cannot be executed determines the error.
            if failed != libc::ENOENT && failed != libc::ENOTDIR {
                errno = failed;
                if failed != libc::EACCES {
                    break;
                }
            }
        }
        order.errno = errno;
        libc::_exit(127)
    }
}
