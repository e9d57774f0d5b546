//! Container images: image names, registries, archives, and layers on disk.
//!
//! An image is downloaded or imported once. Afterwards the node works without the registry. Each
//! layer is a folder in the form that overlayfs reads. It is kept once, however many images use it.
//! All data from a registry or an archive is bounded, checked, and written only below the layer's
//! own folder.
//!
//! The crate must not know functions or how an image is run. Start with [`Images`].
//!
//! The files:
//!
//! - `images.rs`: what the node does with images
//! - `folder.rs`, `limits.rs`: the layout on disk, leases, garbage collection; limits
//! - `pull.rs`, `registry.rs`: images from registries
//! - `archive.rs`, `write.rs`: reading and writing image archives
//! - `documents.rs`, `config.rs`, `platform.rs`: manifests, indexes, configurations
//! - `layer.rs`, `compression.rs`: hostile layers
//! - `reference.rs`, `credentials.rs`: names, passwords

mod archive;
mod compression;
mod config;
mod credentials;
mod documents;
mod error;
mod folder;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod images;
mod layer;
mod limits;
mod platform;
mod pull;
mod reference;
mod registry;
#[cfg(test)]
mod test_tar;
mod write;

pub use config::ImageConfig;
pub use credentials::{
    Credentials, CredentialsError, credential_files, credentials_from_docker_config,
};
pub use error::ImageError;
pub use folder::{Collected, Image};
pub use images::Images;
pub use limits::Limits;
pub use platform::Platform;
pub use pull::Progress;
pub use reference::{Reference, ReferenceError};
pub use write::{Layer, LayerWriter, Settings, write_archive};
