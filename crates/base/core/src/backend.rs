//! The interface to the backends that run instances: sandboxed processes today, other backends
//! later.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;

use mote_spec::Egress;

/// A boxed future, for this interface only; never on the request path.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// How a backend launches the program that answers invocations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launch {
    /// An interpreter with a shim that speaks the worker protocol on file descriptor 3. `argv`
    /// holds paths as they are inside the sandbox.
    Shim {
        /// Program and arguments.
        argv: Vec<String>,
    },
    /// A program of the function's own that speaks the worker protocol on file descriptor 3. It is
    /// never prewarmed, because each function has a different program.
    Worker {
        /// Program and arguments.
        argv: Vec<String>,
    },
    /// The backend's own init speaks the worker protocol and runs `argv` once per invocation,
    /// body on stdin, answer on stdout.
    PerInvocation {
        /// Program and arguments; relative programs are looked up from the code folder.
        argv: Vec<String>,
    },
    /// An HTTP/1.1 server that listens on `$PORT` of the sandbox's own loopback.
    Server {
        /// Program and arguments.
        argv: Vec<String>,
        /// The port.
        port: u16,
    },
}

/// Limits of one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceLimits {
    /// Memory in bytes, tmpfs included.
    pub memory_bytes: u64,
    /// Thousandths of a core; `None` means no limit.
    pub cpu_millis: Option<u32>,
    /// Processes and threads.
    pub pids: u32,
    /// Private `/tmp` in bytes.
    pub disk_bytes: u64,
}

/// A request for one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceRequest {
    /// Unique on this node while the daemon runs.
    pub instance: u64,
    /// Function and revision for names of cgroups and log lines, for instance `thermo-3`.
    pub label: String,
    /// Host folder of the code, read-only at `/function` inside.
    pub code_dir: PathBuf,
    /// Host folder of installed packages, read-only at `/packages` inside.
    pub packages_dir: Option<PathBuf>,
    /// The program to launch.
    pub launch: Launch,
    /// Environment at launch, complete: no variable of the daemon is added.
    pub env: Vec<(String, String)>,
    /// Its limits.
    pub limits: InstanceLimits,
    /// Whether the program finds its limit in `/proc/meminfo`. V8 would derive the size of its heap
    /// from it, as a part of the limit, although the limit itself should decide.
    pub shows_memory: bool,
    /// Whether the instance may write to its code: it gets a copy of its own, unless that would use
    /// more than half of the disk.
    pub writable_code: bool,
    /// Destinations it may reach; each becomes a listener inside the sandbox.
    pub egress: Vec<Egress>,
    /// Read-only files of its own: absolute path inside, and text. Only its processes see them.
    pub files: Vec<(PathBuf, String)>,
    /// Symbolic links of its own: absolute path inside, and where it leads.
    pub links: Vec<(PathBuf, PathBuf)>,
}

impl InstanceRequest {
    /// Whether a program that was brought up for this request can serve `other`: it must be the
    /// same program, started under the same rules, as far as they cannot be changed afterwards.
    pub fn suits(&self, other: &InstanceRequest) -> bool {
        let same_program = match (&self.launch, &other.launch) {
            (Launch::Shim { argv }, Launch::Shim { argv: asked }) => argv == asked,
            // The program receives the command later.
            (Launch::PerInvocation { .. }, Launch::PerInvocation { .. }) => true,
            _ => false,
        };
        same_program
            && self.env == other.env
            && self.limits.pids == other.limits.pids
            && self.limits.disk_bytes == other.limits.disk_bytes
            && self.shows_memory == other.shows_memory
            && self.writable_code == other.writable_code
            && self.egress == other.egress
            && self.files == other.files
            && self.links == other.links
    }
}

/// Programs that are kept running before an instance is requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prewarmed {
    /// A request whose function does not matter: code, packages, label and number are ignored. A
    /// later request can use a prewarmed program if it has the same launch, environment, processes,
    /// disk and destinations; memory and processor may differ.
    pub like: InstanceRequest,
    /// The number of programs.
    pub count: u32,
}

/// What the first process of a server's instance is asked for, in one byte on the instance's channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ServerOrder {
    /// A connection to the server's port; the answer is a descriptor or an errno.
    Connect = 1,
    /// A SIGTERM for the server. It has no answer.
    Terminate = 2,
}

/// How an instance ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Exit status, when it exited.
    pub status: Option<i32>,
    /// Signal, when it was killed.
    pub signal: Option<i32>,
    /// Whether the kernel killed it for memory.
    pub out_of_memory: bool,
}

/// What an instance uses now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// CPU time so far in nanoseconds.
    pub cpu_ns: u64,
    /// Processes and threads.
    pub pids: u32,
}

/// A running instance. Dropping it kills the instance and everything in it.
pub struct Started {
    /// For shims and per-invocation programs: the engine's end of the worker protocol, a connected,
    /// non-blocking stream socket. For servers: a sequenced-packet socket. One byte sent on it
    /// requests a new connection to the server, and one message with a descriptor delivers it; a
    /// message without a descriptor holds an errno (u32) and means "not yet".
    pub channel: OwnedFd,
    /// Read end of the instance's stdout and stderr, line by line, non-blocking.
    pub output: OwnedFd,
    /// For each requested egress, in order, a listening TCP socket inside the sandbox.
    pub egress: Vec<OwnedFd>,
    /// The instance itself.
    pub control: Box<dyn InstanceControl>,
    /// Whether its program was prewarmed.
    pub prewarmed: bool,
    /// The caller holds this until the instance serves: meanwhile the backend postpones work that
    /// no caller waits for.
    pub under_way: Box<dyn Send + Sync>,
}

/// The engine's operations on a running instance.
pub trait InstanceControl: Send + Sync {
    /// Kills everything in the instance at once. Idempotent; does not block.
    fn kill(&self);
    /// Sets whether it runs only when nothing else needs the processor. Does nothing if the machine
    /// has no such priority. Writes one small file.
    fn set_background(&self, background: bool);
    /// Stops all its processes where they are, or lets them continue. Returns false if that is not
    /// possible, or if the instance has ended. Costs two small system calls per process. Paused
    /// processes use no processor time, keep their memory, and can be killed.
    fn set_paused(&self, paused: bool) -> bool;
    /// The TCP ports at which its programs listen now; empty where that cannot be found out. Reads two
    /// small files.
    fn listening(&self) -> Vec<u16> {
        Vec::new()
    }
    /// The process id of its first process on the host, for people who inspect it there.
    fn pid(&self) -> Option<u32>;
    /// The resources that it uses now, `None` if the machine cannot measure them. May read a few
    /// small files.
    fn usage(&self) -> Option<Usage>;
    /// Resolves when the instance has ended. It must be called only once.
    fn exited(&self) -> BoxFuture<Exit>;
}

/// Why an instance could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A step of composing the sandbox failed.
    #[error("sandbox for {label}: {step}")]
    Sandbox {
        /// Label of the request.
        label: String,
        /// The step that failed, with its object.
        step: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The program could not be executed.
    #[error("{label}: cannot execute {program}")]
    Exec {
        /// Label of the request.
        label: String,
        /// The program.
        program: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The backend has ended or is stopping.
    #[error("{0}")]
    Unavailable(String),
}

/// A backend: it runs instances.
pub trait Backend: Send + Sync + 'static {
    /// Starts one instance; resolves when its program has been executed or could not be executed.
    /// The backend limits the time (seconds).
    fn start(&self, request: InstanceRequest) -> BoxFuture<Result<Started, StartError>>;

    /// Keeps programs running that wait to become an instance of the next function that needs one.
    /// The list replaces the previous one. The programs come up with a small share of the
    /// processor. Backends that cannot do this do nothing. Does not block.
    fn keep_prewarmed(&self, _wanted: Vec<Prewarmed>) {}
}
