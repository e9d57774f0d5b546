//! Joins the parts of each shim into the single file that a sandbox gets, and compresses all files.
//!
//! The source of a shim is split into several files by topic. If a sandbox had to open several
//! files, each cold start would be slower, so the build joins them. It starts with `mote_shim` and
//! puts each part where it is first imported. It drops imports between the parts, and the parts
//! share one namespace. The build fails if two parts define the same name. The joined parts become
//! a separate module next to `mote_shim`, because Python and Node keep the compiled form of such a
//! module, but not the compiled form of the file with which they are started.
//!
//! This is not a parser: it looks only at lines that begin in the first column. The parts follow
//! rules, which `shims/python/mote_worker/__init__.py` and `shims/node/mote_shim.mjs` describe.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The files of `shims/` that sandboxes contain.
const SHIMS: [&str; 35] = [
    "python/mote_shim.py",
    "python/mote_worker.py",
    "node/mote_shim.mjs",
    "node/mote_worker.cjs",
    "node/mote_start.cjs",
    "node/mote_bun.mjs",
    "node/mote_deno.mjs",
    "node/rehearsal.mjs",
    "python/mote_template.py",
    "python/mote_rehearsal.py",
    "python/mote_services.py",
    "python/mote_seed.py",
    "python/mote_cloudevents.py",
    "python/mote_websocket.py",
    "node/mote_cloudevents.cjs",
    "node/mote_websocket.cjs",
    "python/compat/__init__.py",
    "python/compat/environment.py",
    "python/compat/tinyfaas.py",
    "python/compat/openfaas.py",
    "python/compat/nuclio.py",
    "python/compat/kubeless.py",
    "python/compat/openwhisk.py",
    "python/compat/fission.py",
    "python/compat/knative.py",
    "python/compat/cloudevents.py",
    "node/compat/http.mjs",
    "node/compat/tinyfaas.mjs",
    "node/compat/openfaas.mjs",
    "node/compat/nuclio.mjs",
    "node/compat/kubeless.mjs",
    "node/compat/openwhisk.mjs",
    "node/compat/fission.mjs",
    "node/compat/knative.mjs",
    "node/compat/cloudevents.mjs",
];

/// The files that are built into Go functions.
const GO: [&str; 20] = [
    "go/worker/frames.go",
    "go/worker/worker.go",
    "go/worker/requests.go",
    "go/worker/http.go",
    "go/worker/contracts.go",
    "go/worker/whisk.go",
    "go/worker/cloudevents.go",
    "go/worker/adapter.go",
    "go/adapters/nuclio.go",
    "go/adapters/kubeless.go",
    "go/provided/handler/handler.go",
    "go/provided/nuclio/nuclio.go",
    "go/provided/nuclio/response.go",
    "go/provided/nuclio/errors.go",
    "go/provided/logger/logger.go",
    "go/provided/errors/errors.go",
    "go/provided/mote/mote.go",
    "go/provided/mote/notify.go",
    "go/provided/mote/cloudevents.go",
    "go/provided/functions/functions.go",
];

const STANDALONE: [&str; 1] = ["standalone/serve.py"];

/// The level that `miniz_oxide` calls its best compression.
const LEVEL: u8 = 10;

fn main() -> io::Result<()> {
    let shims = Path::new(&env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?)
        .join("../../../shims");
    let out = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?);
    let mut source = String::new();
    for (constant, paths) in [("SHIMS", &SHIMS[..]), ("GO", &GO), ("STANDALONE", &STANDALONE)] {
        let mut texts = String::new();
        let mut files = String::new();
        for path in paths {
            let text = text(&shims, path)?;
            files.push_str(&format!("({path:?}, {}), ", text.len()));
            texts.push_str(&text);
        }
        let packed = miniz_oxide::deflate::compress_to_vec(texts.as_bytes(), LEVEL);
        let name = constant.to_lowercase() + ".deflate";
        fs::write(out.join(&name), packed)?;
        let packed = format!("include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}\"))");
        source.push_str(&format!(
            "const {constant}: Archive = Archive {{ files: &[{files}], packed: {packed} }};\n"
        ));
    }
    fs::write(out.join("archives.rs"), source)
}

/// Returns the text of a file. If the file has parts, they are joined into the text.
fn text(shims: &Path, path: &str) -> io::Result<String> {
    let file = shims.join(path);
    let folder = file.parent().unwrap_or(shims);
    let language = match path {
        "python/mote_shim.py" | "python/mote_worker.py" => Language::Python,
        "node/mote_shim.mjs" | "node/mote_worker.cjs" => Language::JavaScript,
        "node/mote_bun.mjs" | "node/mote_deno.mjs" => {
            println!("cargo::rerun-if-changed={}", file.display());
            return Ok(from_common_js(&fs::read_to_string(file)?));
        }
        _ => {
            println!("cargo::rerun-if-changed={}", file.display());
            return fs::read_to_string(file);
        }
    };
    let start = folder.join(language.start());
    println!("cargo::rerun-if-changed={}", start.display());
    println!("cargo::rerun-if-changed={}", folder.join(PARTS).display());
    let source = fs::read_to_string(&start)?;
    Ok(match (language, file == start) {
        (Language::Python, true) => from_one_module(&source),
        (Language::JavaScript, true) => from_common_js(&source),
        (Language::Python, false) => {
            let mut bundle = Bundle::new(language, folder);
            bundle.add(&folder.join(PARTS).join("__init__.py"), true)?;
            bundle.add(&start, false)?;
            bundle.text
        }
        (Language::JavaScript, false) => {
            let mut bundle = Bundle::new(language, folder);
            bundle.add(&start, false)?;
            let offered: String = source.lines().filter_map(names).collect();
            format!(
                "'use strict';\n{}module.exports = {{{offered} runForCompiler }};\n",
                bundle.text
            )
        }
    })
}

/// If a line of a JavaScript file imports names from a part, or exports names from it, returns
/// these names, each followed by a comma.
fn names(line: &str) -> Option<String> {
    let (names, _) = line.split_once(&format!("}} from './{PARTS}/"))?;
    let (_, names) = names.split_once('{')?;
    Some(format!(" {},", names.trim()))
}

/// Returns `source` changed so that its imports and exports come from the module of the joined
/// parts.
fn from_common_js(source: &str) -> String {
    let mut text = String::new();
    for line in source.lines() {
        match names(line) {
            Some(names) if line.starts_with("export ") => {
                text.push_str(&format!("export const {{{names} }} = parts;\n"));
            }
            Some(names) => text.push_str(&format!(
                "import {{ createRequire }} from 'node:module';\n\n\
                 const parts = createRequire(import.meta.url)('./{PARTS}.cjs');\n\
                 const {{{names} }} = parts;\n"
            )),
            None => text.push_str(&format!("{line}\n")),
        }
    }
    text
}

/// Converts an import of a Node module, such as `import fs from 'node:fs';`, into the form of
/// CommonJS.
fn required(statement: &str) -> Option<String> {
    let (names, module) = statement.strip_prefix("import ")?.split_once(" from ")?;
    let names = names.replace(" as ", ": ");
    Some(format!("const {names} = require({});", module.strip_suffix(';')?))
}

/// Returns `source` changed so that it imports from the module of the joined parts.
fn from_one_module(source: &str) -> String {
    let line = |line: &str| match line.strip_prefix("from ").and_then(|rest| rest.split_once('.')) {
        Some((PARTS, rest)) => match rest.split_once(' ') {
            Some((_, import)) => format!("from {PARTS} {import}\n"),
            None => format!("{line}\n"),
        },
        _ => format!("{line}\n"),
    };
    source.lines().map(line).collect()
}

/// The folder of the parts, next to the file that starts the shim.
const PARTS: &str = "mote_worker";

#[derive(Clone, Copy, PartialEq)]
enum Language {
    Python,
    JavaScript,
}

impl Language {
    /// The file that starts the shim.
    fn start(self) -> &'static str {
        match self {
            Language::Python => "mote_shim.py",
            Language::JavaScript => "mote_shim.mjs",
        }
    }
}

struct Bundle<'a> {
    language: Language,
    folder: &'a Path,
    text: String,
    parts: HashSet<String>,
    imports: HashSet<String>,
    names: HashSet<String>,
}

impl<'a> Bundle<'a> {
    fn new(language: Language, folder: &'a Path) -> Self {
        let (parts, imports, names) = Default::default();
        Self { language, folder, text: String::new(), parts, imports, names }
    }

    /// Adds a file. The parts that it imports are added before the first line that needs them. If
    /// `itself` is false, only these parts are added.
    fn add(&mut self, file: &Path, itself: bool) -> io::Result<()> {
        let wrong = |what: String| io::Error::other(format!("{}: {what}", file.display()));
        let source = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        // The comment at the top of a part is for readers of the source. In the bundle, each start
        // would parse it for nothing.
        let head = match (self.language, source.strip_prefix("\"\"\"")) {
            (Language::Python, Some(text)) => {
                let end = text
                    .find("\"\"\"\n")
                    .ok_or_else(|| wrong("no end of the first comment".to_owned()))?;
                end + 2 * "\"\"\"".len() + 1
            }
            _ => 0,
        };
        let mut lines = source[head..].lines();
        while let Some(line) = lines.next() {
            let mut statement = line.to_owned();
            if self.is_import(line) {
                while !self.is_whole(&statement) {
                    let more = lines.next().ok_or_else(|| wrong(format!("no end of: {line}")))?;
                    statement = format!("{statement}\n{more}");
                }
                if let Some(part) = self.part_of(&statement) {
                    if self.parts.insert(part.clone()) {
                        let ending = if self.language == Language::Python { "py" } else { "mjs" };
                        self.add(&self.folder.join(PARTS).join(part).with_extension(ending), true)?;
                    }
                    continue;
                } else if !itself || !self.imports.insert(statement.clone()) {
                    continue;
                } else if self.language == Language::JavaScript {
                    statement = required(&statement)
                        .ok_or_else(|| wrong(format!("cannot be required: {statement}")))?;
                }
            } else {
                if !itself {
                    continue;
                }
                if statement.contains(&format!("{PARTS}.")) && !statement.contains('"') {
                    return Err(wrong(format!(
                        "a part is imported below the head of the file: {line}"
                    )));
                }
                if self.language == Language::JavaScript {
                    statement = line.strip_prefix("export ").unwrap_or(line).to_owned();
                }
                if let Some(name) = defined(&statement)
                    && !self.names.insert(name.to_owned())
                {
                    return Err(wrong(format!("{name} is defined in another part too")));
                }
            }
            self.text.push_str(&statement);
            self.text.push('\n');
        }
        Ok(())
    }

    fn is_import(&self, line: &str) -> bool {
        line.starts_with("import ")
            || match self.language {
                Language::Python => line.starts_with("from "),
                Language::JavaScript => line.starts_with("export {"),
            }
    }

    fn is_whole(&self, statement: &str) -> bool {
        match self.language {
            Language::Python => {
                !statement.contains('(') || statement.contains("\n)") || statement.contains(") ")
            }
            Language::JavaScript => statement.ends_with(';'),
        }
    }

    /// Returns the part that a statement imports: `from mote_worker.NAME import …`, `… from
    /// './NAME.mjs';`.
    fn part_of(&self, statement: &str) -> Option<String> {
        let name = match self.language {
            Language::Python => {
                let (name, _) = statement.strip_prefix("from ")?.split_once(" import")?;
                name.strip_prefix(PARTS)?.strip_prefix('.')?
            }
            Language::JavaScript => {
                let (_, from) = statement.rsplit_once(" from './")?;
                from.strip_suffix(".mjs';")?.rsplit('/').next()?
            }
        };
        Some(name.to_owned())
    }
}

/// Returns the name that a line defines, if the definition begins in the first column.
fn defined(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("async ").unwrap_or(line);
    let keyword = ["class ", "def ", "function ", "const ", "let "]
        .iter()
        .find_map(|word| rest.strip_prefix(word));
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '$';
    let rest = keyword.unwrap_or(rest);
    let name = &rest[..rest.find(|letter| !is_part(letter))?];
    let is_definition = keyword.is_some() || rest[name.len()..].starts_with(" = ");
    (is_definition && !name.is_empty()).then_some(name)
}
