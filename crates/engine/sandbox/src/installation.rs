//! Package installation: runs a package client (pip, npm) in the same kind of sandbox as functions,
//! but with a writable packages folder and network access that the caller provides.
//!
//! Install scripts are foreign code. The scripts run under their own uid and see only what
//! functions see. Their network contains only the listeners that the request names. While they run,
//! the number of bytes that they write is bounded. Afterwards, the daemon's user receives their
//! files, without set-id bits.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mote_core::backend::{Exit, InstanceLimits, StartError};
use tokio::io::unix::AsyncFd;

use crate::backend::ProcessBackend;
use crate::plan::{Bind, RootPlan};
use crate::sys;

/// The maximum number of lines of output to keep. The last lines of a failed installation show the
/// reason.
const LINES_MAX: usize = 200;
const LINE_BYTES_MAX: usize = 4 << 10;
/// Folders nested deeper than this are refused. No package manager creates such folders.
const DEPTH_MAX: u32 = 200;
/// Pause between two measurements of the bytes that an installation has written.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
/// The pause after a measurement is at least this many times as long as the measurement took.
const LOOK_SHARE: u32 = 10;

/// One installation.
#[derive(Debug, Clone)]
pub struct BuildRequest {
    /// The name in messages and cgroup names, for instance `thermo-3`.
    pub label: String,
    /// Package client and arguments, with paths as seen inside.
    pub argv: Vec<String>,
    /// The complete environment. HOME is set to `/tmp` unless given.
    pub env: Vec<(String, String)>,
    /// Host folder that receives the packages. It is writable at `/packages` inside, and must
    /// exist.
    pub packages_dir: PathBuf,
    /// Host folder of the code, read-only at `/function` inside.
    pub code_dir: Option<PathBuf>,
    /// More host paths to show read-only at the same place (certificates, local indexes).
    pub extra_read_only: Vec<PathBuf>,
    /// Host folder that outlives the installation. It is writable at `/cache` inside, and must
    /// exist. Its content is input for the next installation. So no code of a function may run in
    /// an installation with a cache folder, and only one installation at a time may use the folder.
    pub cache_dir: Option<PathBuf>,
    /// Read-only text files: absolute path inside, content.
    pub files: Vec<(PathBuf, String)>,
    /// Loopback addresses inside on which sockets listen. The caller of
    /// [`ProcessBackend::run_build`] serves them.
    pub listen: Vec<SocketAddrV4>,
    /// The maximum number of bytes that the installation may write to the packages folder. If it
    /// writes more, it is ended.
    pub packages_bytes_max: u64,
    /// Bytes that must stay free on the file system of the packages folder. If fewer are free, the
    /// installation is ended.
    pub free_bytes_min: u64,
    /// Limits on memory, CPU, processes, and the size of `/tmp`.
    pub limits: InstanceLimits,
    /// The installation is killed after this time.
    pub timeout: Duration,
}

/// How an installation ended.
#[derive(Debug, Clone)]
pub struct BuildOutcome {
    /// How the client ended.
    pub exit: Exit,
    /// Whether the installation was killed at its timeout.
    pub timed_out: bool,
    /// Whether the installation was killed because it wrote more than allowed.
    pub too_large: bool,
    /// The last 200 lines on stdout and stderr.
    pub output: VecDeque<String>,
}

impl BuildOutcome {
    /// Whether the packages are complete.
    pub fn succeeded(&self) -> bool {
        self.exit.status == Some(0) && !self.timed_out && !self.too_large
    }
}

impl ProcessBackend {
    /// Runs one installation until it ends, or until it reaches its timeout or its limit of bytes.
    /// `serve` receives the listeners that the request names, in the same order. It runs while the
    /// installation runs, and is dropped when the installation ends. Afterwards, everything in
    /// `packages_dir` belongs to the daemon's user, is readable by all, and has no set-id bits. If
    /// the installation failed, the caller removes the files that it left there.
    pub async fn run_build<F: Future<Output = ()>>(
        &self,
        request: BuildRequest,
        serve: impl FnOnce(Vec<OwnedFd>) -> F,
    ) -> Result<BuildOutcome, StartError> {
        let packages = request.packages_dir.clone();
        let (label, limits, timeout) =
            (request.label.clone(), request.limits.clone(), request.timeout);
        let bytes_max = request.packages_bytes_max;
        let free_min = request.free_bytes_min;
        let outward = (request.listen.clone(), bytes_max);
        let started = self
            .launch_build(&label, &limits, outward, |base, ids| compose(base, request, ids))
            .await?;
        let mut lines = Lines::default();
        let run = async {
            if let Ok(output) = sys::watched(started.output) {
                lines.read_all(&output).await;
            }
            started.control.exited().await
        };
        let serve = async {
            serve(started.egress).await;
            std::future::pending::<()>().await
        };
        let mut timed_out = false;
        let mut too_large = false;
        let exit = tokio::select! {
            exit = run => Some(exit),
            () = tokio::time::sleep(timeout) => {
                timed_out = true;
                None
            }
            () = is_too_large(&packages, bytes_max, free_min) => {
                too_large = true;
                None
            }
            () = serve => None,
        };
        let exit = match exit {
            Some(exit) => exit,
            None => {
                started.control.kill();
                started.control.exited().await
            }
        };
        let owner = sys::effective_ids();
        let returned = tokio::task::spawn_blocking(move || {
            give_back(&packages, owner, 0)?;
            // The last measurement may have been too early, so the bytes are counted again after
            // the end.
            Ok::<_, io::Error>(bytes_below(&packages, bytes_max) > bytes_max)
        })
        .await;
        match returned.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(over) => too_large |= over,
            Err(source) => {
                return Err(StartError::Sandbox {
                    label,
                    step: "take over the installed packages".to_owned(),
                    source,
                });
            }
        }
        Ok(BuildOutcome { exit, timed_out, too_large, output: lines.finish() })
    }
}

/// Resolves when the folder holds more bytes than allowed, or when the disk is nearly full.
async fn is_too_large(folder: &Path, bytes_max: u64, free_min: u64) {
    let mut pause = LOOK_PAUSE;
    loop {
        tokio::time::sleep(pause).await;
        let begun = Instant::now();
        let folder = folder.to_owned();
        let over = tokio::task::spawn_blocking(move || {
            sys::free_bytes(&folder).is_ok_and(|free| free < free_min)
                || bytes_below(&folder, bytes_max) > bytes_max
        });
        if over.await.unwrap_or(false) {
            return;
        }
        pause = LOOK_PAUSE.max(begun.elapsed() * LOOK_SHARE);
    }
}

/// Bytes on disk below a folder. Counting stops once the sum exceeds `most`. Folders that cannot be
/// read count as empty.
fn bytes_below(folder: &Path, most: u64) -> u64 {
    let mut sum = 0;
    let mut folders: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            sum += meta.blocks() * 512;
            if meta.is_dir() {
                folders.push(entry.path());
            }
            if sum > most {
                return sum;
            }
        }
    }
    sum
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
    for (path, text) in request.files {
        root.files.retain(|(known, _)| *known != path);
        root.files.push((path, text));
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
        // This includes the files that were prepared for the client, which may overwrite them.
        hand_over(&request.packages_dir, ids, 0)?;
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

/// Changes the owner of everything below `path` to `ids`, without following links.
fn hand_over(path: &Path, ids: (u32, u32), depth: u32) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(path)?;
    if meta.is_dir() {
        not_too_deep(depth)?;
        for entry in std::fs::read_dir(path)? {
            hand_over(&entry?.path(), ids, depth + 1)?;
        }
    }
    // The folder itself comes last, because after its change a node without CAP_DAC_OVERRIDE cannot
    // read it.
    if (meta.uid(), meta.gid()) != ids {
        lchown(path, Some(ids.0), Some(ids.1))?;
    }
    Ok(())
}

/// Gives everything below `path` to `owner`, readable by all and without set-id bits. No process of
/// the installation is running any longer, so no file can be replaced during the check. Links are
/// not followed.
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
    // The mode is set even if the owner was changed, because a change of owner clears set-id bits
    // only for files.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(wanted))?;
    if meta.is_dir() {
        not_too_deep(depth)?;
        for entry in std::fs::read_dir(path)? {
            give_back(&entry?.path(), owner, depth + 1)?;
        }
    }
    Ok(())
}

fn not_too_deep(depth: u32) -> io::Result<()> {
    if depth < DEPTH_MAX {
        return Ok(());
    }
    Err(io::Error::other(format!("its folders are nested more than {DEPTH_MAX} deep")))
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
