//! Go packages: which contract their functions follow, as far as text can tell.

use mote_api::manifest::{CompatName, FunctionManifest, RuntimeName};
use mote_api::toml_reader::Mistakes;
use mote_core::spec::Compat;

use super::contract::{Found, implied};
use super::mistake;
use super::probe::Folder;

/// Go: by the package's name and its exported function.
pub(super) fn infer(folder: &Folder) -> Option<Found> {
    let name = package(folder)?;
    let has = |function: &str| parameters(folder, function);
    let (compat, entry) = match name.as_str() {
        "main" if has("fn").is_some() => (CompatName::TinyFaas, "fn"),
        "main" if has("Main").is_some() => (CompatName::OpenWhisk, "Main"),
        "kubeless" => return refused(folder, CompatName::Kubeless),
        _ if has("Handler").is_some_and(|list| list.contains("nuclio.")) => {
            return refused(folder, CompatName::Nuclio);
        }
        "main" if has("Handler").is_some() => (CompatName::Fission, "Handler"),
        _ if has("New").is_some_and(|list| list.trim().is_empty()) => (CompatName::Knative, "New"),
        "function" => match has("Handle")? {
            list if list.contains("handler.Request") => (CompatName::OpenFaas, "Handle"),
            list if list.starts_with("w ") || list.starts_with("w,") => {
                (CompatName::OpenFaas, "Handle")
            }
            _ => (CompatName::Knative, "Handle"),
        },
        _ => return None,
    };
    let why = format!("package {name}, func {entry}");
    found(compat, entry, why)
}

/// A contract that is recognised and not offered: it is refused by its name later.
fn refused(folder: &Folder, compat: CompatName) -> Option<Found> {
    let name = package(folder)?;
    found(compat, "Handler", format!("package {name}"))
}

/// Files of the package at the top, without its tests.
fn files(folder: &Folder) -> impl Iterator<Item = &str> {
    folder.with_ending(&[".go"]).into_iter().filter(|file| !file.ends_with("_test.go"))
}

fn package(folder: &Folder) -> Option<String> {
    files(folder).find_map(|file| {
        let source = folder.source(file);
        let line = source.lines().find_map(|line| line.strip_prefix("package "))?;
        Some(line.split_whitespace().next().unwrap_or("").to_owned())
    })
}

/// The list of arguments of a top-level Go function, as written.
pub(super) fn parameters(folder: &Folder, name: &str) -> Option<String> {
    let start = format!("func {name}(");
    files(folder).find_map(|file| {
        let source = folder.source(file);
        let line = source.lines().position(|line| line.starts_with(&start))?;
        let list: Vec<&str> = source.lines().skip(line).take(8).collect();
        Some(list.join(" ")[start.len()..].split(')').next().unwrap_or("").to_owned())
    })
}

pub(super) fn entry(folder: &Folder, compat: Compat) -> Result<String, Mistakes> {
    let names: &[&str] = match compat {
        Compat::TinyFaas => &["fn"],
        Compat::OpenWhisk => &["Main"],
        Compat::Fission => &["Handler"],
        Compat::Knative => &["New", "Handle"],
        _ => &["Handle"],
    };
    let found = names.iter().find(|name| parameters(folder, name).is_some());
    found.map(|name| (*name).to_owned()).ok_or_else(|| {
        let text = format!("{}: no .go file has func {}", folder.stem(), names.join(" or func "));
        let hint = format!("write entry = \"…\" in mote.toml: what {} calls", compat.as_str());
        mistake("M0112", text, Some(hint))
    })
}

fn found(compat: CompatName, entry: &str, why: String) -> Option<Found> {
    let function = FunctionManifest {
        compat: implied(compat),
        runtime: implied(RuntimeName::Go),
        entry: implied(entry.to_owned()),
        ..FunctionManifest::default()
    };
    Some(Found { function, why })
}
