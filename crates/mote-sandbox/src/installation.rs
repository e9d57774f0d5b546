//! Package installation: a package client (pip, npm) in the same sandbox as functions, but with
//! the host's network and a writable packages folder.
//!
//! Install scripts are foreign code. They run as their own uid, see only what functions see plus
//! the network, and what they leave behind is given back to the daemon's user without set-id bits.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mote_core::backend::{Exit, InstanceLimits, StartError};
use tokio::io::unix::AsyncFd;

use crate::backend::ProcessBackend;
use crate::plan::{Bind, RootPlan};
use crate::sys;

/// Lines of output kept: the end of a failed installation says why.
const LINES_MAX: usize = 200;
/// Bytes of one kept line.
const LINE_BYTES_MAX: usize = 4 << 10;
/// Configuration files larger than this are not what they claim to be.
const CONFIG_BYTES_MAX: u64 = 64 << 10;
/// Folders nested deeper than this are left as they are; no package manager makes them.
const DEPTH_MAX: u32 = 200;

/// Files of the host that package clients need, passed as text so that a link or a mode of the
/// original does not matter.
const CONFIG_FILES: &[&str] = &["/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/npmrc"];
/// The user's own configuration: below the home folder, place inside, variable that names it.
const USER_CONFIG_FILES: &[(&str, &str, &str)] = &[
    (".config/pip/pip.conf", "/etc/mote/pip.conf", "PIP_CONFIG_FILE"),
    (".pip/pip.conf", "/etc/mote/pip.conf", "PIP_CONFIG_FILE"),
    (".npmrc", "/etc/mote/npmrc", "NPM_CONFIG_USERCONFIG"),
];

/// One installation.
#[derive(Debug, Clone)]
pub struct BuildRequest {
    /// For messages and cgroup names, for instance `thermo-3`.
    pub label: String,
    /// Package client and arguments, as seen inside.
    pub argv: Vec<String>,
    /// Environment, complete. HOME is set to `/tmp` unless given.
    pub env: Vec<(String, String)>,
    /// Host folder that receives the packages, writable at `/packages` inside; must exist.
    pub packages_dir: PathBuf,
    /// Host folder of the code, read-only at `/function` inside.
    pub code_dir: Option<PathBuf>,
    /// More host paths to show read-only at the same place (certificates, local indexes).
    pub extra_read_only: Vec<PathBuf>,
    /// Host folder that outlives the installation, writable at `/cache` inside; must exist. What is
    /// in it is the next one's input, so nothing of a function may run in an installation that has
    /// one; and only one at a time may have it.
    pub cache_dir: Option<PathBuf>,
    /// Home folder whose pip and npm configuration is used, if any.
    pub home_dir: Option<PathBuf>,
    /// Memory, CPU, processes, and size of `/tmp`.
    pub limits: InstanceLimits,
    /// After this long the installation is killed.
    pub timeout: Duration,
}

/// How an installation ended.
#[derive(Debug, Clone)]
pub struct BuildOutcome {
    /// How the client ended.
    pub exit: Exit,
    /// Whether it was killed at its timeout.
    pub timed_out: bool,
    /// Its last 200 lines on stdout and stderr.
    pub output: VecDeque<String>,
}

impl BuildOutcome {
    /// Whether the packages are complete.
    pub fn succeeded(&self) -> bool {
        self.exit.status == Some(0) && !self.timed_out
    }
}

impl ProcessBackend {
    /// Runs one installation to its end or its timeout. Afterwards everything in `packages_dir`
    /// belongs to the daemon's user, is readable by all and has no set-id bits. What a failed
    /// installation has left there is the caller's to remove.
    pub async fn run_build(&self, request: BuildRequest) -> Result<BuildOutcome, StartError> {
        let packages = request.packages_dir.clone();
        let (label, limits, timeout) =
            (request.label.clone(), request.limits.clone(), request.timeout);
        let started =
            self.launch_build(&label, &limits, |base, ids| compose(base, request, ids)).await?;
        let mut lines = Lines::default();
        let run = async {
            if let Ok(output) = sys::watched(started.output) {
                lines.read_all(&output).await;
            }
            started.control.exited().await
        };
        let (exit, timed_out) = match tokio::time::timeout(timeout, run).await {
            Ok(exit) => (exit, false),
            Err(_) => {
                started.control.kill();
                (started.control.exited().await, true)
            }
        };
        let owner = sys::effective_ids();
        let returned = tokio::task::spawn_blocking(move || give_back(&packages, owner, 0)).await;
        if let Err(source) = returned.unwrap_or_else(|error| Err(io::Error::other(error))) {
            return Err(StartError::Sandbox {
                label,
                step: "take over the installed packages".to_owned(),
                source,
            });
        }
        Ok(BuildOutcome { exit, timed_out, output: lines.finish() })
    }
}

type Composed = (RootPlan, Vec<String>, Vec<(String, String)>);

fn compose(mut root: RootPlan, request: BuildRequest, ids: (u32, u32)) -> io::Result<Composed> {
    let mut env = request.env;
    let mut add_env = |name: &str, value: &str| {
        if !env.iter().any(|(known, _)| known == name) {
            env.push((name.to_owned(), value.to_owned()));
        }
    };
    add_env("HOME", "/tmp");
    for path in CONFIG_FILES {
        if let Some(text) = small_text(Path::new(path)) {
            put_file(&mut root, path, text);
        }
    }
    for (below, inside, variable) in USER_CONFIG_FILES {
        let text = request.home_dir.as_ref().and_then(|home| small_text(&home.join(below)));
        if let Some(text) = text {
            put_file(&mut root, inside, text);
            add_env(variable, inside);
        }
    }
    let read_only = |source: PathBuf, target: PathBuf| Bind { source, target, writable: false };
    if let Some(code) = request.code_dir {
        root.binds.push(read_only(code, PathBuf::from("/function")));
    }
    for path in request.extra_read_only {
        let known = root.binds.iter().any(|bind| path.starts_with(&bind.target));
        if path.exists() && !known {
            root.binds.push(read_only(path.clone(), path));
        }
    }
    if ids != sys::effective_ids() {
        lchown(&request.packages_dir, Some(ids.0), Some(ids.1))?;
    }
    if let Some(cache) = request.cache_dir {
        if ids != sys::effective_ids() {
            hand_over(&cache, ids, 0)?;
        }
        let target = PathBuf::from("/cache");
        root.binds.push(Bind { source: cache, target, writable: true });
    }
    root.binds.push(Bind {
        source: request.packages_dir,
        target: PathBuf::from("/packages"),
        writable: true,
    });
    Ok((root, request.argv, env))
}

fn small_text(path: &Path) -> Option<String> {
    let meta = std::fs::metadata(path).ok()?;
    if !meta.is_file() || meta.len() > CONFIG_BYTES_MAX {
        return None;
    }
    std::fs::read_to_string(path).ok()
}

fn put_file(root: &mut RootPlan, path: &str, text: String) {
    root.files.retain(|(known, _)| known != Path::new(path));
    root.files.push((PathBuf::from(path), text));
}

/// Gives everything below `path` to `ids`, without following links.
fn hand_over(path: &Path, ids: (u32, u32), depth: u32) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(path)?;
    if (meta.uid(), meta.gid()) != ids {
        lchown(path, Some(ids.0), Some(ids.1))?;
    }
    if meta.is_dir() && depth < DEPTH_MAX {
        for entry in std::fs::read_dir(path)? {
            hand_over(&entry?.path(), ids, depth + 1)?;
        }
    }
    Ok(())
}

/// Gives everything below `path` to `owner`, readable by all, without set-id bits. Nothing of the
/// installation runs any more, so nobody can exchange what is looked at; links are not followed.
fn give_back(path: &Path, owner: (u32, u32), depth: u32) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(path)?;
    if (meta.uid(), meta.gid()) != owner {
        lchown(path, Some(owner.0), Some(owner.1))?;
    }
    if meta.is_symlink() {
        return Ok(());
    }
    let mode = meta.permissions().mode();
    let wanted = if meta.is_dir() { 0o755 } else { (mode & 0o755) | 0o644 };
    // Also after a change of owner, which clears set-id bits for files only.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(wanted))?;
    if meta.is_dir() && depth < DEPTH_MAX {
        for entry in std::fs::read_dir(path)? {
            give_back(&entry?.path(), owner, depth + 1)?;
        }
    }
    Ok(())
}

/// The last lines of an output.
#[derive(Default)]
struct Lines {
    kept: VecDeque<String>,
    open: Vec<u8>,
}

impl Lines {
    async fn read_all(&mut self, output: &AsyncFd<OwnedFd>) {
        let mut buffer = [0; 8 << 10];
        while let Ok(mut ready) = output.readable().await {
            match ready.try_io(|fd| sys::read(fd.get_ref().as_fd(), &mut buffer)) {
                Ok(Ok(0) | Err(_)) => return,
                Ok(Ok(got)) => self.push(&buffer[..got]),
                Err(_would_block) => {}
            }
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                self.close();
            } else if self.open.len() < LINE_BYTES_MAX {
                self.open.push(*byte);
            }
        }
    }

    fn close(&mut self) {
        if self.kept.len() == LINES_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(String::from_utf8_lossy(&self.open).into_owned());
        self.open.clear();
    }

    fn finish(mut self) -> VecDeque<String> {
        if !self.open.is_empty() {
            self.close();
        }
        self.kept
    }
}
