//! Finds the file that a request is for.

use std::fs;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;

use bytes::Bytes;
use mote_core::invocation::Head;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};

use super::coding::accepts;
use super::field::field;
use super::kinds;

/// The longest file that is read at once and sent together with its head.
const WHOLE_BYTES_MAX: u64 = 64 << 10;
/// The file that is sent when a folder is requested.
const INDEX: &str = "index.html";
/// The codings of precompressed variants, from the best to the worst, and the endings of their
/// files.
const CODINGS: [(&str, &str); 3] = [("br", ".br"), ("zstd", ".zst"), ("gzip", ".gz")];
/// The only name with a leading dot that is served (RFC 8615).
const WELL_KNOWN: &str = ".well-known";

/// The characters that are percent-encoded in the last segment of a redirect's address.
const UNSAFE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// What a request asks for.
pub(crate) struct Wanted {
    /// The path below the folder, without a `/` at either end.
    path: String,
    is_folder: bool,
    accept_encoding: Vec<u8>,
}

pub(crate) enum Found {
    File(File),
    /// The file that replaces pages that do not exist.
    Fallback(File),
    /// The request named a folder with an index, but had no trailing `/`. Holds the last segment of
    /// the request's path.
    Folder(String),
}

pub(crate) struct File {
    pub(crate) open: fs::File,
    /// The content of the file, if the file is short.
    pub(crate) whole: Option<Bytes>,
    pub(crate) bytes: u64,
    /// The file's entity tag, with quotes.
    pub(crate) tag: String,
    pub(crate) kind: &'static str,
    pub(crate) coding: Option<&'static str>,
    /// Whether the file has precompressed variants, so that other clients may get another one.
    pub(crate) has_variants: bool,
}

impl Wanted {
    /// Returns `None` for names that are never served, because hidden files often hold secrets.
    pub(crate) fn of(head: &Head) -> Option<Self> {
        let path = percent_decode(head.path()).decode_utf8().ok()?;
        let segments: Vec<&str> = path.split('/').filter(|one| !one.is_empty()).collect();
        let is_hidden = |one: &&str| one.starts_with('.') && *one != WELL_KNOWN;
        if segments.iter().any(is_hidden) || path.contains('\0') {
            return None;
        }
        let accept_encoding = field(head, b"accept-encoding").unwrap_or_default().to_vec();
        Some(Self { path: segments.join("/"), is_folder: path.ends_with('/'), accept_encoding })
    }

    fn accepts(&self, coding: &str) -> bool {
        accepts(&self.accept_encoding, coding)
    }
}

/// Looks for the requested file in `folder` of `code`, and then for `fallback`. Blocks while the
/// disk is read.
pub(crate) fn find(
    code: &Path,
    folder: &str,
    wanted: &Wanted,
    fallback: Option<String>,
) -> Option<Found> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let code_folder = open(code, flags, Mode::empty()).ok()?;
    let root = openat2(code_folder, folder, flags, Mode::empty(), ResolveFlags::BENEATH).ok()?;
    let version = code.file_name()?.to_string_lossy();
    let version = version.get(..16).unwrap_or(&version);
    let send = |path: &str| file(&root, path, wanted, version).map(Found::File);
    let index = match wanted.path.as_str() {
        "" => INDEX.to_owned(),
        path => format!("{path}/{INDEX}"),
    };
    let found = if wanted.path.is_empty() || wanted.is_folder {
        send(&index)
    } else {
        send(&wanted.path).or_else(|| {
            plain(&root, &index)?;
            let last = wanted.path.rsplit('/').next().unwrap_or_default();
            Some(Found::Folder(utf8_percent_encode(last, UNSAFE).to_string()))
        })
    };
    found.or_else(|| file(&root, &fallback?, wanted, version).map(Found::Fallback))
}

/// Opens an ordinary file below the folder. Symbolic links are followed only to files below the
/// folder.
fn plain(root: &OwnedFd, path: &str) -> Option<(OwnedFd, u64)> {
    // Without NONBLOCK, opening a pipe would wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file = openat2(root, path, flags, Mode::empty(), within).ok()?;
    let facts = fstat(&file).ok()?;
    let is_file = FileType::from_raw_mode(facts.st_mode) == FileType::RegularFile;
    is_file.then_some((file, u64::try_from(facts.st_size).unwrap_or(0)))
}

fn file(root: &OwnedFd, path: &str, wanted: &Wanted, version: &str) -> Option<File> {
    let (mut open, mut bytes) = plain(root, path)?;
    let mut coding = None;
    let mut has_variants = false;
    for (name, ending) in CODINGS {
        let Some(variant) = plain(root, &format!("{path}{ending}")) else { continue };
        has_variants = true;
        if coding.is_none() && wanted.accepts(name) {
            ((open, bytes), coding) = (variant, Some(name));
        }
    }
    let mut open = fs::File::from(open);
    let mut whole = None;
    if bytes <= WHOLE_BYTES_MAX {
        let mut content = Vec::with_capacity(bytes as usize);
        (&mut open).take(WHOLE_BYTES_MAX).read_to_end(&mut content).ok()?;
        bytes = content.len() as u64;
        whole = Some(content.into());
    }
    let tag = match coding {
        Some(coding) => format!("\"{version}-{coding}\""),
        None => format!("\"{version}\""),
    };
    Some(File { open, whole, bytes, tag, kind: kinds::of(path), coding, has_variants })
}
