//! The data folders of functions, and the folders of the host that functions may read: which ones a
//! deploy may have, and the files of the node that contain them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mote_api::Problem;
use mote_core::fault::{bytes_text, error_chain};
use mote_engine::data_image;
use mote_sandbox::{DataError, DataFolders, data_folder_bytes, data_folder_support};
use mote_spec::name::split;
use mote_spec::{FunctionName, FunctionSpec};

use super::Node;
use super::run::data_path::FILES;
use super::store_work::blocking;

/// At least this much of the disk stays free, or a twentieth of a smaller disk.
const FREE_BYTES_MIN: u64 = 256 << 20;
const FREE_BYTES_SHARE: u64 = 20;

/// The file that contains the data folder of a function.
pub(crate) fn image(node: &Node, name: &str) -> PathBuf {
    data_image(&node.config.data.join(FILES), name)
}

/// Fails if the node cannot, or may not, give the function the folders of its manifest. Changes
/// nothing.
pub(crate) fn check(node: &Node, spec: &FunctionSpec, in_cluster: bool) -> Result<(), Problem> {
    let name = &spec.name;
    for path in spec.files.host_folders.values() {
        if !node.config.shared_folders.permit(name.namespace(), path) {
            let text = format!("{name}: the node does not share the folder {path} with it");
            let hint = "let an operator add the folder to the node's setting shared_folders and \
                        restart the node";
            return Err(Problem::new(422, "M0434", text).with_field("files").with_hint(hint));
        }
    }
    let Some(wanted) = spec.files.data_bytes else { return Ok(()) };
    if in_cluster {
        let text = format!("{name}: [files] data: the cells of a cluster share no disk");
        let hint = "keep the files in the function's state ([kv]), or in a store of objects";
        return Err(Problem::new(422, "M0432", text).with_field("files.data").with_hint(hint));
    }
    data_folder_support().map_err(|error| problem(name, &error))?;
    let now = node.opened.backend.data_folders().bytes(&image(node, name.as_str()));
    match now.map_err(|error| problem(name, &error))? {
        Some(now) if data_folder_bytes(wanted) < now => {
            let [now, wanted] = [now, wanted].map(bytes_text);
            let text = format!("{name}: its data folder has {now} and cannot shrink to {wanted}");
            let hint = format!(
                "write data = \"{now}\"; or copy the files elsewhere, and remove the function with \
                 its folder: mote remove {name} --with-state"
            );
            Err(Problem::new(422, "M0433", text).with_field("files.data").with_hint(hint))
        }
        _ => Ok(()),
    }
}

/// A folder that a deploy has made. Dropping this removes the folder, unless the deploy succeeded.
pub(crate) struct NewFolder {
    folders: Arc<DataFolders>,
    image: PathBuf,
    is_kept: bool,
}

impl NewFolder {
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if !self.is_kept
            && let Err(error) = self.folders.remove(&self.image)
        {
            tracing::warn!("cannot remove the folder of a failed deploy: {error}");
        }
    }
}

/// Makes the data folder of a function, or enlarges it. Its namespace may use `left` more bytes of
/// the disk. Returns what has to be kept if the deploy
/// succeeds.
pub(crate) async fn prepare(
    node: &Node,
    spec: &FunctionSpec,
    left: u64,
) -> Result<Option<NewFolder>, Problem> {
    let Some(wanted) = spec.files.data_bytes else { return Ok(None) };
    let image = image(node, spec.name.as_str());
    let folders = node.opened.backend.data_folders().clone();
    let name = spec.name.clone();
    let root = node.config.data.clone();
    let prepared = blocking(move || {
        let now = folders.bytes(&image).map_err(|error| problem(&name, &error))?;
        let more = wanted.saturating_sub(now.unwrap_or(0));
        if more > left {
            let text = format!(
                "{name}: its data folder needs {} more, and its namespace may use {} more of the \
                 disk",
                bytes_text(more),
                bytes_text(left)
            );
            return Err(Problem::new(507, "M0428", text).with_field("files.data"));
        }
        let room = room(&root);
        if more > room {
            let text = format!(
                "{name}: its data folder needs {} more, and the disk of the node has room for {}",
                bytes_text(more),
                bytes_text(room)
            );
            let hint = "free space on the disk, or write a smaller size";
            let problem = Problem::new(507, "M0703", text).with_field("files.data");
            return Err(problem.with_hint(hint));
        }
        let new = now.is_none().then(|| NewFolder {
            folders: folders.clone(),
            image: image.clone(),
            is_kept: false,
        });
        // Mounting the folder once shows that an instance can be given it.
        folders.open_or_make(&image, wanted).map_err(|error| problem(&name, &error))?;
        Ok(new)
    });
    prepared
        .await
        .unwrap_or_else(|_| Err(Problem::new(500, "M0599", "the node could not make the folder")))
}

/// The bytes that folders may still take on the disk of `root`.
fn room(root: &Path) -> u64 {
    let Ok(disk) = rustix::fs::statvfs(root) else { return 0 };
    let kept = FREE_BYTES_MIN.min(disk.f_blocks * disk.f_frsize / FREE_BYTES_SHARE);
    (disk.f_bavail * disk.f_frsize).saturating_sub(kept)
}

/// The bytes that the data folders of a namespace take. Blocks for a moment.
pub(crate) fn bytes_of(node: &Node, namespace: &str) -> u64 {
    let files = list(node);
    let of = |name: &str| split(name).1 == Some(namespace);
    files.iter().filter(|(name, _)| of(name)).map(|(_, bytes)| bytes).sum()
}

/// The functions whose data folders the node keeps, and the size of each. Some of the functions may
/// have been removed. Blocks for a moment.
pub(crate) fn list(node: &Node) -> Vec<(String, u64)> {
    let entries = std::fs::read_dir(node.config.data.join(FILES)).into_iter().flatten().flatten();
    let mut folders: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let name = name.strip_suffix(".ext4").filter(|name| mote_spec::name::is_valid(name))?;
            Some((name.to_owned(), entry.metadata().ok()?.len()))
        })
        .collect();
    folders.sort_unstable();
    folders
}

/// Removes the data folder of a function that runs no more. Returns whether there was one.
pub(crate) async fn remove(node: &Node, name: &FunctionName) -> Result<bool, Problem> {
    let image = image(node, name.as_str());
    let folders = node.opened.backend.data_folders().clone();
    let name = name.clone();
    blocking(move || folders.remove(&image).map_err(|error| problem(&name, &error)))
        .await
        .unwrap_or_else(|_| Err(Problem::new(500, "M0599", "the node could not remove the folder")))
}

/// The answer for a folder that cannot be used.
pub(crate) fn problem(name: &FunctionName, error: &DataError) -> Problem {
    let shown = error_chain(error);
    match error {
        DataError::Unsupported { hint, .. } => {
            let text = format!("{name}: this node cannot have data folders: {shown}");
            Problem::new(422, "M0432", text).with_field("files.data").with_hint(hint.clone())
        }
        error if error.is_full() => {
            let text = format!("{name}: the disk is full: {shown}");
            Problem::new(507, "M0703", text).with_field("files.data")
        }
        DataError::Failed { image, .. } => {
            let hint = format!(
                "if the file is damaged, stop the node, copy the file, and run e2fsck -f -y {}; or \
                 restore it from a backup; or remove the function with its files: mote remove \
                 {name} --with-state",
                image.display()
            );
            let problem = Problem::new(500, "M0704", format!("{name}: {shown}"));
            problem.with_field("files.data").with_hint(hint)
        }
    }
}
