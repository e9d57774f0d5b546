//! Turns the files and settings of a `Function` into the archive that a cell takes.

use std::io::Read as _;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use mote_spec::toml_reader::Mistakes;
use mote_spec::{FunctionSpec, Runtime};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::resources::{Bounds, FunctionSpec as Wanted};

/// An archive that is larger than this after compression is not stored in its resource, because the
/// API server refuses requests above 1.5 MiB.
pub(crate) const INLINE_BYTES_MAX: usize = 700 << 10;
/// Largest archive. The controller and the agents hold an archive in memory.
pub(crate) const ARCHIVE_BYTES_MAX: u64 = 64 << 20;
/// The controller and an agent hold only one archive above this size at a time, so that the memory
/// limits of their pods are sufficient.
pub(crate) const LARGE_BYTES: u64 = 2 << 20;

pub(crate) struct Archive {
    /// The tar, with the spec as its first entry.
    pub(crate) tar: Bytes,
    /// SHA-256 of `tar`, as text.
    pub(crate) digest: String,
    pub(crate) runtime: String,
    /// The limits of instances, for the whole cluster.
    pub(crate) bounds: Bounds,
}

/// Packs the files of a function with its settings, which are those of `mote.toml`. An error says
/// what the function's owner must correct.
pub(crate) fn archive(name: &str, wanted: &Wanted) -> Result<Archive, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    // Messages mention the name of the folder. It is the function's name, so that the messages are
    // the same each time.
    let root = folder.path().join(name);
    let files = wanted.files.as_ref().ok_or("the function has no files")?;
    let programs = programs(wanted);
    for (path, content) in files {
        write(&root, path, content, programs.contains(&path.as_str()))?;
    }
    let has_settings = !wanted.settings.is_empty();
    if has_settings && files.contains_key("mote.toml") {
        return Err(
            "spec.files has a mote.toml, and spec has settings too: give them in one place"
                .to_owned(),
        );
    }
    if has_settings {
        let mut settings = wanted.settings.clone();
        // The limits hold for the cluster and not for a revision, so `kubectl scale` makes no new
        // revision.
        if let Some(Value::Object(scale)) = settings.get_mut("scale") {
            scale.remove("min");
            scale.remove("max");
        }
        write(&root, "mote.toml", &manifest(name, &settings)?, false)?;
    }
    let options = mote_project::Options { name: Some(name), ..mote_project::Options::default() };
    let project = mote_project::read_own(&root, options)
        .map_err(|mistakes| told(&mistakes).replace(&root.display().to_string(), "spec.files"))?;
    let [planned] = project.functions.as_slice() else {
        return Err(format!("the files describe {} functions, not one", project.functions.len()));
    };
    if planned.spec.name.as_str() != name {
        return Err(format!("the files describe the function {}, not {name}", planned.spec.name));
    }
    check_runtime(&planned.spec)?;
    let json = mote_spec::json::to_json(&planned.spec).into_bytes();
    let packed = mote_store::pack::pack(&root, Some((mote_api::SPEC_ENTRY, &json)))
        .map_err(|error| error.to_string())?;
    Ok(of_tar(packed.tar.into(), &planned.spec))
}

/// Rewrites the mistakes in the words of the resource, because the user has not seen the manifest
/// that was made from it.
fn told(mistakes: &Mistakes) -> String {
    let one = |mistake: &mote_spec::toml_reader::Mistake| {
        let text = mistake.text.replace("mote.toml", "spec");
        let text = text.rsplit_once(" (line ").map_or(text.as_str(), |(text, _)| text);
        match &mistake.hint {
            Some(hint) => format!("{}: {text} ({hint})", mistake.code),
            None => format!("{}: {text}", mistake.code),
        }
    };
    mistakes.0.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Checks whether cells can run a function. Cells check the settings in the same way, and they have
/// no compiler.
pub(crate) fn check_runtime(spec: &FunctionSpec) -> Result<(), String> {
    if let Some(error) = spec.check().first() {
        return Err(error.to_string());
    }
    if spec.runtime != Runtime::Go {
        return Ok(());
    }
    Err("functions in Go cannot be deployed to a cluster, because its cells have no compiler: build \
         the program and deploy it with the runtime exec or server"
        .to_owned())
}

/// An archive that was packed elsewhere. Computing the digest of a large archive takes a moment.
pub(crate) fn of_tar(tar: Bytes, spec: &FunctionSpec) -> Archive {
    let digest = digest(&tar);
    let bounds = Bounds { min: spec.scale.min, max: spec.scale.max };
    Archive { tar, digest, runtime: spec.runtime.as_str().to_owned(), bounds }
}

/// Returns the files that `command` names. They are made executable, because a resource cannot
/// carry modes.
fn programs(wanted: &Wanted) -> Vec<&str> {
    let words = wanted.settings.get("command").and_then(Value::as_array);
    let words = words.into_iter().flatten().filter_map(Value::as_str);
    words.map(|word| word.strip_prefix("./").unwrap_or(word)).collect()
}

fn write(folder: &Path, path: &str, content: &str, is_program: bool) -> Result<(), String> {
    // The schema allows only relative paths in which no part begins with a dot.
    let is_plain = path.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
    if !is_plain {
        return Err(format!("spec.files: {path:?} is not a relative path without dots"));
    }
    let whole = folder.join(path);
    let failed = |error: std::io::Error| format!("spec.files: {path}: {error}");
    if let Some(parent) = whole.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    std::fs::write(&whole, content).map_err(failed)?;
    if is_program {
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&whole, mode).map_err(failed)?;
    }
    Ok(())
}

/// Writes the settings as a `mote.toml`.
fn manifest(name: &str, settings: &Map<String, Value>) -> Result<String, String> {
    let mut table = toml::Table::new();
    table.insert("version".to_owned(), 1.into());
    table.insert("name".to_owned(), name.into());
    for (key, value) in settings {
        let value = toml::Value::try_from(value).map_err(|error| format!("spec.{key}: {error}"))?;
        table.insert(key.clone(), value);
    }
    toml::to_string(&table).map_err(|error| format!("spec: {error}"))
}

/// SHA-256 as text.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the archive in the form for its resource, or `None` if it is too large for that. Blocks
/// for a moment.
pub(crate) fn inline(tar: &[u8]) -> Option<String> {
    let mut encoder = GzEncoder::new(Bounded(Vec::new()), Compression::default());
    encoder.write_all(tar).ok()?;
    Some(STANDARD.encode(encoder.finish().ok()?.0))
}

/// A writer that refuses more than [`INLINE_BYTES_MAX`].
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > INLINE_BYTES_MAX {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Reads the archive from a resource, which says that it has `bytes` bytes. [`check`] checks the
/// digest.
pub(crate) fn from_inline(text: &str, bytes: u64) -> Result<Vec<u8>, String> {
    if bytes > ARCHIVE_BYTES_MAX {
        return Err(format!("its archive is larger than {} MiB", ARCHIVE_BYTES_MAX >> 20));
    }
    let compressed = STANDARD.decode(text).map_err(|error| format!("its archive: {error}"))?;
    let mut tar = Vec::new();
    GzDecoder::new(compressed.as_slice())
        .take(bytes + 1)
        .read_to_end(&mut tar)
        .map_err(|error| format!("its archive: {error}"))?;
    if tar.len() as u64 != bytes {
        return Err(format!("its archive does not have {bytes} bytes, which spec.bytes says"));
    }
    Ok(tar)
}

/// Checks that an archive has the expected digest.
pub(crate) fn check(tar: &[u8], wanted: &str) -> Result<(), String> {
    let found = digest(tar);
    if found == wanted {
        Ok(())
    } else {
        Err(format!("its archive is sha256:{found}, not sha256:{wanted}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(json: Value) -> Wanted {
        serde_json::from_value(json).expect("a spec")
    }

    #[test]
    fn files_and_settings_become_an_archive_with_its_spec() {
        let wanted = wanted(serde_json::json!({
            "files": {"app.py": "def handle(request):\n    return 'hi'\n"},
            "runtime": "python", "entry": "app:handle",
            "limits": {"memory": "96MiB"}, "env": {"A": "1", "B": {"secret": "db"}},
            "trigger": [{"cron": "0 5 * * *"}],
        }));
        let first = archive("hello", &wanted).unwrap();
        assert_eq!(first.runtime, "python");
        // The same resource always gives the same revision.
        assert_eq!(archive("hello", &wanted).unwrap().digest, first.digest);
        let text = inline(&first.tar).unwrap();
        let bytes = first.tar.len() as u64;
        assert_eq!(from_inline(&text, bytes).unwrap(), first.tar);
        for wrong in [0, bytes - 1, bytes + 1, u64::MAX] {
            assert!(from_inline(&text, wrong).is_err(), "{wrong} bytes");
        }
        assert!(check(&first.tar, &first.digest).is_ok());
        assert!(check(b"x", &first.digest).is_err());
    }

    #[test]
    fn a_mistake_has_the_same_text_at_each_look() {
        let wanted = wanted(serde_json::json!({"files": {"hello.txt": ""}}));
        let text = || archive("hello", &wanted).err().expect("a mistake");
        assert_eq!(text(), text());
        assert!(!text().contains("/tmp"), "{}", text());
    }

    #[test]
    fn mistakes_name_the_field() {
        let cases = [
            (serde_json::json!({"files": {"a.py": ""}, "limits": {"memry": "1MiB"}}), "memry"),
            (serde_json::json!({"files": {"a.py": ""}, "limits": {"timeout": "9000h"}}), "timeout"),
            (serde_json::json!({"files": {"../a.py": ""}}), "../a.py"),
            (serde_json::json!({"files": {"a.txt": ""}}), "runtime"),
        ];
        for (json, word) in cases {
            let error = archive("hello", &wanted(json.clone())).err().unwrap_or_default();
            assert!(error.contains(word), "{json}: {error}");
        }
    }
}
