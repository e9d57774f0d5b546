//! OpenWhisk: `manifest.yaml` of wskdeploy.

use std::path::Path;

use mote_api::manifest::{CompatName, RuntimeName};
use mote_api::toml_reader::Mistakes;
use serde_json::{Map, Value};

use super::{Described, Foreign, Source, count, not_offered, runtime_of, set, text};

pub(super) fn read(file: &str, document: &Value, folder: &Path) -> Result<Foreign, Mistakes> {
    let mut found = Foreign::default();
    let packages = match &document["project"]["packages"] {
        Value::Null => &document["packages"],
        inside => inside,
    };
    for (package, content) in packages.as_object().into_iter().flatten() {
        let shared = content["inputs"].as_object().or(content["parameters"].as_object());
        for (name, action) in content["actions"].as_object().into_iter().flatten() {
            let mut described = function(file, name, action, folder, shared)?;
            if found.functions.iter().any(|known| known.name() == described.name()) {
                set(&mut described.function.name, super::label(&format!("{package}-{name}")));
            }
            found.functions.push(described);
        }
        for (key, what) in
            [("apis", "an API gateway"), ("dependencies", "a dependency"), ("feeds", "a feed")]
        {
            for name in content[key].as_object().into_iter().flat_map(Map::keys) {
                found.warnings.push(format!("{key}.{name}: {what} is not offered yet"));
            }
        }
        for (key, what) in
            [("sequences", "a sequence"), ("triggers", "a trigger"), ("rules", "a rule")]
        {
            for name in content[key].as_object().into_iter().flat_map(Map::keys) {
                let text = format!("{key}.{name}: {what} is made through the API, with wsk");
                found.warnings.push(text);
            }
        }
    }
    Ok(found)
}

fn function(
    file: &str,
    name: &str,
    action: &Value,
    folder: &Path,
    shared: Option<&Map<String, Value>>,
) -> Result<Described, Mistakes> {
    let mut to = Described::new(name, CompatName::OpenWhisk);
    to.note("compat", "packages … actions");
    let written = text(&action["runtime"]).unwrap_or_default();
    let path = action["function"].as_str().unwrap_or("");
    let by_ending = match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("py") => Some(RuntimeName::Python),
        Some("js" | "mjs" | "cjs") => Some(RuntimeName::Node),
        Some("go") => Some(RuntimeName::Go),
        _ => None,
    };
    let native = action["native"] == true || written == "native" || written == "blackbox";
    let by_word = match written.split(':').next() {
        _ if native => Some(RuntimeName::Exec),
        Some("go") => Some(RuntimeName::Go),
        _ => runtime_of(&written),
    };
    let Some(runtime) = by_word.or(by_ending) else {
        let hint = "offered: python, nodejs, go, and programs with native: true";
        return Err(not_offered(file, name, &format!("runtime {written:?}"), hint));
    };
    let is_node = runtime == RuntimeName::Node;
    set(&mut to.function.runtime, runtime);
    to.note("runtime", format!("runtime: {written}"));
    let main = text(&action["main"]).unwrap_or_else(|| "main".to_owned());
    if let Some(code) = action["code"].as_str() {
        let code_file = match runtime {
            RuntimeName::Node => "index.js",
            RuntimeName::Go => "main.go",
            RuntimeName::Python => "__main__.py",
            RuntimeName::Exec | RuntimeName::Server => {
                let hint = "name the program with function";
                return Err(not_offered(file, name, "code of a native action", hint));
            }
        };
        to.source = Source::Inside(vec![(code_file.to_owned(), code.as_bytes().to_vec())]);
    } else if path.is_empty() || path.ends_with(".zip") || path.contains("://") {
        let hint = "name a source file or a folder with function";
        return Err(not_offered(file, name, &format!("function {path:?}"), hint));
    } else {
        to.source = Source::At(folder.join(path));
    }
    match runtime {
        RuntimeName::Go if main == "main" => set(&mut to.function.entry, "Main".to_owned()),
        RuntimeName::Go => set(&mut to.function.entry, main),
        RuntimeName::Exec => program(&mut to, path),
        _ => entry(&mut to, path, &main, is_node),
    }
    let limits = &action["limits"];
    if let Some(ms) = count(&limits["timeout"]) {
        to.function.limits.timeout_ms = Some(u64::from(ms));
        to.note("timeout", format!("limits.timeout: {ms} ms"));
    }
    if let Some(mib) = count(&limits["memorySize"]) {
        to.function.limits.memory_bytes = Some(u64::from(mib) << 20);
        to.note("memory", format!("limits.memorySize: {mib}"));
    }
    to.function.limits.concurrency = count(&limits["concurrentActivations"]);
    parameters(&mut to, shared, &action["inputs"]);
    let known =
        ["function", "code", "runtime", "main", "limits", "inputs", "web", "web-export", "native"];
    to.ignore_rest(action, &known, "");
    to.ignore_rest(limits, &["timeout", "memorySize", "concurrentActivations"], "limits.");
    Ok(to)
}

/// The program of a native action: the file, or `exec` in the folder.
fn program(to: &mut Described, path: &str) {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or("");
    let is_file = matches!(&to.source, Source::At(path) if path.is_file());
    let command = if is_file { format!("./{name}") } else { "./exec".to_owned() };
    set(&mut to.function.command, vec![command]);
    to.note("command", format!("function: {path}"));
}

/// The entry where the manifest tells; a folder is searched later.
fn entry(to: &mut Described, path: &str, main: &str, is_node: bool) {
    let name = path.rsplit('/').next().unwrap_or("");
    let inside = matches!(to.source, Source::Inside(_));
    let file = match (inside, is_node) {
        (true, true) => "index.js",
        (true, false) => "__main__.py",
        (false, _) if name.contains('.') => name,
        (false, _) if main == "main" => return,
        (false, true) => "index.js",
        (false, false) => "__main__.py",
    };
    let entry = if is_node {
        format!("{file}:{main}")
    } else {
        format!("{}:{main}", file.trim_end_matches(".py"))
    };
    set(&mut to.function.entry, entry);
    to.note("entry", format!("function: {path}, main: {main}"));
}

/// Default parameters, in the one variable the adapter reads them from.
fn parameters(to: &mut Described, shared: Option<&Map<String, Value>>, own: &Value) {
    let mut all = Map::new();
    for (name, value) in shared.into_iter().chain(own.as_object()).flatten() {
        // `{type, value}`, or the value itself.
        let plain = value.as_object().is_none_or(|table| !table.contains_key("type"));
        let value = if plain { value.clone() } else { value["value"].clone() };
        if !value.is_null() {
            all.insert(name.clone(), value);
        }
    }
    if !all.is_empty() {
        to.set_env("OPENWHISK_PARAMETERS", Value::Object(all).to_string());
        to.note("env", "inputs");
    }
}
