//! The container images of functions: the node pulls them or takes them from an upload, and removes
//! those that no revision uses.
//!
//! The digest of an image becomes part of the function's spec, so a revision never changes, and
//! after the deploy it needs no registry.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use mote_api::Problem;
use mote_api::types::RegistryLogin;
use mote_core::backend::ImageRoot;
use mote_core::fault::{error_chain, rounded_bytes_text};
use mote_engine::revision::RunnableImage;
use mote_images::{
    Collected, Credentials, Image, ImageError, Images, Limits, Platform, Progress, Reference,
};
use mote_outgoing::{Outgoing, Reach};
use mote_spec::{FunctionImage, FunctionName, FunctionSpec, Runtime};
use mote_store::{LargeEntry, Store};

use super::Node;
use super::run::open::IMAGES_FOLDER;
use super::store_work::{blocking, internal, with_store};

/// An archive with an image that comes with a deploy.
pub(super) struct Uploaded(Arc<File>);

impl Uploaded {
    /// Makes the file for the archive, on the disk that holds the images. The file has no name, so
    /// it need not be removed.
    pub(super) fn new(node: &Node) -> std::io::Result<Self> {
        let folder = node.config.data.join(IMAGES_FOLDER);
        tempfile::tempfile_in(folder).map(|file| Self(Arc::new(file)))
    }

    /// Where the upload is unpacked to.
    pub(super) fn entry(&self) -> LargeEntry {
        LargeEntry {
            name: mote_api::IMAGE_ENTRY.to_owned(),
            file: self.0.clone(),
            bytes: Limits::default().packed_bytes,
        }
    }

    /// The archive; `None` if the upload had none.
    fn archive(self) -> std::io::Result<Option<File>> {
        use std::io::Seek as _;
        let mut file = self.0.try_clone()?;
        let length = file.seek(std::io::SeekFrom::End(0))?;
        file.rewind()?;
        Ok((length > 0).then_some(file))
    }
}

/// Gets the image of a function, and completes the spec: its digest, and the port if the image has
/// exactly one. Returns `None` if the function has no image.
pub(super) async fn complete(
    node: &Node,
    spec: &mut FunctionSpec,
    uploaded: Uploaded,
    login: Option<&RegistryLogin>,
) -> Result<Option<Image>, Problem> {
    let Some(wanted) = &mut spec.image else { return Ok(None) };
    let name = &spec.name;
    let platform = match &wanted.platform {
        Some(text) => text
            .parse::<Platform>()
            .map_err(|text| Problem::new(422, "M0303", text).with_field("image"))?,
        None => Platform::host(),
    };
    let images = node.opened.images.clone();
    let _progress = node.deploys.image_progress.of_deploy(name);
    let archive = uploaded.archive().map_err(|error| refused(name, &ImageError::from(error)))?;
    let image = match archive {
        Some(file) => {
            // The image's name chooses one of several images in the archive. The name of a file
            // chooses none.
            wanted.archive = true;
            let told = teller(node, name);
            let imported = move || images.import(file, None, &platform, &told);
            blocking(imported).await.map_err(|error| internal(&error))?
        }
        None if wanted.archive => {
            let digest = wanted.digest.clone().unwrap_or_default();
            let kept = blocking(move || images.get(&digest)).await;
            match kept.map_err(|error| internal(&error))? {
                Ok(Some(image)) => Ok(image),
                Ok(None) => {
                    let text = format!("{name}: the upload has no archive with its image");
                    return Err(Problem::new(422, "M0303", text).with_field("image"));
                }
                Err(error) => Err(error),
            }
        }
        None => pull(node, &images, name, wanted, login, &platform).await?,
    };
    let image = image.map_err(|error| refused(name, &error))?;
    wanted.digest = Some(image.digest.clone());
    if spec.runtime == Runtime::Server
        && spec.port.is_none()
        && let [port] = image.config.ports[..]
    {
        spec.port = Some(port);
    }
    let runnable = runnable(image.clone());
    let starts = runnable.entry_point.len() + runnable.arguments.len();
    if spec.command.is_empty() && starts == 0 {
        let text = format!("{name}: the image {} names no program to run", image.name);
        let hint = "name it: command = [\"/program\"] in mote.toml";
        return Err(Problem::new(422, "M0306", text).with_field("command").with_hint(hint));
    }
    Ok(Some(image))
}

async fn pull(
    node: &Node,
    images: &Images,
    function: &FunctionName,
    wanted: &FunctionImage,
    login: Option<&RegistryLogin>,
    platform: &Platform,
) -> Result<Result<Image, ImageError>, Problem> {
    // A spec that already has a digest comes from another cell, which has this image.
    let reference = wanted.shown().parse::<Reference>().map_err(|error| {
        Problem::new(422, "M0303", error.to_string())
            .with_field("image")
            .with_hint("write a name such as ghcr.io/owner/name:1")
    })?;
    let credentials = login.map(|login| match login.clone() {
        RegistryLogin::Password { user, password } => Credentials::Password { user, password },
        RegistryLogin::IdentityToken(token) => Credentials::IdentityToken(token),
    });
    // Whoever deploys a function may name a registry on this machine or its network. Deployers in a
    // namespace may not, because the namespace's functions may not reach these addresses, either.
    let outgoing =
        Outgoing { reach: Reach::Machine, ..node.outgoing.clone() }.of(function.as_str());
    let (images, platform) = (images.clone(), platform.clone());
    // A download works mostly on files, so it has its own thread.
    let runtime = tokio::runtime::Handle::current();
    let told = teller(node, function);
    let pull = move || {
        let credentials = credentials.as_ref();
        runtime.block_on(images.pull(&reference, credentials, &platform, &outgoing, &told))
    };
    blocking(pull).await.map_err(|error| internal(&error))
}

/// The folders of all images of a function's namespace, which count against the namespace's disk.
/// Empty in the default namespace, which has no limit.
pub(super) async fn folders_of(node: &Node, name: &FunctionName) -> Result<Vec<PathBuf>, Problem> {
    let Some(namespace) = name.namespace().map(str::to_owned) else { return Ok(Vec::new()) };
    let images = node.opened.images.clone();
    with_store(&node.opened.store, move |store| {
        let digests = store.image_digests(Some(&namespace))?;
        let found = digests.iter().filter_map(|digest| images.get(digest).ok().flatten());
        Ok(found.flat_map(|image| image.layers).collect())
    })
    .await
}

/// Keeps what a pull or an import reports, so that clients can read it.
fn teller(node: &Node, name: &FunctionName) -> impl Fn(Progress) + Send + Sync + 'static {
    let (progress, name) = (node.deploys.image_progress.clone(), name.clone());
    move |said| {
        let size = rounded_bytes_text;
        let detail = match said {
            Progress::Resolved { layers, bytes, .. } => format!("{layers} layers, {}", size(bytes)),
            Progress::Downloaded { bytes, total } => format!("{} of {}", size(bytes), size(total)),
            Progress::Unpacked { layers, total } => format!("unpacked {layers} of {total} layers"),
        };
        progress.set(&name, detail);
    }
}

/// An image in the form that the engine runs.
pub(super) fn runnable(image: Image) -> RunnableImage {
    let config = &image.config;
    RunnableImage {
        root: ImageRoot {
            layers: image.layers.clone(),
            user: config.user.clone(),
            work_dir: PathBuf::from(&config.work_dir),
            stop_signal: config.stop_signal.as_deref().and_then(signal),
        },
        entry_point: config.entrypoint.clone(),
        arguments: config.cmd.clone(),
        env: config.env.clone(),
        kept: Arc::new(image),
    }
}

/// The image of a stored function. If the image is missing, the function's starts fail with a
/// message that names the image, and the other functions are served. Blocks while a small file is
/// read.
pub(crate) fn stored(images: &Images, spec: &FunctionSpec) -> Option<RunnableImage> {
    let digest = spec.image.as_ref()?.digest.as_ref()?;
    match images.get(digest) {
        Ok(found) => found.map(runnable),
        Err(error) => {
            let function = &spec.name;
            tracing::error!(%function, digest, "cannot read its image: {}", error_chain(&error));
            None
        }
    }
}

/// Removes the images that no stored revision names. Running revisions keep the images that they
/// use. Blocks.
pub(crate) fn collect(images: &Images, store: &Store) {
    let in_use = match store.image_digests(None) {
        Ok(in_use) => in_use,
        Err(error) => {
            return tracing::warn!(error = %error_chain(&error), "old images were not removed");
        }
    };
    match images.collect_garbage(&in_use) {
        Ok(collected) if collected.layers > 0 => {
            let Collected { images, layers, bytes } = collected;
            tracing::info!(images, layers, bytes, "removed images that no function uses");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(error = %error_chain(&error), "old images were not removed"),
    }
}

/// The number of a signal such as `SIGQUIT`, `QUIT` or `3`.
fn signal(text: &str) -> Option<i32> {
    const NAMES: [(&str, i32); 8] = [
        ("HUP", 1),
        ("INT", 2),
        ("QUIT", 3),
        ("KILL", 9),
        ("USR1", 10),
        ("USR2", 12),
        ("TERM", 15),
        ("WINCH", 28),
    ];
    let name = text.strip_prefix("SIG").unwrap_or(text);
    let named = NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    named.or_else(|| text.parse().ok().filter(|number| (1..=64).contains(number)))
}

fn refused(function: impl std::fmt::Display, error: &ImageError) -> Problem {
    let text = format!("{function}: {}", error_chain(error));
    let problem = Problem::new(error.http_status(), error.code(), text).with_field("image");
    match error.hint() {
        Some(hint) => problem.with_hint(hint),
        None => problem,
    }
}

#[cfg(test)]
mod tests {
    use super::signal;

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [
            ("SIGQUIT", Some(3)),
            ("QUIT", Some(3)),
            ("3", Some(3)),
            ("SIGTERM", Some(15)),
            ("0", None),
            ("65", None),
            ("SIGNONE", None),
        ] {
            assert_eq!(signal(text), number, "{text}");
        }
    }
}
