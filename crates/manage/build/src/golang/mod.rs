//! The files that turn a Go function into a program: its worker, the platform modules that it may
//! import without a download, and a `func main`. This module must not know how a program is built
//! or stored.

mod vendor;

use std::fmt::Write as _;
use std::path::Path;

use crate::shims::Files;
use mote_api::Problem;
use mote_spec::{FunctionSpec, Platform, Runtime};
use sha2::{Digest, Sha256};

use self::vendor::Vendor;
pub use self::vendor::is_vendored;

/// The files of the worker. They become a package next to the function's own package.
const WORKER: [&str; 8] = [
    "frames.go",
    "worker.go",
    "requests.go",
    "http.go",
    "contracts.go",
    "whisk.go",
    "cloudevents.go",
    "adapter.go",
];
/// The worker's folder in the module. A function that already has a folder with this name does not
/// compile.
const WORKER_FOLDER: &str = "mote_worker";
/// The folder in the module for the packages that the node provides.
const PROVIDED_FOLDER: &str = "mote_provided";

/// A platform's module that is built into `mote`, so that functions can import it without a
/// download.
struct Provided {
    /// The import path of the module.
    module: &'static str,
    /// For each file, its path in the module, and its path in the folder of all provided files.
    files: &'static [(&'static str, &'static str)],
    /// Modules that this module imports. The node provides them, too.
    needs: &'static [&'static str],
}

/// The folder of the worker's files, as a path in [`crate::shims`].
const WORKER_FILES: &str = "go/worker";
const PROVIDED_FILES: &str = "go/provided";

const HANDLER: &[(&str, &str)] = &[("handler.go", "handler/handler.go")];

const OPEN_FAAS: [Provided; 2] = [
    Provided { module: "github.com/openfaas/templates-sdk/go-http", files: HANDLER, needs: &[] },
    Provided {
        module: "github.com/openfaas-incubator/go-function-sdk",
        files: HANDLER,
        needs: &[],
    },
];

const LOGGER: &str = "github.com/nuclio/logger";

const NUCLIO_SDK: &str = "github.com/nuclio/nuclio-sdk-go";
/// The import path that the module had at first.
const NUCLIO_SDK_FIRST: &str = "github.com/nuclio/nuclio-sdk";
const NUCLIO_FILES: &[(&str, &str)] = &[
    ("nuclio.go", "nuclio/nuclio.go"),
    ("response.go", "nuclio/response.go"),
    ("errors.go", "nuclio/errors.go"),
];

const NUCLIO: [Provided; 4] = [
    Provided { module: NUCLIO_SDK, files: NUCLIO_FILES, needs: &[LOGGER] },
    Provided { module: NUCLIO_SDK_FIRST, files: NUCLIO_FILES, needs: &[LOGGER] },
    Provided { module: LOGGER, files: &[("logger.go", "logger/logger.go")], needs: &[] },
    Provided {
        module: "github.com/nuclio/errors",
        files: &[("errors.go", "errors/errors.go")],
        needs: &[],
    },
];

/// Modules that functions written for `mote` itself may import.
const MOTE: [Provided; 1] = [Provided {
    module: "mote.internal/mote",
    files: &[
        ("mote.go", "mote/mote.go"),
        ("notify.go", "mote/notify.go"),
        ("cloudevents.go", "mote/cloudevents.go"),
    ],
    needs: &[],
}];

const KUBELESS: [Provided; 1] = [Provided {
    module: "github.com/kubeless/kubeless",
    files: &[("pkg/functions/functions.go", "functions/functions.go")],
    needs: &[],
}];

/// The modules that functions of a platform can import without a download.
fn provided(spec: &FunctionSpec) -> &'static [Provided] {
    match spec.compat {
        Some(Platform::OpenFaas) => &OPEN_FAAS,
        Some(Platform::Nuclio) => &NUCLIO,
        Some(Platform::Kubeless) => &KUBELESS,
        None => &MOTE,
        _ => &[],
    }
}

/// If the function's types come from a platform's package, the name of the adapter package and the
/// path of the adapter's text.
fn adapter(spec: &FunctionSpec) -> Option<(&'static str, &'static str)> {
    match spec.compat {
        Some(Platform::Nuclio) => Some(("mote_nuclio", "go/adapters/nuclio.go")),
        Some(Platform::Kubeless) => Some(("mote_kubeless", "go/adapters/kubeless.go")),
        _ => None,
    }
}

fn worker(texts: &Files) -> impl Iterator<Item = (&'static str, &str)> {
    WORKER.into_iter().map(|name| (name, texts.text(&format!("{WORKER_FILES}/{name}"))))
}

/// The texts of a provided module.
fn texts_of<'a>(
    module: &Provided,
    texts: &'a Files,
) -> impl Iterator<Item = (&'static str, &'a str)> {
    module.files.iter().map(|(name, path)| (*name, texts.text(&format!("{PROVIDED_FILES}/{path}"))))
}

/// The folder for generated files, inside the folder of the build's result. The build copies the
/// files from there.
pub const GENERATED: &str = ".mote";

/// The key of the program. It is a hash of everything that determines the program.
pub fn key(spec: &FunctionSpec, code_hash: &str, version: &str) -> String {
    let mut hash = Sha256::new();
    let contract = [spec.compat.map_or("", Platform::as_str), spec.answered_by().as_str()];
    let texts = crate::shims::go();
    let provided = provided(spec).iter().flat_map(|module| texts_of(module, &texts));
    let adapter = adapter(spec).map(|(name, path)| (name, texts.text(path)));
    let files = worker(&texts).chain(provided).chain(adapter).map(|(_, text)| text);
    for part in [code_hash, &spec.entry].into_iter().chain(contract).chain(files) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let key = base16ct::lower::encode_string(&hash.finalize()[..16]);
    let plain: String =
        version.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '.' }).collect();
    format!("{key}-go{plain}-{}", std::env::consts::ARCH)
}

/// Writes the files that turn the function with this code into a program. They are written below
/// [`GENERATED`] in `folder`. Returns the package to build. Blocks.
pub fn generate(spec: &FunctionSpec, code: &Path, folder: &Path) -> Result<String, Problem> {
    let package = package(spec, code)?;
    let root = folder.join(GENERATED);
    let put = |name: &str, text: &str| {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(&root))
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|error| Problem::new(422, "M0401", format!("cannot write {name}: {error}")))
    };
    let texts = crate::shims::go();
    let module = module(spec, code, &texts, &put)?;
    let entry = &spec.entry;
    if spec.answered_by() == Runtime::Exec {
        put("mote_main/main.go", &per_call(&module, entry))?;
        return Ok("./mote_main".to_owned());
    }
    for (name, text) in worker(&texts) {
        put(&format!("{WORKER_FOLDER}/{name}"), text)?;
    }
    let worker = format!("{module}/{WORKER_FOLDER}");
    let is_main = package == "main";
    // The function can be called without a package name here, because the call is in its own
    // package.
    let front = if is_main { "" } else { "function." };
    let mut imports = format!("\tmote_worker {worker:?}\n");
    if !is_main {
        let _ = writeln!(imports, "\tfunction {module:?}");
    }
    let mut call = format!("{front}{entry}");
    if let Some((name, path)) = adapter(spec) {
        let mut text = texts.text(path).replace("\"mote/worker\"", &format!("{worker:?}"));
        let first = format!("{NUCLIO_SDK_FIRST:?}");
        if sources(code).any(|(_, source)| source.contains(&first)) {
            text = text.replace(&format!("{NUCLIO_SDK:?}"), &first);
        }
        put(&format!("{name}/{name}.go"), &text)?;
        let _ = writeln!(imports, "\t{name} \"{module}/{name}\"");
        let init = if spec.compat == Some(Platform::Nuclio) && has_function(code, "InitContext") {
            format!(", InitContext: {front}InitContext")
        } else {
            String::new()
        };
        call = format!("&{name}.Function{{Handler: {call}{init}}}");
    }
    let text = format!(
        "package main\n\nimport (\n{imports})\n\nfunc main() {{ mote_worker.Serve({call}) }}\n"
    );
    if is_main {
        put("mote_main.go", &text)?;
        leave_out_main(spec, code, &put)?;
        return Ok(".".to_owned());
    }
    put("mote_main/main.go", &text)?;
    Ok("./mote_main".to_owned())
}

/// The Go files of the package at the top of the code, without its tests.
fn sources(code: &Path) -> impl Iterator<Item = (String, String)> {
    std::fs::read_dir(code).into_iter().flatten().flatten().filter_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        // Links are left out, as the compiler does, because many links could lead to one long file.
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let is_source = is_file && name.ends_with(".go") && !name.ends_with("_test.go");
        is_source.then(|| (name, std::fs::read_to_string(entry.path()).unwrap_or_default()))
    })
}

fn has_function(code: &Path, name: &str) -> bool {
    let start = format!("func {name}(");
    sources(code).any(|(_, text)| text.lines().any(|line| line.starts_with(&start)))
}

/// Whether the platform loads a package `main` without calling its `func main`.
fn ignores_main(spec: &FunctionSpec) -> bool {
    spec.compat == Some(Platform::Nuclio)
}

const MAIN: &str = "func main()";

/// Writes a copy of each file that has a `func main`. In the copy, this function has another name,
/// so that nothing calls it.
fn leave_out_main(
    spec: &FunctionSpec,
    code: &Path,
    put: &impl Fn(&str, &str) -> Result<(), Problem>,
) -> Result<(), Problem> {
    if !ignores_main(spec) {
        return Ok(());
    }
    for (name, text) in sources(code) {
        if !text.lines().any(|line| line.starts_with(MAIN)) {
            continue;
        }
        let lines = text.lines().map(|line| match line.strip_prefix(MAIN) {
            Some(rest) => format!("func mote_not_called(){rest}\n"),
            None => format!("{line}\n"),
        });
        put(&name, &lines.collect::<String>())?;
    }
    Ok(())
}

/// Returns the source of a program that reads the request's body, calls the function once and
/// writes its result.
fn per_call(module: &str, entry: &str) -> String {
    format!(
        "package main\n\nimport (\n\t\"fmt\"\n\t\"io\"\n\t\"log\"\n\t\"os\"\n\n\tfunction {module:?}\n)\n\n\
         func main() {{\n\tinput, err := io.ReadAll(os.Stdin)\n\tif err != nil {{\n\t\t\
         log.Fatalf(\"cannot read the request: %v\", err)\n\t}}\n\t\
         fmt.Println(function.{entry}(input))\n}}\n"
    )
}

/// Returns the import path of the function's module. Writes a `go.mod` if the function has none, or
/// if it needs a module that the node provides.
fn module(
    spec: &FunctionSpec,
    code: &Path,
    texts: &Files,
    put: &impl Fn(&str, &str) -> Result<(), Problem>,
) -> Result<String, Problem> {
    let written = std::fs::read_to_string(code.join("go.mod")).unwrap_or_default();
    let named = written
        .lines()
        .find_map(|line| line.trim().strip_prefix("module "))
        .map(|rest| rest.split("//").next().unwrap_or("").trim().trim_matches('"').to_owned());
    // OpenFaaS's templates use this module name, and functions import their own folders by it.
    let usual =
        if spec.compat == Some(Platform::OpenFaas) { "handler/function" } else { "function" };
    let module = named.clone().unwrap_or_else(|| usual.to_owned());
    let mut text = match named {
        Some(_) => written,
        None => format!("module {module}\n\ngo 1.21\n"),
    };
    // Modules that the function itself provides stay unchanged, because a vendor folder must agree
    // with `go.mod`.
    let vendor = Vendor::of(code);
    let brings = |name: &str| {
        let replaced = text.lines().any(|line| {
            let line = line.trim().trim_start_matches("replace").trim_start();
            line.split_whitespace().next() == Some(name) && line.contains("=>")
        });
        replaced || name == module || vendor.as_ref().is_some_and(|vendor| vendor.has(name))
    };
    let wanted: Vec<&Provided> = provided(spec).iter().filter(|one| !brings(one.module)).collect();
    if let Some(vendor) = vendor {
        let mut list = vendor.list(&mut text);
        for one in &wanted {
            for (name, content) in texts_of(one, texts) {
                put(&format!("vendor/{}/{name}", one.module), content)?;
            }
            let files = one.files.iter().map(|(name, _)| *name);
            list.push_str(&vendor::entry(one.module, files, &mut text));
        }
        put("vendor/modules.txt", &list)?;
        put("go.mod", &text)?;
        return Ok(module);
    }
    for (at, one) in wanted.iter().enumerate() {
        let folder = format!("{PROVIDED_FOLDER}/{at}");
        let _ = write!(text, "\nreplace {} => ./{folder}\n", one.module);
        let mut own = format!("module {}\n\ngo 1.21\n", one.module);
        for need in one.needs {
            let _ = write!(own, "\nrequire {need} v0.0.0\n");
        }
        put(&format!("{folder}/go.mod"), &own)?;
        for (name, text) in texts_of(one, texts) {
            put(&format!("{folder}/{name}"), text)?;
        }
    }
    if !code.join("go.mod").is_file() || !wanted.is_empty() {
        put("go.mod", &text)?;
    }
    Ok(module)
}

/// Returns the name of the package at the top of the code. Refuses a program with a `func main`,
/// because its functions cannot be called from outside.
fn package(spec: &FunctionSpec, code: &Path) -> Result<String, Problem> {
    let mut found = None;
    for (name, text) in sources(code) {
        if !ignores_main(spec) && text.lines().any(|line| line.starts_with(MAIN)) {
            let text = format!("{name} has a func main: it is a program, not a function");
            let hint = "build it and deploy the program with runtime = \"server\"";
            return Err(Problem::new(422, "M0112", text).with_hint(hint));
        }
        let line = text.lines().find_map(|line| line.strip_prefix("package "));
        found = found.or(line.and_then(|line| line.split_whitespace().next()).map(str::to_owned));
    }
    found.ok_or_else(|| Problem::new(422, "M0112", "there is no .go file with a package"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn links_among_the_files_of_a_project_are_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        let secret = outside.path().join("secret.go");
        fs::write(&secret, "package secret\n\nfunc main() {}\n").unwrap();
        let code = tempfile::tempdir().unwrap();
        let (at, link) =
            (|name: &str| code.path().join(name), std::os::unix::fs::symlink::<&Path, PathBuf>);
        link(&secret, at("a_link.go")).unwrap();
        link(Path::new("/dev/zero"), at("b_endless.go")).unwrap();
        link(outside.path(), at("c_folder.go")).unwrap();
        link(Path::new("nowhere"), at("d_broken.go")).unwrap();
        link(Path::new("f_own.go"), at("e_same.go")).unwrap();
        fs::write(at("f_own.go"), "package own\n\nfunc Handle() {}\n").unwrap();
        let found: Vec<_> = sources(code.path()).map(|(name, _)| name).collect();
        assert_eq!(found, ["f_own.go"]);
        let name = mote_spec::FunctionName::new("f").unwrap();
        let spec = FunctionSpec::with_defaults(name, Runtime::Go, "Handle");
        assert_eq!(package(&spec, code.path()).unwrap(), "own");
        // If the code has no Go file itself, it contains no package, even if a link leads to one.
        fs::remove_file(at("f_own.go")).unwrap();
        assert!(package(&spec, code.path()).is_err());
    }
}
