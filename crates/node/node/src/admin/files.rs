//! Routes that read and change the files of functions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_stream::try_stream;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use futures_util::TryStreamExt as _;
use mote_api::Problem;
use mote_api::files::{DataFolder, DataFolders, FileListing, FileWritten};
use mote_spec::FunctionName;
use serde::Deserialize;
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::access::Seen;
use super::extract::{Path, Query};
use super::refused::Refused;
use crate::data_files::{self, Below, FileError};
use crate::store_work::blocking;
use crate::{Node, data_folders};

/// The bytes that are read from a file at a time.
const PIECE_BYTES: usize = 64 << 10;
/// Distinguishes the files that are being written.
static UPLOADS: AtomicU64 = AtomicU64::new(0);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PathQuery {
    #[serde(default)]
    path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoveQuery {
    path: String,
    #[serde(default)]
    recursive: bool,
}

/// The whole folder is removed, so a parameter that would remove less is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoveAllQuery {}

pub(super) async fn folders(
    State(node): State<Arc<Node>>,
    Seen(view): Seen,
) -> Result<Json<DataFolders>, Refused> {
    let found = work(move || Ok(data_folders::list(&node))).await?;
    let folders = found
        .into_iter()
        .filter(|(name, _)| view.shows(name))
        .map(|(function, bytes)| DataFolder { function, bytes })
        .collect();
    Ok(Json(DataFolders { folders }))
}

pub(super) async fn list(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    Query(PathQuery { path }): Query<PathQuery>,
) -> Result<Json<FileListing>, Refused> {
    let path = below(&name, &path)?;
    let (entries, has_more) = work(move || {
        let folder = open(&node, &name)?;
        data_files::list(folder.root(), &path).map_err(|error| problem(&name, error))
    })
    .await?;
    Ok(Json(FileListing { entries, has_more }))
}

pub(super) async fn read(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    Query(PathQuery { path }): Query<PathQuery>,
) -> Result<Response, Refused> {
    let path = below(&name, &path)?;
    let (folder, file, bytes) = work(move || {
        let folder = open(&node, &name)?;
        let found = data_files::read(folder.root(), &path);
        let (file, bytes) = found.map_err(|error| problem(&name, error))?;
        Ok((folder, file, bytes))
    })
    .await?;
    let file = Arc::new(file);
    let content = try_stream! {
        // The folder stays mounted until the last byte is sent.
        let _folder = folder;
        let mut at = 0;
        while at < bytes {
            let file = file.clone();
            let length = usize::try_from(bytes - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let piece = blocking(move || piece(&file, at, length)).await;
            let piece = piece.map_err(std::io::Error::other).and_then(|piece| piece)?;
            at += piece.len() as u64;
            yield piece;
        }
    };
    let content: std::pin::Pin<
        Box<dyn futures_util::Stream<Item = std::io::Result<Bytes>> + Send>,
    > = Box::pin(content);
    let mut response = Response::new(Body::from_stream(content));
    let headers = response.headers_mut();
    // A browser must not take the file of a function for a page of the node.
    let kind = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_LENGTH, bytes.into());
    Ok(response)
}

/// A part of a file. Fails if the file has become shorter, because the length has been promised.
fn piece(file: &std::fs::File, at: u64, length: usize) -> std::io::Result<Bytes> {
    let mut piece = vec![0; length];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut piece, at)?;
    Ok(piece.into())
}

pub(super) async fn write(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    Query(PathQuery { path }): Query<PathQuery>,
    request: Request,
) -> Result<Json<FileWritten>, Refused> {
    let path = below(&name, &path)?;
    let number = UPLOADS.fetch_add(1, Ordering::Relaxed);
    let stream = request.into_body().into_data_stream().map_err(std::io::Error::other);
    let mut content = SyncIoBridge::new(StreamReader::new(stream));
    let bytes = work(move || {
        let folder = open(&node, &name)?;
        let written = data_files::write(folder.root(), &path, number, &mut content);
        written.map_err(|error| problem(&name, error))
    })
    .await?;
    Ok(Json(FileWritten { bytes }))
}

pub(super) async fn remove(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    Query(RemoveQuery { path, recursive }): Query<RemoveQuery>,
) -> Result<StatusCode, Refused> {
    let path = below(&name, &path)?;
    work(move || {
        let folder = open(&node, &name)?;
        let removed = data_files::remove(folder.root(), &path, recursive);
        removed.map_err(|error| problem(&name, error))
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Removes the folder of a function that is not there any more. While it is there, its instances
/// use the folder.
pub(super) async fn remove_all(
    State(node): State<Arc<Node>>,
    Path(name): Path<String>,
    Query(RemoveAllQuery {}): Query<RemoveAllQuery>,
) -> Result<StatusCode, Refused> {
    let name = function(&name)?;
    // A deploy of the function must not begin meanwhile.
    let _turn = crate::turns::turn(&node.deploys.deploying, &node.tenants.namespaces, &name)?;
    if node.data_path.engine.get(name.as_str()).is_some() {
        let text = format!("{name} is deployed and uses its data folder");
        let hint = format!("remove the function together with it: mote remove {name} --with-state");
        return Err(Problem::new(409, "M0908", text).with_hint(hint).into());
    }
    data_folders::remove(&node, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Mounts the folder of a function.
fn open(node: &Node, name: &str) -> Result<Arc<mote_sandbox::DataFolder>, Problem> {
    let name = function(name)?;
    let image = data_folders::image(node, name.as_str());
    if !image.exists() {
        let text = format!("{name} has no data folder");
        let hint = "see which functions have one: mote files list";
        return Err(Problem::new(404, "M0906", text).with_hint(hint));
    }
    let opened = node.opened.backend.data_folders().open(&image, 0);
    opened.map_err(|error| data_folders::problem(&name, &error))
}

fn function(name: &str) -> Result<FunctionName, Problem> {
    FunctionName::new(name)
        .map_err(|error| Problem::new(422, "M0907", error.to_string()).with_field("name"))
}

fn below(name: &str, path: &str) -> Result<Below, Problem> {
    Below::new(path).map_err(|error| problem(name, error))
}

async fn work<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let failed = |_| Err(Problem::new(500, "M0599", "the node could not use the data folder"));
    blocking(run).await.unwrap_or_else(failed)
}

fn problem(name: &str, error: FileError) -> Problem {
    let text = format!("{name}: {error}");
    match error {
        FileError::Path
        | FileError::IsFolder(_)
        | FileError::NotFolder(_)
        | FileError::Special(_)
        | FileError::Deep => Problem::new(422, "M0907", text).with_field("path"),
        FileError::Missing(_) => {
            let hint = "see what is there: mote files list (paths begin in /data, so /data/a is a)";
            Problem::new(404, "M0906", text).with_hint(hint)
        }
        FileError::NotEmpty(_) => Problem::new(409, "M0908", text)
            .with_hint("remove it with everything in it: mote files remove, with --recursive"),
        FileError::Full => Problem::new(507, "M0909", text)
            .with_hint("remove files, or raise the size in the manifest: [files] data"),
        FileError::Upload(_) => Problem::new(400, "M0907", text),
        FileError::Disk(..) => Problem::new(503, "M0704", text),
    }
}
