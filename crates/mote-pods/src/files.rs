//! Reads the files of a function as records.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use crate::records::{DATA_BYTES_MAX, Entry, EntryKind, RecordKind, put};

/// Bytes that are gathered before they are sent.
const BATCH_BYTES: usize = 128 << 10;

/// Sends the files below each folder as records to `out`, in an order that puts folders before what
/// is in them. Blocks while `out` is full.
pub(crate) fn send(folders: &[(&str, PathBuf)], out: &mpsc::Sender<Vec<u8>>) -> io::Result<()> {
    let mut batch = Vec::new();
    for (root, folder) in folders {
        let mut left = vec![PathBuf::new()];
        while let Some(below) = left.pop() {
            let mut names: Vec<_> =
                std::fs::read_dir(folder.join(&below))?.collect::<io::Result<_>>()?;
            names.sort_unstable_by_key(std::fs::DirEntry::file_name);
            for name in names {
                let path = below.join(name.file_name());
                one(root, folder, &path, &mut batch, out)?;
                if name.file_type()?.is_dir() {
                    left.push(path);
                }
            }
        }
    }
    put(&mut batch, RecordKind::Start, b"");
    pass_on(&mut batch, out)
}

fn one(
    root: &str,
    folder: &Path,
    path: &Path,
    batch: &mut Vec<u8>,
    out: &mpsc::Sender<Vec<u8>>,
) -> io::Result<()> {
    let at = folder.join(path);
    let metadata = std::fs::symlink_metadata(&at)?;
    let text = |path: &Path| {
        let text = path.to_str().map(str::to_owned);
        text.ok_or_else(|| io::Error::other(format!("{} is not UTF-8", path.display())))
    };
    let (root, mode) = (root.to_owned(), metadata.permissions().mode() & 0o777);
    let mut entry = Entry { root, path: text(path)?, mode, ..Entry::default() };
    let announce = |entry: &Entry, batch: &mut Vec<u8>| {
        let json = serde_json::to_vec(entry).expect("an entry has only string keys");
        put(batch, RecordKind::Entry, &json);
    };
    if metadata.is_dir() {
        entry.kind = EntryKind::Folder;
        announce(&entry, batch);
        return Ok(());
    }
    if metadata.is_symlink() {
        (entry.kind, entry.target) = (EntryKind::Link, text(&std::fs::read_link(&at)?)?);
        announce(&entry, batch);
        return Ok(());
    }
    if !metadata.is_file() {
        return Ok(());
    }
    entry.bytes = metadata.len();
    announce(&entry, batch);
    let mut file = File::open(&at)?;
    let mut left = entry.bytes;
    let mut buffer = vec![0; DATA_BYTES_MAX.min(usize::try_from(left).unwrap_or(DATA_BYTES_MAX))];
    while left > 0 {
        let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        file.read_exact(&mut buffer[..wanted])?;
        put(batch, RecordKind::Data, &buffer[..wanted]);
        left -= wanted as u64;
        if batch.len() >= BATCH_BYTES {
            pass_on(batch, out)?;
        }
    }
    Ok(())
}

fn pass_on(batch: &mut Vec<u8>, out: &mpsc::Sender<Vec<u8>>) -> io::Result<()> {
    let sent = out.blocking_send(std::mem::take(batch));
    sent.map_err(|_| io::Error::other("the claim was given up"))
}
