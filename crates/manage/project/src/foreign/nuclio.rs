//! Reads Nuclio's `function.yaml`, and the same document in a comment block of a source file that
//! begins with `@nuclio.configure`.

use std::fs;
use std::path::Path;

use mote_spec::manifest::{PlatformName, RuntimeName};
use mote_spec::toml_reader::Mistakes;
use mote_store::source;
use serde_json::Value;

use super::{
    Described, Foreign, Source, count, documents, group, not_offered, object_name, runtime_of, set,
    text,
};

/// The port on which the processor in an image listens.
const PROCESSOR_PORT: u16 = 8080;
const MARK: &str = "@nuclio.configure";
const ENDINGS: [&str; 7] = ["py", "js", "mjs", "cjs", "sh", "rb", "go"];

pub(super) fn read(file: &str, all: &[Value], folder: &Path) -> Result<Foreign, Mistakes> {
    let mut found = Foreign::default();
    for document in all {
        let kind = document["kind"].as_str();
        let ours = group(document) == "nuclio.io" || is_export(document) || is_bare(file, document);
        if ours && kind.is_none_or(|kind| kind.contains("Function")) {
            found.add(&shown_name(document, folder), function(file, document, folder));
        } else if !super::routes::is_read(document) {
            found.warnings.push(format!("ignored: {}", object_name(document)));
        }
    }
    Ok(found)
}

/// Returns whether this is a function in the form that nuctl prints, which is not a complete Kubernetes
/// object.
pub(super) fn is_export(document: &Value) -> bool {
    let spec = &document["spec"];
    document["apiVersion"].is_null()
        && document["metadata"]["name"].is_string()
        && spec["runtime"].is_string()
        && spec["handler"].is_string()
}

/// Returns whether this is a `function.yaml` without `apiVersion`. The platform does not require that
/// key.
pub(super) fn is_bare(file: &str, document: &Value) -> bool {
    let keys = ["runtime", "handler", "build", "triggers"];
    matches!(file, "function.yaml" | "function.yml")
        && document["apiVersion"].is_null()
        && document["kind"].as_str().is_none_or(|kind| kind == "NuclioFunction")
        && keys.iter().any(|key| !document["spec"][key].is_null())
}

/// Returns the functions of a document that contains several. nuctl prints such a document by name or
/// for a project.
pub(super) fn exported(document: &Value) -> Option<Vec<&Value>> {
    let by_name = document["functions"].as_object().or_else(|| document.as_object())?;
    let all: Vec<&Value> = by_name.values().collect();
    (!all.is_empty() && all.iter().all(|one| is_export(one))).then_some(all)
}

/// Reads a function that a client sent to a node. It must not name a file there.
pub(super) fn sent(document: &Value) -> Result<Described, Mistakes> {
    let spec = &document["spec"];
    let name = text(&document["metadata"]["name"]).unwrap_or_default();
    let handler = text(&spec["handler"]).unwrap_or_default();
    let (module, _) = handler.split_once(':').unwrap_or((&handler, ""));
    let plain = |module: &str| module.is_empty() || super::is_plain_name(module);
    let entry = spec["build"]["codeEntryType"].as_str();
    let elsewhere = !matches!(entry, None | Some("" | "sourceCode" | "image"));
    if elsewhere || spec["build"]["path"].is_string() || !plain(module) {
        let hint = "send the code in build.functionSourceCode, as base64";
        return Err(not_offered("function", &name, "code at another address", hint));
    }
    let code = spec["build"]["functionSourceCode"].as_str().and_then(super::kubeless::decoded);
    if code.is_some_and(|code| block(&String::from_utf8_lossy(&code)).is_some()) {
        // A node does not read YAML, so it refuses a function with such a block.
        let hint = format!(
            "put what the block says into spec and leave the line with {MARK} out, or deploy the \
             file with mote deploy, which reads the block"
        );
        return Err(not_offered(
            "function",
            &name,
            &format!("a block {MARK} in the source"),
            &hint,
        ));
    }
    function("function", document, Path::new("/nonexistent"))
}

/// Reads the configuration block of a source file, if the file has one.
pub(super) fn inline(path: &Path) -> Result<Option<Foreign>, Mistakes> {
    if !path.extension().is_some_and(|end| ENDINGS.iter().any(|known| end == *known)) {
        return Ok(None);
    }
    let source = source::text(path).unwrap_or_default();
    let Some(block) = block(&source) else { return Ok(None) };
    let shown = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
    let parsed = documents(&shown, &block)?;
    // A block without `apiVersion` looks like a list of functions by name, but its content is the
    // function itself.
    let document =
        parsed.first().map(|value| if is_export(value) { value } else { &value["function.yaml"] });
    let Some(document) = document.filter(|document| document.is_object()) else {
        return Ok(None);
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut document = document.clone();
    if document["spec"]["runtime"].is_null()
        && let Some(runtime) = runtime_of_file(path)
    {
        document["spec"]["runtime"] = runtime.into();
    }
    let handler = text(&document["spec"]["handler"]).unwrap_or_default();
    if handler.is_empty()
        && let Some(handler) = handler_in(path)
    {
        document["spec"]["handler"] = handler.into();
    }
    let document = &document;
    let mut described = function(&shown, document, folder)?;
    if document["metadata"]["name"].is_null() {
        described.function.name = None;
    }
    described.source = Source::At(path.to_owned());
    let file = format!("{shown} ({MARK})");
    let mut found = Foreign { file, functions: vec![described], ..Foreign::default() };
    super::routes::settle(&mut found);
    Ok(Some(found))
}

/// Returns the runtime that a file's extension implies. It is used if the block names none.
fn runtime_of_file(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()? {
        "py" => Some("python"),
        "js" | "mjs" | "cjs" => Some("nodejs"),
        "go" => Some("golang"),
        "sh" => Some("shell"),
        _ => None,
    }
}

/// Returns the handler of a file if nothing names a handler. By the platform's default, the handler's
/// module is the file's name. A function in Go has no such default, because it is found by its
/// arguments.
fn handler_in(file: &Path) -> Option<String> {
    match runtime_of_file(file)? {
        "python" | "nodejs" => Some(format!("{}:handler", file.file_stem()?.to_str()?)),
        "shell" => Some(file.file_name()?.to_str()?.to_owned()),
        _ => None,
    }
}

/// The only source file of a folder.
fn only_source(folder: &Path) -> Option<std::path::PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let mut sources = entries.filter(|path| path.is_file() && runtime_of_file(path).is_some());
    sources.next().filter(|_| sources.next().is_none())
}

/// Reads the configuration block of a folder's only source file, if it has a block.
pub(super) fn inline_in(folder: &Path) -> Result<Option<Foreign>, Mistakes> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_file())
        .collect();
    files.sort_unstable();
    for file in files {
        if let Some(mut found) = inline(&file)? {
            found.functions[0].source = Source::Beside;
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns the comment lines after the mark without their comment characters.
fn block(source: &str) -> Option<String> {
    let (_, behind) = source.split_once(MARK)?;
    let mut text = String::new();
    for line in behind.lines().skip(1) {
        let line = line.trim_start();
        let Some(rest) = line.strip_prefix("//").or_else(|| line.strip_prefix('#')) else { break };
        text.push_str(rest.strip_prefix(' ').unwrap_or(rest));
        text.push('\n');
    }
    Some(text)
}

/// Returns the name of a function for messages. A function without a name has the name of its folder.
fn shown_name(document: &Value, folder: &Path) -> String {
    let own = text(&document["metadata"]["name"]).filter(|name| !name.is_empty());
    let of_folder = || {
        let folder = fs::canonicalize(folder).ok()?;
        Some(folder.file_name()?.to_string_lossy().into_owned())
    };
    own.or_else(of_folder).unwrap_or_default()
}

fn function(file: &str, document: &Value, folder: &Path) -> Result<Described, Mistakes> {
    let spec = &document["spec"];
    let name = shown_name(document, folder);
    let mut to = Described::new(&name, PlatformName::Nuclio);
    if text(&document["metadata"]["name"]).is_none_or(|name| name.is_empty()) {
        to.function.name = None;
    }
    to.note("compat", "apiVersion: nuclio.io/v1");
    if spec["build"]["codeEntryType"] == "image" {
        let image = text(&spec["image"]).filter(|image| !image.is_empty());
        let Some(image) = image else { return Err(super::no_code(file, &name)) };
        // The image contains the platform's processor, which is a server.
        to.set_image(&image, "spec.image");
        set(&mut to.function.port, PROCESSOR_PORT);
    } else {
        runtime(&mut to, file, &name, spec, folder)?;
    }
    for (key, value) in [
        ("NUCLIO_FUNCTION_NAME", &document["metadata"]["name"]),
        ("NUCLIO_FUNCTION_DESCRIPTION", &spec["description"]),
        ("NUCLIO_FUNCTION_HANDLER", &spec["handler"]),
    ] {
        if let Some(value) = text(value).filter(|value| !value.is_empty()) {
            to.set_env(key, value);
        }
    }
    to.read_annotations(&document["metadata"]["annotations"]);
    to.set_env_list(&spec["env"], "spec.env");
    to.set_resources(&spec["resources"]["limits"], "spec.resources.limits");
    to.set_timeout(&spec["eventTimeout"], "spec.eventTimeout");
    if let Some(seconds) = count(&spec["readinessTimeoutSeconds"]).filter(|seconds| *seconds > 0) {
        to.function.limits.init_timeout_ms = Some(u64::from(seconds) * 1000);
        to.note("init_timeout", "spec.readinessTimeoutSeconds");
    }
    let fixed = count(&spec["replicas"]);
    let min = count(&spec["minReplicas"]);
    let max = count(&spec["maxReplicas"]);
    to.set_scale(fixed.or(min), fixed.or(max), "spec.replicas, minReplicas, maxReplicas");
    triggers(&mut to, &spec["triggers"]);
    let is_go = to.function.runtime.as_ref().is_some_and(|one| one.value == RuntimeName::Go);
    if is_go && spec["dataBindings"].as_object().is_some_and(|all| !all.is_empty()) {
        let hint = "open the connection in InitContext instead, and allow it with [allow] net";
        return Err(not_offered(file, &name, "spec.dataBindings", hint));
    }
    for command in spec["build"]["commands"].as_array().into_iter().flatten() {
        let command = text(command).unwrap_or_default();
        // These commands are not needed, because the build itself fetches the modules that the code
        // imports.
        if is_go && ["go get ", "go mod "].iter().any(|start| command.starts_with(start)) {
            continue;
        }
        if to.packages.add_command(&command).is_err() {
            let hint = "mote does not build images: it only follows pip and npm install commands; install \
                        other programs on the node and remove the command";
            let what = format!("build.commands: `{}`", super::escaped(&command));
            return Err(not_offered(file, &name, &what, hint));
        }
    }
    for key in ["requirements", "dependencies"] {
        for package in spec["build"][key].as_array().into_iter().flatten() {
            let package = text(package).unwrap_or_default();
            let runtime = to.function.runtime.as_ref().map(|runtime| runtime.value);
            let added = match runtime {
                Some(RuntimeName::Python) => {
                    to.packages.add_command(&format!("pip install {package}"))
                }
                Some(RuntimeName::Node) => {
                    to.packages.add_command(&format!("npm install {package}"))
                }
                _ => Err(()),
            };
            if added.is_err() {
                let hint = "write the name of a package, with or without a version";
                let what = format!("build.{key}: `{}`", super::escaped(&package));
                return Err(not_offered(file, &name, &what, hint));
            }
        }
    }
    if !to.packages.is_empty() {
        to.note("packages", "spec.build.commands");
    }
    let known =
        ["commands", "requirements", "dependencies", "path", "functionSourceCode", "codeEntryType"];
    to.ignore_rest(&spec["build"], &known, "build.");
    let known = [
        "handler",
        "runtime",
        "env",
        "resources",
        "eventTimeout",
        "readinessTimeoutSeconds",
        "replicas",
        "minReplicas",
        "maxReplicas",
        "triggers",
        "build",
        "runtimeAttributes",
        "description",
        "image",
    ];
    to.ignore_rest(spec, &known, "");
    Ok(to)
}

fn runtime(
    to: &mut Described,
    file: &str,
    name: &str,
    spec: &Value,
    folder: &Path,
) -> Result<(), Mistakes> {
    let beside = match spec["build"]["path"].as_str() {
        Some(path) => super::inside(file, name, folder, path)?,
        None => folder.to_owned(),
    };
    let mut written = text(&spec["runtime"]).unwrap_or_default();
    let mut handler = text(&spec["handler"]).unwrap_or_default();
    // If the runtime or the handler is missing, the platform derives it from the source.
    if written.is_empty() || handler.is_empty() {
        let only = if beside.is_file() { Some(beside.clone()) } else { only_source(&beside) };
        if let Some(only) = only {
            if written.is_empty() {
                written = runtime_of_file(&only).unwrap_or_default().to_owned();
            }
            if handler.is_empty() {
                handler = handler_in(&only).unwrap_or_default();
            }
        }
    }
    let (module, function) = handler.split_once(':').unwrap_or((&handler, "handler"));
    to.note("runtime", format!("spec.runtime: {written}"));
    to.note("entry", format!("spec.handler: {handler}"));
    let stem = module.trim_end_matches(".py").trim_end_matches(".js");
    if spec["build"]["path"].is_string() {
        to.source = Source::At(beside.clone());
    }
    let file_name = match runtime_of(&written) {
        Some(RuntimeName::Python) => {
            set(&mut to.function.runtime, RuntimeName::Python);
            let stem = if stem.is_empty() { "main" } else { stem };
            set(&mut to.function.entry, format!("{stem}:{function}"));
            format!("{stem}.py")
        }
        Some(RuntimeName::Node) => {
            set(&mut to.function.runtime, RuntimeName::Node);
            let own = format!("{stem}.js");
            let has = |name: &str| !name.starts_with('.') && beside.join(name).is_file();
            let found = if has(&own) { own } else { "handler.js".to_owned() };
            set(&mut to.function.entry, format!("{found}:{function}"));
            found
        }
        Some(RuntimeName::Go) => {
            set(&mut to.function.runtime, RuntimeName::Go);
            // The handler is PACKAGE:FUNCTION or only FUNCTION. If it is empty, the function is found
            // by its arguments.
            let function = handler.rsplit(':').next().unwrap_or_default();
            to.function.entry = None;
            if !function.is_empty() {
                set(&mut to.function.entry, function.to_owned());
            }
            "main.go".to_owned()
        }
        _ if written == "shell" => {
            set(&mut to.function.runtime, RuntimeName::Exec);
            let arguments = text(&spec["runtimeAttributes"]["arguments"]).unwrap_or_default();
            let own = beside.join(module).is_file();
            let program = if own { format!("./{module}") } else { module.to_owned() };
            let words = arguments.split_whitespace().map(str::to_owned);
            set(&mut to.function.command, std::iter::once(program).chain(words).collect());
            to.function.entry = None;
            to.note("command", format!("spec.handler: {handler}, runtimeAttributes.arguments"));
            module.to_owned()
        }
        _ => {
            let hint = "supported: python, nodejs, golang, shell; build others as a program";
            return Err(not_offered(file, name, &format!("runtime {written:?}"), hint));
        }
    };
    if let Some(code) = spec["build"]["functionSourceCode"].as_str() {
        let Some(code) = super::kubeless::decoded(code) else {
            let hint = "it is base64 of the source";
            return Err(not_offered(file, name, "this build.functionSourceCode", hint));
        };
        to.source = Source::Inside(vec![(file_name, code)]);
    }
    Ok(())
}

fn triggers(to: &mut Described, triggers: &Value) {
    for (name, trigger) in triggers.as_object().into_iter().flatten() {
        let kind = text(&trigger["kind"]).unwrap_or_default();
        if kind == "cron" {
            super::schedules::nuclio(to, name, trigger);
            continue;
        }
        if kind != "http" {
            to.warn(format!("trigger {name}: kind {kind} is not supported yet"));
            continue;
        }
        let workers = count(&trigger["numWorkers"]).or_else(|| count(&trigger["maxWorkers"]));
        let is_go = to.function.runtime.as_ref().is_some_and(|one| one.value == RuntimeName::Go);
        if let (true, Some(workers)) = (is_go, workers.filter(|workers| *workers > 0)) {
            // As on the platform, each worker has its own context, and all workers share one process.
            to.function.limits.concurrency = Some(workers);
            to.note("concurrency", format!("triggers.{name}: {workers} workers"));
        } else if workers.is_some_and(|workers| workers > 1) {
            to.warn(format!("trigger {name}: workers: instances follow demand, up to scale.max"));
        }
        let attributes = &trigger["attributes"];
        let place = format!("triggers.{name}.attributes");
        super::routes::nuclio(to, &format!("{place}.ingresses"), &attributes["ingresses"]);
        to.ignore_rest(attributes, &["ingresses"], &format!("{place}."));
    }
}
