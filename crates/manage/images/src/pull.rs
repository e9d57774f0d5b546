//! Pulls an image: resolves its name, downloads its blobs, and unpacks its layers.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use mote_outgoing::{Outgoing, OutgoingError};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use crate::documents::{Blob, Document, INDEX_DEPTH_MAX, Manifest, digest, hex_digest, read};
use crate::folder::{DOWNLOADS_MAX, Folder, Image, Record, blob_key};
use crate::layer::Budget;
use crate::registry::{Registry, text_field};
use crate::{Credentials, ImageError, Limits, Platform, Reference, config};

/// The number of bytes between two progress reports.
const PROGRESS_BYTES: u64 = 1 << 20;
/// How often an interrupted download is continued without having received anything.
const ATTEMPTS_MAX: u32 = 5;
/// The first pause before another attempt; each following one is twice as long.
const PAUSE: Duration = Duration::from_millis(250);
/// How many pieces of a blob may wait for the disk. A piece has up to a few hundred KiB.
const PIECES_MAX: usize = 16;

/// What a pull or an import has done so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// The name stands for this digest. `bytes` are those of the packed layers.
    Resolved { digest: String, layers: usize, bytes: u64 },
    /// This many bytes of the packed layers have been downloaded.
    Downloaded { bytes: u64, total: u64 },
    /// This many layers are complete.
    Unpacked { layers: usize, total: usize },
}

/// Ends the blocking work of a pull when the pull is dropped.
struct Cancel(Arc<AtomicBool>);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What all layers of one pull share.
struct Pull<'a> {
    folder: &'a Arc<Folder>,
    registry: &'a Registry<'a>,
    budget: Arc<Budget>,
    is_cancelled: Arc<AtomicBool>,
    progress: &'a (dyn Fn(Progress) + Send + Sync),
    downloaded: AtomicU64,
    total: u64,
}

pub(crate) async fn pull(
    folder: &Arc<Folder>,
    reference: &Reference,
    credentials: Option<&Credentials>,
    platform: &Platform,
    outgoing: &Outgoing,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Image, ImageError> {
    if let Some(digest) = reference.digest()
        && let Some(image) = kept(folder, digest, reference, platform).await?
    {
        return Ok(image);
    }
    with(folder, |folder| Ok(folder.collect_partial()?)).await?;
    let registry = Registry::new(reference, credentials, outgoing);
    let (manifest, digest) = resolve(&registry, reference, platform, &folder.limits).await?;
    if let Some(image) = kept(folder, &digest, reference, platform).await? {
        return Ok(image);
    }
    let name = reference.pinned(&digest);
    let total = manifest.layers.iter().map(|layer| layer.bytes).sum();
    progress(Progress::Resolved {
        digest: digest.clone(),
        layers: manifest.layers.len(),
        bytes: total,
    });
    let config = configuration(&registry, &manifest.config, reference).await?;
    let config =
        check_configuration(&config, &reference.to_string(), manifest.layers.len(), platform)?;
    let lease = folder.lease([digest.clone()].into_iter().chain(config.diff_ids.clone()));
    let cancel = Cancel(Arc::default());
    let pull = Pull {
        folder,
        registry: &registry,
        budget: Arc::new(budget(&folder.limits)),
        is_cancelled: cancel.0.clone(),
        progress,
        downloaded: AtomicU64::new(0),
        total,
    };
    let count = manifest.layers.len();
    let mut layers =
        futures_util::stream::iter(manifest.layers.iter().zip(&config.diff_ids).enumerate())
            .map(|(at, (blob, diff_id))| pull.layer(at + 1, blob, diff_id))
            .buffer_unordered(DOWNLOADS_MAX);
    let mut done = 0;
    while let Some(()) = layers.try_next().await? {
        done += 1;
        progress(Progress::Unpacked { layers: done, total: count });
    }
    drop(layers);
    let mut record = Record {
        name,
        layers: config.diff_ids,
        config: config.config,
        platform: config.platform,
        indexes: Vec::new(),
    };
    record.add_index(reference.digest().filter(|asked| *asked != digest));
    let image = with(folder, move |folder| folder.add_image(&digest, &record)).await?;
    drop(lease);
    Ok(image)
}

/// Returns an image that is complete on disk. `digest` is the digest of its manifest, or the digest
/// in the name, which can also be that of an index.
async fn kept(
    folder: &Arc<Folder>,
    digest: &str,
    reference: &Reference,
    platform: &Platform,
) -> Result<Option<Image>, ImageError> {
    let (mut digest, asked, wanted) = (digest.to_owned(), reference.clone(), platform.clone());
    let found = with(folder, move |folder| {
        if asked.digest() == Some(&digest)
            && let Some(found) = folder.of_index(&digest, &wanted)?
        {
            digest = found;
        }
        let index = asked.digest().filter(|asked| *asked != digest);
        folder.image_as(&digest, &asked.pinned(&digest), index)
    });
    let image = match found.await {
        // It is pulled again.
        Err(ImageError::Io(error)) => {
            tracing::warn!(image = %reference, %error, "an image on disk cannot be read");
            None
        }
        other => other?,
    };
    if let Some(image) = &image {
        check_platform(&reference.to_string(), &image.platform, platform)?;
    }
    Ok(image)
}

fn check_platform(name: &str, there: &Platform, wanted: &Platform) -> Result<(), ImageError> {
    match wanted.suits(there) {
        Some(_) => Ok(()),
        None => Err(ImageError::WrongPlatform {
            name: name.to_owned(),
            wanted: wanted.clone(),
            there: vec![crate::documents::shown(&there.to_string())],
        }),
    }
}

pub(crate) fn budget(limits: &Limits) -> Budget {
    Budget { bytes: AtomicU64::new(limits.bytes), entries: AtomicU64::new(limits.entries) }
}

/// Runs something that blocks.
async fn with<T: Send + 'static>(
    folder: &Arc<Folder>,
    work: impl FnOnce(&Arc<Folder>) -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    let folder = folder.clone();
    let done = tokio::task::spawn_blocking(move || work(&folder)).await;
    done.unwrap_or_else(|error| Err(ImageError::Io(io::Error::other(error))))
}

/// Finds the manifest for a platform, and its digest.
async fn resolve(
    registry: &Registry<'_>,
    reference: &Reference,
    platform: &Platform,
    limits: &Limits,
) -> Result<(Manifest, String), ImageError> {
    let name = reference.to_string();
    let mut key = match (reference.digest(), reference.tag()) {
        (Some(digest), _) => digest.to_owned(),
        (None, tag) => tag.unwrap_or("latest").to_owned(),
    };
    for _ in 0..INDEX_DEPTH_MAX {
        let fetched = registry.manifest(&key).await?;
        let media_type = fetched.media_type.as_deref();
        match read(&fetched.json, &name, media_type, platform, limits)? {
            Document::Manifest(manifest) => return Ok((manifest, fetched.digest)),
            Document::Index(next) => key = next.digest,
        }
    }
    Err(too_nested(&name))
}

pub(crate) fn too_nested(name: &str) -> ImageError {
    ImageError::Document {
        what: format!("the manifest of {name}"),
        reason: format!("indexes are nested more than {INDEX_DEPTH_MAX} deep"),
    }
}

/// Fetches the configuration. Its size has been checked.
async fn configuration(
    registry: &Registry<'_>,
    blob: &Blob,
    reference: &Reference,
) -> Result<Vec<u8>, ImageError> {
    let what = || format!("the configuration of {}", reference.name());
    let mut answer = registry.blob(&blob.digest, 0).await?;
    let mut json = Vec::new();
    loop {
        match answer.piece().await {
            Ok(Some(piece)) if (json.len() + piece.len()) as u64 > blob.bytes => {
                return Err(ImageError::WrongSize { what: what(), expected: blob.bytes });
            }
            Ok(Some(piece)) => json.extend_from_slice(&piece),
            Ok(None) => break,
            Err(error) => return Err(ImageError::request(reference.registry(), error)),
        }
    }
    check_blob(&json, blob, what)?;
    Ok(json)
}

/// Checks the size and the digest of a small blob.
pub(crate) fn check_blob(
    bytes: &[u8],
    blob: &Blob,
    what: impl Fn() -> String,
) -> Result<(), ImageError> {
    let size = bytes.len() as u64;
    if size < blob.bytes {
        return Err(ImageError::Truncated { what: what(), found: size, expected: blob.bytes });
    }
    let found = digest(bytes);
    if found != blob.digest {
        let expected = blob.digest.clone();
        return Err(ImageError::WrongDigest { what: what(), found, expected });
    }
    Ok(())
}

pub(crate) fn check_configuration(
    json: &[u8],
    name: &str,
    layers: usize,
    platform: &Platform,
) -> Result<config::Read, ImageError> {
    let wrong = |reason: String| ImageError::Document {
        what: format!("the configuration of {name}"),
        reason,
    };
    let config = config::read(json).map_err(wrong)?;
    check_platform(name, &config.platform, platform)?;
    if config.diff_ids.len() != layers {
        let count = config.diff_ids.len();
        return Err(wrong(format!("it names {count} layers, and the manifest {layers}")));
    }
    if layers == 0 {
        return Err(ImageError::NotAnImage {
            name: name.to_owned(),
            what: "something without layers".to_owned(),
        });
    }
    if let Some(other) = config.diff_ids.iter().find(|id| !crate::reference::is_digest(id)) {
        let text = crate::documents::shown(other);
        return Err(wrong(format!("the digest `{text}` is not supported, only sha256 is")));
    }
    Ok(config)
}

impl Pull<'_> {
    /// Makes sure that one layer is on disk.
    async fn layer(&self, number: usize, blob: &Blob, diff_id: &str) -> Result<(), ImageError> {
        // Pulls of one repository share a download. A pull of another repository does not wait for
        // it, because its own registry may be faster, or tell the truth.
        let name = self.download_name(blob);
        let blob_turn = self.folder.turn(&blob_key(&name)).await;
        if self.is_there(number, diff_id).await? {
            self.add_progress(blob.bytes);
            return Ok(());
        }
        self.folder.check_room(blob.bytes)?;
        let file = self.download(number, blob).await?;
        let _place = self.folder.unpacking.acquire().await.map_err(io::Error::other)?;
        let layer_turn = self.folder.turn(diff_id).await;
        let path = self.folder.partial(&name);
        if self.is_there(number, diff_id).await? {
            // Another repository had the same layer.
            return with(self.folder, move |_| Ok(std::fs::remove_file(path)?)).await;
        }
        let diff_id = diff_id.to_owned();
        let (budget, is_cancelled) = (self.budget.clone(), self.is_cancelled.clone());
        with(self.folder, move |folder| {
            let mut file = file;
            let unpacked = folder.unpack(number, &diff_id, &mut file, &budget, &is_cancelled);
            // A blob that cannot be unpacked is useless. If the pull was cancelled, the blob is
            // kept for the next attempt.
            if !matches!(unpacked, Err(ImageError::Cancelled)) {
                std::fs::remove_file(path)?;
            }
            // Work that outlives the pull keeps its turn.
            drop((blob_turn, layer_turn));
            unpacked.map(|_| ())
        })
        .await
    }

    /// Whether a layer is on disk. If it is, its size counts.
    async fn is_there(&self, number: usize, diff_id: &str) -> Result<bool, ImageError> {
        let key = diff_id.to_owned();
        let Some(known) = with(self.folder, move |folder| folder.layer(&key)).await? else {
            return Ok(false);
        };
        if !self.budget.take(known.bytes, known.entries) {
            let text = format!("layer {number} exceeds the size that an image may unpack to");
            return Err(ImageError::TooLarge(text));
        }
        Ok(true)
    }

    /// The name of a download, in the form of a digest: that of its file, and of its turn.
    fn download_name(&self, blob: &Blob) -> String {
        digest(format!("{}\n{}", self.registry.repository(), blob.digest).as_bytes())
    }

    fn add_progress(&self, bytes: u64) {
        let before = self.downloaded.fetch_add(bytes, Ordering::Relaxed);
        let bytes = before + bytes;
        if before / PROGRESS_BYTES != bytes / PROGRESS_BYTES || bytes == self.total {
            (self.progress)(Progress::Downloaded { bytes, total: self.total });
        }
    }

    /// Downloads a blob into its file, or continues an earlier attempt. Checks the size and the
    /// digest, then returns the file, positioned at its beginning.
    async fn download(&self, number: usize, blob: &Blob) -> Result<File, ImageError> {
        let path = self.folder.partial(&self.download_name(blob));
        let limit = blob.bytes;
        let is_cancelled = self.is_cancelled.clone();
        let mut kept =
            with(self.folder, move |_| Partial::open(path, limit, &is_cancelled)).await?;
        self.add_progress(kept.bytes);
        let mut failures = 0;
        while kept.bytes < blob.bytes {
            let before = kept.bytes;
            let (after, result) = self.download_once(number, blob, kept).await?;
            kept = after;
            match result {
                Ok(()) => {}
                Err(error) => {
                    failures = if kept.bytes > before { 1 } else { failures + 1 };
                    if failures >= ATTEMPTS_MAX || !is_worth_another(&error) {
                        return Err(error);
                    }
                    tokio::time::sleep(PAUSE * 2_u32.pow(failures - 1)).await;
                }
            }
        }
        let (what, expected) = (format!("layer {number}"), blob.digest.clone());
        with(self.folder, move |_| kept.finish(what, expected)).await
    }

    /// Makes one request for the rest of a blob. The outer error comes from this machine, the inner
    /// one from the registry or the connection to it.
    async fn download_once(
        &self,
        number: usize,
        blob: &Blob,
        mut kept: Partial,
    ) -> Result<(Partial, Result<(), ImageError>), ImageError> {
        let mut answer = match self.registry.blob(&blob.digest, kept.bytes).await {
            Ok(answer) => answer,
            Err(error) => return Ok((kept, Err(error))),
        };
        let is_rest = answer.status == 206
            && text_field(&answer.fields, "content-range")
                .is_some_and(|range| range.starts_with(&format!("bytes {}-", kept.bytes)));
        if !is_rest && kept.bytes > 0 {
            self.downloaded.fetch_sub(kept.bytes, Ordering::Relaxed);
            kept.begin_anew()?;
        }
        if !is_rest && answer.status == 206 {
            let error = self.registry.protocol("answers with another part of a layer than asked");
            return Ok((kept, Err(error)));
        }
        let mut left = blob.bytes - kept.bytes;
        // The thread writes and hashes, while this task receives.
        let (sender, mut receiver) = mpsc::channel::<Bytes>(PIECES_MAX);
        let writer = tokio::task::spawn_blocking(move || {
            while let Some(piece) = receiver.blocking_recv() {
                kept.write(&piece)?;
            }
            io::Result::Ok(kept)
        });
        let what = || format!("layer {number}");
        let result = loop {
            match answer.piece().await {
                Ok(Some(piece)) if piece.len() as u64 > left => {
                    break Err(ImageError::WrongSize { what: what(), expected: blob.bytes });
                }
                Ok(Some(piece)) => {
                    let length = piece.len() as u64;
                    left -= length;
                    if sender.send(piece).await.is_err() {
                        break Ok(()); // the writer failed and says why
                    }
                    self.add_progress(length);
                }
                Ok(None) if left > 0 => {
                    let (found, expected) = (blob.bytes - left, blob.bytes);
                    break Err(ImageError::Truncated { what: what(), found, expected });
                }
                Ok(None) => break Ok(()),
                // The connection broke.
                Err(OutgoingError::Exchange(_)) => {
                    let (found, expected) = (blob.bytes - left, blob.bytes);
                    break Err(ImageError::Truncated { what: what(), found, expected });
                }
                Err(error) => break Err(self.registry.failed(error)),
            }
        };
        drop(sender);
        let kept = writer.await.map_err(io::Error::other)??;
        Ok((kept, result))
    }
}

/// Whether the next attempt may succeed, and soon.
fn is_worth_another(error: &ImageError) -> bool {
    match error {
        ImageError::Unreachable { cause, .. } => !cause.is_final(),
        ImageError::Truncated { .. } => true,
        ImageError::Registry { status, .. } => *status >= 500,
        _ => false,
    }
}

/// The beginning of a blob on disk, with its hash.
struct Partial {
    path: PathBuf,
    file: File,
    hasher: Sha256,
    bytes: u64,
}

impl Partial {
    /// Opens or makes the file, and hashes what it contains. A file that is too long is emptied.
    fn open(path: PathBuf, limit: u64, is_cancelled: &AtomicBool) -> Result<Self, ImageError> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        let mut partial = Self { path, file, hasher: Sha256::new(), bytes: 0 };
        if partial.file.metadata()?.len() > limit {
            partial.begin_anew()?;
        }
        let mut buffer = vec![0; 64 << 10];
        loop {
            if is_cancelled.load(Ordering::Relaxed) {
                return Err(ImageError::Cancelled);
            }
            let count = partial.file.read(&mut buffer)?;
            if count == 0 {
                return Ok(partial);
            }
            partial.hasher.update(&buffer[..count]);
            partial.bytes += count as u64;
        }
    }

    fn begin_anew(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.hasher = Sha256::new();
        self.bytes = 0;
        Ok(())
    }

    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        self.file.write_all(piece)?;
        self.hasher.update(piece);
        self.bytes += piece.len() as u64;
        Ok(())
    }

    /// Checks the digest. Removes the file if its digest is another one.
    fn finish(mut self, what: String, expected: String) -> Result<File, ImageError> {
        let found = hex_digest(&self.hasher.finalize());
        if found != expected {
            std::fs::remove_file(&self.path)?;
            return Err(ImageError::WrongDigest { what, found, expected });
        }
        self.file.seek(SeekFrom::Start(0))?;
        Ok(self.file)
    }
}
