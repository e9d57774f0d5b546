//! The daemon's settings for all sandboxes, and the facts about the host from which sandboxes are
//! built.

use std::path::{Path, PathBuf};

/// First host user id given to instances. It is above every id that login databases hand out, and
/// below the subordinate ids of those container engines whose ranges begin at 2^31.
pub const UID_BASE_DEFAULT: u32 = 1_000_000;

/// User and group id inside every sandbox, except in those of images, which name their own user.
pub(crate) const INSIDE_ID: u32 = 1000;
/// See [`INSIDE_ID`].
pub(crate) const INSIDE_IDS: (u32, u32) = (INSIDE_ID, INSIDE_ID);

/// One layer of isolation. Tests can leave layers out, to prove that the attack battery notices a
/// missing layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Layer {
    UserNamespace = 1,
    /// The system call filter.
    Seccomp = 2,
    Landlock = 4,
    Capabilities = 8,
    /// The process id namespace.
    PidNamespace = 16,
    NetNamespace = 32,
    /// The namespace of System V and POSIX message queues and shared memory.
    IpcNamespace = 64,
    /// The private root made of read-only binds.
    Root = 128,
    /// Control groups.
    Cgroup = 256,
    NoNewPrivs = 512,
    /// Resource limits per process.
    Rlimits = 1024,
    /// All descriptors except the allowed ones are closed.
    FdClosing = 2048,
}

/// Settings of all sandboxes of one daemon.
#[derive(Debug, Clone)]
pub struct SandboxConfig {
    /// Folders outside the system's own (`/usr` and the like) that runtimes need, for instance the
    /// prefix of an interpreter in a home folder. They are bound read-only at the same path inside.
    pub runtime_prefixes: Vec<PathBuf>,
    /// Host folder of the shims, mounted read-only at `/mote` inside.
    pub shims_dir: Option<PathBuf>,
    /// First host user id of instances if the daemon is root. Each instance then gets its own id.
    pub uid_base: u32,
    pub(crate) without: u32,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            runtime_prefixes: Vec::new(),
            shims_dir: None,
            uid_base: UID_BASE_DEFAULT,
            without: 0,
        }
    }
}

impl SandboxConfig {
    /// Leaves one layer out. Only the attack battery calls this; no setting of the product does.
    #[doc(hidden)]
    #[must_use]
    pub fn without(mut self, layer: Layer) -> Self {
        self.without |= layer as u32;
        self
    }
}

/// The files of the host that every program needs. They are located once.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostFacts {
    /// Folders and files to bind read-only at the same path.
    pub(crate) binds: Vec<PathBuf>,
    /// Links to repeat: path, target.
    pub(crate) links: Vec<(PathBuf, PathBuf)>,
}

/// Files and folders of /etc that programs read and that hold no secrets. A `*` at the end of a
/// name matches any ending. The list must never contain keys (`/etc/ssl/private`), passwords, or
/// the settings of clients that contain logins (`/etc/pip.conf`, `/etc/npmrc`, `/etc/gitconfig`).
const ETC: &[&str] = &[
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/alternatives",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
    "/etc/timezone",
    // The configuration of runtimes and libraries, to which links in their /usr folders lead.
    "/etc/java-*",
    "/etc/java",
    "/etc/jvm*",
    "/etc/php*",
    "/etc/mono",
    "/etc/R",
    "/etc/perl",
    "/etc/fonts",
    "/etc/ImageMagick-*",
    "/etc/ghostscript",
];

impl HostFacts {
    /// Examines the host. Reads a few folders.
    pub(crate) fn detect(prefixes: &[PathBuf]) -> Self {
        let mut facts = Self::default();
        for name in ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"] {
            facts.add(Path::new(name));
        }
        let etc = Path::new("/etc").read_dir().into_iter().flatten().flatten();
        let mut in_etc: Vec<_> = etc.map(|entry| entry.path()).collect();
        in_etc.sort();
        for name in ETC {
            let Some(begin) = name.strip_suffix('*') else {
                facts.add(Path::new(name));
                continue;
            };
            let fits = |path: &&PathBuf| path.to_str().is_some_and(|path| path.starts_with(begin));
            for path in in_etc.iter().filter(fits) {
                facts.add(path);
            }
        }
        for prefix in prefixes {
            facts.add(prefix);
        }
        facts
    }

    fn add(&mut self, path: &Path) {
        if path.parent().is_none()
            || !path.is_absolute()
            || self.binds.iter().any(|bound| path.starts_with(bound))
        {
            return;
        }
        let Ok(meta) = std::fs::symlink_metadata(path) else {
            return;
        };
        if meta.is_symlink() {
            if let Ok(target) = std::fs::read_link(path) {
                self.links.push((path.to_owned(), target.clone()));
                // If a link leads out of the bound folders (localtime on some systems), its target
                // must be bound as well.
                let absolute = path.parent().unwrap_or(Path::new("/")).join(target);
                if let Ok(real) = absolute.canonicalize()
                    && !self.binds.iter().any(|bound| real.starts_with(bound))
                    && self.binds.len() < 64
                    && real.parent().is_some()
                {
                    self.binds.push(real);
                }
            }
        } else {
            self.binds.push(path.to_owned());
        }
    }
}
