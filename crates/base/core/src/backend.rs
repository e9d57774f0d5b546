//! The interface to the backends that run instances. Today's only backend runs sandboxed processes.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use mote_spec::Egress;

/// A boxed future. Only this interface uses it; the request path never does.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// How a backend launches the program that answers invocations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launch {
    /// An interpreter with a shim that speaks the worker protocol on file descriptor 3. `argv`
    /// holds paths as they are inside the sandbox.
    Shim {
        /// Program and arguments.
        argv: Vec<String>,
        /// Whether the program can copy itself. If descriptor 3 is a socket for messages, it waits
        /// for orders there, and each order makes a copy that is the program of one instance.
        forks: bool,
    },
    /// The function's own program, which speaks the worker protocol on file descriptor 3. It is
    /// never prewarmed, because each function has a different program.
    Worker {
        /// Program and arguments.
        argv: Vec<String>,
    },
    /// The backend's own init speaks the worker protocol. It runs `argv` once per invocation, with
    /// the body on stdin and the answer on stdout.
    PerInvocation {
        /// Program and arguments. The path of a program may be relative to the code folder.
        argv: Vec<String>,
    },
    /// An HTTP/1.1 server that listens on `$PORT` of the sandbox's loopback interface.
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

/// The files of a container image, and how its programs run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRoot {
    /// Folders on the host in the form that overlayfs reads, from the bottom to the top.
    pub layers: Vec<PathBuf>,
    /// `USER` or `USER:GROUP`, each a name or a number. Empty means root.
    pub user: String,
    /// The working folder inside. It is made if the image lacks it.
    pub work_dir: PathBuf,
    /// The number of the signal that asks a server to end; `None` for SIGTERM.
    pub stop_signal: Option<i32>,
}

/// The folders of an instance besides its code and `/tmp`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Folders {
    /// The folder to which all instances of the function write.
    pub data: Option<Data>,
    /// Folders that the instance may only read: absolute path on the host, and inside.
    pub host: Vec<(PathBuf, PathBuf)>,
}

/// A folder in a file of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data {
    /// The file, which contains a file system. It is made when it is first used.
    pub image: PathBuf,
    /// The size that the folder must have at least.
    pub bytes: u64,
}

/// A request for one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceRequest {
    /// Unique on this node while the daemon runs.
    pub instance: u64,
    /// Function and revision, for instance `thermo-3`. Names of cgroups and log lines contain it.
    pub label: String,
    /// The code's folder on the host. Inside, it is read-only at `/function`. An image does not see
    /// it.
    pub code_dir: PathBuf,
    /// The container image whose files are the root. Without one, programs see those of the host.
    pub image: Option<ImageRoot>,
    /// The folder of installed packages on the host. Inside, it is read-only at `/packages`.
    pub packages_dir: Option<PathBuf>,
    /// The program to launch.
    pub launch: Launch,
    /// The complete environment at launch: no variable of the daemon is added.
    pub env: Vec<(String, String)>,
    /// The limits of the instance.
    pub limits: InstanceLimits,
    /// Whether `/proc/meminfo` shows the program its memory limit. This must be false for V8: V8
    /// would limit its heap to a part of that value, although only the memory limit itself should
    /// bound the heap.
    pub shows_memory: bool,
    /// Whether the instance may write to its code. If so, it gets its own copy of the code, unless
    /// the copy would use more than half of the disk.
    pub writable_code: bool,
    /// Destinations that the instance may reach. Each becomes a listener inside the sandbox.
    pub egress: Vec<Egress>,
    /// The folders that the instance has besides its code and `/tmp`.
    pub folders: Folders,
    /// Read-only files that only the processes of this instance see: absolute path inside, and
    /// text.
    pub files: Vec<(PathBuf, String)>,
    /// Symbolic links that only this instance has: absolute path inside, and target.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// The port inside on which the program lets a debugger attach. Only for [`Launch::Shim`] and
    /// [`Launch::Worker`], and only on a node for one developer.
    pub debug_port: Option<u16>,
}

impl InstanceRequest {
    /// Whether a program that was started for this request can serve `other`. Both requests must
    /// name the same program, and their settings that cannot be changed after the start must be
    /// equal.
    pub fn suits(&self, other: &InstanceRequest) -> bool {
        let same_program = match (&self.launch, &other.launch) {
            (Launch::Shim { argv, .. }, Launch::Shim { argv: asked, .. }) => argv == asked,
            // Any two per-invocation programs match, because a program receives its command later.
            (Launch::PerInvocation { .. }, Launch::PerInvocation { .. }) => true,
            _ => false,
        };
        same_program
            && self.image.is_none()
            && other.image.is_none()
            && self.folders == Folders::default()
            && other.folders == Folders::default()
            && self.env == other.env
            && self.limits.pids == other.limits.pids
            && self.limits.disk_bytes == other.limits.disk_bytes
            && self.shows_memory == other.shows_memory
            && self.writable_code == other.writable_code
            && self.egress == other.egress
            && self.files == other.files
            && self.links == other.links
            && self.debug_port == other.debug_port
    }
}

/// Programs that are kept running before an instance is requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prewarmed {
    /// A request whose function does not matter: code, packages, label and number are ignored. A
    /// later request can use a prewarmed program if both have the same launch, environment, process
    /// limit, disk limit and destinations. Memory and processor limits may differ.
    pub like: InstanceRequest,
    /// The number of programs.
    pub count: u32,
}

/// An order to the first process of a server's instance, sent as one byte on the instance's
/// channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ServerOrder {
    /// Open a connection to the server's port. The answer is a descriptor or an errno.
    Connect = 1,
    /// Send SIGTERM, or the stop signal of its image, to the server. There is no answer.
    Terminate = 2,
}

/// How an instance ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// The exit status, if the program exited.
    pub status: Option<i32>,
    /// The signal, if the program was killed.
    pub signal: Option<i32>,
    /// Whether the kernel killed the instance because it ran out of memory.
    pub out_of_memory: bool,
}

/// The resources that an instance uses now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// CPU time so far in nanoseconds.
    pub cpu_ns: u64,
    /// Processes and threads.
    pub pids: u32,
}

/// What an instance has used since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Peaks {
    /// The most memory in bytes; 0 if the machine does not keep it.
    pub memory_bytes: u64,
    /// CPU time in nanoseconds.
    pub cpu_ns: u64,
    /// How long the CPU limit held the instance back, in nanoseconds.
    pub held_back_ns: u64,
}

/// A running instance. Dropping this kills the instance and everything in it.
pub struct Started {
    /// For shims, workers and per-invocation programs: the engine's end of the worker protocol, a
    /// connected, non-blocking stream socket.
    ///
    /// For servers: a sequenced-packet socket. Each byte that the engine sends on it is a
    /// [`ServerOrder`]. The answer to an order for a connection is one message. It carries either
    /// the connection's descriptor, or an errno (u32) without a descriptor, which means "not yet".
    pub channel: OwnedFd,
    /// Read end of the instance's stdout and stderr, line by line, non-blocking.
    pub output: OwnedFd,
    /// The listening TCP sockets inside the sandbox, one for each requested egress, in the same
    /// order.
    pub egress: Vec<OwnedFd>,
    /// A channel that opens connections to the request's debug port. It works like a server's
    /// `channel`.
    pub debugger: Option<OwnedFd>,
    /// Controls the running instance.
    pub control: Box<dyn InstanceControl>,
    /// Whether the instance's program was prewarmed.
    pub prewarmed: bool,
    /// The caller holds this until the instance serves. Meanwhile the backend postpones work that
    /// no caller waits for.
    pub under_way: Box<dyn Send + Sync>,
}

/// The engine's operations on a running instance.
pub trait InstanceControl: Send + Sync {
    /// Kills everything in the instance at once. Idempotent; does not block.
    fn kill(&self);
    /// Sets whether the instance runs only when nothing else needs the processor. Does nothing if
    /// the machine does not support this priority. Writes one small file.
    fn set_background(&self, background: bool);
    /// Pauses all processes of the instance, or lets them continue. Returns false if that is not
    /// possible, or if the instance has ended. Costs two small system calls per process. Paused
    /// processes use no processor time, keep their memory, and can be killed.
    fn set_paused(&self, paused: bool) -> bool;
    /// The TCP ports on which the instance's programs listen now; empty where that cannot be found
    /// out. Reads two small files.
    fn listening(&self) -> Vec<u16> {
        Vec::new()
    }
    /// The process id of the instance's first process on the host, for people who inspect it there.
    fn pid(&self) -> Option<u32>;
    /// The process id, on the host, of the program that the first process has started; `None` where
    /// that cannot be found out. Reads one small file.
    fn program(&self) -> Option<u32> {
        None
    }
    /// The resources that the instance uses now; `None` if the machine cannot measure them. May
    /// read a few small files.
    fn usage(&self) -> Option<Usage>;
    /// What the instance has used since its start; `None` if the machine cannot measure it. May read
    /// a few small files.
    fn peaks(&self) -> Option<Peaks> {
        None
    }
    /// Resolves when the instance has ended. It must be called only once.
    fn exited(&self) -> BoxFuture<Exit>;
}

/// An instance that has loaded its function and makes copies of itself. It serves no calls. It ends
/// when the control of its instance is dropped, and all its copies end with it.
pub trait Seed: Send + Sync {
    /// Notes that the function is loaded. From now on, the seed may use only the memory that it
    /// holds, and a little more. Returns this limit in bytes. Reads and writes a few small files.
    fn settle(&self) -> u64;
    /// Makes one copy: an instance with limits of its own, in the sandbox of the seed. Its worker
    /// sends READY without a handshake. Listeners for destinations belong to the seed. Fails if the
    /// seed has ended, or has made as many copies as it may.
    fn copy(&self) -> BoxFuture<Result<Started, StartError>>;
}

/// The start of a seed: its own instance, and what makes its copies.
pub type SeedStart = BoxFuture<Result<(Started, Arc<dyn Seed>), StartError>>;

/// Why an instance could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A step in setting up the sandbox failed.
    #[error("sandbox for {label}: {step}")]
    Sandbox {
        /// The label of the request.
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
        /// The label of the request.
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

/// Runs instances.
pub trait Backend: Send + Sync + 'static {
    /// Starts one instance. Resolves when its program has been executed or could not be executed.
    /// The backend limits this time to some seconds.
    fn start(&self, request: InstanceRequest) -> BoxFuture<Result<Started, StartError>>;

    /// Starts a seed. Its worker receives LOAD on the instance's channel and sends READY. After that,
    /// the channel belongs to the backend. Backends that make no copies refuse.
    fn start_seed(&self, _request: InstanceRequest) -> SeedStart {
        Box::pin(async { Err(StartError::Unavailable("this backend makes no copies".to_owned())) })
    }

    /// Keeps programs running in advance, so that the next function that needs an instance can use
    /// one. The list replaces the previous one. The programs start with a small share of the
    /// processor. Backends that cannot prewarm programs do nothing. Does not block.
    fn keep_prewarmed(&self, _wanted: Vec<Prewarmed>) {}
}
