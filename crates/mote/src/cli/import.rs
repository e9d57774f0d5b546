//! `mote import`: writes the `mote.toml` that corresponds to another platform's manifest.

use std::fs;
use std::path::{Path, PathBuf};

use mote_api::manifest::FILE_NAME;
use mote_api::toml_reader::Mistakes;
use mote_project::foreign::{self, Described, Source};

use super::failure::Failure;
use super::output::{Output, harmless};

pub(super) fn run(path: &Path, output: &Output) -> Result<(), Failure> {
    let Some(found) = foreign::read(path)? else {
        let text = format!("{}: not a manifest of a supported platform", path.display());
        let hint = "supported: OpenFaaS stack.yml, Nuclio function.yaml, Kubeless Function, Knative \
                    Service, OpenWhisk manifest.yaml";
        return Err(Failure::new("M0102", text).with_hint(hint));
    };
    for warning in &found.warnings {
        output.warn(&harmless(&format!("{}: {warning}", found.file)));
    }
    for name in found.whisk.iter().flat_map(|whisk| whisk.entities()) {
        if !name.starts_with("actions.") && !name.starts_with("packages.") {
            let text = format!("{name}: mote.toml cannot express it; mote deploy creates it");
            output.warn(&harmless(&format!("{}: {text}", found.file)));
        }
    }
    let beside = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    // All destinations are checked before anything is written.
    let places: Vec<PathBuf> =
        found.functions.iter().map(|function| place(function, beside)).collect();
    for place in &places {
        let file = place.join(FILE_NAME);
        let shared = places.iter().filter(|other| *other == place).count() > 1;
        if file.exists() || shared {
            let text = if shared {
                format!("{}: several functions share this folder", place.display())
            } else {
                format!("{}: already exists", file.display())
            };
            let hint = "mote deploy reads the other platform's manifest as it is";
            return Err(Failure::new("M0103", text).with_hint(hint));
        }
    }
    if found.functions.is_empty() {
        let all = found.left_out.into_iter().flat_map(|one| one.mistakes.0);
        return Err(Mistakes(all.collect()).into());
    }
    for (function, place) in found.functions.iter().zip(&places) {
        write(&found.file, function, place)?;
        for warning in &function.warnings {
            output.warn(&harmless(&format!("{}: {warning}", function.name())));
        }
        output.say(&format!("wrote {}", place.join(FILE_NAME).display()));
    }
    if found.left_out.is_empty() {
        return Ok(());
    }
    let all = found.left_out.into_iter().flat_map(|one| one.mistakes.0);
    Err(Mistakes(all.collect()).into())
}

/// The folder for a function's `mote.toml`.
fn place(function: &Described, beside: &Path) -> PathBuf {
    match &function.source {
        Source::Beside => beside.to_owned(),
        Source::At(path) if path.is_file() => path.parent().unwrap_or(beside).to_owned(),
        Source::At(path) => path.clone(),
        Source::Inside(_) | Source::Zip(..) | Source::Files(_) => beside.join(function.name()),
    }
}

fn write(file: &str, function: &Described, place: &Path) -> Result<(), Failure> {
    let failed = |path: &Path, error: std::io::Error| {
        Failure::new("M0103", format!("{}: {error}", path.display()))
    };
    let is_own = !matches!(function.source, Source::Beside | Source::At(_));
    if is_own && fs::symlink_metadata(place).is_ok_and(|meta| meta.is_symlink()) {
        let error = std::io::Error::other("is a link, and the code would be written to its target");
        return Err(failed(place, error));
    }
    fs::create_dir_all(place).map_err(|error| failed(place, error))?;
    mote_project::lay_out(function, place)?;
    function.packages.add_to(place).map_err(|error| failed(place, error))?;
    let path = place.join(FILE_NAME);
    let text = mote_project::mote_toml(file, function);
    mote_project::write_anew(&path, &text).map_err(|error| failed(&path, error))
}
