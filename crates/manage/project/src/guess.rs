//! Guesses the runtime, the entry and the program of a function from its files.

use mote_spec::manifest::{FunctionManifest, RuntimeName};
use mote_spec::toml_reader::Mistakes;
use mote_spec::{Platform, Runtime};

use super::mistakes::{escaped, in_manifest, mistake};
use super::probe::Folder;

const PYTHON: [&str; 1] = [".py"];
const WASM: [&str; 1] = [".wasm"];
const NODE: [&str; 6] = [".mjs", ".js", ".cjs", ".ts", ".mts", ".cts"];
/// Files with JSX, which Bun and Deno run. They count only if there is no other file, because they are
/// usually the parts of a page.
const JSX: [&str; 2] = [".tsx", ".jsx"];
/// The usual files of a handler, most usual first.
const PYTHON_FIRST: [&str; 4] = ["app.py", "main.py", "handler.py", "function.py"];
const JSX_FIRST: [&str; 4] = ["index.tsx", "index.jsx", "main.tsx", "handler.tsx"];
const NODE_FIRST: [&str; 8] = [
    "index.mjs",
    "index.js",
    "index.cjs",
    "index.ts",
    "main.mjs",
    "main.js",
    "handler.mjs",
    "handler.js",
];

pub(super) fn named(name: RuntimeName) -> Runtime {
    match name {
        RuntimeName::Python => Runtime::Python,
        RuntimeName::Node => Runtime::Node,
        RuntimeName::Bun => Runtime::Bun,
        RuntimeName::Deno => Runtime::Deno,
        RuntimeName::Go => Runtime::Go,
        RuntimeName::Exec => Runtime::Exec,
        RuntimeName::Server => Runtime::Server,
        RuntimeName::Chain => Runtime::Chain,
        RuntimeName::Wasm => Runtime::Wasm,
        RuntimeName::Rust => Runtime::Rust,
    }
}

/// Guesses the runtime. Also returns the evidence.
pub(super) fn runtime(
    folder: &Folder,
    function: &FunctionManifest,
) -> Result<(Runtime, String), Mistakes> {
    if function.command.is_some() {
        return Ok((Runtime::Exec, "mote.toml has a command".to_owned()));
    }
    if let Some(entry) = &function.entry {
        let file = entry.value.split(':').next().unwrap_or("");
        if folder.has_go() {
            return Ok((Runtime::Go, "go.mod or .go files".to_owned()));
        }
        let ends = |endings: &[&str]| endings.iter().any(|ending| file.ends_with(ending));
        let runtime = match () {
            () if ends(&WASM) => Runtime::Wasm,
            () if ends(&NODE) || ends(&JSX) => Runtime::Node,
            () => Runtime::Python,
        };
        return Ok((runtime, format!("entry {}", escaped(&entry.value))));
    }
    let python = sign(folder, &["requirements.txt", "pyproject.toml"], &PYTHON);
    let node = sign(folder, &["package.json"], &NODE).or_else(|| sign(folder, &[], &JSX));
    let go = sign(folder, &["go.mod"], &[".go"]);
    if let (Some(go), None, None) = (&go, &python, &node) {
        return Ok((Runtime::Go, go.clone()));
    }
    match (python, node) {
        (Some(python), Some(node)) => Err(mistake(
            "M0110",
            format!("{python} suggests python, {node} suggests node"),
            Some("write runtime = \"python\" or \"node\" in mote.toml".to_owned()),
        )),
        (Some(why), None) => Ok((Runtime::Python, why)),
        (None, Some(why)) => Ok((Runtime::Node, why)),
        (None, None) if !folder.with_ending(&WASM).is_empty() => {
            Ok((Runtime::Wasm, folder.with_ending(&WASM)[0].to_owned()))
        }
        (None, None) => match programs(folder)?.as_slice() {
            [program] => Ok((Runtime::Exec, (*program).to_owned())),
            [] if folder.has("Dockerfile") => Err(mistake(
                "M0111",
                format!("{}: a Dockerfile, from which mote builds nothing", folder.stem()),
                Some(
                    "build the image and deploy it: docker build -t NAME . && docker save NAME -o NAME.tar && \
                     mote deploy NAME.tar"
                        .to_owned(),
                ),
            )),
            [] if folder.has("index.html") => Err(only_pages(folder)),
            [] => Err(mistake(
                "M0110",
                format!(
                    "{}: no .py, .js, .mjs, .ts or .wasm file, package.json, program or script",
                    folder.stem()
                ),
                Some("name the file, or write runtime and command in mote.toml".to_owned()),
            )),
            many => Err(mistake(
                "M0110",
                format!("{}: several programs ({})", folder.stem(), many.join(", ")),
                Some(format!("write command = [\"./{}\"] in mote.toml", many[0])),
            )),
        },
    }
}

/// Returns the error for a folder that contains web pages but no function.
fn only_pages(folder: &Folder) -> Mistakes {
    let hint = "a function serves pages in addition to its code: move them into a folder such as public, write \
                [static] folder = \"public\" in mote.toml, and add a handler for all other paths, e.g. \
                app.py";
    let text = format!("{}: index.html, and no code", folder.stem());
    mistake("M0110", text, Some(hint.to_owned()))
}

/// Returns a hint for a Node project that is not a function. The hint depends on `package.json`: the
/// project may be a site that a tool builds, or a server that a script starts.
fn node_project(folder: &Folder) -> Option<String> {
    let package: serde_json::Value = serde_json::from_str(&folder.source("package.json")).ok()?;
    let script = |name: &str| package["scripts"][name].as_str();
    let builds_site = script("build").is_some()
        && (folder.has("index.html")
            || folder.names().any(|name| name.starts_with("vite.config.")));
    if builds_site {
        return Some(
            "to serve what npm run build makes: write [build] command = \"npm ci && npm run build\" and \
             [static] folder = \"dist\" in mote.toml, an empty .moteignore if .gitignore names dist, \
             and a handler for all other paths in index.mjs"
                .to_owned(),
        );
    }
    let start = script("start")?;
    let words: Vec<String> = start.split_whitespace().map(|word| format!("{word:?}")).collect();
    Some(format!(
        "to run its start script as a server: runtime = \"server\" and command = [{}] in mote.toml; it has \
         to listen on $PORT",
        words.join(", ")
    ))
}

fn sign(folder: &Folder, files: &[&str], endings: &[&str]) -> Option<String> {
    files
        .iter()
        .find(|name| folder.has(name))
        .map(|name| (*name).to_owned())
        .or_else(|| folder.with_ending(endings).first().map(|name| (*name).to_owned()))
}

/// Returns the files at the top that are programs: executable files, or a single file with `#!` or
/// `.sh`.
fn programs(folder: &Folder) -> Result<Vec<&str>, Mistakes> {
    let mut found = Vec::new();
    for name in folder.names() {
        if name.starts_with('.') {
            continue;
        }
        let Some(program) = folder.program(name)? else {
            continue;
        };
        let runnable = program.machine.is_some() || program.has_shebang;
        let is_script = name.ends_with(".sh") || program.has_shebang;
        if runnable && (program.executable || folder.single) || is_script {
            found.push(name);
        }
    }
    Ok(found)
}

/// Guesses the command of a function whose manifest names none.
pub(super) fn command(
    folder: &Folder,
    runtime: Runtime,
    compat: Option<Platform>,
) -> Result<Vec<String>, Mistakes> {
    let mut found = programs(folder)?;
    if compat == Some(Platform::TinyFaas) && found.contains(&"fn.sh") {
        found = vec!["fn.sh"]; // fn.sh calls the other programs
    }
    match found.as_slice() {
        [name] => {
            let program = folder.program(name)?;
            let plain_script = name.ends_with(".sh")
                && program.is_some_and(|program| !program.executable && !program.shebang_cr);
            let mut command =
                if plain_script { interpreter(&folder.source(name)) } else { Vec::new() };
            command.push(format!("./{name}"));
            Ok(command)
        }
        _ => Err(mistake(
            "M0306",
            format!("mote.toml: runtime {} needs a command", runtime.as_str()),
            Some("write command = [\"./program\"]".to_owned()),
        )),
    }
}

/// Returns the command that runs a script which is not executable. As in the kernel, the first line has
/// the program and one argument.
fn interpreter(source: &str) -> Vec<String> {
    let first = source.lines().next().and_then(|line| line.strip_prefix("#!")).unwrap_or("").trim();
    let words = first.splitn(2, [' ', '\t']).map(|word| word.trim().to_owned());
    let words: Vec<String> = words.filter(|word| !word.is_empty()).collect();
    if words.is_empty() || words == ["/bin/sh"] { vec!["sh".to_owned()] } else { words }
}

/// Guesses the entry of a function whose manifest names none.
pub(super) fn entry(folder: &Folder, runtime: Runtime, name: &str) -> Result<String, Mistakes> {
    match runtime {
        Runtime::Go => go_entry(folder),
        Runtime::Python => python_entry(folder, name),
        Runtime::Wasm => wasm_entry(folder, name),
        _ => {
            let file = node_entry(folder, name)?;
            check_jsx(runtime, &file)?;
            Ok(file)
        }
    }
}

fn go_entry(folder: &Folder) -> Result<String, Mistakes> {
    let found = ["Handle", "Handler", "New"]
        .into_iter()
        .find(|name| super::golang::parameters(folder, name).is_some());
    found.map(str::to_owned).ok_or_else(|| {
        let text = format!("{}: no .go file has func Handle", folder.stem());
        let hint = "add func Handle(w http.ResponseWriter, r *http.Request), or write entry = \"NAME\" \
                    in mote.toml, with compat if it was written for another platform";
        mistake("M0112", text, Some(hint.to_owned()))
    })
}

fn candidate<'f>(
    folder: &'f Folder,
    first: &[&'f str],
    endings: &[&str],
    name: &str,
) -> Option<&'f str> {
    let all = folder.with_ending(endings);
    if let [only] = all.as_slice() {
        return Some(only);
    }
    let named =
        |file: &str| file.rsplit_once('.').is_some_and(|(stem, _)| stem.replace('_', "-") == name);
    first
        .iter()
        .find(|file| folder.has(file))
        .copied()
        .or_else(|| all.into_iter().find(|file| named(file)))
}

fn wasm_entry(folder: &Folder, name: &str) -> Result<String, Mistakes> {
    if let Some(component) = super::rust::component(folder) {
        super::rust::check_component(folder, &component)?;
        return Ok(component);
    }
    let found = candidate(folder, &["main.wasm", "function.wasm"], &WASM, name);
    found.map(str::to_owned).ok_or_else(|| match folder.with_ending(&WASM)[..] {
        [] => {
            let text = format!("{}: no .wasm file at the top", folder.stem());
            let hint = "build the component and deploy its file, or write entry = \"FILE.wasm\" in \
                        mote.toml";
            mistake("M0112", text, Some(hint.to_owned()))
        }
        [first, ..] => {
            let text = format!("{}: several .wasm files", folder.stem());
            mistake("M0112", text, Some(format!("write entry = \"{first}\" in mote.toml")))
        }
    })
}

fn python_entry(folder: &Folder, name: &str) -> Result<String, Mistakes> {
    let Some(file) = candidate(folder, &PYTHON_FIRST, &PYTHON, name) else {
        return Err(mistake(
            "M0112",
            format!("{}: found none of app.py, main.py, handler.py", folder.stem()),
            Some("write entry = \"module:handle\" in mote.toml".to_owned()),
        ));
    };
    let module = file.trim_end_matches(".py");
    let source = folder.source(file);
    for object in ["handle", "app"] {
        if defines(&source, object) {
            return Ok(format!("{module}:{object}"));
        }
    }
    let other =
        ["lambda_handler", "handler", "main"].into_iter().find(|object| defines(&source, object));
    let hint = match other {
        // In Python, only Kubeless' contract has a handler with these arguments.
        Some("handler") if source.contains("def handler(event, context)") => format!(
            "to use `handler`: entry = \"{module}:handler\" in mote.toml, and compat = \"kubeless\" \
             if it was written for Kubeless"
        ),
        Some(other) => format!("to use `{other}`: entry = \"{module}:{other}\" in mote.toml"),
        None => "add: def handle(event, ctx): return {\"ok\": True}".to_owned(),
    };
    Err(mistake(
        "M0112",
        format!("{file} has no `def handle(event, ctx)` and no `app`"),
        Some(hint),
    ))
}

/// Returns whether a Python file defines or imports `object` at its top level, as far as its text
/// shows.
fn defines(source: &str, object: &str) -> bool {
    source.lines().any(|line| {
        let words = line
            .strip_prefix("async def ")
            .or_else(|| line.strip_prefix("def "))
            .or_else(|| line.strip_prefix("class "));
        if let Some(rest) = words {
            return rest
                .strip_prefix(object)
                .is_some_and(|rest| rest.trim_start().starts_with(['(', ':']));
        }
        let assigned = line.strip_prefix(object).map(str::trim_start).is_some_and(|rest| {
            (rest.starts_with('=') && !rest.starts_with("==")) || rest.starts_with(':')
        });
        let imported = (line.starts_with("from ") || line.starts_with("import "))
            && line.split([' ', ',', '(', ')']).any(|word| word == object);
        assigned || imported
    })
}

fn node_entry(folder: &Folder, name: &str) -> Result<String, Mistakes> {
    if folder.has("package.json")
        && let Ok(package) =
            serde_json::from_str::<serde_json::Value>(&folder.source("package.json"))
        && let Some(main) = package["main"].as_str()
    {
        let main = main.trim_start_matches("./");
        if folder.has_path(main) {
            return Ok(main.to_owned());
        }
        let built = package["scripts"]["build"].is_string();
        let hint = if built {
            "build it first: npm install, npm run build; or name another file in main".to_owned()
        } else {
            node_project(folder).unwrap_or_else(|| {
                "name the function's file in main, or in entry = \"file.js\" in mote.toml"
                    .to_owned()
            })
        };
        return Err(mistake(
            "M0113",
            format!("package.json: main `{}` is not part of the function", escaped(main)),
            Some(hint),
        ));
    }
    let found = candidate(folder, &NODE_FIRST, &NODE, name)
        .or_else(|| candidate(folder, &JSX_FIRST, &JSX, name));
    let Some(file) = found else {
        return Err(mistake(
            "M0112",
            format!("{}: found none of index.mjs, index.js, main.mjs", folder.stem()),
            Some(
                node_project(folder)
                    .unwrap_or_else(|| "write entry = \"file.mjs\" in mote.toml".to_owned()),
            ),
        ));
    };
    let source = folder.source(file);
    if !source.contains("export") {
        // The condition matches `export default`, `module.exports` and `exports.x`.
        return Err(mistake(
            "M0112",
            format!("{file} exports nothing"),
            Some(node_project(folder).unwrap_or_else(|| {
                "add: export default { async fetch(request) { return new Response(\"ok\") } }"
                    .to_owned()
            })),
        ));
    }
    Ok(file.to_owned())
}

/// Node removes the types from TypeScript, but cannot convert JSX.
fn check_jsx(runtime: Runtime, file: &str) -> Result<(), Mistakes> {
    if runtime != Runtime::Node || !JSX.iter().any(|ending| file.ends_with(ending)) {
        return Ok(());
    }
    let text = format!("{}: Node runs no files with JSX", escaped(file));
    let hint = "write runtime = \"bun\" or \"deno\" in mote.toml, or build the file to JavaScript";
    Err(mistake("M0112", text, Some(hint.to_owned())))
}

/// Checks that the file that an entry in the manifest names exists.
pub(super) fn checked_entry(
    folder: &Folder,
    runtime: Runtime,
    entry: &str,
    line: usize,
) -> Result<String, Mistakes> {
    let missing = |file: &str| {
        let text = format!("entry: `{}` is not part of the function", escaped(file));
        in_manifest("M0113", line, &text)
    };
    if runtime == Runtime::Go {
        return match super::golang::parameters(folder, entry) {
            Some(_) => Ok(entry.to_owned()),
            None => {
                let text = format!("entry: no .go file at the top has func {}", escaped(entry));
                Err(in_manifest("M0113", line, &text))
            }
        };
    }
    if runtime.is_javascript() || matches!(runtime, Runtime::Chain | Runtime::Wasm) {
        let entry = entry.trim_start_matches("./");
        let file = entry.split(':').next().unwrap_or(entry);
        if !folder.has_path(file) {
            return Err(missing(file));
        }
        check_jsx(runtime, file)?;
        return Ok(entry.to_owned());
    }
    let (module, object) = entry.split_once(':').unwrap_or((entry, "handle"));
    let module = module.trim_end_matches(".py");
    let identifier = |part: &str| {
        !part.is_empty()
            && !part.starts_with(|c: char| c.is_ascii_digit())
            && part.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    // A file's name need not be an identifier, because other platforms import files such as
    // `my-function.py`.
    let file = |part: &str| identifier(&part.replace('-', "_")) && !part.starts_with('-');
    if !module.split('.').all(file) || !object.split('.').all(identifier) {
        let text = format!("entry: module:object, e.g. app:handle; found `{}`", escaped(entry));
        return Err(in_manifest("M0303", line, &text));
    }
    let path = module.replace('.', "/");
    let file = format!("{path}.py");
    if folder.has_path(&file) || folder.has_path(&format!("{path}/__init__.py")) {
        Ok(format!("{module}:{object}"))
    } else {
        Err(missing(&file))
    }
}
