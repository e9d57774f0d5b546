//! Functions that are container images.
//!
//! An image is named in a registry or is an archive: a file that `docker save` or `podman save`
//! wrote, an archive of an OCI layout, or such a layout as a folder. In `mote.toml`, an archive is
//! written as a path that begins with `./`, `../` or `/`, because no image name begins like this.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mote_spec::manifest::FunctionManifest;
use mote_spec::toml_reader::{Lined, Mistakes};
use mote_spec::{FunctionImage, Runtime};

use super::Code;
use super::mistakes::{escaped, in_manifest, unreadable};

/// The file that stands for the code of an image in an archive for a node.
const ABOUT: &str = "image.txt";
/// The offset of the word `ustar` in a tar.
const USTAR_AT: usize = 257;

/// The function that `path` describes if it is the name of an image or an archive with one.
pub(super) fn named_by(path: &Path) -> Option<FunctionManifest> {
    let text = path.to_str()?;
    let image = if is_name(path) {
        text.to_owned()
    } else if is_archive(path) {
        match text.starts_with(['.', '/']) {
            true => text.to_owned(),
            false => format!("./{text}"),
        }
    } else {
        return None;
    };
    Some(FunctionManifest {
        name: Some(Lined { value: function_name(text), line: 0 }),
        image: Some(Lined { value: image, line: 0 }),
        ..FunctionManifest::default()
    })
}

/// The image of a function, as its manifest names it.
pub(super) fn of(
    function: &FunctionManifest,
    runtime: Runtime,
) -> Result<Option<Box<FunctionImage>>, Mistakes> {
    let Some(image) = &function.image else { return Ok(None) };
    if !matches!(runtime, Runtime::Server | Runtime::Exec) {
        let text = "image: only for runtime server or exec; leave out runtime for a server";
        return Err(in_manifest("M0303", image.line, text));
    }
    if function.writable == Some(true) {
        let text = "writable: an instance of an image may write to all its files without it";
        return Err(in_manifest("M0303", image.line, text));
    }
    let archive = image.value.starts_with(['.', '/']);
    let file = Path::new(&image.value).file_name().map(|name| name.to_string_lossy().into_owned());
    let name = if archive { file.unwrap_or_default() } else { image.value.clone() };
    let arguments = function.image_arguments.clone();
    Ok(Some(Box::new(FunctionImage { archive, arguments, ..FunctionImage::named(name) })))
}

/// The path of the archive that a manifest in the folder `path` names.
pub(super) fn archive(
    path: &Path,
    spec: &mote_spec::FunctionSpec,
    function: &FunctionManifest,
) -> Result<Option<PathBuf>, Mistakes> {
    let (Some(_), Some(named)) = (spec.image.as_ref().filter(|one| one.archive), &function.image)
    else {
        return Ok(None);
    };
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
    let archive = folder.join(&named.value);
    if archive.exists() {
        return Ok(Some(archive));
    }
    let text = format!("image: {} does not exist", escaped(&named.value));
    Err(in_manifest("M0113", named.line, &text))
}

/// A folder with one file, which stands for the code of a function that is an image.
pub fn about(image: &FunctionImage) -> Result<Code, Mistakes> {
    let io = |error: std::io::Error| unreadable(&std::env::temp_dir(), &error);
    let folder = tempfile::Builder::new().prefix("mote-code").tempdir().map_err(io)?;
    for (name, content) in about_files(&image.name) {
        std::fs::write(folder.path().join(name), content).map_err(io)?;
    }
    Ok(Code::Taken(Arc::new(folder)))
}

/// The names and contents of the files that stand for the code of an image.
pub fn about_files(image: &str) -> Vec<(String, Vec<u8>)> {
    vec![(ABOUT.to_owned(), format!("{image}\n").into_bytes())]
}

/// Whether `path` does not exist but has the form of an image's name, such as `nginx:alpine` or
/// `ghcr.io/owner/name`.
fn is_name(path: &Path) -> bool {
    let Some(text) = path.to_str().filter(|_| !path.exists()) else { return false };
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    let (host, below) = text.split_once('/').unwrap_or(("", text));
    let has_tag =
        below.split_once([':', '@']).is_some_and(|(name, tag)| !name.is_empty() && !tag.is_empty());
    let is_host = host.contains(['.', ':']) || host == "localhost";
    let has_registry = is_host && !host.starts_with('.') && !below.is_empty();
    text.chars().all(plain) && !text.starts_with(['/', '.']) && (has_tag || has_registry)
}

/// Whether `path` is an archive, or a folder with an OCI layout. The node finds out whether the
/// archive is an image, because no other archive can be deployed by its path.
fn is_archive(path: &Path) -> bool {
    if path.is_dir() {
        return path.join("oci-layout").is_file() && path.join("index.json").is_file();
    }
    let mut head = [0; 512];
    let Ok(mut file) = std::fs::File::open(path) else { return false };
    if file.read_exact(&mut head).is_err() {
        return false;
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let packed = head.starts_with(&[0x1f, 0x8b]) || head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    let is_packed_tar =
        [".tar.gz", ".tgz", ".tar.zst", ".tzst"].iter().any(|end| name.ends_with(end));
    head[USTAR_AT..].starts_with(b"ustar") || packed && is_packed_tar
}

/// The name of the function for an image: the last part of its name, without tag and digest, or the
/// name of the archive without its ending.
fn function_name(image: &str) -> String {
    let last = image.trim_end_matches('/').rsplit('/').next().unwrap_or(image);
    let name = last.split(['@', ':']).next().unwrap_or(last);
    let ends = [".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar", ".oci"];
    let name = ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    let plain = |c: char| if matches!(c, '_' | '.' | ' ') { '-' } else { c };
    name.to_lowercase().chars().map(plain).collect::<String>().trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_and_of_their_functions() {
        for (text, function) in [
            ("nginx:alpine", Some("nginx")),
            ("ghcr.io/owner/My_App", Some("my-app")),
            ("localhost:5000/hello:1", Some("hello")),
            ("localhost:5000/hello", Some("hello")),
            ("localhost/a/b@sha256:00", Some("b")),
            ("nginx", None),
            ("./nginx:alpine", None),
            ("work/shop", None),
        ] {
            let found = named_by(Path::new(text)).and_then(|one| one.name);
            assert_eq!(found.map(|name| name.value).as_deref(), function, "{text}");
        }
    }

    #[test]
    fn archives_are_recognised_by_their_first_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let mut tar = vec![0; 1024];
        tar[USTAR_AT..USTAR_AT + 5].copy_from_slice(b"ustar");
        let path = folder.path().join("Hello.App.tar");
        std::fs::write(&path, &tar).unwrap();
        let function = named_by(&path).unwrap();
        assert_eq!(function.name.unwrap().value, "hello-app");
        std::fs::write(&path, [0; 1024]).unwrap();
        assert!(named_by(&path).is_none());
        let layout = folder.path().join("layout");
        std::fs::create_dir(&layout).unwrap();
        assert!(named_by(&layout).is_none());
        std::fs::write(layout.join("oci-layout"), "{}").unwrap();
        std::fs::write(layout.join("index.json"), "{}").unwrap();
        assert!(named_by(&layout).is_some());
    }
}
