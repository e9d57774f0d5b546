//! What arrives before the worker gets its function: the claim and the files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use bytes::BytesMut;
use mote_pods::records::{Claim, Entry, EntryKind, RecordKind, VERSION, put, split};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::settings::Settings;

/// The connection, and what arrived after the files.
pub(crate) struct Connection {
    pub(crate) stream: TlsStream<TcpStream>,
    pub(crate) input: BytesMut,
}

/// Takes the claim and the files. If that failed, the cell was told why, and this is `None`.
pub(crate) async fn take(
    stream: TlsStream<TcpStream>,
    settings: &Settings,
) -> Result<Option<(Connection, String)>, Box<dyn std::error::Error>> {
    let mut connection = Connection { stream, input: BytesMut::new() };
    match read(&mut connection, settings).await {
        Ok(label) => Ok(Some((connection, label))),
        Err(error) => {
            crate::log(format_args!("{error}"));
            let mut answer = Vec::new();
            put(&mut answer, RecordKind::Failed, error.to_string().as_bytes());
            connection.stream.write_all(&answer).await?;
            connection.stream.shutdown().await?;
            Ok(None)
        }
    }
}

async fn read(connection: &mut Connection, settings: &Settings) -> io::Result<String> {
    let (kind, json) = next(connection).await?;
    let claim: Claim = match kind {
        RecordKind::Claim => serde_json::from_slice(&json)?,
        kind => return Err(io::Error::other(format!("{kind:?} instead of a claim"))),
    };
    if claim.version != VERSION {
        let text = format!(
            "the cell speaks version {} and this pod version {VERSION}; pods of the right version \
             follow when the controller has replaced them",
            claim.version
        );
        return Err(io::Error::other(text));
    }
    for (path, content) in &claim.files {
        let at = settings.at(path);
        fs::create_dir_all(at.parent().unwrap_or(&settings.root))?;
        write_new(&at, 0o400)?.write_all(content.as_bytes())?;
    }
    let mut file: Option<(File, u64)> = None;
    loop {
        let (kind, payload) = next(connection).await?;
        match (kind, &mut file) {
            (RecordKind::Data, Some((open, left))) if payload.len() as u64 <= *left => {
                open.write_all(&payload)?;
                *left -= payload.len() as u64;
                if *left == 0 {
                    file = None;
                }
            }
            (RecordKind::Entry, None) => {
                let entry: Entry = serde_json::from_slice(&payload)?;
                file = make(settings, &entry)?.map(|open| (open, entry.bytes));
                file = file.filter(|(_, left)| *left > 0);
            }
            (RecordKind::Start, None) => return Ok(claim.label),
            (kind, _) => return Err(io::Error::other(format!("unexpected record {kind:?}"))),
        }
    }
}

async fn next(connection: &mut Connection) -> io::Result<(RecordKind, bytes::Bytes)> {
    loop {
        if let Some(record) = split(&mut connection.input).map_err(io::Error::other)? {
            return Ok(record);
        }
        if connection.stream.read_buf(&mut connection.input).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Makes an entry; a file is returned for its content.
fn make(settings: &Settings, entry: &Entry) -> io::Result<Option<File>> {
    let below = Path::new(&entry.path);
    let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    if !is_plain || !matches!(entry.root.as_str(), "/function" | "/packages") {
        return Err(io::Error::other(format!("{:?} is no path of a function", entry.path)));
    }
    let folder = settings.at(&entry.root);
    let at: PathBuf = folder.join(below);
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", entry.path));
    fs::create_dir_all(&folder).map_err(named)?;
    match entry.kind {
        EntryKind::Folder => fs::create_dir(&at).map_err(named)?,
        EntryKind::Link => symlink(&entry.target, &at).map_err(named)?,
        EntryKind::File => return write_new(&at, entry.mode | 0o400).map(Some).map_err(named),
    }
    Ok(None)
}

fn write_new(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}
