//! `mote import`: writes the `mote.toml` that corresponds to another platform's manifest, or to objects
//! that kubectl reads from a cluster.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mote_project::foreign::{self, Described, Foreign, Source, cluster};
use mote_spec::manifest::FILE_NAME;
use mote_spec::toml_reader::Mistakes;
use serde_json::Value;

use super::args::Import;
use super::deploy::SIGINT;
use super::failure::Failure;
use super::output::{Output, harmless};

/// The most bytes of kubectl's output that are read.
const OBJECTS_BYTES_MAX: usize = 64 << 20;

pub(super) fn run(args: &Import, output: &Output) -> Result<(), Failure> {
    let mut sources = BTreeMap::new();
    for text in &args.source {
        match text.split_once('=') {
            Some((name, folder)) if Path::new(folder).is_dir() => {
                sources.insert(name.to_owned(), PathBuf::from(folder));
            }
            Some((_, folder)) => {
                let text = format!("--source: {folder}: not a folder");
                return Err(Failure::new("M0102", text));
            }
            None => {
                let text = format!("--source: `{}`", text.escape_debug());
                return Err(Failure::new("M0101", text).with_hint("write NAME=FOLDER"));
            }
        }
    }
    let path = args.path.as_deref().unwrap_or(Path::new("."));
    if let Err(error) = fs::metadata(path) {
        return Err(Failure::of_file("M0102", &path.display().to_string(), &error));
    }
    if args.from_cluster {
        if !path.is_dir() {
            let text = format!("{}: not a folder", path.display());
            return Err(Failure::new("M0102", text).with_hint("create it, or leave PATH out"));
        }
        let found = cluster::read("cluster", objects(args, output)?, &sources, path)?;
        return place_all(found, path, output);
    }
    if let Some(found) = foreign::read_cluster_file(path, &sources)? {
        return place_all(found, path, output);
    }
    let Some(found) = foreign::read(path)? else {
        let text = format!("{}: not a manifest of a supported platform", path.display());
        return Err(Failure::new("M0102", text).with_hint(foreign::SUPPORTED));
    };
    place_all(found, path, output)
}

/// Reads the objects of all functions in a cluster. Asks only for kinds that the cluster knows.
fn objects(args: &Import, output: &Output) -> Result<Vec<Value>, Failure> {
    let kinds = kubectl(args, &["api-resources", "--verbs=list", "-o", "name"])?;
    let kinds = String::from_utf8_lossy(&kinds).into_owned();
    let known: Vec<&str> =
        kinds.lines().filter(|kind| cluster::RESOURCES.contains(&kind.trim())).collect();
    if known.is_empty() {
        let text = "the cluster has no functions of Knative, OpenFaaS, Kubeless, Nuclio or Fission";
        return Err(Failure::new("M0102", text).with_hint("choose another: --context NAME"));
    }
    output.step("cluster", &known.join(", "), None);
    let json = kubectl(args, &["get", &known.join(","), "-o", "json"])?;
    let list = serde_json::from_slice(&json)
        .map_err(|error| Failure::new("M0102", format!("kubectl: not JSON: {error}")))?;
    let found = foreign::items(list);
    if found.is_empty() {
        let hint = "choose the namespace: --namespace NAME";
        return Err(Failure::new("M0102", "the namespace has no functions").with_hint(hint));
    }
    Ok(found)
}

/// Runs kubectl and returns its output.
fn kubectl(args: &Import, words: &[&str]) -> Result<Vec<u8>, Failure> {
    let mut command = Command::new("kubectl");
    command.args(words).stdin(Stdio::null());
    if let Some(context) = &args.context {
        command.arg(format!("--context={context}"));
    }
    if let Some(namespace) = &args.namespace {
        command.arg(format!("--namespace={namespace}"));
    }
    let ended = command.output().map_err(|error| {
        let failure = Failure::of_file("M0102", "kubectl", &error);
        failure.with_hint(
            "install it, or write the objects to a file elsewhere: kubectl get KIND -o yaml",
        )
    })?;
    if ended.status.signal() == Some(SIGINT) {
        return Err(Failure::interrupted());
    }
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("failed");
        return Err(Failure::new("M0102", format!("kubectl: {}", harmless(last))));
    }
    if ended.stdout.len() > OBJECTS_BYTES_MAX {
        let text = format!("kubectl: more than {} MiB of objects", OBJECTS_BYTES_MAX >> 20);
        return Err(Failure::new("M0102", text).with_hint("choose a namespace: --namespace NAME"));
    }
    Ok(ended.stdout)
}

/// Writes each function that was read into its folder.
fn place_all(found: Foreign, path: &Path, output: &Output) -> Result<(), Failure> {
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

/// Returns the folder for a function's `mote.toml`.
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
