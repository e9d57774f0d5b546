//! Image archives: the files that `docker save` and `podman save` write, and tars of OCI layouts.
//!
//! The archive is read twice: once to find its files, and once for each file that the image needs.
//! Only the contents of layers are written to disk.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mote_store::ArchiveError;
use mote_store::tar::{EntryKind, TarReader};
use oci_spec::image::{Descriptor, ImageIndex};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::compression::Unpacked;
use crate::documents::{
    self, Blob, DOCUMENT_BYTES_MAX, Document, INDEX_DEPTH_MAX, Manifest, digest, hex_digest, shown,
};
use crate::folder::{Folder, Image, Record};
use crate::pull::{Progress, budget, check_blob, check_configuration, too_nested};
use crate::{ImageError, Limits, Platform, Reference};

/// The most files in an archive. Several images with 128 layers need a few hundred.
const FILES_MAX: usize = 10_000;
/// How many links may lead to a layer. Older versions of `docker save` wrote a link for a layer
/// that occurs twice.
const LINKS_MAX: usize = 4;

pub(crate) fn import(
    folder: &Arc<Folder>,
    file: File,
    name: Option<&str>,
    platform: &Platform,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Image, ImageError> {
    let file = plain(folder, file)?;
    let archive = Archive::read(&file)?;
    let found = if archive.place("index.json").is_some() {
        archive.in_layout(name, platform, &folder.limits)?
    } else if archive.place("manifest.json").is_some() {
        archive.in_docker_form(name, platform, &folder.limits)?
    } else {
        let text = "it has neither an index.json nor a manifest.json";
        return Err(ImageError::NotAnImageArchive(text.to_owned()));
    };
    let shown_name = match found.name.parse::<Reference>() {
        Ok(reference) => reference.pinned(&found.digest),
        Err(_) => format!("archive@{}", found.digest),
    };
    let count = found.layers.len();
    progress(Progress::Resolved {
        digest: found.digest.clone(),
        layers: count,
        bytes: found.layers.iter().map(|layer| layer.place.bytes).sum(),
    });
    let config = check_configuration(&found.config, &shown_name, count, platform)?;
    let lease = folder.lease([found.digest.clone()].into_iter().chain(config.diff_ids.clone()));
    let budget = budget(&folder.limits);
    for (at, (layer, diff_id)) in found.layers.iter().zip(&config.diff_ids).enumerate() {
        let number = at + 1;
        let turn = folder.blocking_turn(diff_id);
        if let Some(known) = folder.layer(diff_id)? {
            if !budget.take(known.bytes, known.entries) {
                let text = format!("layer {number} exceeds the size that an image may unpack to");
                return Err(ImageError::TooLarge(text));
            }
        } else {
            archive.check_layer(number, layer)?;
            let mut input = archive.piece(&layer.place);
            let never = AtomicBool::new(false);
            folder.unpack(number, diff_id, &mut input, &budget, &never)?;
        }
        drop(turn);
        progress(Progress::Unpacked { layers: number, total: count });
    }
    let record = Record {
        name: shown_name,
        layers: config.diff_ids,
        config: config.config,
        platform: config.platform,
        indexes: Vec::new(),
    };
    let image = folder.add_image(&found.digest, &record)?;
    drop(lease);
    Ok(image)
}

/// Unpacks a compressed archive into an unnamed file.
fn plain(folder: &Folder, mut file: File) -> Result<File, ImageError> {
    let mut magic = [0; 4];
    let count = file.read_at(&mut magic, 0)?;
    file.seek(SeekFrom::Start(0))?;
    if !matches!(magic[..count], [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd]) {
        return Ok(file);
    }
    let mut plain = folder.unnamed_file()?;
    let limit = folder.limits.bytes;
    let never = AtomicBool::new(false);
    let unpacked = Unpacked::new(&mut file, &never)
        .and_then(|unpacked| io::copy(&mut unpacked.take(limit + 1), &mut plain));
    let bytes = unpacked.map_err(|error| match ImageError::from(error) {
        ImageError::Layer { reason, .. } => ImageError::NotAnImageArchive(reason),
        other => other,
    })?;
    if bytes > limit {
        let text = format!("the archive unpacks to more than {} MiB", limit >> 20);
        return Err(ImageError::TooLarge(text));
    }
    plain.seek(SeekFrom::Start(0))?;
    Ok(plain)
}

/// Where a file of the archive is.
#[derive(Debug, Clone, Copy)]
struct Place {
    at: u64,
    bytes: u64,
}

enum Node {
    File(Place),
    Link(String),
}

struct Archive<'a> {
    file: &'a File,
    nodes: HashMap<String, Node>,
}

/// An image in the archive.
struct Found {
    name: String,
    digest: String,
    config: Vec<u8>,
    layers: Vec<FoundLayer>,
}

struct FoundLayer {
    /// What the manifest says about the packed layer.
    blob: Option<Blob>,
    place: Place,
}

/// An entry of Docker's `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

impl<'a> Archive<'a> {
    fn read(file: &'a File) -> Result<Self, ImageError> {
        let wrong = |error: ArchiveError| match error {
            ArchiveError::Io(error) => ImageError::from(error),
            ArchiveError::NotTar => {
                ImageError::NotAnImageArchive("it is not a tar archive".to_owned())
            }
            other => ImageError::NotAnImageArchive(other.to_string()),
        };
        let input = BufReader::with_capacity(64 << 10, Piece { file, at: 0, left: u64::MAX });
        let mut tar = TarReader::of_layer(Position { input, at: 0 });
        let mut nodes = HashMap::new();
        while let Some(entry) = tar.next_entry().map_err(wrong)? {
            let refused = |reason: &str| wrong(entry.fault(reason));
            if entry.index > FILES_MAX as u64 {
                return Err(ImageError::NotAnImageArchive("more than 10,000 entries".to_owned()));
            }
            let node = match entry.kind {
                EntryKind::Dir => continue,
                EntryKind::File if entry.sparse.is_some() => return Err(refused("a sparse file")),
                EntryKind::File => Node::File(Place { at: tar.input().at, bytes: entry.size }),
                EntryKind::Symlink => Node::Link(joined(&entry.path, &entry.link)),
                EntryKind::Hardlink => Node::Link(joined(b"", &entry.link)),
                EntryKind::Device | EntryKind::Unknown(_) => {
                    return Err(refused("entries of this kind are not allowed"));
                }
            };
            if nodes.insert(joined(b"", &entry.path), node).is_some() {
                return Err(refused("same path twice"));
            }
            tar.skip_content().map_err(wrong)?;
        }
        Ok(Self { file, nodes })
    }

    fn place(&self, path: &str) -> Option<Place> {
        let mut path = path;
        for _ in 0..LINKS_MAX {
            match self.nodes.get(path)? {
                Node::File(place) => return Some(*place),
                Node::Link(target) => path = target,
            }
        }
        None
    }

    fn needed(&self, path: &str) -> Result<Place, ImageError> {
        let lacks = || ImageError::NotAnImageArchive(format!("it has no file `{}`", shown(path)));
        self.place(path).ok_or_else(lacks)
    }

    fn piece(&self, place: &Place) -> Piece<'a> {
        Piece { file: self.file, at: place.at, left: place.bytes }
    }

    /// Reads a whole file of the archive that should be small.
    fn document(&self, path: &str) -> Result<Vec<u8>, ImageError> {
        let place = self.needed(path)?;
        if place.bytes > DOCUMENT_BYTES_MAX {
            let text = format!("`{}` in the archive is longer than 4 MiB", shown(path));
            return Err(ImageError::TooLarge(text));
        }
        let mut bytes = Vec::new();
        self.piece(&place).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Finds an image in an OCI layout.
    fn in_layout(
        &self,
        name: Option<&str>,
        platform: &Platform,
        limits: &Limits,
    ) -> Result<Found, ImageError> {
        let index: ImageIndex = json("index.json", &self.document("index.json")?)?;
        let names: Vec<Vec<String>> = index.manifests().iter().map(descriptor_names).collect();
        let (chosen, image_name) = choose(&names, name, |a, b| {
            index.manifests()[a].digest() == index.manifests()[b].digest()
        })?;
        let entries: Vec<Descriptor> =
            chosen.iter().map(|at| index.manifests()[*at].clone()).collect();
        let mut next = match entries.as_slice() {
            [only] => documents::blob(only, &image_name)?,
            several => documents::choose(several, &image_name, platform)?,
        };
        for _ in 0..INDEX_DEPTH_MAX {
            let json = self.blob(&next)?;
            match documents::read(&json, &image_name, None, platform, limits)? {
                Document::Index(blob) => next = blob,
                Document::Manifest(manifest) => {
                    return self.in_manifest(&manifest, image_name, next.digest);
                }
            }
        }
        Err(too_nested(&image_name))
    }

    fn in_manifest(
        &self,
        manifest: &Manifest,
        name: String,
        digest: String,
    ) -> Result<Found, ImageError> {
        let layers: Result<Vec<FoundLayer>, ImageError> = manifest
            .layers
            .iter()
            .map(|blob| {
                let place = self.needed(&blob_path(blob))?;
                Ok(FoundLayer { blob: Some(blob.clone()), place })
            })
            .collect();
        Ok(Found { name, digest, config: self.blob(&manifest.config)?, layers: layers? })
    }

    /// Reads a small blob, and checks its size and digest.
    fn blob(&self, blob: &Blob) -> Result<Vec<u8>, ImageError> {
        let path = blob_path(blob);
        let bytes = self.document(&path)?;
        check_blob(&bytes, blob, || format!("`{path}` in the archive"))?;
        Ok(bytes)
    }

    /// Finds an image in an archive that `docker save` wrote. The archive has no OCI manifest, so
    /// the image's digest is that of the manifest that would describe its unpacked layers.
    fn in_docker_form(
        &self,
        name: Option<&str>,
        platform: &Platform,
        limits: &Limits,
    ) -> Result<Found, ImageError> {
        let images: Vec<DockerImage> = json("manifest.json", &self.document("manifest.json")?)?;
        let names: Vec<Vec<String>> =
            images.iter().map(|image| image.repo_tags.clone().unwrap_or_default()).collect();
        let (chosen, image_name) =
            choose(&names, name, |a, b| images[a].config == images[b].config)?;
        let image = &images[chosen[0]];
        let layers = image.layers.as_deref().unwrap_or_default();
        if layers.len() > limits.layers {
            let (count, most) = (layers.len(), limits.layers);
            let text = format!("{image_name} has {count} layers, more than {most}");
            return Err(ImageError::TooLarge(text));
        }
        let config = self.document(&image.config)?;
        let found = digest(&config);
        let base = image.config.rsplit('/').next().unwrap_or_default();
        let expected = format!("sha256:{}", base.strip_suffix(".json").unwrap_or(base));
        if crate::reference::is_digest(&expected) && expected != found {
            let what = "the configuration in the archive".to_owned();
            return Err(ImageError::WrongDigest { what, found, expected });
        }
        let checked = check_configuration(&config, &image_name, layers.len(), platform)?;
        let layers: Result<Vec<FoundLayer>, ImageError> = layers
            .iter()
            .map(|path| Ok(FoundLayer { blob: None, place: self.needed(path)? }))
            .collect();
        let manifest = serde_json::json!({
            "schemaVersion": 2, "config": found, "layers": checked.diff_ids,
        });
        let digest = digest(manifest.to_string().as_bytes());
        Ok(Found { name: image_name, digest, config, layers: layers? })
    }

    /// Checks the size and digest of a packed layer.
    fn check_layer(&self, number: usize, layer: &FoundLayer) -> Result<(), ImageError> {
        let Some(blob) = &layer.blob else { return Ok(()) };
        let what = format!("layer {number}");
        let (found, expected) = (layer.place.bytes, blob.bytes);
        if found < expected {
            return Err(ImageError::Truncated { what, found, expected });
        }
        if found > expected {
            return Err(ImageError::WrongSize { what, expected });
        }
        let mut hasher = Sha256::new();
        let mut piece = self.piece(&layer.place);
        let mut buffer = vec![0; 64 << 10];
        loop {
            match piece.read(&mut buffer)? {
                0 => break,
                count => hasher.update(&buffer[..count]),
            }
        }
        let (found, expected) = (hex_digest(&hasher.finalize()), blob.digest.clone());
        if found == expected {
            Ok(())
        } else {
            Err(ImageError::WrongDigest { what, found, expected })
        }
    }
}

fn json<T: serde::de::DeserializeOwned>(what: &str, text: &[u8]) -> Result<T, ImageError> {
    serde_json::from_slice(text).map_err(|error| ImageError::Document {
        what: format!("`{what}` in the archive"),
        reason: error.to_string(),
    })
}

fn blob_path(blob: &Blob) -> String {
    format!("blobs/{}", blob.digest.replacen(':', "/", 1))
}

/// The names that programs give an image in a layout: `containerd` and `docker` write a full name,
/// other programs a full name or a tag.
fn descriptor_names(entry: &Descriptor) -> Vec<String> {
    let annotations = entry.annotations().clone().unwrap_or_default();
    ["io.containerd.image.name", "org.opencontainers.image.ref.name"]
        .into_iter()
        .filter_map(|key| annotations.get(key).cloned())
        .collect()
}

/// Chooses the images that share one name. `is_same` says whether two entries are the same image.
/// Returns the images and the name.
fn choose(
    names: &[Vec<String>],
    wanted: Option<&str>,
    is_same: impl Fn(usize, usize) -> bool,
) -> Result<(Vec<usize>, String), ImageError> {
    let mut there: Vec<String> = Vec::new();
    for name in names.iter().filter_map(|names| names.first()) {
        if !there.contains(&shown(name)) {
            there.push(shown(name));
        }
    }
    if names.is_empty() {
        return Err(ImageError::NotAnImageArchive("it contains no image".to_owned()));
    }
    if let Some(wanted) = wanted {
        let full = |name: &str| name.parse::<Reference>().map(|name| name.to_string());
        let is_wanted =
            |name: &String| name == wanted || full(name).is_ok_and(|name| full(wanted) == Ok(name));
        let chosen: Vec<usize> =
            (0..names.len()).filter(|at| names[*at].iter().any(is_wanted)).collect();
        if chosen.is_empty() {
            return Err(ImageError::NotInArchive { name: shown(wanted), there });
        }
        return Ok((chosen, wanted.to_owned()));
    }
    let name = names[0].first().cloned().unwrap_or_else(|| "the archive".to_owned());
    if (1..names.len()).all(|at| is_same(0, at)) {
        return Ok((vec![0], name));
    }
    // Several images with one name are for several platforms.
    let unnamed = names.iter().filter(|names| names.is_empty()).count();
    if there.len() + usize::from(unnamed > 0) > 1 {
        return Err(ImageError::SeveralImages(there));
    }
    Ok(((0..names.len()).collect(), name))
}

/// The path to which a link at `path` leads, in normal form. A path that leaves the archive matches
/// no file in it.
fn joined(path: &[u8], target: &[u8]) -> String {
    let folder = path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |at| &path[..at]);
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in folder.split(|byte| *byte == b'/').chain(target.split(|byte| *byte == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => {
                if parts.pop().is_none() {
                    return String::new();
                }
            }
            part => parts.push(part),
        }
    }
    String::from_utf8_lossy(&parts.join(&b'/')).into_owned()
}

/// Reads a part of a file, independently of the file's position.
struct Piece<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Piece<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..want], self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

/// Counts what has been read.
struct Position<R> {
    input: R,
    at: u64,
}

impl<R: Read> Read for Position<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.at += count as u64;
        Ok(count)
    }
}
