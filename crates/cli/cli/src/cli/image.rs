//! Container images that a deploy names or uploads.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use mote_api::IMAGE_ENTRY;
use mote_api::client::{Client, DeployOptions};
use mote_api::types::{DeployResult, RegistryLogin};
use mote_images::{Credentials, Reference};
use mote_project::Planned;
use mote_store::Packed;

use super::failure::Failure;
use super::output::Output;

/// The pause between two looks at the progress of a download.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// The login at the registry of the function's image, from the files of the user's container tools.
/// The node uses the login for this deploy and does not keep it.
pub(super) fn login(planned: &Planned) -> Result<Option<RegistryLogin>, Failure> {
    let Some(image) = planned.spec.image.as_ref().filter(|image| !image.archive) else {
        return Ok(None);
    };
    // The node reports what is wrong with a name.
    let Ok(reference) = image.name.parse::<Reference>() else { return Ok(None) };
    for file in mote_images::credential_files() {
        let found = mote_images::credentials_from_docker_config(&file, &reference)
            .map_err(|error| Failure::new("M0102", error.to_string()))?;
        if let Some(credentials) = found {
            return Ok(Some(match credentials {
                Credentials::Password { user, password } => {
                    RegistryLogin::Password { user, password }
                }
                Credentials::IdentityToken(token) => RegistryLogin::IdentityToken(token),
            }));
        }
    }
    Ok(None)
}

/// Deploys an image, and shows how far its download has come.
pub(super) async fn deploy(
    client: &Client,
    name: &str,
    tar: Bytes,
    options: &DeployOptions,
    output: &Output,
) -> Result<DeployResult, Failure> {
    let deploy = client.deploy(name, tar, options);
    tokio::pin!(deploy);
    loop {
        tokio::select! {
            result = &mut deploy => {
                output.passing("");
                return Ok(result?);
            }
            () = tokio::time::sleep(LOOK_PAUSE) => {
                // A node that does not answer this request still deploys the image.
                if let Ok(progress) = client.deploy_progress(name).await {
                    output.passing(&format!("image      {}", progress.detail));
                }
            }
        }
    }
}

/// Adds an archive with an image, or a folder with an OCI layout, to a packed function.
pub(super) fn add(packed: &mut Packed, archive: &Path) -> Result<(), Failure> {
    match archive.is_dir() {
        true => packed.append_folder(IMAGE_ENTRY, archive)?,
        false => packed.append(IMAGE_ENTRY, archive)?,
    }
    Ok(())
}
