//! The messages from the daemon to the child that becomes an instance, and the child's answers.
//!
//! The daemon decides everything (paths, uid, cgroups, limits). The child only carries it out. The
//! child receives two messages of JSON. The first is a [`Preparation`], sent before it is known
//! which program the child will run. The zygote itself reads only a fixed prefix of it. The second
//! is a [`Plan`], sent when an instance is needed.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use mote_spec::Transport;
use serde::{Deserialize, Serialize};

use crate::config::Layer;
use crate::data_folders::DataFolder;
use crate::proc_files::Machine;

/// The maximum number of bytes in one plan. Environments and egress lists that need more are
/// refused.
pub(crate) const PLAN_BYTES_MAX: usize = 160 << 10;
/// The maximum number of bytes in one preparation, which contains only a handful of paths.
pub(crate) const PREPARATION_BYTES_MAX: usize = 32 << 10;
/// Fixed prefix of a preparation: clone flags u64, little-endian.
pub(crate) const PREFIX_BYTES: usize = 8;
pub(crate) const ANSWER_BYTES_MAX: usize = 8 << 10;

/// How the instance is run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Program {
    /// Pid 1 keeps one process running and does nothing else.
    Shim { argv: Vec<String> },
    /// Pid 1 executes nothing. Its program is a copy of a template that runs this.
    Copy { argv: Vec<String> },
    /// The program becomes a template. It is in no process id namespace of its own.
    Template { argv: Vec<String> },
    /// The program becomes a seed: it loads a function, and then makes copies of itself. Pid 1
    /// gives each copy a root of its own.
    Seed { argv: Vec<String> },
    /// Pid 1 speaks the worker protocol and starts one process per invocation.
    PerInvocation { argv: Vec<String> },
    /// Pid 1 keeps one process running, and opens connections to its port on request. The signal
    /// asks the process to end.
    Server { argv: Vec<String>, port: u16, stop_signal: i32 },
}

impl Program {
    pub(crate) fn argv(&self) -> &[String] {
        match self {
            Program::Shim { argv }
            | Program::Copy { argv }
            | Program::Template { argv }
            | Program::Seed { argv }
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

/// The files that an instance sees.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RootPlan {
    /// Binds, in the order in which they are mounted.
    pub(crate) binds: Vec<Bind>,
    /// Symbolic links: absolute path inside, target.
    pub(crate) links: Vec<(PathBuf, PathBuf)>,
    /// Generated read-only files: absolute path inside, text.
    pub(crate) files: Vec<(PathBuf, String)>,
    /// Empty folders on which other folders are mounted later.
    pub(crate) folders: Vec<PathBuf>,
    /// The facts for the files of /proc that are not about processes. Without these facts, the
    /// files do not exist.
    pub(crate) machine: Option<Machine>,
    pub(crate) tmp_bytes: u64,
    /// Whether the message with the plan carries the mount of the function's data folder.
    pub(crate) has_data: bool,
    /// A copy of the code that the instance may write to.
    pub(crate) own_code: Option<OwnCode>,
    /// The container image whose files are the root. Binds, links and files are added to it.
    pub(crate) image: Option<ImagePlan>,
}

/// See [`crate::image_root`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ImagePlan {
    /// Folders on the host, from the bottom to the top.
    pub(crate) layers: Vec<PathBuf>,
    /// The user and group of the files in the layers; `None` if these are the instance's own.
    pub(crate) layers_belong_to: Option<(u32, u32)>,
    /// `USER` or `USER:GROUP`, each a name or a number. Empty means root.
    pub(crate) user: String,
}

/// See [`crate::own_code`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OwnCode {
    /// The code on the host; `None` if it is not known yet.
    pub(crate) source: Option<PathBuf>,
    /// The path of the copy inside the sandbox.
    pub(crate) target: PathBuf,
    /// The owner of the copy; `None` if it is the user of this process.
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) tmp_bytes: u64,
}

/// The part of a child's work that is done before the child is given an instance: namespaces and
/// cgroups, which are the slow part.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Preparation {
    /// Layers left out; zero outside tests.
    pub(crate) without: u32,
    /// The user and group of a daemon that is an ordinary user. The child maps them in its own user
    /// namespace. Inside that namespace, no process can find out its own ids on the host.
    pub(crate) mapped: Option<(u32, u32)>,
    /// Cgroup directories to create and enter, absolute paths on the host.
    pub(crate) cgroups: Vec<PathBuf>,
}

/// One cgroup directory that the child has already entered, and the values to write there.
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
    /// The instance's user and group id on the host.
    pub(crate) host_ids: (u32, u32),
    /// Limits to write.
    pub(crate) cgroups: Vec<CgroupDir>,
    pub(crate) root: RootPlan,
    pub(crate) program: Program,
    pub(crate) env: Vec<(String, String)>,
    /// Working folder inside.
    pub(crate) work_dir: PathBuf,
    /// The maximum private memory of each process in bytes, for machines without a memory
    /// controller.
    pub(crate) data_bytes: Option<u64>,
    /// Largest file that the program may write, in bytes (package installation only).
    pub(crate) file_bytes: Option<u64>,
    /// The maximum number of processes of the instance's uid. The pids controller counts them too,
    /// but refuses a fork only after the kernel has copied the parent. This limit refuses the fork
    /// before that copy, which is the expensive part of a fork bomb.
    pub(crate) processes: u64,
    /// The sockets inside that stand for connections and datagrams to other hosts.
    pub(crate) egress: Vec<Listen>,
    /// The data folder, for the daemon.
    #[serde(skip)]
    pub(crate) data: Option<Data>,
    /// The port of the program to which pid 1 opens connections for a debugger.
    pub(crate) debug_port: Option<u16>,
}

/// The data folder of an instance, and the mount that the instance gets.
#[derive(Debug, Clone)]
pub(crate) struct Data {
    // Dropped before the folder, whose end may wait for the disk if it is the last mount.
    pub(crate) mount: Arc<OwnedFd>,
    pub(crate) folder: Arc<DataFolder>,
}

/// A socket inside that stands for a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listen {
    /// A loopback address, the destination's own address, or the unspecified address for every
    /// host.
    pub(crate) address: SocketAddr,
    pub(crate) transport: Transport,
}

impl Listen {
    /// Whether the socket stands for every host.
    pub(crate) fn is_for_any_host(&self) -> bool {
        self.address.ip().is_unspecified()
    }
}

impl Plan {
    /// Gives the instance its data folder.
    pub(crate) fn give(&mut self, data: Option<Data>) {
        self.root.has_data = data.is_some();
        self.data = data;
    }

    pub(crate) fn has(&self, layer: Layer) -> bool {
        self.without & layer as u32 == 0
    }

    /// Encodes the message for a prepared child.
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

    /// Flags for clone3: all namespaces in one call. A rootless daemon also needs the user
    /// namespace, which the kernel makes first.
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

    /// Encodes the message for the zygote.
    pub(crate) fn encode(&self) -> io::Result<Vec<u8>> {
        let mut message = self.clone_flags().to_le_bytes().to_vec();
        serde_json::to_writer(&mut message, self)?;
        if message.len() > PREPARATION_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "cgroup paths are too long"));
        }
        Ok(message)
    }
}

/// The message that turns a prewarmed instance into an instance of a function. Paths are as seen
/// from the instance's root.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Assignment {
    /// Binds, in the order in which they are mounted. Each target is an empty folder of the
    /// composed root.
    pub(crate) binds: Vec<Bind>,
    /// A copy to make. Its target is an empty folder to which the instance may write.
    pub(crate) own_code: Option<OwnCode>,
    /// A generated file and its new text.
    pub(crate) file: Option<(PathBuf, String)>,
}

impl Assignment {
    /// Encodes the message for the zygote.
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

/// An event in an instance's life, reported over its status socket.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// From the zygote, together with a pidfd: the process exists.
    Cloned { pid: i32 },
    /// The child is in its namespaces and cgroups and waits for a plan. The message carries the
    /// child's mount namespace.
    PreparedChild,
    /// A prewarmed instance has received its folders.
    Assigned,
    /// A step failed, and the instance is gone.
    Failed { step: String, errno: i32 },
    /// The program could not be executed, and the instance is gone.
    NotExecuted { program: String, errno: i32 },
    /// The program was executed. The message carries the egress listeners.
    Started,
    /// The program ended with this wait status.
    Ended { wait_status: i32 },
    /// The root of the next copy is now the root of the seed, unless the kernel refused it with
    /// this error.
    RootEntered { refused: Option<i32> },
    /// The copy with this number inside the sandbox ended with this wait status.
    CopyEnded { pid: i32, wait_status: i32 },
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}
