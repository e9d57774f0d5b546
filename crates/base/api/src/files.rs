//! The data folders of functions in the management API: the types, and the calls of the client.

use std::fs::File;
use std::io::{self, Read as _};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Method;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::client::{Client, ClientError, built, encode};
use crate::paths;

/// The longest time that an upload may take.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(3_600);
const PIECE_BYTES: usize = 64 << 10;

/// The data folder of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DataFolder {
    /// The name of the function. The node keeps the folder when the function is removed.
    pub function: String,
    /// The size of the folder, which the node reserves on its disk.
    pub bytes: u64,
}

/// The data folders of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DataFolders {
    /// The folders, sorted by the names of the functions.
    pub folders: Vec<DataFolder>,
}

/// What a name in a data folder stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link, which the node never follows.
    Link,
    /// A pipe or a socket.
    Other,
}

impl FileKind {
    /// The kind as it is written in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Folder => "folder",
            Self::Link => "link",
            Self::Other => "other",
        }
    }
}

/// A name in a data folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// The name. Bytes that are not UTF-8 are replaced.
    pub name: String,
    /// What it stands for.
    pub kind: FileKind,
    /// The size in bytes.
    pub bytes: u64,
    /// When the content was last changed, in milliseconds since 1970.
    pub changed_unix_ms: u64,
}

/// The names in a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileListing {
    /// The names, sorted. If the path is that of a file, only the file.
    pub entries: Vec<FileEntry>,
    /// Whether the folder has more names than the node lists.
    pub has_more: bool,
}

/// The result of writing a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileWritten {
    /// The size in bytes.
    pub bytes: u64,
}

/// The content of a file, as it arrives.
#[derive(Debug)]
pub struct Download {
    endpoint: String,
    body: Incoming,
}

impl Download {
    /// The next piece; `None` at the end. Fails if the connection ends before the file does.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| ClientError::Lost {
                endpoint: self.endpoint.clone(),
                reason: error.to_string(),
            })?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

/// The bytes of a file, which is read as they are sent.
struct Upload {
    file: File,
    left: u64,
}

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let length = usize::try_from(self.left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let mut piece = vec![0; length];
        Poll::Ready(Some(self.file.read(&mut piece).and_then(|got| {
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            piece.truncate(got);
            self.left -= got as u64;
            Ok(Frame::data(piece.into()))
        })))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

impl Client {
    /// Returns the data folders of the node.
    pub async fn data_folders(&self) -> Result<DataFolders, ClientError> {
        self.get(paths::FILES).await
    }

    /// Removes the data folder of a function that has been removed.
    pub async fn remove_data_folder(&self, function: &str) -> Result<(), ClientError> {
        self.delete(&folder_path(function)).await
    }

    /// Lists a folder.
    pub async fn files(&self, function: &str, path: &str) -> Result<FileListing, ClientError> {
        self.get(&format!("{}?path={}", folder_path(function), encode(path))).await
    }

    /// Reads a file.
    pub async fn file_get(&self, function: &str, path: &str) -> Result<Download, ClientError> {
        let path = file_path(function, path);
        let request = built(self.request(Method::GET, &path)?.body(Full::default()))?;
        let response = self.limited(self.timeout, self.send(request)).await?;
        let status = response.status();
        if !status.is_success() {
            let body = self.collect(response.into_body()).await?;
            return Err(self.refusal(status, &body));
        }
        Ok(Download { endpoint: self.endpoint().to_string(), body: response.into_body() })
    }

    /// Writes a file with the content of `file`, which is a regular file.
    pub async fn file_put(
        &self,
        function: &str,
        path: &str,
        file: File,
    ) -> Result<FileWritten, ClientError> {
        let left = file.metadata().map_err(|error| ClientError::Request(error.to_string()))?.len();
        let request = self.request(Method::PUT, &file_path(function, path))?;
        let request = request.header("content-type", "application/octet-stream");
        let request = built(request.body(Upload { file, left }))?;
        let answer = self.limited(UPLOAD_TIMEOUT, async {
            let (head, body) = self.send(request).await?.into_parts();
            Ok((head.status, self.collect(body).await?))
        });
        let (status, body) = answer.await?;
        self.decode(status, &body)
    }

    /// Removes a file; with `recursive` also a folder with everything in it.
    pub async fn file_remove(
        &self,
        function: &str,
        path: &str,
        recursive: bool,
    ) -> Result<(), ClientError> {
        self.delete(&format!("{}&recursive={recursive}", file_path(function, path))).await
    }
}

fn folder_path(function: &str) -> String {
    format!("{}/{}", paths::FILES, encode(function))
}

fn file_path(function: &str, path: &str) -> String {
    format!("{}/content?path={}", folder_path(function), encode(path))
}
