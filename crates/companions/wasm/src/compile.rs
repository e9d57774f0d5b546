//! Turns the file of a function into machine code, and finds out whether a node can run it.
//!
//! This is the only module that reads a file that a user wrote. It runs in the sandbox for builds.
//! The mistakes that it finds are printed as one line of JSON, which the deploy shows.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use wasmtime::component::Component;
use wasmtime::component::types::ComponentItem;
use wasmtime::{Engine, Module};
use wasmtime_wasi::p2::bindings::CommandPre;
use wasmtime_wasi_http::p2::bindings::ProxyPre;

use crate::engine::{self, Facts, Shape};
use crate::imports::{Unusable, component_linker, module_linker, text_of};

/// The files of a build.
pub(crate) const MACHINE_CODE: &str = "function.cwasm";
const FACTS: &str = "function.json";
/// The largest file that is compiled. Interpreters of other languages, compiled to WebAssembly,
/// have 10 to 40 MiB.
const BYTES_MAX: u64 = 100 << 20;
/// The maximum number of imports. They are linked one by one.
const IMPORTS_MAX: usize = 2_000;

pub(crate) fn main(source: &Path, folder: &Path) -> ExitCode {
    let written = compile(source).and_then(|(code, facts)| {
        let told = serde_json::to_vec(&facts).expect("it has only string keys");
        fs::write(folder.join(MACHINE_CODE), code)
            .and_then(|()| fs::write(folder.join(FACTS), told))
            .map_err(|error| ("unwritable", format!("cannot write the machine code: {error}")))
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err((problem, text)) => {
            let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            println!("{}", json!({"problem": problem, "text": text}));
            ExitCode::FAILURE
        }
    }
}

/// The facts that a build has found out, if its result is in `folder`.
pub(crate) fn facts(folder: &Path) -> Option<Facts> {
    serde_json::from_slice(&fs::read(folder.join(FACTS)).ok()?).ok()
}

/// Compiles a file. The error is the kind of the problem and a text for the user.
pub(crate) fn compile(source: &Path) -> Result<(Vec<u8>, Facts), Unusable> {
    let bytes = read_file(source, BYTES_MAX)?;
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    if !bytes.starts_with(b"\0asm") {
        let what = if Engine::detect_precompiled(&bytes).is_some() {
            "is already machine code, which a node never loads: deploy the .wasm file"
        } else if bytes.trim_ascii_start().starts_with(b"(") {
            "is the text format: turn it into a .wasm file, for example with wasm-tools parse"
        } else {
            "does not begin like a WebAssembly file (\\0asm)"
        };
        return Err(("not-wasm", format!("{name} {what}")));
    }
    let failed = |error: wasmtime::Error| ("invalid", format!("{name}: {}", text_of(&error)));
    let engine = engine::for_builds().map_err(failed)?;
    // The word after the magic number is 1 for core modules. Its upper half gives the kind.
    match bytes.get(6..8) {
        Some([0, 0]) => module(&engine, &bytes, &name),
        _ => component(&engine, &bytes, &name),
    }
}

fn component(engine: &Engine, bytes: &[u8], name: &str) -> Result<(Vec<u8>, Facts), Unusable> {
    let invalid = |error: wasmtime::Error| ("invalid", format!("{name}: {}", text_of(&error)));
    let component = Component::from_binary(engine, bytes).map_err(invalid)?;
    let kind = component.component_type();
    let imports: Vec<_> = kind.imports(engine).collect();
    if imports.len() > IMPORTS_MAX {
        let count = imports.len();
        return Err(("imports", format!("{name} has {count} imports; the limit is {IMPORTS_MAX}")));
    }
    let linker = component_linker(engine).map_err(invalid)?;
    let pre = match linker.instantiate_pre(&component) {
        Ok(pre) => pre,
        Err(error) => {
            let text = text_of(&error);
            let mut missing = imports.iter().map(|(import, _)| *import);
            let missing = missing.find(|import| text.contains(&format!("`{import}`")));
            // The cause says more if the interface is known but one of its parts is not.
            let cause = error.root_cause().to_string();
            return Err(match missing {
                Some(import) if cause.contains("not found in the linker") => {
                    ("import", format!("{name} imports {import}, which this node does not offer"))
                }
                Some(import) => ("import", format!("{name} imports {import}: {cause}")),
                None => ("import", format!("{name} cannot be linked: {text}")),
            });
        }
    };
    let shape = if ProxyPre::new(pre.clone()).is_ok() {
        Shape::Http
    } else if CommandPre::new(pre).is_ok() {
        Shape::Command
    } else {
        let exports: Vec<String> = kind
            .exports(engine)
            .take(10)
            .map(|(export, item)| match item.ty {
                ComponentItem::ComponentInstance(_) => export.to_owned(),
                _ => format!("{export} (not an interface)"),
            })
            .collect();
        let has = if exports.is_empty() { "nothing".to_owned() } else { exports.join(", ") };
        let text = format!(
            "{name} exports {has}, but a function exports wasi:http/incoming-handler@0.2 or \
             wasi:cli/run@0.2"
        );
        return Err(("export", text));
    };
    let needs = component.resources_required();
    let facts = Facts {
        engine: engine::VERSION.to_owned(),
        shape,
        memories: needs.as_ref().map(|needs| needs.num_memories),
        tables: needs.as_ref().map(|needs| needs.num_tables),
        table_elements: needs.as_ref().and_then(|needs| needs.max_initial_table_size).unwrap_or(0),
    };
    Ok((component.serialize().map_err(invalid)?, facts))
}

fn module(engine: &Engine, bytes: &[u8], name: &str) -> Result<(Vec<u8>, Facts), Unusable> {
    let invalid = |error: wasmtime::Error| ("invalid", format!("{name}: {}", text_of(&error)));
    let module = Module::from_binary(engine, bytes).map_err(invalid)?;
    let count = module.imports().len();
    if count > IMPORTS_MAX {
        return Err(("imports", format!("{name} has {count} imports; the limit is {IMPORTS_MAX}")));
    }
    let linker = module_linker(engine).map_err(invalid)?;
    let known = |import: &wasmtime::ImportType<'_>| import.module() == "wasi_snapshot_preview1";
    if let Some(import) = module.imports().find(|import| !known(import)) {
        let text = format!(
            "{name} imports {} from {}, but a core module may import only WASI preview 1 \
             (wasi_snapshot_preview1)",
            import.name(),
            import.module()
        );
        return Err(("import", text));
    }
    if module.get_export("_start").and_then(|export| export.func().cloned()).is_none() {
        let text = format!(
            "{name} is a core module without the function _start: a function is a program of WASI \
             preview 1, or a component"
        );
        return Err(("export", text));
    }
    if let Err(error) = linker.instantiate_pre(&module) {
        return Err(("import", format!("{name} cannot be linked: {}", text_of(&error))));
    }
    let needs = module.resources_required();
    let facts = Facts {
        engine: engine::VERSION.to_owned(),
        shape: Shape::Module,
        memories: Some(needs.num_memories),
        tables: Some(needs.num_tables),
        table_elements: needs.max_initial_table_size.unwrap_or(0),
    };
    Ok((module.serialize().map_err(invalid)?, facts))
}

/// Reads a file that may have at most `bytes_max` bytes.
fn read_file(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Unusable> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let unreadable = |error: std::io::Error| ("unreadable", format!("{name}: {error}"));
    let bytes = fs::metadata(path).map_err(unreadable)?.len();
    if bytes > bytes_max {
        let (has, most) = (bytes >> 20, bytes_max >> 20);
        return Err(("too-large", format!("{name} has {has} MiB, and the limit is {most} MiB")));
    }
    fs::read(path).map_err(unreadable)
}
