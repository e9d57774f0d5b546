//! Manifests and indexes: which of the images with one name is for a given platform.

use oci_spec::image::{Descriptor, ImageIndex, ImageManifest, MediaType};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::{ImageError, Limits, Platform};

/// Largest manifest, index or configuration. The specification recommends that registries take
/// manifests of this size.
pub(crate) const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// How deeply indexes may be nested. Builders nest at most two levels.
pub(crate) const INDEX_DEPTH_MAX: usize = 4;

/// The types that a registry is asked for.
pub(crate) const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// One blob: its size, and its digest in a form that has been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blob {
    pub(crate) digest: String,
    pub(crate) bytes: u64,
}

/// The manifest of one image.
#[derive(Debug, Clone)]
pub(crate) struct Manifest {
    pub(crate) config: Blob,
    pub(crate) layers: Vec<Blob>,
}

/// The kind of document that was read.
pub(crate) enum Document {
    Manifest(Manifest),
    /// The document that the index names for the platform.
    Index(Blob),
}

/// The fields that tell the documents apart.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shape {
    schema_version: Option<u64>,
    media_type: Option<String>,
    manifests: Option<serde::de::IgnoredAny>,
    layers: Option<serde::de::IgnoredAny>,
    config: Option<serde::de::IgnoredAny>,
}

/// Reads a manifest or an index. `name` is the image's name in messages. `media_type` is the type
/// that the registry gave the document, if it gave one.
pub(crate) fn read(
    json: &[u8],
    name: &str,
    media_type: Option<&str>,
    platform: &Platform,
    limits: &Limits,
) -> Result<Document, ImageError> {
    let wrong = |error: serde_json::Error| ImageError::Document {
        what: format!("the manifest of {name}"),
        reason: error.to_string(),
    };
    let not_an_image = |what: String| ImageError::NotAnImage { name: name.to_owned(), what };
    let shape: Shape = serde_json::from_slice(json).map_err(wrong)?;
    if shape.schema_version == Some(1) {
        let what = "a manifest of version 1, which registries gave up in 2019".to_owned();
        return Err(not_an_image(what));
    }
    let media_type = shape.media_type.as_deref().or(media_type).unwrap_or_default();
    let is_index = match (shape.manifests.is_some(), shape.layers.is_some()) {
        (true, false) if shape.config.is_none() => true,
        (false, true) => false,
        // A document that is both could be read as either.
        (true, _) => {
            return Err(ImageError::Document {
                what: format!("the manifest of {name}"),
                reason: "it is an index and a manifest at once".to_owned(),
            });
        }
        (false, false) if shape.config.is_some() => {
            return Err(not_an_image("something without layers".to_owned()));
        }
        (false, false) if media_type.is_empty() => {
            return Err(not_an_image("another document".to_owned()));
        }
        (false, false) => {
            return Err(not_an_image(format!("a document of type `{}`", shown(media_type))));
        }
    };
    if is_index {
        let index: ImageIndex = serde_json::from_slice(json).map_err(wrong)?;
        choose(index.manifests(), name, platform).map(Document::Index)
    } else {
        let manifest: ImageManifest = serde_json::from_slice(json).map_err(wrong)?;
        image(&manifest, name, limits).map(Document::Manifest)
    }
}

fn image(manifest: &ImageManifest, name: &str, limits: &Limits) -> Result<Manifest, ImageError> {
    let not_an_image = |what: String| ImageError::NotAnImage { name: name.to_owned(), what };
    match manifest.config().media_type() {
        MediaType::ImageConfig => {}
        MediaType::Other(docker) if docker == "application/vnd.docker.container.image.v1+json" => {}
        MediaType::Other(helm) if helm.starts_with("application/vnd.cncf.helm.") => {
            return Err(not_an_image("a Helm chart".to_owned()));
        }
        other => {
            let kind = match manifest.artifact_type() {
                Some(kind) => kind.to_string(),
                None => other.to_string(),
            };
            return Err(not_an_image(format!("an artifact of type `{}`", shown(&kind))));
        }
    }
    let count = manifest.layers().len();
    if count > limits.layers {
        let text = format!("{name} has {count} layers, more than {}", limits.layers);
        return Err(ImageError::TooLarge(text));
    }
    let mut layers = Vec::new();
    let mut bytes: u64 = 0;
    for (at, layer) in manifest.layers().iter().enumerate() {
        check_layer_type(layer.media_type())
            .map_err(|reason| ImageError::Layer { layer: at + 1, reason })?;
        let blob = blob(layer, name)?;
        bytes = bytes.saturating_add(blob.bytes);
        layers.push(blob);
    }
    if bytes > limits.packed_bytes {
        let text = format!(
            "the layers of {name} have {} MiB, more than {} MiB",
            bytes >> 20,
            limits.packed_bytes >> 20
        );
        return Err(ImageError::TooLarge(text));
    }
    let config = blob(manifest.config(), name)?;
    if config.bytes > DOCUMENT_BYTES_MAX {
        let text = format!("the configuration of {name} is longer than 4 MiB");
        return Err(ImageError::TooLarge(text));
    }
    Ok(Manifest { config, layers })
}

/// The compression is recognised from the layer's bytes, so this function refuses only types that
/// are not layers.
fn check_layer_type(kind: &MediaType) -> Result<(), String> {
    let kind = match kind {
        MediaType::ImageLayer | MediaType::ImageLayerGzip | MediaType::ImageLayerZstd => {
            return Ok(());
        }
        MediaType::ImageLayerNonDistributable
        | MediaType::ImageLayerNonDistributableGzip
        | MediaType::ImageLayerNonDistributableZstd => {
            return Err("it is not in the registry (a foreign layer)".to_owned());
        }
        other => other.as_ref(),
    };
    match kind.strip_prefix("application/vnd.docker.image.rootfs.") {
        Some("diff.tar" | "diff.tar.gzip" | "diff.tar.zstd") => return Ok(()),
        Some(foreign) if foreign.starts_with("foreign.") => {
            return Err("it is not in the registry (a foreign layer)".to_owned());
        }
        _ => {}
    }
    if kind.ends_with("+encrypted") {
        return Err("it is encrypted, which is not supported".to_owned());
    }
    match kind.strip_prefix("application/vnd.oci.image.layer.v1.tar+") {
        Some(compression) => {
            Err(format!("the compression `{}` is not supported", shown(compression)))
        }
        None => Err(format!("the type `{}` is not supported", shown(kind))),
    }
}

/// Chooses the entry of an index that suits a platform best.
pub(crate) fn choose(
    entries: &[Descriptor],
    name: &str,
    wanted: &Platform,
) -> Result<Blob, ImageError> {
    let mut best: Option<(u32, &Descriptor)> = None;
    let mut there = Vec::new();
    for entry in entries {
        let is_document = match entry.media_type() {
            MediaType::ImageManifest | MediaType::ImageIndex => true,
            MediaType::Other(docker) => matches!(
                docker.as_str(),
                "application/vnd.docker.distribution.manifest.v2+json"
                    | "application/vnd.docker.distribution.manifest.list.v2+json"
            ),
            _ => false,
        };
        if !is_document {
            continue;
        }
        let found = entry.platform().as_ref().map(|platform| Platform {
            os: platform.os().to_string(),
            architecture: platform.architecture().to_string(),
            variant: platform.variant().clone(),
        });
        let rank = match &found {
            // Builders add documents about the build, with the platform "unknown/unknown".
            Some(platform) if platform.os == "unknown" => continue,
            Some(platform) => wanted.suits(platform).map(|level| level + 1),
            // If the entry names no platform, the image itself will.
            None => Some(0),
        };
        let text =
            found.map_or("an unknown platform".to_owned(), |found| shown(&found.to_string()));
        if !there.contains(&text) {
            there.push(text);
        }
        if let Some(rank) = rank
            && best.is_none_or(|(other, _)| rank > other)
        {
            best = Some((rank, entry));
        }
    }
    match best {
        Some((_, entry)) => blob(entry, name),
        None => {
            Err(ImageError::WrongPlatform { name: name.to_owned(), wanted: wanted.clone(), there })
        }
    }
}

pub(crate) fn blob(descriptor: &Descriptor, name: &str) -> Result<Blob, ImageError> {
    let digest = descriptor.digest().to_string();
    if !crate::reference::is_digest(&digest) {
        return Err(ImageError::Document {
            what: format!("the manifest of {name}"),
            reason: format!("the digest `{}` is not supported, only sha256 is", shown(&digest)),
        });
    }
    Ok(Blob { digest, bytes: descriptor.size() })
}

/// The digest of a document or blob.
pub(crate) fn digest(bytes: &[u8]) -> String {
    hex_digest(&Sha256::digest(bytes))
}

pub(crate) fn hex_digest(hash: &[u8]) -> String {
    format!("sha256:{}", base16ct::lower::encode_string(hash))
}

/// Prepares a stranger's text for a message: escapes and shortens it.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(100).flat_map(char::escape_debug).collect()
}
