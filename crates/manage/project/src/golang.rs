//! Infers from the text of Go packages which contract their functions follow.

use mote_spec::manifest::{FunctionManifest, PlatformName, RuntimeName};
use mote_spec::toml_reader::Mistakes;
use mote_spec::{FunctionSpec, Platform, Runtime, TEMPLATE_GO_CLASSIC};

use super::found::{Found, implied};
use super::mistakes::{escaped, mistake};
use super::probe::Folder;

/// The argument types by which the platforms' functions are recognised.
const NUCLIO_EVENT: &str = "nuclio.Event";
const KUBELESS_EVENT: &str = "functions.Event";

/// Infers the contract of a Go package from its name and its exported function.
pub(super) fn infer(folder: &Folder) -> Option<Found> {
    let name = package(folder)?;
    for (compat, sign) in
        [(PlatformName::Nuclio, NUCLIO_EVENT), (PlatformName::Kubeless, KUBELESS_EVENT)]
    {
        if let [entry, ..] = takes(folder, sign).as_slice() {
            return found(compat, entry, format!("package {name}, func {entry}"));
        }
    }
    let has = |function: &str| parameters(folder, function);
    let (compat, entry) = match name.as_str() {
        "main" if has("fn").is_some() => (PlatformName::TinyFaas, "fn"),
        "main" if has("Main").is_some() => (PlatformName::OpenWhisk, "Main"),
        "main" if has("Handler").is_some() => (PlatformName::Fission, "Handler"),
        _ if has("New").is_some_and(|list| list.trim().is_empty()) => {
            (PlatformName::Knative, "New")
        }
        "function" => match has("Handle")? {
            list if takes_bytes(&list) => {
                let why = format!("package {name}, func Handle({list})");
                let mut found = found(PlatformName::OpenFaas, "Handle", why)?;
                found.function.template = implied(TEMPLATE_GO_CLASSIC.to_owned());
                return Some(found);
            }
            list if list.contains("handler.Request") => (PlatformName::OpenFaas, "Handle"),
            list if list.starts_with("w ") || list.starts_with("w,") => {
                (PlatformName::OpenFaas, "Handle")
            }
            _ => (PlatformName::Knative, "Handle"),
        },
        _ => return None,
    };
    let why = format!("package {name}, func {entry}");
    found(compat, entry, why)
}

/// Returns whether a function takes the bytes of a body as its only argument.
fn takes_bytes(list: &str) -> bool {
    list.trim_end().ends_with("[]byte") && !list.contains(',')
}

/// Refuses an OpenFaaS function whose arguments are not those of its template.
pub(super) fn check_open_faas(folder: &Folder, spec: &FunctionSpec) -> Result<(), Mistakes> {
    let Some(list) = parameters(folder, &spec.entry) else { return Ok(()) };
    let classic = spec.answered_by() == Runtime::Exec;
    let name = spec.name.as_str();
    let entry = &spec.entry;
    let list = escaped(list.trim());
    let (text, hint) = match (classic, takes_bytes(&list)) {
        (true, false) => (
            format!("{name}: template go calls {entry}(req []byte), this is {entry}({list})"),
            "a function with an http.ResponseWriter or a handler.Request belongs to another template: \
             write lang: golang-middleware or golang-http in stack.yml, and no template in mote.toml",
        ),
        (false, true) => (
            format!("{name}: {entry}({list}) takes bytes, which only template go passes"),
            "write lang: go in stack.yml, or template = \"go\" in mote.toml",
        ),
        _ => return Ok(()),
    };
    Err(mistake("M0305", text, Some(hint.to_owned())))
}

/// Returns the exported top-level functions whose arguments contain `sign`. A function with the name
/// Handler comes first.
fn takes(folder: &Folder, sign: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for file in files(folder) {
        let source = folder.source(file);
        for line in source.lines() {
            let name = line.strip_prefix("func ").and_then(|rest| rest.split('(').next());
            let Some(name) = name.filter(|name| name.starts_with(|c: char| c.is_ascii_uppercase()))
            else {
                continue;
            };
            if parameters(folder, name).is_some_and(|list| list.contains(sign)) {
                names.push(name.to_owned());
            }
        }
    }
    names.sort_by_key(|name| name != "Handler");
    names
}

/// Refuses a Nuclio function that uses a feature of the platform which a node does not have.
pub(super) fn check_nuclio(folder: &Folder, spec: &FunctionSpec) -> Result<(), Mistakes> {
    for (sign, hint) in [
        (
            "Platform.CallFunction(",
            "send an HTTP request to the other function instead, and allow it with [allow] net",
        ),
        (
            ".DataBinding[",
            "open the connection in InitContext instead, and allow it with [allow] net",
        ),
    ] {
        let Some(file) = files(folder).find(|file| folder.source(file).contains(sign)) else {
            continue;
        };
        let part = sign.trim_end_matches(['(', '[']).trim_start_matches('.');
        let text = format!("{}: {file}: context.{part} is not supported", spec.name);
        return Err(mistake("M0305", text, Some(hint.to_owned())));
    }
    Ok(())
}

/// Returns the files of the package at the top of the folder, except its tests.
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

/// Returns the argument list of a top-level Go function as it is written.
pub(super) fn parameters(folder: &Folder, name: &str) -> Option<String> {
    let start = format!("func {name}(");
    files(folder).find_map(|file| {
        let source = folder.source(file);
        let line = source.lines().position(|line| line.starts_with(&start))?;
        let list: Vec<&str> = source.lines().skip(line).take(8).collect();
        Some(list.join(" ")[start.len()..].split(')').next().unwrap_or("").to_owned())
    })
}

pub(super) fn entry(folder: &Folder, compat: Platform) -> Result<String, Mistakes> {
    let sign = match compat {
        Platform::Nuclio => Some(NUCLIO_EVENT),
        Platform::Kubeless => Some(KUBELESS_EVENT),
        _ => None,
    };
    let taking = sign.map(|sign| takes(folder, sign)).unwrap_or_default();
    if let [name, ..] = taking.as_slice() {
        return Ok(name.clone());
    }
    let names: &[&str] = match compat {
        Platform::TinyFaas => &["fn"],
        Platform::OpenWhisk => &["Main"],
        Platform::Fission | Platform::Nuclio | Platform::Kubeless => &["Handler"],
        Platform::Knative => &["New", "Handle"],
        _ => &["Handle"],
    };
    let found = names.iter().find(|name| parameters(folder, name).is_some());
    found.map(|name| (*name).to_owned()).ok_or_else(|| {
        let text = format!("{}: no .go file has func {}", folder.stem(), names.join(" or func "));
        let hint = format!(
            "write entry = \"…\" in mote.toml: the function that {} calls",
            compat.as_str()
        );
        mistake("M0112", text, Some(hint))
    })
}

fn found(compat: PlatformName, entry: &str, why: String) -> Option<Found> {
    let function = FunctionManifest {
        compat: implied(compat),
        runtime: implied(RuntimeName::Go),
        entry: implied(entry.to_owned()),
        ..FunctionManifest::default()
    };
    Some(Found { function, why })
}
