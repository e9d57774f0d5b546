//! Container images that functions run.

use serde::{Deserialize, Serialize};

/// The most bytes of an image's name. Registries allow 255 for the repository.
const NAME_BYTES_MAX: usize = 512;

/// A container image. Its files are the root of the function's instances, and its settings apply
/// where the function has none of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionImage {
    /// The name as the user wrote it: `ghcr.io/owner/name:1`. For an archive, the name of its file.
    pub name: String,
    /// Whether the image came as an archive with the deploy, so that no registry has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub archive: bool,
    /// Which platform to take if the image has several: `linux/arm64`. `None` for the node's own
    /// platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// The arguments after the entry point of the image, in place of the image's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Vec<String>>,
    /// The digest of the image's manifest. The node sets it when it has the image, so every stored
    /// revision has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl FunctionImage {
    /// An image in a registry, by its name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), archive: false, platform: None, arguments: None, digest: None }
    }

    /// The name with the digest, if that is known: `ghcr.io/owner/name:1@sha256:…`.
    pub fn shown(&self) -> String {
        match &self.digest {
            Some(digest) if !self.name.contains('@') => format!("{}@{digest}", self.name),
            _ => self.name.clone(),
        }
    }

    pub(crate) fn mistake(&self) -> Option<&'static str> {
        let plain = |text: &str| !text.contains(|c: char| c.is_control() || c.is_whitespace());
        let is_digest = |digest: &String| {
            let hex = digest.strip_prefix("sha256:").unwrap_or_default();
            hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let name_is_good = !self.name.is_empty() && self.name.len() <= NAME_BYTES_MAX;
        if !name_is_good || (!plain(&self.name) && !self.archive) {
            return Some("the name of an image, e.g. ghcr.io/owner/name:1");
        }
        if !self.archive && self.name.ends_with(".tar") {
            return Some("the name of an image; the path of an archive begins with ./");
        }
        if !self.platform.as_deref().is_none_or(|text| text.len() <= 64 && plain(text)) {
            return Some("a platform such as linux/arm64");
        }
        if !self.arguments.iter().flatten().all(|word| !word.contains('\0')) {
            return Some("arguments without NUL");
        }
        (!self.digest.as_ref().is_none_or(is_digest)).then_some("a digest sha256:…")
    }
}
