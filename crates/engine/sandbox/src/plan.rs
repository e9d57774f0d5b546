//! The messages from the daemon to the child that becomes an instance, and the child's answers.
//!
//! The daemon decides everything (paths, uid, cgroups, limits); the child only carries it out. It
//! receives two messages of JSON: a [`Preparation`] before it is known which program it will run,
//! behind a fixed prefix that the zygote itself reads, and a [`Plan`] when an instance is needed.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use mote_spec::Transport;
use serde::{Deserialize, Serialize};

use crate::config::Layer;
use crate::proc_files::Machine;

/// Bytes of one plan at most; longer environments and egress lists are refused.
pub(crate) const PLAN_BYTES_MAX: usize = 160 << 10;
/// Bytes of one preparation at most: a handful of paths.
pub(crate) const PREPARATION_BYTES_MAX: usize = 32 << 10;
/// Fixed prefix of a preparation: clone flags u64, little-endian.
pub(crate) const PREFIX_BYTES: usize = 8;
pub(crate) const ANSWER_BYTES_MAX: usize = 8 << 10;

/// How the instance is run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Program {
    /// Keep one process running and do nothing else.
    Shim { argv: Vec<String> },
    /// Speak the worker protocol, one process per invocation.
    PerInvocation { argv: Vec<String> },
    /// Keep one process running and open connections to its port on request.
    Server { argv: Vec<String>, port: u16 },
}

impl Program {
    pub(crate) fn argv(&self) -> &[String] {
        match self {
            Program::Shim { argv }
            | Program::PerInvocation { argv }
            | Program::Server { argv, .. } => argv,
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Bind {
    /// Path on the host.
    pub(crate) source: PathBuf,
    /// Absolute path inside.
    pub(crate) target: PathBuf,
    /// Whether the sandbox may write to it.
    pub(crate) writable: bool,
}

/// The files an instance sees.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RootPlan {
    /// Binds in order.
    pub(crate) binds: Vec<Bind>,
    /// Symbolic links: absolute path inside, target.
    pub(crate) links: Vec<(PathBuf, PathBuf)>,
    /// Generated read-only files: absolute path inside, text.
    pub(crate) files: Vec<(PathBuf, String)>,
    /// Empty folders on which other folders are mounted later.
    pub(crate) folders: Vec<PathBuf>,
    /// The content of the files of /proc that are not about processes; without it these files do
    /// not exist.
    pub(crate) machine: Option<Machine>,
    pub(crate) tmp_bytes: u64,
    /// A copy of the code that the instance may write to.
    pub(crate) own_code: Option<OwnCode>,
}

/// See [`crate::own_code`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OwnCode {
    /// The code on the host; `None` if it is not known yet.
    pub(crate) source: Option<PathBuf>,
    /// Where the copy is seen.
    pub(crate) target: PathBuf,
    /// The owner of the copy; `None` for the user of this process.
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) tmp_bytes: u64,
}

/// The work of a child before it is given an instance: namespaces and cgroups, the slow part.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Preparation {
    /// Layers left out; zero outside tests.
    pub(crate) without: u32,
    /// The user and group of a daemon that is an ordinary user. The child maps them in a user
    /// namespace of its own. Inside that namespace no process can find out its ids on the host.
    pub(crate) mapped: Option<(u32, u32)>,
    /// Cgroup directories to create and enter, absolute paths on the host.
    pub(crate) cgroups: Vec<PathBuf>,
}

/// One cgroup directory, already entered, whose values are to be written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CgroupDir {
    /// Absolute path on the host.
    pub(crate) path: PathBuf,
    /// Files to write: name, value, and whether a failure is fatal.
    pub(crate) values: Vec<(String, String, bool)>,
}

/// Everything about one instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Layers left out; zero outside tests.
    pub(crate) without: u32,
    /// Whether the daemon is an ordinary user.
    pub(crate) rootless: bool,
    /// Whether user namespaces are available.
    pub(crate) userns: bool,
    /// The host's user and group id of this instance.
    pub(crate) host_ids: (u32, u32),
    /// Limits to write.
    pub(crate) cgroups: Vec<CgroupDir>,
    pub(crate) root: RootPlan,
    pub(crate) program: Program,
    pub(crate) env: Vec<(String, String)>,
    /// Working folder inside.
    pub(crate) work_dir: PathBuf,
    /// Private memory of each process in bytes, where no memory controller counts.
    pub(crate) data_bytes: Option<u64>,
    /// Largest file that the program may write, in bytes (package installation only).
    pub(crate) file_bytes: Option<u64>,
    /// Processes per uid. The pids controller counts them too, but refuses a fork only after the
    /// kernel has copied the parent. This limit refuses before the copy, which is the expensive
    /// part of a fork bomb.
    pub(crate) processes: u64,
    /// The sockets inside for connections and datagrams to other hosts.
    pub(crate) egress: Vec<Listen>,
}

/// A socket inside that stands for a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listen {
    /// A loopback address, the destination's own, or the unspecified one for every host.
    pub(crate) address: SocketAddr,
    pub(crate) transport: Transport,
}

impl Listen {
    /// Whether it stands for every host.
    pub(crate) fn is_for_any_host(&self) -> bool {
        self.address.ip().is_unspecified()
    }
}

impl Plan {
    pub(crate) fn has(&self, layer: Layer) -> bool {
        self.without & layer as u32 == 0
    }

    /// The message for a prepared child.
    pub(crate) fn encode(&self) -> io::Result<Vec<u8>> {
        let message = serde_json::to_vec(self)?;
        if message.len() > PLAN_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "environment, secrets and paths are longer than 160 KiB",
            ));
        }
        Ok(message)
    }
}

impl Preparation {
    pub(crate) fn has(&self, layer: Layer) -> bool {
        self.without & layer as u32 == 0
    }

    /// Flags for clone3: every namespace in one call, the user namespace first when rootless.
    pub(crate) fn clone_flags(&self) -> u64 {
        let mut flags = libc::CLONE_NEWNS | libc::CLONE_NEWUTS;
        if self.has(Layer::PidNamespace) {
            flags |= libc::CLONE_NEWPID;
        }
        if self.has(Layer::IpcNamespace) {
            flags |= libc::CLONE_NEWIPC;
        }
        if self.has(Layer::NetNamespace) {
            flags |= libc::CLONE_NEWNET;
        }
        if self.mapped.is_some() {
            flags |= libc::CLONE_NEWUSER;
        }
        flags as u32 as u64
    }

    /// The message for the zygote.
    pub(crate) fn encode(&self) -> io::Result<Vec<u8>> {
        let mut message = self.clone_flags().to_le_bytes().to_vec();
        serde_json::to_writer(&mut message, self)?;
        if message.len() > PREPARATION_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "cgroup paths are too long"));
        }
        Ok(message)
    }
}

/// What a prewarmed instance receives when it becomes an instance of a function, with paths as seen
/// from its root.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Assignment {
    /// Binds in order; each target is an empty folder of the composed root.
    pub(crate) binds: Vec<Bind>,
    /// A copy to make; its target is an empty folder that the instance may write to.
    pub(crate) own_code: Option<OwnCode>,
    /// A generated file and its new text.
    pub(crate) file: Option<(PathBuf, String)>,
}

impl Assignment {
    /// The message for the zygote.
    pub(crate) fn encode(&self) -> io::Result<Vec<u8>> {
        // An assignment needs no new namespaces.
        let mut message = 0u64.to_le_bytes().to_vec();
        serde_json::to_writer(&mut message, self)?;
        if message.len() > PREPARATION_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "folder paths are too long"));
        }
        Ok(message)
    }
}

/// What happened to an instance, as reported over its status socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// From the zygote, with a pidfd: the process exists.
    Cloned { pid: i32 },
    /// The child is in its namespaces and cgroups and waits for a plan; the message carries its
    /// mount namespace.
    PreparedChild,
    /// A prewarmed instance has its folders.
    Assigned,
    /// A step failed and the instance is gone.
    Failed { step: String, errno: i32 },
    /// The program could not be executed and the instance is gone.
    NotExecuted { program: String, errno: i32 },
    /// The program was executed; the message carries the egress listeners.
    Started,
    /// The program ended with this wait status.
    Ended { wait_status: i32 },
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}
