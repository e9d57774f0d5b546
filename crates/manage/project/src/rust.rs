//! Functions in Rust: a build on the user's machine makes the program or the WebAssembly component,
//! and only this file is deployed.

use std::path::Path;

use mote_spec::Runtime;
use mote_spec::manifest::{FunctionManifest, RuntimeName};
use mote_spec::toml_reader::Mistakes;

use super::mistakes::{escaped, mistake};
use super::probe::Folder;
use super::{Code, Planned};

/// The file that describes a package of cargo.
const MANIFEST: &str = "Cargo.toml";
/// The build of a Rust function whose manifest names no other one.
const BUILD: &str = "cargo build --release --target-dir target";

/// The same for a WebAssembly function whose code is a package of cargo.
pub const WASM_BUILD: &str = "cargo build --release --target wasm32-wasip2 --target-dir target";
/// Where cargo puts a component.
const COMPONENTS: &str = "target/wasm32-wasip2/release";

/// The command that builds a function of the project in `folder` before its deploy, if there is one.
pub fn build_command<'a>(function: &'a FunctionManifest, folder: &Path) -> Option<&'a str> {
    if let Some(command) = &function.build_command {
        return Some(command);
    }
    match function.runtime.as_ref()?.value {
        RuntimeName::Rust => Some(BUILD),
        RuntimeName::Wasm if function.entry.is_none() => {
            Folder::read(folder).is_ok_and(|folder| builds_component(&folder)).then_some(WASM_BUILD)
        }
        _ => None,
    }
}

/// Whether the code of a WebAssembly function is a package of cargo, and not a built file.
fn builds_component(folder: &Folder) -> bool {
    folder.has(MANIFEST) && folder.with_ending(&[".wasm"]).is_empty()
}

/// The component that cargo makes of the package in this folder, or `None` if the folder has no
/// package, or has a built file next to it.
pub(super) fn component(folder: &Folder) -> Option<String> {
    if !builds_component(folder) {
        return None;
    }
    let package: toml::Value = toml::from_str(&folder.source(MANIFEST)).ok()?;
    let name = package.get("package")?.get("name")?.as_str()?;
    // A library has the name of its crate, and a program that of its package.
    let file = match package.get("lib") {
        Some(library) => {
            let named = library.get("name").and_then(toml::Value::as_str).unwrap_or(name);
            named.replace('-', "_")
        }
        None => name.to_owned(),
    };
    Some(format!("{COMPONENTS}/{file}.wasm"))
}

/// Fails if the component is not there.
pub(super) fn check_component(folder: &Folder, component: &str) -> Result<(), Mistakes> {
    if folder.has_path(component) {
        return Ok(());
    }
    let text = format!("{} is not there", escaped(component));
    let hint = format!("build it: {WASM_BUILD}; or name the file with entry in mote.toml");
    Err(mistake("M0113", text, Some(hint)))
}

/// The program that cargo makes of the package in this folder.
pub(super) fn program(folder: &Folder) -> Result<String, Mistakes> {
    let source = folder.source(MANIFEST);
    let package: Option<toml::Value> = toml::from_str(&source).ok();
    let name = package.as_ref().and_then(|package| package.get("package")?.get("name")?.as_str());
    let name = name.ok_or_else(|| {
        let text = "Cargo.toml: there is none, or it names no package".to_owned();
        let hint =
            "write the path of the program: command = [\"target/release/NAME\"] in mote.toml";
        mistake("M0110", text, Some(hint.to_owned()))
    })?;
    Ok(format!("target/release/{name}"))
}

/// Fails if the program of a Rust function is not there.
pub(super) fn check_built(folder: &Folder, command: &[String]) -> Result<(), Mistakes> {
    let program = command.first().map_or("", String::as_str);
    if program.starts_with('/') || folder.has_path(program.trim_start_matches("./")) {
        return Ok(());
    }
    let text = format!("{} is not there", escaped(program));
    let hint = "build it: cargo build --release; or name the program with command in mote.toml";
    Err(mistake("M0113", text, Some(hint.to_owned())))
}

/// Makes the built program in the folder at `path` the only code of a Rust function. The sources and
/// what cargo keeps next to the program stay on the user's machine. The same holds for a component
/// that cargo has built.
pub(super) fn take_program(path: &Path, planned: &mut Planned) {
    let spec = &mut planned.spec;
    if let (Runtime::Wasm, Some(file)) = (spec.runtime, built_component(&spec.entry)) {
        planned.code = Some(Code::At(path.join(&spec.entry)));
        spec.entry = file.to_owned();
        return;
    }
    let (Runtime::Rust, Some(program)) = (spec.runtime, spec.command.first_mut()) else { return };
    let file = path.join(&*program);
    if let (false, Some(name)) = (program.starts_with('/'), file.file_name()) {
        *program = format!("./{}", name.to_string_lossy());
        planned.code = Some(Code::At(file));
    }
}

/// The file name of an entry that names a component which cargo has built.
fn built_component(entry: &str) -> Option<&str> {
    entry.strip_prefix(COMPONENTS)?.strip_prefix('/').filter(|file| !file.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        for (file, text) in files {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            std::fs::write(path, text).expect("written");
        }
        dir
    }

    fn component_of(files: &[(&str, &str)]) -> Option<String> {
        component(&Folder::read(folder(files).path()).expect("a folder"))
    }

    #[test]
    fn the_component_has_the_name_of_the_package_or_its_library() {
        let package = |rest: &str| format!("[package]\nname = \"attic-alarm\"\n{rest}");
        for (rest, expected) in [
            ("", "attic-alarm"),
            ("[lib]\ncrate-type = [\"cdylib\"]\n", "attic_alarm"),
            ("[lib]\nname = \"bell\"\n", "bell"),
        ] {
            let found = component_of(&[("Cargo.toml", &package(rest))]);
            assert_eq!(found, Some(format!("{COMPONENTS}/{expected}.wasm")), "{rest}");
        }
        assert_eq!(component_of(&[("Cargo.toml", "[workspace]\n")]), None);
        assert_eq!(component_of(&[("Cargo.toml", "no TOML")]), None);
        // A built file takes precedence over its source.
        assert_eq!(component_of(&[("Cargo.toml", &package("")), ("a.wasm", "")]), None);
    }

    #[test]
    fn only_the_component_is_deployed() {
        let package = ("Cargo.toml", "[package]\nname = \"bell\"\n");
        let manifest = ("mote.toml", "version = 1\nname = \"bell\"\nruntime = \"wasm\"\n");
        let options = crate::Options::default();
        let unbuilt = folder(&[package, manifest]);
        let wrong = crate::read(unbuilt.path(), options).expect_err("it is not built").0.remove(0);
        assert_eq!(wrong.code, "M0113");
        assert!(wrong.hint.is_some_and(|hint| hint.contains(WASM_BUILD)));
        let file = format!("{COMPONENTS}/bell.wasm");
        let built = folder(&[package, manifest, (&file, "\0asm")]);
        let planned = crate::read(built.path(), options).expect("a function").functions.remove(0);
        assert_eq!(planned.spec.entry, "bell.wasm");
        assert!(matches!(planned.code, Some(Code::At(path)) if path == built.path().join(&file)));
        let read = |folder: &Path| {
            let manifest = crate::load_manifest(folder).expect("read").expect("there is one");
            build_command(&manifest.functions[0], folder).map(str::to_owned)
        };
        assert_eq!(read(built.path()).as_deref(), Some(WASM_BUILD));
        let ready = folder(&[package, manifest, ("bell.wasm", "\0asm")]);
        assert_eq!(read(ready.path()), None, "the file is built already");
    }
}
