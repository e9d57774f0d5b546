//! The images on disk.
//!
//! ```text
//! layers/HEX/root        a layer, named by the digest of its unpacked tar
//! layers/HEX/layer.json  what it contains
//! manifests/HEX.json     an image: its layers and configuration; written last
//! partial/HEX            the beginning of a blob that is being downloaded
//! work/N                 layers that are being unpacked or removed; emptied at the start
//! ```

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedMutexGuard, Semaphore};

use crate::config::ImageConfig;
use crate::error::ImageError;
use crate::layer::Budget;
use crate::limits::Limits;
use crate::platform::Platform;
use crate::{layer, reference};

/// How many layers of an image are downloaded at once, and how many of all images are unpacked at
/// once. More layers would not use a slow connection better.
pub(crate) const DOWNLOADS_MAX: usize = 3;
/// How long the beginning of a blob is kept for another attempt.
const PARTIAL_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// The size of all of them together, without the newest.
const PARTIAL_BYTES_MAX: u64 = 1 << 30;
/// How many indexes are recorded with an image. Each index comes from another build, which added
/// other platforms.
const INDEXES_MAX: usize = 16;
/// The most bytes in a file that this crate itself writes to the folder. A configuration is much
/// smaller.
const RECORD_BYTES_MAX: u64 = 8 << 20;

/// An image on disk. As long as a clone of this value exists, garbage collection keeps the image.
#[derive(Debug, Clone)]
pub struct Image {
    /// `sha256:…` of the manifest for the platform.
    pub digest: String,
    /// The name that was asked for, with the resolved digest.
    pub name: String,
    /// The layers' folders, bottom first. There is at least one, and none occurs twice. All files
    /// belong to the node's user, deleted paths are character devices 0/0, and opaque folders have
    /// the attributes `user.overlay.opaque` and, where the node is root, `trusted.overlay.opaque`.
    pub layers: Vec<PathBuf>,
    pub config: ImageConfig,
    pub platform: Platform,
    /// Bytes of all layers. Other images may share them.
    pub bytes: u64,
    _lease: Arc<Lease>,
}

/// What a collection removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    pub images: usize,
    pub layers: usize,
    pub bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    pub(crate) limits: Limits,
    next_work: AtomicU64,
    /// One lock for each layer and blob that a pull works on. Another pull that needs the same one
    /// waits.
    locks: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    /// How many leases each digest has.
    leases: Mutex<HashMap<String, usize>>,
    /// Held while records are collected, and while one is added.
    records: Mutex<()>,
    /// Permits to unpack layers. All pulls share them, because each may need 32 MiB of memory.
    pub(crate) unpacking: Semaphore,
}

/// Keeps the layers of an image, and its record, from being collected.
pub(crate) struct Lease {
    folder: Arc<Folder>,
    digests: Vec<String>,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Lease").field(&self.digests).finish()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut leases = self.folder.leases.lock();
        for digest in &self.digests {
            if let Some(count) = leases.get_mut(digest) {
                *count -= 1;
                if *count == 0 {
                    leases.remove(digest);
                }
            }
        }
    }
}

/// What is written about an image.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) name: String,
    /// Digests of the unpacked layers, bottom first.
    pub(crate) layers: Vec<String>,
    pub(crate) config: ImageConfig,
    pub(crate) platform: Platform,
    /// Digests of indexes in which the image was found. A name with such a digest needs no registry.
    #[serde(default)]
    pub(crate) indexes: Vec<String>,
}

impl Record {
    pub(crate) fn add_index(&mut self, index: Option<&str>) {
        self.indexes.extend(index.map(str::to_owned));
        let surplus = self.indexes.len().saturating_sub(INDEXES_MAX);
        self.indexes.drain(..surplus);
    }
}

/// What is written about a layer.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct LayerRecord {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    pub(crate) skipped: u64,
}

impl Folder {
    /// Opens the folder, makes it if it is missing, and removes what a crash left. Blocks.
    pub(crate) fn open(path: &Path, limits: Limits) -> io::Result<Self> {
        for folder in ["", "layers", "manifests", "partial", "work"] {
            std::fs::create_dir_all(path.join(folder))?;
        }
        // Images contain files that anybody may write, and strangers' programs.
        std::fs::set_permissions(path, Permissions::from_mode(0o700))?;
        for entry in std::fs::read_dir(path.join("work"))? {
            mote_store::remove_tree(&entry?.path())?;
        }
        for entry in std::fs::read_dir(path.join("manifests"))? {
            let entry = entry?;
            if !entry.file_name().to_string_lossy().ends_with(".json") {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(Self {
            path: path.to_owned(),
            limits,
            next_work: AtomicU64::new(0),
            locks: Mutex::default(),
            leases: Mutex::default(),
            records: Mutex::new(()),
            unpacking: Semaphore::new(DOWNLOADS_MAX),
        })
    }

    /// Reads an image.
    pub(crate) fn image(self: &Arc<Self>, digest: &str) -> Result<Option<Image>, ImageError> {
        if !reference::is_digest(digest) {
            return Ok(None);
        }
        let Some(record) = self.record(digest)? else { return Ok(None) };
        let lease = self.lease([digest.to_owned()].into_iter().chain(record.layers.clone()));
        let mut found = HashMap::new();
        for layer in &record.layers {
            match self.layer(layer)? {
                Some(contents) => found.insert(layer.as_str(), contents),
                None => return Ok(None),
            };
        }
        let layers = layers_to_mount(&record.layers, |layer| found[layer].entries == 0);
        let image = Image {
            digest: digest.to_owned(),
            layers: layers.iter().map(|layer| self.layer_folder(layer).join("root")).collect(),
            bytes: found.values().map(|contents| contents.bytes).sum(),
            name: record.name,
            config: record.config,
            platform: record.platform,
            _lease: Arc::new(lease),
        };
        Ok(Some(image))
    }

    /// Reads an image that was asked for by this name, and keeps the name. `index` is the digest in
    /// the name, if it is the digest of an index.
    pub(crate) fn image_as(
        self: &Arc<Self>,
        digest: &str,
        name: &str,
        index: Option<&str>,
    ) -> Result<Option<Image>, ImageError> {
        let Some(mut image) = self.image(digest)? else { return Ok(None) };
        let Some(mut record) = self.record(digest)? else { return Ok(None) };
        let is_known = index.is_none_or(|index| record.indexes.iter().any(|one| one == index));
        if record.name != name || !is_known {
            name.clone_into(&mut record.name);
            record.add_index(index);
            self.write_record(digest, &record)?;
        }
        image.name = record.name;
        Ok(Some(image))
    }

    /// The digest of an image that was once found in this index, for a platform.
    pub(crate) fn of_index(
        &self,
        index: &str,
        platform: &Platform,
    ) -> Result<Option<String>, ImageError> {
        for entry in std::fs::read_dir(self.path.join("manifests"))? {
            let name = entry?.file_name();
            let Some(hex) = name.to_str().and_then(|name| name.strip_suffix(".json")) else {
                continue;
            };
            let digest = format!("sha256:{hex}");
            // A record that cannot be read is not a match.
            let Ok(Some(record)) = self.record(&digest) else { continue };
            let is_in = record.indexes.iter().any(|one| one == index);
            if is_in && platform.suits(&record.platform).is_some() {
                return Ok(Some(digest));
            }
        }
        Ok(None)
    }

    /// Records an image whose layers are complete.
    pub(crate) fn add_image(
        self: &Arc<Self>,
        digest: &str,
        record: &Record,
    ) -> Result<Image, ImageError> {
        self.write_record(digest, record)?;
        self.image(digest)?.ok_or_else(|| {
            ImageError::Io(io::Error::other("an image vanished while it was written"))
        })
    }

    pub(crate) fn lease(self: &Arc<Self>, digests: impl IntoIterator<Item = String>) -> Lease {
        let digests: Vec<String> = digests.into_iter().collect();
        let mut leases = self.leases.lock();
        for digest in &digests {
            *leases.entry(digest.clone()).or_default() += 1;
        }
        Lease { folder: self.clone(), digests }
    }

    /// The lock of a layer or a blob.
    fn lock(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock();
        locks.retain(|_, lock| lock.strong_count() > 0);
        let known = locks.get(key).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let lock = Arc::default();
            locks.insert(key.to_owned(), Arc::downgrade(&lock));
            lock
        })
    }

    pub(crate) async fn turn(&self, key: &str) -> OwnedMutexGuard<()> {
        self.lock(key).lock_owned().await
    }

    /// Like [`Self::turn`], but blocks. Must not be called on a thread on which a runtime runs
    /// tasks.
    pub(crate) fn blocking_turn(&self, key: &str) -> OwnedMutexGuard<()> {
        self.lock(key).blocking_lock_owned()
    }

    /// Unpacks a layer, unless it has already been unpacked. The caller holds the turn of
    /// `diff_id`, and a lease.
    pub(crate) fn unpack(
        &self,
        number: usize,
        diff_id: &str,
        input: &mut dyn io::Read,
        budget: &Budget,
        is_cancelled: &AtomicBool,
    ) -> Result<LayerRecord, ImageError> {
        let work = self.work()?;
        let root = work.0.join("root");
        let aside = work.0.join("aside");
        std::fs::create_dir(&root)?;
        std::fs::create_dir(&aside)?;
        let contents = layer::unpack(input, &root, &aside, budget, is_cancelled)
            .map_err(|error| ImageError::layer(number, error))?;
        if contents.diff_id != diff_id {
            return Err(ImageError::WrongDigest {
                what: format!("layer {number}, unpacked,"),
                found: contents.diff_id,
                expected: diff_id.to_owned(),
            });
        }
        mote_store::remove_tree(&aside)?;
        let record = LayerRecord {
            bytes: contents.bytes,
            entries: contents.entries,
            skipped: contents.skipped,
        };
        write_synced(&work.0.join("layer.json"), &record)?;
        File::open(&work.0)?.sync_all()?;
        let place = self.layer_folder(diff_id);
        // If the folder exists here, it is not complete.
        let broken = Work(self.path.join("work").join(self.next_work().to_string()));
        match std::fs::rename(&place, &broken.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => std::fs::rename(&work.0, &place)?,
        }
        std::mem::forget(work);
        File::open(self.path.join("layers"))?.sync_all()?;
        if record.skipped > 0 {
            tracing::info!(layer = diff_id, skipped = record.skipped, "layer without its devices");
        }
        Ok(record)
    }

    /// What a layer contains, if it is complete.
    pub(crate) fn layer(&self, diff_id: &str) -> Result<Option<LayerRecord>, ImageError> {
        read_record(&self.layer_folder(diff_id).join("layer.json"))
    }

    /// The file for a blob's beginning.
    pub(crate) fn partial(&self, digest: &str) -> PathBuf {
        self.path.join("partial").join(hex(digest))
    }

    /// An unnamed file on the disk that holds the images.
    pub(crate) fn unnamed_file(&self) -> io::Result<File> {
        tempfile::tempfile_in(self.path.join("work"))
    }

    /// Fails if the disk has less room than this.
    pub(crate) fn check_room(&self, bytes: u64) -> Result<(), ImageError> {
        layer::check_room(File::open(&self.path)?, bytes)
    }

    fn layer_folder(&self, diff_id: &str) -> PathBuf {
        self.path.join("layers").join(hex(diff_id))
    }

    fn record_file(&self, digest: &str) -> PathBuf {
        self.path.join("manifests").join(format!("{}.json", hex(digest)))
    }

    fn record(&self, digest: &str) -> Result<Option<Record>, ImageError> {
        read_record(&self.record_file(digest))
    }

    fn write_record(&self, digest: &str, record: &Record) -> io::Result<()> {
        let _records = self.records.lock();
        let file = self.record_file(digest);
        let new = self.path.join("work").join(self.next_work().to_string());
        write_synced(&new, record)?;
        std::fs::rename(&new, &file)?;
        File::open(self.path.join("manifests"))?.sync_all()
    }

    fn next_work(&self) -> u64 {
        self.next_work.fetch_add(1, Ordering::Relaxed)
    }

    fn work(&self) -> io::Result<Work> {
        let path = self.path.join("work").join(self.next_work().to_string());
        std::fs::create_dir(&path)?;
        Ok(Work(path))
    }

    /// Removes unfinished downloads that were not continued for a day. If the rest together is
    /// larger than 1 GiB, also removes the oldest of them, but never the newest.
    pub(crate) fn collect_partial(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(self.path.join("partial"))? {
            let entry = entry?;
            match entry.metadata() {
                Ok(meta) => files.push((meta.modified()?, meta.len(), entry.file_name())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        files.sort();
        let mut total: u64 = files.iter().map(|(_, bytes, _)| *bytes).sum();
        let newest = files.last().map(|(_, _, name)| name.clone());
        for (modified, bytes, name) in files {
            let is_old = modified.elapsed().is_ok_and(|age| age > PARTIAL_AGE_MAX);
            if !is_old && total <= self.limits.packed_bytes.min(PARTIAL_BYTES_MAX) {
                break;
            }
            if !is_old && newest.as_ref() == Some(&name) {
                break;
            }
            let key = blob_key(&format!("sha256:{}", name.to_string_lossy()));
            // A running download holds the turn.
            let Ok(_turn) = self.lock(&key).try_lock_owned() else { continue };
            match std::fs::remove_file(self.path.join("partial").join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => total -= bytes,
            }
        }
        Ok(())
    }

    /// Removes what is not in use.
    pub(crate) fn collect_garbage(&self, in_use: &[String]) -> io::Result<Collected> {
        let _records = self.records.lock();
        let mut collected = Collected::default();
        let mut needed = std::collections::HashSet::new();
        for entry in std::fs::read_dir(self.path.join("manifests"))? {
            let name = entry?.file_name();
            let Some(hex) = name.to_str().and_then(|name| name.strip_suffix(".json")) else {
                continue;
            };
            let digest = format!("sha256:{hex}");
            // A pull takes its lease under this lock, before it reads the image.
            let leases = self.leases.lock();
            if !in_use.contains(&digest) && !leases.contains_key(&digest) {
                std::fs::remove_file(self.path.join("manifests").join(&name))?;
                collected.images += 1;
                continue;
            }
            drop(leases);
            match self.record(&digest) {
                Ok(Some(record)) => needed.extend(record.layers),
                Ok(None) => {}
                // Layers that may be in use are kept.
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        File::open(self.path.join("manifests"))?.sync_all()?;
        for entry in std::fs::read_dir(self.path.join("layers"))? {
            let name = entry?.file_name();
            let digest = format!("sha256:{}", name.to_string_lossy());
            if needed.contains(&digest) {
                continue;
            }
            let contents = self.layer(&digest).ok().flatten();
            let aside = Work(self.path.join("work").join(self.next_work().to_string()));
            let leases = self.leases.lock();
            if leases.contains_key(&digest) {
                std::mem::forget(aside);
                continue;
            }
            std::fs::rename(self.path.join("layers").join(&name), &aside.0)?;
            drop(leases);
            collected.layers += 1;
            collected.bytes += contents.map_or(0, |contents| contents.bytes);
        }
        self.collect_partial()?;
        Ok(collected)
    }
}

/// The key of the turn for a blob.
pub(crate) fn blob_key(digest: &str) -> String {
    format!("blob {digest}")
}

/// The layers that make up the root. If one layer occurs twice, the upper one replaces all of the
/// lower one, and overlayfs refuses to mount a folder twice. Empty layers are left out.
fn layers_to_mount(all: &[String], is_empty: impl Fn(&str) -> bool) -> Vec<String> {
    let mut layers: Vec<String> = Vec::new();
    for layer in all.iter().rev() {
        if !layers.contains(layer) && !is_empty(layer) {
            layers.push(layer.clone());
        }
    }
    if layers.is_empty() {
        layers.extend(all.first().cloned());
    }
    layers.reverse();
    layers
}

/// A folder that is removed with everything in it.
struct Work(PathBuf);

impl Drop for Work {
    fn drop(&mut self) {
        if let Err(error) = mote_store::remove_tree(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "part of an image was not removed");
        }
    }
}

fn hex(digest: &str) -> &str {
    digest.strip_prefix("sha256:").unwrap_or(digest)
}

fn write_synced(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.sync_all()
}

fn read_record<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, ImageError> {
    let mut text = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(RECORD_BYTES_MAX).read_to_end(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| ImageError::Io(io::Error::other(format!("{}: {error}", path.display()))))
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
