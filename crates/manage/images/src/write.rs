//! Writes image archives, which Docker, Podman, skopeo and `mote` read.
//!
//! Equal files give equal archives, so layers that several images share are equal.

use std::collections::BTreeSet;
use std::fs::{self, File, FileType};
use std::io::{self, Read, Seek as _, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use mote_store::tar::{BLOCK, header, pax};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::Platform;
use crate::documents::{digest, hex_digest};

const CHUNK: usize = 64 << 10;
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
/// The largest time that a tar header can express.
const SECONDS_MAX: i64 = 0o777_7777_7777;

/// A layer that is being written. All paths are relative to the root of the image. Folders above an
/// entry are added if they are missing.
pub struct LayerWriter {
    out: Hashed<File>,
    entries: BTreeSet<String>,
}

/// A complete layer.
pub struct Layer {
    file: File,
    digest: String,
    bytes: u64,
}

impl LayerWriter {
    /// Begins a layer. Its content is in an unnamed file in this folder until it is copied to an archive.
    pub fn begin(folder: &Path) -> io::Result<Self> {
        let file = tempfile::tempfile_in(folder)?;
        Ok(Self { out: Hashed { file, hash: Sha256::new(), bytes: 0 }, entries: BTreeSet::new() })
    }

    pub fn has(&self, path: &str) -> bool {
        self.entries.contains(path)
    }

    pub fn folder(&mut self, path: &str, mode: u32) -> io::Result<()> {
        self.folders_above(path)?;
        if self.entries.insert(path.to_owned()) {
            self.head(b'5', &format!("{path}/"), "", 0, mode, 0)?;
        }
        Ok(())
    }

    /// Adds a file with this text. Does nothing if the path exists already.
    pub fn text(&mut self, path: &str, text: &str) -> io::Result<()> {
        self.stream(path, 0o644, 0, text.len() as u64, &mut text.as_bytes())
    }

    pub fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.folders_above(path)?;
        if self.entries.insert(path.to_owned()) {
            self.head(b'2', path, target, 0, 0o777, 0)?;
        }
        Ok(())
    }

    /// Copies a file, also one that a link names. Does nothing if the path exists already.
    pub fn copy(&mut self, from: &Path, path: &str) -> io::Result<()> {
        let mut file = File::open(from)?;
        let meta = file.metadata()?;
        let mode = if meta.permissions().mode() & 0o111 == 0 { 0o644 } else { 0o755 };
        self.stream(path, mode, meta.mtime().clamp(0, SECONDS_MAX), meta.len(), &mut file)
    }

    /// Copies what is below a folder: files, folders and links. `keep` decides about each entry by
    /// its path below the folder. Other entries, such as sockets, are left out.
    pub fn tree(
        &mut self,
        from: &Path,
        path: &str,
        keep: &dyn Fn(&Path, FileType) -> bool,
    ) -> io::Result<()> {
        self.folder(path, 0o755)?;
        // A stack and not a recursion, so that deep folders do not exhaust that of the thread.
        let mut open = vec![(from.to_owned(), path.to_owned())];
        while let Some((from_folder, to_folder)) = open.pop() {
            let mut entries = fs::read_dir(&from_folder)?.collect::<io::Result<Vec<_>>>()?;
            entries.sort_unstable_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let (full, kind) = (entry.path(), entry.file_type()?);
                let below = full.strip_prefix(from).unwrap_or(&full);
                let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
                if !keep(below, kind) {
                    continue;
                }
                let to = format!("{to_folder}/{name}");
                if kind.is_dir() {
                    self.folder(&to, 0o755)?;
                    open.push((full, to));
                } else if kind.is_symlink() {
                    let target = fs::read_link(&full)?;
                    self.link(&to, &target.to_string_lossy())?;
                } else if kind.is_file() {
                    self.copy(&full, &to)?;
                }
            }
        }
        Ok(())
    }

    pub fn finish(mut self) -> io::Result<Layer> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        let Hashed { file, hash, bytes } = self.out;
        Ok(Layer { file, digest: hex_digest(&hash.finalize()), bytes })
    }

    fn stream(
        &mut self,
        path: &str,
        mode: u32,
        time: i64,
        length: u64,
        input: &mut dyn Read,
    ) -> io::Result<()> {
        self.folders_above(path)?;
        if !self.entries.insert(path.to_owned()) {
            return Ok(());
        }
        self.head(b'0', path, "", length, mode, time)?;
        copy_padded(input, length, &mut self.out)
    }

    fn folders_above(&mut self, path: &str) -> io::Result<()> {
        for (at, _) in path.match_indices('/') {
            let folder = &path[..at];
            if !folder.is_empty() && self.entries.insert(folder.to_owned()) {
                self.head(b'5', &format!("{folder}/"), "", 0, 0o755, 0)?;
            }
        }
        Ok(())
    }

    fn head(
        &mut self,
        kind: u8,
        path: &str,
        link: &str,
        size: u64,
        mode: u32,
        time: i64,
    ) -> io::Result<()> {
        let mut records = Vec::new();
        if path.len() > 100 {
            records.extend(pax("path", path.as_bytes()));
        }
        if link.len() > 100 {
            records.extend(pax("linkpath", link.as_bytes()));
        }
        if !records.is_empty() {
            let length = records.len() as u64;
            self.out.write_all(&header(b'x', b"pax", b"", length, 0o644))?;
            copy_padded(&mut records.as_slice(), length, &mut self.out)?;
        }
        let head = header(kind, path.as_bytes(), link.as_bytes(), size, mode);
        self.out.write_all(&dated(head, time))
    }
}

/// How the image's program runs.
pub struct Settings<'a> {
    /// The name under which Docker and Podman load the image.
    pub name: &'a str,
    /// The image's `config` as in the OCI specification, such as `Entrypoint`.
    pub config: Value,
}

/// Writes an archive that is both an OCI layout and what `docker save` writes. The image is for the
/// processor of this machine.
pub fn write_archive(
    mut out: impl Write,
    layers: Vec<Layer>,
    settings: &Settings<'_>,
) -> io::Result<()> {
    let platform = Platform::host();
    let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.digest.as_str()).collect();
    let mut config = json!({
        "architecture": platform.architecture,
        "os": platform.os,
        "config": settings.config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    if let Some(variant) = &platform.variant {
        config["variant"] = variant.as_str().into();
    }
    let config = config.to_string();
    let described: Vec<Value> = layers
        .iter()
        .map(|layer| json!({"mediaType": LAYER, "digest": layer.digest, "size": layer.bytes}))
        .collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": digest(config.as_bytes()), "size": config.len()},
        "layers": described,
    })
    .to_string();
    let name = settings.name;
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": MANIFEST,
            "digest": digest(manifest.as_bytes()),
            "size": manifest.len(),
            "annotations": {
                "io.containerd.image.name": format!("docker.io/library/{name}:latest"),
                "org.opencontainers.image.ref.name": "latest",
            },
        }],
    });
    let places: Vec<String> = layers.iter().map(|layer| blob(&layer.digest)).collect();
    // Versions of Docker before 25 read only this file.
    let docker = json!([{
        "Config": blob(&digest(config.as_bytes())),
        "RepoTags": [format!("{name}:latest")],
        "Layers": places,
    }]);
    let mut file = |path: &str, length: u64, input: &mut dyn Read| {
        out.write_all(&header(b'0', path.as_bytes(), b"", length, 0o644))?;
        copy_padded(input, length, &mut out)
    };
    let texts = [
        ("oci-layout".to_owned(), r#"{"imageLayoutVersion":"1.0.0"}"#.to_owned()),
        ("index.json".to_owned(), index.to_string()),
        ("manifest.json".to_owned(), docker.to_string()),
        (blob(&digest(config.as_bytes())), config.clone()),
        (blob(&digest(manifest.as_bytes())), manifest.clone()),
    ];
    for (path, text) in &texts {
        file(path, text.len() as u64, &mut text.as_bytes())?;
    }
    let mut written = BTreeSet::new();
    for layer in &layers {
        if written.insert(&layer.digest) {
            (&layer.file).seek(SeekFrom::Start(0))?;
            file(&blob(&layer.digest), layer.bytes, &mut &layer.file)?;
        }
    }
    out.write_all(&[0; 2 * BLOCK])
}

fn blob(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

/// Sets the time in a header, because Python uses compiled modules only if the times of their
/// sources are unchanged.
fn dated(mut head: [u8; BLOCK], time: i64) -> [u8; BLOCK] {
    head[136..148].copy_from_slice(format!("{time:011o}\0").as_bytes());
    head[148..156].copy_from_slice(b"        ");
    let sum: u64 = head.iter().map(|byte| u64::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    head
}

/// Copies exactly this many bytes, and fills the last block.
fn copy_padded(input: &mut dyn Read, length: u64, out: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut left = length;
    while left > 0 {
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = input.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "a file became shorter while it was read",
            ));
        }
        out.write_all(&buffer[..count])?;
        left -= count as u64;
    }
    let padding = length.next_multiple_of(BLOCK as u64) - length;
    out.write_all(&[0; BLOCK][..padding as usize])
}

struct Hashed<W> {
    file: W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.file.write(data)?;
        self.hash.update(&data[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
