//! A code tree on disk, named by its content. It is written relative to file descriptors, and
//! without following links.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};

/// A tree with more nodes than this is synced with one call that syncs the whole file system.
const SYNC_EACH_MAX: usize = 64;

/// The node at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    Dir { explicit: bool },
    File { executable: bool, size: u64, digest: [u8; 32] },
    Link { target: String },
}

/// The reason why a node could not be added.
#[derive(Debug)]
pub(crate) enum TreeError {
    /// The path is taken, or differs from a taken path only in case. The text says which.
    Taken(&'static str),
    /// The path leads through a link or a file.
    ThroughLink,
    Io(io::Error),
}

impl From<io::Error> for TreeError {
    fn from(error: io::Error) -> Self {
        TreeError::Io(error)
    }
}

impl From<rustix::io::Errno> for TreeError {
    fn from(error: rustix::io::Errno) -> Self {
        match error {
            rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => TreeError::ThroughLink,
            rustix::io::Errno::EXIST => TreeError::Taken("same path twice"),
            other => TreeError::Io(other.into()),
        }
    }
}

/// Builds a tree below one folder.
pub(crate) struct TreeWriter {
    root: OwnedFd,
    nodes: BTreeMap<String, Node>,
    folded: HashMap<String, String>,
}

impl TreeWriter {
    /// Begins a tree in `root`, an empty folder.
    pub(crate) fn new(root: &Path) -> io::Result<Self> {
        let root = rustix::fs::open(
            root,
            OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self { root, nodes: BTreeMap::new(), folded: HashMap::new() })
    }

    pub(crate) fn nodes(&self) -> &BTreeMap<String, Node> {
        &self.nodes
    }

    /// Adds a folder. A folder that was made implicitly for a path below it may be added once.
    pub(crate) fn add_dir(&mut self, path: &str) -> Result<(), TreeError> {
        if let Some(Node::Dir { explicit }) = self.nodes.get_mut(path) {
            if std::mem::replace(explicit, true) {
                return Err(TreeError::Taken("same path twice"));
            }
            return Ok(());
        }
        self.claim(path)?;
        self.make_dir(path, true)
    }

    /// Adds a file. `fill` writes the content and returns its size and digest.
    pub(crate) fn add_file<E: From<TreeError>>(
        &mut self,
        path: &str,
        executable: bool,
        fill: impl FnOnce(&mut File) -> Result<(u64, [u8; 32]), E>,
    ) -> Result<(), E> {
        self.claim(path)?;
        let (parent, name) = self.parent(path)?;
        let mode = if executable { 0o755 } else { 0o644 };
        let file = rustix::fs::openat(
            &parent,
            name,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::from_raw_mode(mode),
        )
        .map_err(TreeError::from)?;
        let mut file = File::from(file);
        let (size, digest) = fill(&mut file)?;
        // The mode is set again, because the umask restricted it at creation.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(TreeError::from)?;
        self.nodes.insert(path.to_owned(), Node::File { executable, size, digest });
        Ok(())
    }

    /// Adds a symbolic link. The caller has checked that the link stays inside the tree.
    pub(crate) fn add_link(&mut self, path: &str, target: &str) -> Result<(), TreeError> {
        self.claim(path)?;
        let (parent, name) = self.parent(path)?;
        rustix::fs::symlinkat(target, &parent, name)?;
        let target = target.to_owned();
        self.nodes.insert(path.to_owned(), Node::Link { target });
        Ok(())
    }

    /// Opens a file that was added before.
    pub(crate) fn open_file(&mut self, path: &str) -> Result<File, TreeError> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
        Ok(File::from(file))
    }

    /// Makes the tree durable and returns its name, the hash of its content in hex.
    pub(crate) fn finish(mut self) -> Result<String, TreeError> {
        rustix::fs::fchmod(&self.root, Mode::from_raw_mode(0o755))?;
        if self.nodes.len() > SYNC_EACH_MAX {
            rustix::fs::syncfs(&self.root)?;
        } else {
            let nodes: Vec<(String, bool)> = self
                .nodes
                .iter()
                .filter(|(_, node)| !matches!(node, Node::Link { .. }))
                .map(|(path, node)| (path.clone(), matches!(node, Node::Dir { .. })))
                .collect();
            for (path, is_dir) in nodes {
                if is_dir {
                    rustix::fs::fsync(self.dir(&path)?)?;
                } else {
                    self.open_file(&path)?.sync_all()?;
                }
            }
            rustix::fs::fsync(&self.root)?;
        }
        Ok(hash(&self.nodes))
    }

    /// Fails if the path is taken, or if one of its components differs from an existing name only
    /// in case.
    fn claim(&mut self, path: &str) -> Result<(), TreeError> {
        if self.nodes.contains_key(path) {
            return Err(TreeError::Taken("same path twice"));
        }
        let ends = path.match_indices('/').map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            let part = &path[..end];
            match self.folded.get(&part.to_lowercase()) {
                Some(other) if other != part => {
                    return Err(TreeError::Taken("names differ only in case"));
                }
                Some(_) => {}
                None => {
                    self.folded.insert(part.to_lowercase(), part.to_owned());
                }
            }
        }
        Ok(())
    }

    fn make_dir(&mut self, path: &str, explicit: bool) -> Result<(), TreeError> {
        let (parent, name) = self.parent(path)?;
        rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
        let dir = open_dir(&parent, name)?;
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(0o755))?;
        self.nodes.insert(path.to_owned(), Node::Dir { explicit });
        Ok(())
    }

    /// Returns the open folder above `path`, which is made if it is missing, and the last
    /// component.
    fn parent<'p>(&mut self, path: &'p str) -> Result<(OwnedFd, &'p str), TreeError> {
        let Some((folder, name)) = path.rsplit_once('/') else {
            return Ok((self.root.try_clone()?, path));
        };
        match self.nodes.get(folder) {
            None => self.make_dir(folder, false)?,
            Some(Node::Dir { .. }) => {}
            Some(_) => return Err(TreeError::ThroughLink),
        }
        Ok((self.dir(folder)?, name))
    }

    /// Opens a folder component by component, so that a link anywhere in the path is refused.
    fn dir(&self, path: &str) -> Result<OwnedFd, TreeError> {
        let mut dir = self.root.try_clone()?;
        for part in path.split('/') {
            dir = open_dir(&dir, part)?;
        }
        Ok(dir)
    }
}

fn open_dir(at: impl AsFd, name: &str) -> Result<OwnedFd, TreeError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

/// Computes the name of a tree: a hash of sorted paths, kinds, executable bits and contents. The
/// hash ignores times, owners, and whether a folder was named or implied.
fn hash(nodes: &BTreeMap<String, Node>) -> String {
    let mut hasher = Sha256::new();
    hasher.update(b"mote-tree-1\n");
    for (path, node) in nodes {
        let (kind, size, payload): (u8, u64, &[u8]) = match node {
            Node::Dir { .. } => (b'd', 0, &[]),
            Node::File { executable, size, digest } => {
                (if *executable { b'x' } else { b'f' }, *size, digest)
            }
            Node::Link { target } => (b'l', target.len() as u64, target.as_bytes()),
        };
        hasher.update([kind]);
        hasher.update((path.len() as u64).to_le_bytes());
        hasher.update(path.as_bytes());
        hasher.update(size.to_le_bytes());
        hasher.update(payload);
    }
    hex(&hasher.finalize())
}

/// Computes the name of the tree at `root` again. If a file was corrupted, the result differs from
/// the folder's name. Reads every file.
pub fn hash_dir(root: &Path) -> io::Result<String> {
    let mut nodes = BTreeMap::new();
    collect(root, "", &mut nodes)?;
    Ok(hash(&nodes))
}

fn collect(root: &Path, below: &str, nodes: &mut BTreeMap<String, Node>) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;

    for entry in std::fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let path = if below.is_empty() { name.into_owned() } else { format!("{below}/{name}") };
        let meta = entry.metadata()?;
        let node = if meta.is_dir() {
            collect(root, &path, nodes)?;
            Node::Dir { explicit: true }
        } else if meta.is_symlink() {
            let target = std::fs::read_link(entry.path())?;
            Node::Link { target: target.to_string_lossy().into_owned() }
        } else {
            let (size, digest) = digest(&mut File::open(entry.path())?)?;
            Node::File { executable: meta.permissions().mode() & 0o111 != 0, size, digest }
        };
        nodes.insert(path, node);
    }
    Ok(())
}

fn digest(input: &mut impl Read) -> io::Result<(u64, [u8; 32])> {
    let mut hasher = Sha256::new();
    let mut buffer = [0; 16 << 10];
    let mut size = 0;
    loop {
        match input.read(&mut buffer) {
            Ok(0) => return Ok((size, hasher.finalize().into())),
            Ok(count) => {
                hasher.update(&buffer[..count]);
                size += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Formats bytes as lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(bytes)
}
