//! Reads Fission's specs: `Function` objects, either in the folder `specs` next to the code or in the
//! folder of the code.

use std::fs;
use std::path::{Path, PathBuf};

use mote_spec::manifest::{PlatformName, RuntimeName};
use mote_spec::toml_reader::Mistakes;
use mote_store::source;
use serde_json::Value;

use super::{
    Described, Foreign, Source, group, kubeless, mistake, not_offered, object_name, runtime_of,
    set, text, unreadable,
};

/// The folder in which the platform's client keeps specs.
const FOLDER: &str = "specs";
/// A file that every folder of specs contains.
const MARK: &str = "fission-deployment-config.yaml";
/// A longer archive or literal is not considered to be a function.
const ARCHIVE_BYTES_MAX: u64 = 64 << 20;

fn is_function(document: &Value) -> bool {
    group(document) == "fission.io" && document["kind"].as_str() == Some("Function")
}

/// Reads the functions of a file. Returns `None` if the file has none, as is the case for files of
/// packages and environments.
pub(super) fn read(file: &str, all: &[Value], folder: &Path) -> Result<Option<Foreign>, Mistakes> {
    if !all.iter().any(is_function) {
        return Ok(None);
    }
    let holds_code = fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        let ending = Path::new(&name).extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| ["py", "js", "mjs", "cjs", "go"].contains(&ending))
    });
    if !holds_code {
        let hint = "deploy the folder that contains the code and the folder specs";
        return Err(not_offered(file, "fission.io", "a spec that is not next to its code", hint));
    }
    let mut found = Foreign::default();
    for document in all {
        if is_function(document) {
            let name = text(&document["metadata"]["name"]).unwrap_or_default();
            let image = image(all, document);
            let read = function(file, document, Source::At(folder.to_path_buf()), &image);
            found.add(&name, read);
        } else {
            found.warnings.extend(trigger(document));
        }
    }
    timers(&mut found, all);
    Ok(Some(found))
}

/// Reads the functions of `folder/specs`, or of `folder` if that is a folder of specs. Returns `None`
/// if there are no functions.
pub(super) fn read_specs(folder: &Path) -> Result<Option<Foreign>, Mistakes> {
    let (root, specs) = match folder.join(MARK).is_file() {
        true => (folder.join(".."), folder.to_owned()),
        false => (folder.to_owned(), folder.join(FOLDER)),
    };
    let mut files: Vec<PathBuf> = fs::read_dir(&specs)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| file.extension().is_some_and(|end| end == "yml" || end == "yaml"))
        .collect();
    files.sort_unstable();
    let mut all = Vec::new();
    for file in files {
        let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
        let shown = format!("{FOLDER}/{name}");
        let source = match fs::metadata(&file) {
            Ok(facts) if facts.len() > super::BYTES_MAX => continue,
            _ => source::text(&file).map_err(|error| unreadable(&file, &error))?,
        };
        // The folder may contain files of other kinds. The platform's client does not apply them, so an
        // error here is ignored.
        if let Ok(documents) = super::documents(&shown, &source) {
            all.extend(documents);
        } else if source.contains("fission.io/") {
            super::documents(&shown, &source)?;
        }
    }
    if !all.iter().any(is_function) {
        return Ok(None);
    }
    let mut found = Foreign { file: FOLDER.to_owned(), ..Foreign::default() };
    for document in &all {
        if !is_function(document) {
            found.warnings.extend(trigger(document));
            continue;
        }
        let name = text(&document["metadata"]["name"]).unwrap_or_default();
        let mut missing = Vec::new();
        let read = source(&all, document, &root, &specs, &mut missing)
            .and_then(|source| function(FOLDER, document, source, &image(&all, document)));
        let read = read.map(|mut described| {
            for glob in missing {
                described.warn(format!("ArchiveUploadSpec: no file matches {glob}"));
            }
            let command = &package(&all, document)["spec"]["buildcmd"];
            if let Some(command) =
                text(command).filter(|command| !["", "build"].contains(&&**command))
            {
                described.warn(format!("spec.buildcmd: {command} is not run"));
            }
            described
        });
        found.add(&name, read);
    }
    timers(&mut found, &all);
    super::routes::objects(&mut found, &all);
    super::check(&mut found)?;
    Ok(Some(found))
}

/// Adds each `TimeTrigger` to its function.
fn timers(found: &mut Foreign, all: &[Value]) {
    for document in all.iter().filter(|document| document["kind"] == "TimeTrigger") {
        let spec = &document["spec"];
        let function = text(&spec["functionref"]["name"]).unwrap_or_default();
        let name = text(&document["metadata"]["name"]).unwrap_or_default();
        if let Some(described) = found.named(&format!("TimeTrigger {name}"), &function) {
            super::schedules::fission(described, &name, spec);
        }
    }
}

/// Returns a warning for a trigger whose kind is not supported.
fn trigger(document: &Value) -> Option<String> {
    let kind = document["kind"].as_str().filter(|kind| kind.ends_with("Trigger"))?;
    let is_read = kind == "TimeTrigger" || super::routes::is_read(document);
    (!is_read).then(|| format!("{}: this trigger is not supported yet", object_name(document)))
}

/// Returns the object with this kind and name, or null.
fn named<'a>(all: &'a [Value], kind: &str, name: &Value) -> &'a Value {
    let is_meant = |one: &&Value| one["kind"] == kind && one["metadata"]["name"] == *name;
    all.iter().find(is_meant).filter(|_| name.is_string()).unwrap_or(&Value::Null)
}

fn package<'a>(all: &'a [Value], document: &Value) -> &'a Value {
    named(all, "Package", &document["spec"]["package"]["packageref"]["name"])
}

/// Returns the image of a function's environment.
fn image(all: &[Value], document: &Value) -> String {
    let environment = named(all, "Environment", &document["spec"]["environment"]["name"]);
    text(&environment["spec"]["runtime"]["image"]).unwrap_or_default()
}

/// Finds a function's code, which is in the archive of the function's package.
fn source(
    all: &[Value],
    document: &Value,
    root: &Path,
    specs: &Path,
    missing: &mut Vec<String>,
) -> Result<Source, Mistakes> {
    let name = text(&document["metadata"]["name"]).unwrap_or_default();
    let package = &package(all, document)["spec"];
    let archive = ["source", "deployment"].into_iter().map(|key| &package[key]).find(|archive| {
        ["url", "literal"].iter().any(|key| archive[key].as_str().is_some_and(|s| !s.is_empty()))
    });
    let Some(archive) = archive else {
        let hint = "add the objects Package and ArchiveUploadSpec to specs, as fission spec does";
        return Err(not_offered(FOLDER, &name, "a function without a package in the specs", hint));
    };
    if let Some(literal) = archive["literal"].as_str().filter(|literal| !literal.is_empty()) {
        let Some(code) = kubeless::decoded(literal) else {
            return Err(not_offered(FOLDER, &name, "this literal", "it is base64 of the source"));
        };
        if code.starts_with(b"PK\x03\x04") {
            return Ok(Source::Zip(code, Vec::new()));
        }
        let file = match runtime(document, &image(all, document)) {
            Some(RuntimeName::Node) => "index.js",
            Some(RuntimeName::Go) => "main.go",
            Some(RuntimeName::Exec) => "main",
            _ => "main.py",
        };
        return Ok(Source::Inside(vec![(file.to_owned(), code)]));
    }
    let url = archive["url"].as_str().unwrap_or_default();
    let spec = url.strip_prefix("archive://").and_then(|wanted| {
        all.iter().find(|one| one["kind"] == "ArchiveUploadSpec" && one["name"] == wanted)
    });
    let Some(spec) = spec else {
        let hint =
            "mote uploads the files that an ArchiveUploadSpec names, and fetches no other archive";
        let url = super::escaped(url);
        return Err(not_offered(FOLDER, &name, &format!("the archive {url}"), hint));
    };
    let root = match spec["rootdir"].as_str().filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => root.to_owned(),
    };
    files(spec, &name, &root, specs, missing)
}

/// Returns the files of an archive in the arrangement that the platform's client gives them. Each match
/// of a pattern is at the top of the archive. A single file is used without an archive.
fn files(
    spec: &Value,
    name: &str,
    root: &Path,
    specs: &Path,
    missing: &mut Vec<String>,
) -> Result<Source, Mistakes> {
    let globs: Vec<String> =
        spec["include"].as_array().into_iter().flatten().filter_map(text).collect();
    let specs = fs::canonicalize(specs).ok();
    let mut found: Vec<PathBuf> = Vec::new();
    for glob in &globs {
        let mut matches = matches(root, glob);
        matches.retain(|path| fs::canonicalize(path).ok() != specs && !path.ends_with(".git"));
        if matches.is_empty() {
            missing.push(super::escaped(glob));
            // On the platform, packages were installed into `node_modules`. Here they are installed
            // from the `package.json` next to that folder.
            let list = root.join("package.json");
            if glob.trim_end_matches('/').ends_with("node_modules") && list.is_file() {
                let lock = root.join("package-lock.json");
                matches.extend([Some(list), lock.is_file().then_some(lock)].into_iter().flatten());
            }
        }
        for path in matches {
            let below = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
            super::inside(FOLDER, name, root, &below)?;
            if !found.contains(&path) {
                found.push(path);
            }
        }
    }
    match &found[..] {
        [] => {
            let text = format!(
                "{FOLDER}: {name}: no file matches {} of its ArchiveUploadSpec",
                super::escaped(&globs.join(", "))
            );
            Err(mistake("M0113", text, Some("build the content of the archive first".to_owned())))
        }
        [one] if one.extension().is_some_and(|ending| ending == "zip") => {
            match source::bytes(one, root, ARCHIVE_BYTES_MAX) {
                Ok(archive) => Ok(Source::Zip(archive, Vec::new())),
                Err(error) if error.kind() == std::io::ErrorKind::FileTooLarge => {
                    let text = format!("{FOLDER}: {name}: the archive is larger than 64 MiB");
                    Err(mistake("M0303", text, None))
                }
                Err(error) => Err(unreadable(one, &error)),
            }
        }
        [one] if one.is_file() => Ok(Source::At(one.clone())),
        _ => match &globs[..] {
            // If the pattern matches a whole folder, the folder is used without a copy.
            [glob] if is_all_of_folder(glob) => {
                Ok(Source::At(root.join(glob.trim_end_matches('*').trim_end_matches('/'))))
            }
            _ => Ok(Source::Files(found)),
        },
    }
}

fn is_all_of_folder(glob: &str) -> bool {
    glob == "*" || glob.strip_suffix("/*").is_some_and(|folder| !folder.contains('*'))
}

/// Returns the paths that match a pattern. Each part of the pattern may contain `*`.
fn matches(root: &Path, glob: &str) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    for part in glob.split('/').filter(|part| !part.is_empty() && *part != ".") {
        let mut next = Vec::new();
        for folder in found {
            if !part.contains('*') {
                next.push(folder.join(part));
                continue;
            }
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            next.extend(
                names
                    .filter(|name| super::matches_filter(part, name))
                    .map(|name| folder.join(name)),
            );
        }
        found = next;
    }
    found.retain(|path| path.exists());
    found.sort_unstable();
    found
}

/// Returns the runtime of a function's environment, which the environment's name or image tells.
fn runtime(document: &Value, image: &str) -> Option<RuntimeName> {
    let environment = text(&document["spec"]["environment"]["name"]).unwrap_or_default();
    let image = image.rsplit('/').next().unwrap_or_default();
    let of = |word: &str| match word {
        "binary" => Some(RuntimeName::Exec),
        _ => runtime_of(word),
    };
    environment.split('-').chain(image.split([':', '-'])).find_map(of)
}

fn function(
    file: &str,
    document: &Value,
    source: Source,
    image: &str,
) -> Result<Described, Mistakes> {
    let spec = &document["spec"];
    let name = text(&document["metadata"]["name"]).unwrap_or_default();
    let mut to = Described::new(&name, PlatformName::Fission);
    to.note("compat", "apiVersion: fission.io");
    to.read_annotations(&document["metadata"]["annotations"]);
    to.source = source;
    let environment = text(&spec["environment"]["name"]).unwrap_or_default();
    let runtime = runtime(document, image);
    match runtime {
        Some(runtime) => {
            set(&mut to.function.runtime, runtime);
            to.note("runtime", format!("spec.environment: {environment}"));
        }
        None if other_language(&environment) || other_language(image) => {
            let hint = "supported: python, node, go, binary";
            return Err(not_offered(file, &name, &format!("environment {environment:?}"), hint));
        }
        None => {}
    }
    if runtime == Some(RuntimeName::Python) && image.contains("fastapi") {
        set(&mut to.function.template, "fastapi".to_owned());
        to.note("template", format!("the image {image} of the environment"));
    }
    let written = text(&spec["package"]["functionName"]).unwrap_or_default();
    if runtime == Some(RuntimeName::Exec) {
        if !written.is_empty() && holds(&to.source, &written) {
            set(&mut to.function.command, vec![format!("./{written}")]);
            to.note("command", format!("spec.package.functionName: {written}"));
        }
    } else if let Some(entry) = runtime.and_then(|runtime| entry(runtime, &written, &to.source)) {
        set(&mut to.function.entry, entry);
        to.note("entry", format!("spec.package.functionName: {written}"));
    }
    if let Some(seconds) = spec["functionTimeout"].as_u64().filter(|seconds| *seconds > 0) {
        to.set_timeout(&Value::String(format!("{seconds}s")), "spec.functionTimeout");
    }
    to.set_resources(&spec["resources"]["limits"], "spec.resources");
    let known = ["environment", "package", "functionTimeout", "resources", "InvokeStrategy"];
    to.ignore_rest(spec, &known, "spec.");
    Ok(to)
}

/// Returns whether an environment is for a language that cannot run here.
fn other_language(environment: &str) -> bool {
    let name = environment.rsplit('/').next().unwrap_or_default().to_lowercase();
    name.split(|c: char| !c.is_ascii_alphabetic()).any(|word| {
        ["jvm", "java", "php", "ruby", "perl", "dotnet", "tensorflow", "rust"].contains(&word)
    })
}

/// Returns whether a file of this name is at the top of the code. Returns `false` for an archive,
/// because the files in it are not known.
fn holds(source: &Source, name: &str) -> bool {
    match source {
        Source::At(path) if path.is_file() => path.ends_with(name),
        Source::At(path) => path.join(name).is_file(),
        Source::Files(paths) => paths.iter().any(|path| path.is_file() && path.ends_with(name)),
        Source::Inside(files) => files.iter().any(|(file, _)| file == name),
        Source::Beside | Source::Zip(..) => false,
    }
}

/// Returns the entry that `functionName` means. `functionName` is a function, or a module and a
/// function.
fn entry(runtime: RuntimeName, written: &str, source: &Source) -> Option<String> {
    let (module, function) = written
        .rsplit_once('.')
        .map_or((None, written), |(module, function)| (Some(module), function));
    if function.is_empty() {
        return None;
    }
    // A single file is loaded under its own name, even if `functionName` names another module.
    let alone = match source {
        Source::At(path) if path.is_file() => path.file_stem().and_then(|stem| stem.to_str()),
        _ => None,
    };
    match runtime {
        RuntimeName::Python => Some(format!("{}:{function}", alone.or(module).unwrap_or("main"))),
        RuntimeName::Node => {
            let file = format!("{}.js", alone.or(module).unwrap_or(written));
            let exported = module.map_or(String::new(), |_| format!(":{function}"));
            holds(source, &file).then(|| format!("{file}{exported}"))
        }
        RuntimeName::Go => Some(function.to_owned()),
        _ => None,
    }
}
