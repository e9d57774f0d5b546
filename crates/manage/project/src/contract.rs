//! Infers from a function's files which platform's contract the function follows, and where that
//! contract's entry is.
//!
//! The first row that matches decides. Only folders without a manifest are examined, because a manifest
//! is written for `mote` and sets `compat` where needed.

use mote_spec::manifest::{FunctionManifest, PlatformName, RuntimeName};
use mote_spec::toml_reader::Mistakes;
use mote_spec::{Platform, Runtime};

use super::found::{Found, implied};
use super::golang;
use super::mistakes::mistake;
use super::probe::Folder;

const NODE: [&str; 3] = [".js", ".cjs", ".mjs"];

/// Returns the contract that the files of a folder follow; `None` for `mote`'s own contract.
pub(super) fn infer(folder: &Folder) -> Option<Found> {
    if folder.has_go() {
        return golang::infer(folder);
    }
    nuclio(folder)
        .or_else(|| tiny_faas(folder))
        .or_else(|| open_faas(folder))
        .or_else(|| open_whisk_program(folder))
        .or_else(|| by_main(folder))
        .or_else(|| knative(folder))
        .or_else(|| fission_node(folder))
}

fn found(compat: PlatformName, runtime: RuntimeName, entry: String, why: String) -> Option<Found> {
    let function = FunctionManifest {
        compat: implied(compat),
        runtime: implied(runtime),
        entry: implied(entry),
        ..FunctionManifest::default()
    };
    Some(Found { function, why })
}

fn nuclio(folder: &Folder) -> Option<Found> {
    for file in folder.with_ending(&[".py"]) {
        let source = folder.source(file);
        let Some(parameters) = python_parameters(&source, "handler") else { continue };
        let named = parameters.first().is_some_and(|first| first == "context");
        let says = ["@nuclio.configure", "import nuclio_sdk", "from nuclio_sdk"];
        if named || says.iter().any(|sign| source.contains(sign)) {
            let entry = format!("{}:handler", file.trim_end_matches(".py"));
            let why = format!("{file}: handler(context, event)");
            return found(PlatformName::Nuclio, RuntimeName::Python, entry, why);
        }
    }
    for file in folder.with_ending(&NODE) {
        let source = folder.source(file);
        let first = node_parameters(&source, "exports.handler");
        let named =
            first.as_ref().is_some_and(|names| names.first().is_some_and(|n| n == "context"));
        if named || (first.is_some() && source.contains("@nuclio.configure")) {
            let why = format!("{file}: exports.handler(context, event)");
            return found(PlatformName::Nuclio, RuntimeName::Node, format!("{file}:handler"), why);
        }
    }
    None
}

fn tiny_faas(folder: &Folder) -> Option<Found> {
    if folder.has("fn.py") && python_parameters(&folder.source("fn.py"), "fn").is_some() {
        let why = "fn.py: fn(input, headers)".to_owned();
        return found(PlatformName::TinyFaas, RuntimeName::Python, "fn:fn".to_owned(), why);
    }
    if folder.has("fn.sh") {
        let function = FunctionManifest {
            compat: implied(PlatformName::TinyFaas),
            runtime: implied(RuntimeName::Exec),
            ..FunctionManifest::default()
        };
        return Some(Found { function, why: "fn.sh".to_owned() });
    }
    let package = package(folder)?;
    let main = package["main"].as_str().unwrap_or("index.js").trim_start_matches("./");
    let named = package["name"] == "fn" && folder.has_path(main);
    let why = "package.json: name \"fn\"".to_owned();
    named.then(|| found(PlatformName::TinyFaas, RuntimeName::Node, main.to_owned(), why)).flatten()
}

/// Returns whether a `handler.js` follows OpenFaaS' oldest template.
pub(super) fn takes_context_and_callback(source: &str) -> bool {
    node_parameters(source, "module.exports").is_some_and(|names| names == ["context", "callback"])
}

fn open_faas(folder: &Folder) -> Option<Found> {
    if let Some(template) = open_faas_template(&folder.source("handler.py")) {
        let entry = "handler:handle".to_owned();
        let why = format!("handler.py: handle, template {template}");
        let mut found = found(PlatformName::OpenFaas, RuntimeName::Python, entry, why)?;
        found.function.template = implied(template.to_owned());
        return Some(found);
    }
    let source = folder.source("handler.js");
    let names = node_parameters(&source, "module.exports")?;
    let entry = "handler.js".to_owned();
    if takes_context_and_callback(&source) {
        let why = "handler.js: module.exports = (context, callback)".to_owned();
        let mut found = found(PlatformName::OpenFaas, RuntimeName::Node, entry, why)?;
        found.function.template = implied("node".to_owned());
        return Some(found);
    }
    let fits = names.first()? == "event" && names.get(1)? == "context";
    let why = "handler.js: module.exports = (event, context)".to_owned();
    fits.then(|| found(PlatformName::OpenFaas, RuntimeName::Node, entry, why)).flatten()
}

/// Returns the template for which a Python handler was written. The names of its arguments distinguish
/// such a handler from one for `mote`, which is `handle(event, ctx)`.
fn open_faas_template(source: &str) -> Option<&'static str> {
    let parameters = python_parameters(source, "handle")?;
    let names: Vec<&str> = parameters.iter().map(String::as_str).collect();
    match names.as_slice() {
        ["event", "context"] => Some("python3-http"),
        ["req"] if source.contains("flask") => Some("python3-flask"),
        ["req"] => Some("python3"),
        _ => None,
    }
}

/// Recognises a program by the name that OpenWhisk's archives use. If the program's text mentions
/// descriptor 3, the program is assumed to keep running between calls.
fn open_whisk_program(folder: &Folder) -> Option<Found> {
    if folder.single || !folder.has("exec") {
        return None;
    }
    let source = folder.source("exec");
    let stays = [">&3", "fdopen(3", "/dev/fd/3", "open(3", "createWriteStream(null, {fd: 3"]
        .iter()
        .any(|sign| source.contains(sign));
    let function = FunctionManifest {
        compat: implied(PlatformName::OpenWhisk),
        runtime: implied(RuntimeName::Exec),
        command: implied(vec!["./exec".to_owned()]),
        template: stays.then(|| "actionloop".to_owned()).and_then(implied),
        ..FunctionManifest::default()
    };
    let why = if stays { "exec, which writes to descriptor 3" } else { "exec" };
    Some(Found { function, why: why.to_owned() })
}

/// Recognises `main` in Python or Node. With one argument, `main` is an OpenWhisk action. Without
/// arguments, and if it uses Flask's request, `main` is a Fission function.
fn by_main(folder: &Folder) -> Option<Found> {
    for file in preferred(folder, &["__main__.py", "main.py"], &[".py"]) {
        let source = folder.source(file);
        let Some(parameters) = python_parameters(&source, "main") else { continue };
        let entry = format!("{}:main", file.trim_end_matches(".py"));
        if parameters.len() == 1 {
            let why = format!("{file}: main({})", parameters[0]);
            if let Some((compat, template)) = by_framework(&source) {
                let mut found = found(compat, RuntimeName::Python, entry, why)?;
                found.function.template = implied(template.to_owned());
                return Some(found);
            }
            return found(PlatformName::OpenWhisk, RuntimeName::Python, entry, why);
        }
        if parameters.is_empty() {
            let why = format!("{file}: main()");
            return found(PlatformName::Fission, RuntimeName::Python, entry, why);
        }
    }
    for file in preferred(folder, &["index.js", "main.js"], &NODE) {
        let source = folder.source(file);
        let plain = function_parameters(&source, "function main(");
        let parameters = plain.or_else(|| node_parameters(&source, "exports.main")).or_else(|| {
            // If the file exports anything, the platform calls the export and not a variable `main`.
            (!source.contains("export")).then(|| assigned_parameters(&source, "main")).flatten()
        });
        if parameters.is_some_and(|names| names.len() == 1) {
            let why = format!("{file}: main(params)");
            return found(PlatformName::OpenWhisk, RuntimeName::Node, format!("{file}:main"), why);
        }
    }
    None
}

/// Returns whether a Python file follows the first versions of Knative's `func`.
pub(super) fn is_of_parliament(source: &str) -> bool {
    by_framework(source).is_some_and(|(_, template)| template == "parliament")
}

/// Returns the platform and template of a function `main` with one argument. The imports of its
/// file tell whether it was written for Fission's FastAPI environment or for the first versions of
/// Knative's `func`.
fn by_framework(source: &str) -> Option<(PlatformName, &'static str)> {
    let imports = |module: &str| {
        let begins = |line: &str, word: &str| {
            let rest = line.strip_prefix(word).and_then(|rest| rest.strip_prefix(module));
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        };
        source.lines().any(|line| begins(line, "from ") || begins(line, "import "))
    };
    if imports("parliament") {
        return Some((PlatformName::Knative, "parliament"));
    }
    let is_fastapi = imports("fastapi") || imports("starlette");
    is_fastapi.then_some((PlatformName::Fission, "fastapi"))
}

fn knative(folder: &Folder) -> Option<Found> {
    let inside = folder.has_path("function/__init__.py").then_some("function/__init__.py");
    for file in folder.with_ending(&[".py"]).into_iter().chain(inside) {
        let source = folder.source(file);
        // In the template, `function/__init__.py` re-exports the names that `func.py` defines.
        let handed_on = file.contains('/')
            && source.contains("import new")
            && python_parameters(&folder.source("function/func.py"), "new").is_some();
        if handed_on || python_parameters(&source, "new").is_some_and(|names| names.is_empty()) {
            let module = file.trim_end_matches(".py").trim_end_matches("/__init__");
            let entry = format!("{module}:new");
            return found(
                PlatformName::Knative,
                RuntimeName::Python,
                entry,
                format!("{file}: new()"),
            );
        }
    }
    for file in folder.with_ending(&NODE) {
        if handle_parameters(&folder.source(file))
            .is_some_and(|names| names.first().is_some_and(|first| first == "context"))
        {
            let why = format!("{file}: exports.handle(context)");
            return found(PlatformName::Knative, RuntimeName::Node, format!("{file}:handle"), why);
        }
    }
    None
}

/// Returns the argument names of the function that a JavaScript file exports as `handle`, either
/// directly or in a list of exports.
fn handle_parameters(source: &str) -> Option<Vec<String>> {
    node_parameters(source, "exports.handle").or_else(|| {
        let squeezed: String = source.split_whitespace().collect();
        if let Some((_, rest)) = squeezed.split_once("module.exports={")
            && let Some((_, value)) = format!(",{rest}").split_once(",handle:")
        {
            return arguments(source, value);
        }
        let lists = ["module.exports={", "export{"];
        let word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        let listed = lists.iter().any(|list| {
            let inside = squeezed.split_once(list).and_then(|(_, rest)| rest.split('}').next());
            let mut names = inside.into_iter().flat_map(|inside| inside.split(','));
            names.any(|name| name.split(|c| !word(c)).next() == Some("handle"))
        });
        let written = source.contains("export const handle =")
            || source.contains("export async function handle(")
            || source.contains("export function handle(");
        let assigned = || assigned_parameters(source, "handle");
        let found = || function_parameters(source, "function handle(").or_else(assigned);
        (listed || written).then(found).flatten()
    })
}

fn fission_node(folder: &Folder) -> Option<Found> {
    for file in preferred(folder, &["index.js", "main.js"], &NODE) {
        let source = folder.source(file);
        let names = node_parameters(&source, "module.exports").or_else(|| {
            source
                .split_once("export default")
                .and_then(|(_, value)| arguments(&source, value.trim_start()))
        });
        let Some(names) = names else { continue };
        if names == ["context"] || names == ["context", "callback"] {
            let why = format!("{file}: exports ({})", names.join(", "));
            return found(PlatformName::Fission, RuntimeName::Node, file.to_owned(), why);
        }
    }
    None
}

/// Returns the files of a language. Files with usual names come first.
fn preferred<'f>(folder: &'f Folder, first: &[&'f str], endings: &[&str]) -> Vec<&'f str> {
    let mut files: Vec<&str> = first.iter().filter(|file| folder.has(file)).copied().collect();
    let all = folder.with_ending(endings);
    if files.is_empty() && all.len() == 1 {
        files = all;
    }
    files
}

fn package(folder: &Folder) -> Option<serde_json::Value> {
    serde_json::from_str(&folder.source("package.json")).ok()
}

/// Finds the entry of a function whose manifest names a platform but no entry.
pub(super) fn entry(
    folder: &Folder,
    compat: Platform,
    runtime: Runtime,
) -> Result<String, Mistakes> {
    if runtime == Runtime::Go {
        return golang::entry(folder, compat);
    }
    let is_node = runtime.is_javascript();
    let candidates: &[&str] = match (compat, is_node) {
        (Platform::TinyFaas, false) => &["fn.py"],
        (Platform::OpenFaas, false) => &["handler.py"],
        (Platform::OpenFaas, true) => &["handler.js", "handler.mjs", "handler.cjs"],
        (Platform::OpenWhisk, false) => &["__main__.py", "main.py"],
        (Platform::OpenWhisk, true) => &["index.js", "main.js"],
        (Platform::Knative, false) => &["func.py", "main.py", "app.py"],
        (_, false) => &["main.py", "handler.py"],
        (_, true) => &["index.js", "main.js", "handler.js"],
    };
    let object = match compat {
        Platform::TinyFaas => "fn",
        Platform::OpenFaas => "handle",
        Platform::Nuclio | Platform::Kubeless => "handler",
        Platform::OpenWhisk | Platform::Fission => "main",
        Platform::Knative if is_node => "handle",
        Platform::Knative => "new",
    };
    if compat == Platform::Knative && !is_node && folder.has_path("function/__init__.py") {
        return Ok("function:new".to_owned());
    }
    let main = package(folder)
        .and_then(|package| {
            package["main"].as_str().map(|main| main.trim_start_matches("./").to_owned())
        })
        .filter(|main| is_node && folder.has_path(main));
    let endings: &[&str] = if is_node { &NODE } else { &[".py"] };
    let file =
        main.or_else(|| preferred(folder, candidates, endings).first().map(|f| (*f).to_owned()));
    let Some(file) = file else {
        let text = format!("{}: found none of {}", folder.stem(), candidates.join(", "));
        let hint = format!(
            "write entry = \"…\" in mote.toml: the function that {} calls",
            compat.as_str()
        );
        return Err(mistake("M0112", text, Some(hint)));
    };
    // On these platforms, the Node contract is the module itself, not one of its exports.
    let whole = matches!(compat, Platform::TinyFaas | Platform::OpenFaas | Platform::Fission);
    // On Knative, a Python function that receives events may have `handle` as its only export.
    let alone = compat == Platform::Knative
        && !is_node
        && python_parameters(&folder.source(&file), "new").is_none();
    let object = if alone { "handle" } else { object };
    Ok(match (is_node, whole) {
        (false, _) => format!("{}:{object}", file.trim_end_matches(".py").replace('/', ".")),
        (true, true) => file,
        (true, false) => format!("{file}:{object}"),
    })
}

/// Returns the argument names of a top-level Python function, as far as its text shows them.
pub(super) fn python_parameters(source: &str, name: &str) -> Option<Vec<String>> {
    for prefix in ["def ", "async def "] {
        let start = format!("{prefix}{name}(");
        if let Some(names) = function_parameters(source, &start) {
            return Some(names);
        }
    }
    None
}

/// Returns the argument names that follow `start` at the beginning of a line, possibly after blanks.
/// `start` ends in `(`.
fn function_parameters(source: &str, start: &str) -> Option<Vec<String>> {
    let start = start.trim_end_matches('(');
    let mut at = 0;
    loop {
        let begin = at + source[at..].find(start)?;
        let behind = begin + start.len();
        let before = &source[source[..begin].rfind('\n').map_or(0, |line| line + 1)..begin];
        if matches!(before, "" | "async " | "export " | "export async ")
            && let Some(list) = source[behind..].trim_start_matches(' ').strip_prefix('(')
        {
            return Some(names(list));
        }
        at = behind;
    }
}

/// Returns the argument names of a function in a top-level variable of a JavaScript file.
fn assigned_parameters(source: &str, name: &str) -> Option<Vec<String>> {
    ["const", "export const", "let", "var"].iter().find_map(|word| {
        let (before, value) = source.split_once(&format!("{word} {name} ="))?;
        let begins = before.is_empty() || before.ends_with('\n');
        begins.then(|| arguments("", value.trim_start())).flatten()
    })
}

/// Returns the argument names of a function that is assigned to `target` in JavaScript.
fn node_parameters(source: &str, target: &str) -> Option<Vec<String>> {
    let mut at = 0;
    loop {
        let behind = at + source[at..].find(target)? + target.len();
        let rest = source[behind..].trim_start();
        if let Some(value) = rest.strip_prefix('=').filter(|value| !value.starts_with('=')) {
            return arguments(source, value.trim_start());
        }
        at = behind;
    }
}

/// Returns the argument names of the function expression in `value`, or of the function that
/// `value` names.
fn arguments(source: &str, value: &str) -> Option<Vec<String>> {
    let value = value.strip_prefix("async").map_or(value, str::trim_start);
    if let Some(list) = value.strip_prefix('(') {
        return Some(names(list));
    }
    if let Some(rest) = value.strip_prefix("function") {
        return Some(names(rest.split_once('(')?.1));
    }
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let name: String = value.chars().take_while(|c| word(*c)).collect();
    let rest = value[name.len()..].trim_start();
    if rest.starts_with("=>") {
        return Some(vec![name]);
    }
    if name.is_empty() {
        return None;
    }
    function_parameters(source, &format!("function {name}(")).or_else(|| {
        let start = format!("const {name} =");
        arguments("", source.split_once(&start)?.1.trim_start())
    })
}

/// Returns the names in a list of arguments that ends at its `)`, without annotations and defaults. An
/// argument that is destructured, as in `({ a, b })`, is called `_`.
fn names(list: &str) -> Vec<String> {
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let mut flat = String::new();
    let mut depth = 0_usize;
    for c in list.chars() {
        match c {
            '{' | '[' => {
                if depth == 0 {
                    flat.push('_');
                }
                depth += 1;
            }
            '}' | ']' => depth = depth.saturating_sub(1),
            ')' if depth == 0 => break,
            _ if depth == 0 => flat.push(c),
            _ => {}
        }
    }
    flat.split(',')
        .map(|one| one.trim().trim_start_matches('*').chars().take_while(|c| word(*c)).collect())
        .filter(|name: &String| !name.is_empty())
        .collect()
}
