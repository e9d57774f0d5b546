//! What the node does with images.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use mote_outgoing::Outgoing;

use crate::folder::{Collected, Folder, Image};
use crate::pull::Progress;
use crate::{Credentials, ImageError, Limits, Platform, Reference, archive, pull};

/// A folder of images. A clone is another handle to the same folder.
#[derive(Debug, Clone)]
pub struct Images(pub(crate) Arc<Folder>);

impl Images {
    /// Opens the folder, which is made if it is missing, and removes what a crash left. One process
    /// at a time may use a folder. Blocks.
    pub fn open(path: &Path, limits: Limits) -> io::Result<Self> {
        Ok(Self(Arc::new(Folder::open(path, limits)?)))
    }

    /// Returns the image with this name, and downloads the parts that are missing. A tag is
    /// resolved at each call. A name with a digest needs no registry if its image is on disk.
    ///
    /// `outgoing` says which addresses the registry may have. The registry cannot redirect the node
    /// to an address that is nearer to the node than the registry's own. If the future is dropped,
    /// the work ends, and what has been downloaded is kept for the next attempt.
    pub async fn pull(
        &self,
        reference: &Reference,
        credentials: Option<&Credentials>,
        platform: &Platform,
        outgoing: &Outgoing,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Image, ImageError> {
        let limit = self.0.limits.time;
        let pulled = pull::pull(&self.0, reference, credentials, platform, outgoing, progress);
        match tokio::time::timeout(limit, pulled).await {
            Ok(done) => done,
            Err(_) => Err(ImageError::Timeout {
                name: reference.to_string(),
                minutes: limit.as_secs() / 60,
            }),
        }
    }

    /// Imports an archive that `docker save` or `podman save` wrote, or a tar of an OCI layout.
    /// Each may be plain, or compressed with gzip or zstd. `name` chooses one of several images in
    /// it. Blocks.
    pub fn import(
        &self,
        archive: File,
        name: Option<&str>,
        platform: &Platform,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<Image, ImageError> {
        archive::import(&self.0, archive, name, platform, progress)
    }

    /// Returns an image that is complete on disk, by the digest of its manifest. Blocks.
    pub fn get(&self, digest: &str) -> Result<Option<Image>, ImageError> {
        self.0.image(digest)
    }

    /// Removes all images except those with these digests and those for which an [`Image`] exists.
    /// Then removes all layers that no remaining image has, and unfinished downloads that were not
    /// continued for a day. A caller of [`Self::pull`] must keep the [`Image`] until its digest is
    /// in `in_use`. Blocks.
    pub fn collect_garbage(&self, in_use: &[String]) -> Result<Collected, ImageError> {
        Ok(self.0.collect_garbage(in_use)?)
    }
}
