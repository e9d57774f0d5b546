//! Installed packages: one folder per lock file, runtime version and machine.

use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::remove::remove_tree;
use crate::store::{Pin, Store, crash_point, sync_dir};

const KEY_BYTES_MAX: usize = 200;

/// The result of looking up a key.
#[derive(Debug)]
pub enum Lookup {
    /// The packages were installed before. They are read-only.
    Ready(StoredPackages),
    /// The packages are not installed. Install them into the path, then call
    /// [`Store::commit_packages`].
    Build(PackagesStaging),
}

/// Installed packages. The garbage collector keeps them until this is dropped.
#[derive(Debug)]
pub struct StoredPackages {
    pub path: PathBuf,
    _pin: Pin,
}

/// An empty folder to install into. It is removed on drop unless it was committed.
#[derive(Debug)]
pub struct PackagesStaging {
    key: String,
    path: PathBuf,
    _pin: Pin,
}

impl PackagesStaging {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The key that the packages have after the commit.
    pub fn key(&self) -> &str {
        &self.key
    }
}

impl Drop for PackagesStaging {
    fn drop(&mut self) {
        // After a commit, this path no longer exists.
        let _ = remove_tree(&self.path);
    }
}

impl Store {
    /// Looks up the packages of `key` (lock hash, runtime version and machine, joined with `-`).
    /// Two builds of one key may run at once. The node uses the first one that is committed.
    pub fn packages_dir(&self, key: &str) -> Result<Lookup, StoreError> {
        check_key(key)?;
        let pin = self.pin(key);
        let path = self.packages_path(key);
        if path.is_dir() {
            return Ok(Lookup::Ready(StoredPackages { path, _pin: pin }));
        }
        Ok(Lookup::Build(PackagesStaging {
            key: key.to_owned(),
            path: self.new_staging_dir()?,
            _pin: pin,
        }))
    }

    /// Makes an installed folder durable and renames it to its key.
    pub fn commit_packages(&self, staging: PackagesStaging) -> Result<StoredPackages, StoreError> {
        let io = |error| StoreError::io(&staging.path, error);
        make_readable(&staging.path).map_err(io)?;
        let dir = std::fs::File::open(&staging.path).map_err(io)?;
        rustix::fs::syncfs(&dir).map_err(|errno| io(errno.into()))?;
        crash_point("packages-built");
        let path = self.packages_path(&staging.key);
        let _guard = self.lock();
        if !path.is_dir() {
            std::fs::rename(&staging.path, &path).map_err(io)?;
            sync_dir(&self.packages_root())?;
        }
        let pin = self.pin(&staging.key);
        Ok(StoredPackages { path, _pin: pin })
    }

    pub(crate) fn packages_path(&self, key: &str) -> PathBuf {
        self.packages_root().join(key)
    }
}

fn check_key(key: &str) -> Result<(), StoreError> {
    let good = !key.is_empty()
        && key.len() <= KEY_BYTES_MAX
        && !key.starts_with('.')
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    good.then_some(()).ok_or_else(|| {
        StoreError::BadKey(key.chars().take(64).flat_map(char::escape_debug).collect())
    })
}

/// Makes the files readable for the sandboxes, which run as another user. Installers respect the
/// umask.
fn make_readable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;

    let meta = std::fs::symlink_metadata(path)?;
    if meta.is_symlink() {
        return Ok(());
    }
    let mode = meta.permissions().mode();
    let wanted = if meta.is_dir() || mode & 0o100 != 0 { 0o755 } else { 0o644 };
    if mode & 0o7777 != wanted {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(wanted))?;
    }
    if meta.is_dir() {
        for entry in std::fs::read_dir(path)? {
            make_readable(&entry?.path())?;
        }
    }
    Ok(())
}
