//! The settings, and how the secret is taken out of the environment.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mote_raw_keys::PublicKey;
use rustix::pipe::{PipeFlags, pipe_with};

/// The variable with the secret.
const SECRET: &str = "MOTE_POD_SECRET";
/// Longest secret.
const SECRET_BYTES_MAX: u64 = 4_096;

/// What the pod runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    Python,
    Node,
}

/// The settings.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) runtime: Runtime,
    pub(crate) listen: SocketAddr,
    /// The key of the cells.
    pub(crate) cells: PublicKey,
    /// The folder that stands for `/`, where the function and the shims are put.
    pub(crate) root: PathBuf,
}

impl Settings {
    pub(crate) fn read() -> Result<Self, String> {
        let of = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set"));
        let wrong = |name: &str, wanted: &str| format!("{name}: {wanted}");
        let runtime = match of("MOTE_POD_RUNTIME")?.as_str() {
            "python" => Runtime::Python,
            "node" => Runtime::Node,
            _ => return Err(wrong("MOTE_POD_RUNTIME", "python or node")),
        };
        let listen = of("MOTE_POD_LISTEN").unwrap_or_else(|_| "0.0.0.0:8097".to_owned());
        let listen = listen.parse().map_err(|_| wrong("MOTE_POD_LISTEN", "ADDRESS:PORT"))?;
        let cells = PublicKey::from_text(&of("MOTE_POD_CELLS")?)
            .ok_or_else(|| wrong("MOTE_POD_CELLS", "64 hexadecimal digits"))?;
        let root = of("MOTE_POD_ROOT").map_or_else(|_| PathBuf::from("/"), PathBuf::from);
        Ok(Self { runtime, listen, cells, root })
    }

    /// Whether its folders are not those of a pod.
    pub(crate) fn is_moved(&self) -> bool {
        self.root != Path::new("/")
    }

    /// The place of a path that means one below `/`.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

/// The secret of the pod. If it is in the environment, the process starts anew without it there and
/// reads it from a pipe: what a process was started with stays readable in `/proc` for as long as it
/// runs.
pub(crate) fn take_secret() -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    if let Some(secret) = std::env::var_os(SECRET) {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut write = std::fs::File::from(write);
        write.write_all(secret.as_encoded_bytes())?;
        drop(write);
        let mut again = Command::new("/proc/self/exe");
        again.env_remove(SECRET).stdin(Stdio::from(read));
        return Err(again.exec().into());
    }
    let mut secret = Vec::new();
    std::io::stdin().lock().take(SECRET_BYTES_MAX).read_to_end(&mut secret)?;
    // The number 0 stays taken, so that the worker's socket gets the number that it expects.
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(secret.trim_ascii().to_vec())
}
