//! Why an image cannot be had.

use std::io;

use mote_outgoing::{OutgoingError, TlsError};
use mote_store::ArchiveError;

use crate::Platform;

/// The reason why a pull or an import failed. Only complete layers, and the beginnings of
/// incomplete ones, are kept.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("no image `{name}` in the registry {registry}")]
    NoSuchImage { name: String, registry: String },
    #[error("the image {name} has no tag `{tag}`")]
    NoSuchTag { name: String, tag: String, there: Vec<String> },
    #[error("the image {name} has no manifest {digest}")]
    NoSuchDigest { name: String, digest: String },
    #[error("the registry {registry} does not give {name} to a client without a login")]
    LoginNeeded { name: String, registry: String },
    #[error("the registry {registry} does not accept the user name and password")]
    WrongPassword { registry: String },
    #[error("the user may not pull {name} from the registry {registry}")]
    Denied { name: String, registry: String },
    #[error("the registry {registry} cannot be reached")]
    Unreachable {
        registry: String,
        #[source]
        cause: OutgoingError,
    },
    #[error("the certificate of {host} is not trusted: {reason}")]
    NotTrusted { host: String, reason: String },
    #[error("the registry {registry} has had too many requests")]
    TooManyRequests { registry: String, retry_after: Option<String> },
    #[error("the registry {registry} answered {status}{said}")]
    Registry { registry: String, status: u16, said: String },
    #[error("the registry {registry} {reason}")]
    Protocol { registry: String, reason: String },
    #[error("{name} was not complete within {minutes} min")]
    Timeout { name: String, minutes: u64 },
    #[error("{what} ends after {found} of {expected} bytes")]
    Truncated { what: String, found: u64, expected: u64 },
    #[error("{what} has the digest {found}, not {expected}")]
    WrongDigest { what: String, found: String, expected: String },
    #[error("{what} is longer than the {expected} bytes that its manifest says")]
    WrongSize { what: String, expected: u64 },
    #[error("{name} is not for {wanted}; it is for {}", list(.there))]
    WrongPlatform { name: String, wanted: Platform, there: Vec<String> },
    #[error("{name} is not a container image, but {what}")]
    NotAnImage { name: String, what: String },
    #[error("{what} cannot be read: {reason}")]
    Document { what: String, reason: String },
    #[error("layer {layer}: {reason}")]
    Layer { layer: usize, reason: String },
    #[error("{0}")]
    TooLarge(String),
    #[error("the archive is not a container image: {0}")]
    NotAnImageArchive(String),
    #[error("the archive has several images: {}", list(.0))]
    SeveralImages(Vec<String>),
    #[error("the archive has no image `{name}`, only {}", list(.there))]
    NotInArchive { name: String, there: Vec<String> },
    #[error(
        "no space left for {needed} MiB of the image: {free} MiB are free, and 128 MiB must stay"
    )]
    NoSpace { needed: u64, free: u64 },
    #[error("{}", io_text(.0))]
    Io(#[source] io::Error),
    /// The caller no longer waits.
    #[error("the pull was cancelled")]
    Cancelled,
}

fn io_text(error: &io::Error) -> &'static str {
    if is_full(error) {
        "no space left on the disk of the data folder"
    } else {
        "reading or writing the images failed"
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// At most eight names.
fn list(names: &[String]) -> String {
    let mut text = names.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > 8 {
        text.push_str(&format!(" and {} more", names.len() - 8));
    } else if names.is_empty() {
        text.push_str("nothing");
    }
    text
}

impl ImageError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoSuchImage { .. } | Self::NoSuchTag { .. } | Self::NoSuchDigest { .. } => {
                "M1501"
            }
            Self::LoginNeeded { .. } | Self::WrongPassword { .. } | Self::Denied { .. } => "M1502",
            Self::Unreachable { .. }
            | Self::NotTrusted { .. }
            | Self::TooManyRequests { .. }
            | Self::Registry { .. }
            | Self::Protocol { .. }
            | Self::Timeout { .. }
            | Self::Cancelled => "M1503",
            Self::Truncated { .. }
            | Self::WrongDigest { .. }
            | Self::WrongSize { .. }
            | Self::WrongPlatform { .. }
            | Self::NotAnImage { .. }
            | Self::Document { .. }
            | Self::Layer { .. }
            | Self::NotAnImageArchive(_)
            | Self::SeveralImages(_)
            | Self::NotInArchive { .. } => "M1504",
            Self::TooLarge(_) => "M1505",
            Self::NoSpace { .. } => "M0703",
            Self::Io(error) if is_full(error) => "M0703",
            Self::Io(_) => "M0704",
        }
    }

    pub fn http_status(&self) -> u16 {
        match self.code() {
            "M1503" if matches!(self, Self::Timeout { .. }) => 504,
            "M1503" => 502,
            "M1505" => 413,
            "M0703" => 507,
            "M0704" => 500,
            _ => 422,
        }
    }

    /// What the user can do.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoSuchImage { .. } => {
                "check its spelling; a registry may also hide private images from a client without \
                 a login: docker login REGISTRY"
                    .to_owned()
            }
            Self::NoSuchTag { there, .. } if !there.is_empty() => {
                format!("its tags are: {}", list(there))
            }
            Self::NoSuchTag { .. } | Self::NoSuchDigest { .. } => {
                "check its spelling, or push it first".to_owned()
            }
            Self::LoginNeeded { registry, .. } => format!(
                "check the image's name, or log in: docker login {registry} (or podman login)"
            ),
            Self::WrongPassword { registry } => format!("log in again: docker login {registry}"),
            Self::Denied { .. } => "ask the owner of the image for the right to pull it".to_owned(),
            Self::Unreachable { cause: OutgoingError::NotAllowed(_), .. } => {
                "the node's setting `outgoing` says which addresses it may reach".to_owned()
            }
            Self::Unreachable { .. } => {
                "check the name and port of the registry, and the node's connection; without a \
                 registry, deploy an archive: docker save IMAGE -o FILE"
                    .to_owned()
            }
            Self::NotTrusted { .. } => "add the authority that signed it to the node's machine \
                 (/usr/local/share/ca-certificates, then update-ca-certificates), and restart mote"
                .to_owned(),
            Self::TooManyRequests { retry_after, registry } => match retry_after {
                Some(after) => {
                    format!("try again after {after}, or log in: docker login {registry}")
                }
                None => format!("try again later, or log in: docker login {registry}"),
            },
            Self::Registry { .. } | Self::Protocol { .. } => {
                "try again later, or ask the operator of the registry".to_owned()
            }
            Self::Timeout { .. } | Self::Truncated { .. } | Self::Cancelled => {
                "try again: what has been downloaded is kept".to_owned()
            }
            Self::WrongDigest { .. } | Self::WrongSize { .. } => {
                "the data was changed on its way or in the registry: push the image again"
                    .to_owned()
            }
            Self::WrongPlatform { .. } => {
                "build it for this machine, or choose one with --platform".to_owned()
            }
            Self::NotAnImage { .. } => "name an image that `docker run` could run".to_owned(),
            Self::Document { .. } => "push or save the image again".to_owned(),
            Self::Layer { .. } => "build the image again with docker, podman or buildah".to_owned(),
            Self::TooLarge(_) => "make the image smaller, such as with a smaller base".to_owned(),
            Self::NotAnImageArchive(_) => {
                "make one with `docker save IMAGE -o FILE` or `podman save IMAGE -o FILE`"
                    .to_owned()
            }
            // The names come from a stranger, and users copy hints into shells.
            Self::SeveralImages(_) => "save only one of them: docker save NAME -o FILE".to_owned(),
            Self::NotInArchive { .. } => "choose one of these names".to_owned(),
            Self::NoSpace { .. } => "make room on the disk of the data folder".to_owned(),
            Self::Io(error) if is_full(error) => {
                "make room on the disk of the data folder".to_owned()
            }
            Self::Io(_) => return None,
        })
    }

    /// The error for a failed request to a registry.
    pub(crate) fn request(registry: &str, cause: OutgoingError) -> Self {
        match cause {
            OutgoingError::Tls(TlsError::Certificate(host, reason)) => {
                Self::NotTrusted { host, reason }
            }
            OutgoingError::TooLong(bytes) => Self::TooLarge(format!(
                "an answer of the registry {registry} is longer than {} MiB",
                bytes >> 20
            )),
            cause => Self::Unreachable { registry: registry.to_owned(), cause },
        }
    }

    /// The error for a layer. Layers are counted from 1.
    pub(crate) fn layer(layer: usize, cause: ArchiveError) -> Self {
        match cause {
            ArchiveError::Io(error) => match error.downcast::<Self>() {
                Ok(inner) => match inner {
                    Self::Layer { reason, .. } => Self::Layer { layer, reason },
                    other => other,
                },
                Err(error) => Self::Io(error),
            },
            ArchiveError::TooLarge(text) => Self::TooLarge(format!("layer {layer} {text}")),
            ArchiveError::NotTar => Self::Layer {
                layer,
                reason: "not a tar archive (plain, gzip and zstd are read)".to_owned(),
            },
            other => Self::Layer { layer, reason: other.to_string() },
        }
    }
}

impl From<ImageError> for io::Error {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Io(error) => error,
            error => Self::other(error),
        }
    }
}

impl From<io::Error> for ImageError {
    fn from(error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(inner) => inner,
            Err(error) => Self::Io(error),
        }
    }
}
