//! Reads the manifests of other platforms: finds the file, recognises its platform, and takes over the
//! keys that apply.
//!
//! For each platform, one reader below translates the manifest into a [`FunctionManifest`], which
//! is also the form of `mote.toml`. For each key, a note names its origin. Keys that have no
//! meaning on a node become warnings. Only the command line reads files; a node never parses YAML.
//! A client of a platform's own API sends one JSON document to the node, and that document must not
//! name a file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use mote_api::openwhisk::WhiskManifest;
use mote_spec::manifest::{self, AccessName, FunctionManifest, PlatformName, RuntimeName};
use mote_spec::toml_reader::{Lined, Mistakes};
use mote_spec::{FunctionName, TIMEOUT_MS_MAX, is_secret_name};
use mote_store::source;
use serde::Deserialize;
use serde_json::Value;

use super::contract;
use super::found::implied;
use super::mistakes::{escaped, mistake, unreadable};

mod chain;
pub mod cluster;
mod fission;
mod knative;
mod kubeless;
mod nuclio;
mod openfaas;
mod openwhisk;
pub(super) mod packages;
mod quantity;
mod routes;
mod schedules;
mod spin;
mod wasmcloud;

pub use packages::Packages;
pub use routes::Converted;

/// The annotation that lists the destinations which a function may reach, like `[allow] net` in
/// `mote.toml`.
const ALLOW_NET: &str = "mote/allow-net";
/// The annotation that says who may call a function, like `[access] mode` in `mote.toml`.
const ACCESS: &str = "mote/access";

/// A longer file is not considered to be a manifest.
const BYTES_MAX: u64 = 1 << 20;
/// The largest product of the number of opening brackets in a file and the file's bytes. For every
/// word, the parser visits every open list and table, so this product bounds its time. A file below the
/// limit takes a second at most. A manifest of 100 KB may have 20,000 brackets.
const BRACKETS_TIMES_BYTES_MAX: usize = 2_000_000_000;
/// The usual names of manifests. Other YAML files at the top of the folder are examined afterwards.
const NAMES: [&str; 8] = [
    "stack.yml",
    "stack.yaml",
    "function.yaml",
    "function.yml",
    "func.yaml",
    "func.yml",
    "manifest.yaml",
    "manifest.yml",
];

/// A function that is not deployed, with the reason.
#[derive(Debug)]
pub struct LeftOut {
    pub name: String,
    pub mistakes: Mistakes,
}

/// A manifest of another platform.
#[derive(Debug, Default)]
pub struct Foreign {
    /// The name of the manifest's file in messages.
    pub file: String,
    pub functions: Vec<Described>,
    /// Warnings about parts that concern the file as a whole and have no meaning here.
    pub warnings: Vec<String>,
    /// The entities of an OpenWhisk manifest that are not functions.
    pub whisk: Option<WhiskManifest>,
    /// The functions of the manifest that cannot be deployed.
    pub left_out: Vec<LeftOut>,
}

impl Foreign {
    /// Adds a function, or records why it cannot be deployed.
    fn add(&mut self, name: &str, read: Result<Described, Mistakes>) {
        match read {
            Ok(described) => self.functions.push(described),
            Err(mistakes) => self.left_out.push(LeftOut { name: label(name), mistakes }),
        }
    }

    /// Returns whether the manifest has a function of this name.
    fn has(&self, name: &str) -> bool {
        self.functions.iter().any(|one| one.name() == label(name))
    }

    /// Finds the function that an object names. Warns if there is no such function.
    fn named(&mut self, object: &str, name: &str) -> Option<&mut Described> {
        if !self.has(name) && !self.left_out.iter().any(|one| one.name == label(name)) {
            self.warnings.push(format!("{object}: there is no function {name}"));
        }
        self.functions.iter_mut().find(|one| one.name() == label(name))
    }
}

#[derive(Debug, Default)]
pub struct Described {
    /// The keys of the manifest that apply here.
    pub function: FunctionManifest,
    pub source: Source,
    /// Warnings about parts of the function's description that have no meaning here.
    pub warnings: Vec<String>,
    /// For keys of `mote.toml`, the origin in the other platform's manifest.
    pub notes: BTreeMap<&'static str, String>,
    /// Packages that the manifest asks for, but that the files next to the code do not name.
    pub packages: Packages,
    /// The routes that the platform's objects ask for. After the checks, only the routes that
    /// `function` has are left, in the same order.
    pub routes: Vec<Converted>,
    /// The annotations that the platform's clients show, by platform.
    pub annotations: BTreeMap<String, String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The code is next to the manifest.
    #[default]
    Beside,
    /// The code is this folder or file.
    At(PathBuf),
    /// The code is in the manifest, as names and contents of files.
    Inside(Vec<(String, Vec<u8>)>),
    /// The code is in the manifest as a zip archive. The files are added to the archive's content.
    Zip(Vec<u8>, Vec<(String, Vec<u8>)>),
    /// The code consists of these files and folders. They are copied under their own names into one
    /// folder.
    Files(Vec<PathBuf>),
}

impl Described {
    fn new(name: &str, compat: PlatformName) -> Self {
        let mut described = Self::default();
        described.function.name = implied(label(name));
        described.function.compat = implied(compat);
        described
    }

    /// The name of the function in messages.
    pub fn name(&self) -> &str {
        self.function.name.as_ref().map_or("", |name| &name.value)
    }

    /// Makes the function a container image. `from` is the place of its name in the manifest.
    fn set_image(&mut self, name: &str, from: &str) {
        set(&mut self.function.image, name.to_owned());
        self.source = Source::Inside(Vec::new());
        self.note("image", from);
    }

    fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }

    fn note(&mut self, key: &'static str, from: impl Into<String>) {
        self.notes.insert(key, from.into());
    }

    /// Warns about each key of `value` that is not in `known`.
    fn ignore_rest(&mut self, value: &Value, known: &[&str], place: &str) {
        let Some(table) = value.as_object() else { return };
        let rest: Vec<String> = table
            .iter()
            .filter(|(key, value)| !known.contains(&key.as_str()) && !value.is_null())
            .map(|(key, _)| format!("{place}{key}"))
            .collect();
        if !rest.is_empty() {
            self.warn(format!("ignored: {}", rest.join(", ")));
        }
    }

    /// Returns whether a variable may have this name and value here. Warns if it may not.
    fn takes_env(&mut self, name: &str, value: &str) -> bool {
        let good = !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !good || name == "PORT" || name.starts_with("MOTE_") || value.contains('\0') {
            self.warn(format!("environment: `{name}` is set by mote and cannot be changed"));
            return false;
        }
        true
    }

    /// Sets an environment variable. Leaves out a variable that [`Self::takes_env`] refuses.
    fn set_env(&mut self, name: &str, value: String) {
        if !self.takes_env(name, &value) {
            return;
        }
        self.function.secret_env.remove(name);
        self.function.env.insert(name.to_owned(), value);
    }

    /// Sets a variable whose value is a secret of the node.
    fn set_secret_env(&mut self, name: &str, secret: &str) {
        if !is_secret_name(secret) {
            self.warn(format!("environment: {name}: `{secret}` is not a valid name of a secret"));
        } else if self.takes_env(name, "") {
            self.function.env.remove(name);
            self.function.secret_env.insert(name.to_owned(), secret.to_owned());
        }
    }

    /// Adds a secret that the function reads as a file. `there` is the path of the file on the
    /// platform.
    fn add_secret_file(&mut self, secret: &str, there: &str) {
        if !is_secret_name(secret) {
            self.warn(format!("secrets: `{secret}` is not a valid name of a secret"));
            return;
        }
        if !self.function.secrets.iter().any(|known| known == secret) {
            self.function.secrets.push(secret.to_owned());
        }
        let here = format!("/secrets/{secret}");
        if there != here {
            self.warn(format!("secrets: {there} becomes the file {here}"));
        }
    }

    /// Reads a list of `{name, value}`, which is the form of Kubernetes.
    fn set_env_list(&mut self, list: &Value, place: &str) {
        for entry in list.as_array().into_iter().flatten() {
            let name = text(&entry["name"]).unwrap_or_default();
            let secret = &entry["valueFrom"]["secretKeyRef"];
            match text(&entry["value"]) {
                Some(value) => self.set_env(&name, value),
                None if secret.is_object() => {
                    let part = |key: &str| text(&secret[key]).unwrap_or_default();
                    self.set_secret_env(&name, &secret_key(&part("name"), &part("key")));
                }
                None => self.warn(format!("{place}: `{name}` is not defined in the manifest")),
            }
        }
        self.note_env(place);
    }

    /// Records where the function's variables come from, if there are any.
    fn note_env(&mut self, place: &str) {
        if !(self.function.env.is_empty() && self.function.secret_env.is_empty()) {
            self.note("env", place);
        }
    }

    /// Reads the limits `{memory, cpu}`.
    fn set_resources(&mut self, limits: &Value, place: &str) {
        if let Some(written) = text(&limits["memory"]) {
            match quantity::bytes(&written) {
                Some(bytes) => {
                    self.function.limits.memory_bytes = Some(bytes);
                    self.note("memory", format!("{place}.memory: {written}"));
                }
                None => self.warn(format!("{place}.memory: `{written}` is not a size")),
            }
        }
        if let Some(written) = text(&limits["cpu"]) {
            match quantity::thousandths(&written) {
                Some(millis) => {
                    self.function.limits.cpu_millis = Some(millis);
                    self.note("cpu", format!("{place}.cpu: {written}"));
                }
                None => self.warn(format!("{place}.cpu: `{written}` is not a number of cores")),
            }
        }
        self.ignore_rest(limits, &["memory", "cpu"], &format!("{place}."));
    }

    fn set_timeout(&mut self, value: &Value, place: &str) {
        let Some(written) = text(value) else { return };
        match quantity::milliseconds(&written) {
            Some(ms) if ms > TIMEOUT_MS_MAX => {
                self.function.limits.timeout_ms = Some(TIMEOUT_MS_MAX);
                self.warn(format!("{place}: `{written}`: the longest deadline is 1 h"));
            }
            Some(ms) if ms > 0 => {
                self.function.limits.timeout_ms = Some(ms);
                self.note("timeout", format!("{place}: {written}"));
            }
            _ => self.warn(format!("{place}: `{written}` is not a positive duration")),
        }
    }

    /// Reads the annotation that says who may call the function.
    fn read_access(&mut self, annotations: &Value) {
        if let Some(word) = annotations[ACCESS].as_str() {
            self.function.access = manifest::access(word);
            match self.function.access {
                Some(_) => self.note("access", format!("annotation {ACCESS}")),
                // An unknown word was probably meant to restrict access, so it must not make the
                // function public.
                None => {
                    self.function.access = Some(AccessName::Local);
                    let reason = match manifest::access_needs_more(word) {
                        Some(reason) => reason.to_owned(),
                        None => format!("`{word}` is not public, key, basic, mtls or local"),
                    };
                    self.warn(format!(
                        "{ACCESS}: {reason}; only this machine can call the function"
                    ));
                }
            }
        }
    }

    /// Reads the annotations that are meant for `mote`. Other platforms ignore them.
    fn read_annotations(&mut self, annotations: &Value) {
        self.read_access(annotations);
        let Some(list) = annotations[ALLOW_NET].as_str() else { return };
        for text in list.split([',', ' ']).filter(|text| !text.is_empty()) {
            match manifest::destination(text) {
                Some(destination) => self.function.egress.push(destination),
                None => self.warn(format!(
                    "{ALLOW_NET}: `{text}` is not HOST:PORT, udp://HOST:PORT, *:PORT or *"
                )),
            }
        }
        self.note("net", format!("annotation {ALLOW_NET}"));
    }

    fn set_scale(&mut self, min: Option<u32>, max: Option<u32>, place: &str) {
        if let Some(min) = min {
            self.function.scale.min = Some(min);
            self.note("min", place);
        }
        if let Some(max) = max.filter(|max| *max > 0) {
            self.function.scale.max = Some(max.max(min.unwrap_or(0)));
            self.note("max", place);
        }
    }
}

/// Returns the name of the node's secret that stands for one key of a Kubernetes secret, because a
/// Kubernetes secret may have several keys.
fn secret_key(name: &str, key: &str) -> String {
    format!("{name}.{key}")
}

/// Converts a name to a label: lower case, with `-` in place of `_` and `.`.
fn label(name: &str) -> String {
    name.to_lowercase().replace(['_', '.', ' '], "-")
}

/// Returns the text of a scalar.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        _ => None,
    }
}

fn count(value: &Value) -> Option<u32> {
    text(value)?.trim().parse().ok()
}

/// Returns the runtime that a text such as `python:3.9` or `nodejs14` names.
fn runtime_of(written: &str) -> Option<RuntimeName> {
    let word: String = written.chars().take_while(char::is_ascii_alphabetic).collect();
    match word.to_lowercase().as_str() {
        "python" => Some(RuntimeName::Python),
        "node" | "nodejs" => Some(RuntimeName::Node),
        "go" | "golang" => Some(RuntimeName::Go),
        _ => None,
    }
}

/// Returns the error for a function whose object has neither code nor an image.
fn no_code(file: &str, name: &str) -> Mistakes {
    let hint = format!("name the folder of its code: --source {name}=FOLDER");
    not_offered(file, name, "a function without code and image", &hint)
}

fn not_offered(file: &str, name: &str, what: &str, hint: &str) -> Mistakes {
    mistake("M0305", format!("{file}: {name}: {what} is not supported"), Some(hint.to_owned()))
}

/// The supported manifests, in the words of a hint.
pub const SUPPORTED: &str = "supported: OpenFaaS stack.yml, Nuclio function.yaml, Kubeless Function, \
                             Fission specs, Knative Service and func.yaml, OpenWhisk manifest.yaml, Spin spin.toml, wasmCloud wadm.yaml; and \
                             workflows of the CNCF Serverless Workflow language";

/// Reads the manifest of another platform at `path`, or in the folder `path`. Returns `None` if there
/// is no such manifest, or if a `mote.toml` takes its place.
pub fn read(path: &Path) -> Result<Option<Foreign>, Mistakes> {
    if path.file_name().is_some_and(|name| name == spin::FILE_NAME) && path.is_file() {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        return read_spin(path, folder.unwrap_or(Path::new("."))).map(Some);
    }
    if path.is_file() {
        let yaml = path.extension().is_some_and(|ending| ending == "yml" || ending == "yaml");
        if !yaml {
            return nuclio::inline(path);
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let found = read_file(path, folder.unwrap_or(Path::new(".")))?;
        return match found {
            Some(found) => Ok(Some(found)),
            None => {
                let text = format!("{}: not a manifest of a supported platform", path.display());
                Err(mistake("M0301", text, Some(SUPPORTED.to_owned())))
            }
        };
    }
    if !path.is_dir() || path.join(manifest::FILE_NAME).exists() {
        return Ok(None);
    }
    let file = path.join(spin::FILE_NAME);
    if file.is_file() {
        return read_spin(&file, path).map(Some);
    }
    for name in NAMES {
        let file = path.join(name);
        if file.is_file()
            && let Some(found) = read_file(&file, path)?
        {
            return Ok(Some(found));
        }
    }
    let mut others: Vec<PathBuf> = fs::read_dir(path)
        .map_err(|error| unreadable(path, &error))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|file| file.extension().is_some_and(|end| end == "yml" || end == "yaml"))
        .collect();
    others.sort_unstable();
    let is_chain = |file: &PathBuf| {
        source::text(file).is_ok_and(|source| {
            documents("", &source)
                .is_ok_and(|all| all.iter().any(|one| one["document"]["dsl"].is_string()))
        })
    };
    let chains: Vec<String> = others
        .iter()
        .filter(|file| is_chain(file))
        .map(|file| file.display().to_string())
        .collect();
    if chains.len() > 1 {
        let text = format!("{}: several chains: {}", path.display(), chains.join(", "));
        return Err(mistake("M0112", text, Some("deploy one of these files".to_owned())));
    }
    for file in others {
        if is_chain(&file) {
            return read_file(&file, path);
        }
        // The folder may contain other YAML files that belong to the function and are not manifests, so
        // an error here is ignored.
        if let Ok(Some(found)) = read_file(&file, path) {
            return Ok(Some(found));
        }
    }
    if let Some(found) = fission::read_specs(path)? {
        return Ok(Some(found));
    }
    nuclio::inline_in(path)
}

/// Reads the functions of a file with objects of a cluster. The objects belong to several platforms, or
/// have images whose code is in `sources`. Returns `None` for any other file; [`read`] reads those.
pub fn read_cluster_file(
    path: &Path,
    sources: &BTreeMap<String, PathBuf>,
) -> Result<Option<Foreign>, Mistakes> {
    let is_yaml =
        path.extension().is_some_and(|end| end == "yml" || end == "yaml" || end == "json");
    if !path.is_file() || !is_yaml {
        return Ok(None);
    }
    let shown = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
    let source = source::text(path).map_err(|error| unreadable(path, &error))?;
    let all = match serde_json::from_str::<Value>(&source) {
        Ok(value) => items(value),
        Err(_) if sources.is_empty() && !source.contains("apiVersion") => return Ok(None),
        Err(_) => documents(&shown, &source)?,
    };
    let mut groups: Vec<&str> = all.iter().map(group).filter(|group| is_platform(group)).collect();
    groups.sort_unstable();
    groups.dedup();
    if sources.is_empty() && groups.len() < 2 && !groups.contains(&cluster::OPENFAAS) {
        return Ok(None);
    }
    cluster::read(&shown, all, sources, path.parent().unwrap_or(Path::new("."))).map(Some)
}

/// Returns the objects of a list, or the object itself if it is not a list.
pub fn items(mut value: Value) -> Vec<Value> {
    let is_list = value["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match value["items"].take() {
        Value::Array(items) if is_list => items,
        items => {
            if !items.is_null() {
                value["items"] = items;
            }
            vec![value]
        }
    }
}

/// Reads `spin.toml`, which is not a YAML file.
fn read_spin(file: &Path, folder: &Path) -> Result<Foreign, Mistakes> {
    let source = source::text(file).map_err(|error| unreadable(file, &error))?;
    let mut found = spin::read(&source, folder)?;
    found.file = spin::FILE_NAME.to_owned();
    check(&mut found)?;
    Ok(found)
}

fn is_platform(group: &str) -> bool {
    cluster::RESOURCES
        .iter()
        .any(|resource| resource.split_once('.').is_some_and(|(_, known)| known == group))
}

fn read_file(file: &Path, folder: &Path) -> Result<Option<Foreign>, Mistakes> {
    let io = |error: std::io::Error| unreadable(file, &error);
    if fs::metadata(file).map_err(io)?.len() > BYTES_MAX {
        return Ok(None);
    }
    let shown = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
    let source = source::text(file).map_err(io)?;
    let (source, missing) = if shown.starts_with("stack.") || source.contains("name: openfaas") {
        openfaas::substitute(&source, |name| std::env::var(name).ok())
    } else {
        (source, Vec::new())
    };
    let mut documents = documents(&shown, &source)?;
    // Other objects may come first, such as a namespace, a secret, or an object that installs a chart.
    let found =
        documents.iter().enumerate().find_map(|(at, one)| Some((at, document_of(&shown, one)?)));
    let Some((at, kind)) = found else {
        let describes = |one: &Value| {
            ["apiVersion", "kind", "metadata", "spec", "runtime"]
                .iter()
                .any(|key| !one[key].is_null())
        };
        if shown.starts_with("function.") && documents.iter().any(describes) {
            let text = format!("{shown}: not a function of a supported platform");
            let hint = "name the platform: apiVersion: nuclio.io/v1, kubeless.io/v1beta1 or \
                        fission.io/v1; or write a mote.toml, which is then read instead";
            return Err(mistake("M0301", text, Some(hint.to_owned())));
        }
        return Ok(None);
    };
    if matches!(kind, Document::OpenFaas) {
        openfaas::as_written(&source, &mut documents[at]);
    }
    let first = &documents[at];
    let mut found = match kind {
        Document::Chain => chain::read(&shown, first, &source)?,
        Document::Nuclio => nuclio::read(&shown, &documents, folder)?,
        Document::Kubeless => kubeless::read(&shown, &documents)?,
        Document::Service => knative::services(&shown, &documents)?,
        Document::Fission => match fission::read(&shown, &documents, folder)? {
            Some(found) => found,
            None => return Ok(None),
        },
        Document::OpenFaas => openfaas::read(&shown, first, folder)?,
        Document::Serverless => {
            let provider = first["provider"]["name"].as_str().unwrap_or("");
            let hint = "deploy the folder of each function with a mote.toml that sets compat";
            return Err(not_offered(&shown, provider, "serverless.yml", hint));
        }
        Document::Func => {
            let source = source::text(folder.join("func.py")).unwrap_or_default();
            let lookup = |name: &str| std::env::var(name).ok();
            // The first versions of `func` had a single Python contract, whose function is called
            // `main`.
            let is_first = first["specVersion"].is_null()
                && contract::python_parameters(&source, "main")
                    .is_some_and(|names| names.len() == 1);
            let is_of_parliament = is_first || contract::is_of_parliament(&source);
            knative::func(&shown, first, is_of_parliament, lookup)?
        }
        Document::Fn => {
            let name = text(&first["name"]).unwrap_or_default();
            let hint = "its handlers are called by the package fdk: deploy them as a function of mote, or \
                        build the program and deploy it with runtime = \"server\" in a mote.toml";
            return Err(not_offered(&shown, &name, "func.yaml of Fn (Oracle Functions)", hint));
        }
        Document::OpenWhisk => openwhisk::read(&shown, first, folder)?,
        Document::WasmCloud => wasmcloud::read(&shown, first, folder),
    };
    routes::objects(&mut found, &documents);
    for name in missing {
        found
            .warnings
            .push(format!("${{{name}}} is not set and has no default; using an empty value"));
    }
    found.file = shown;
    check(&mut found)?;
    Ok(Some(found))
}

/// The platform to which a document belongs.
enum Document {
    Chain,
    Nuclio,
    Kubeless,
    Service,
    Fission,
    OpenFaas,
    Serverless,
    Func,
    /// The Fn project. Its file has the same name as Knative's.
    Fn,
    OpenWhisk,
    WasmCloud,
}

fn document_of(file: &str, document: &Value) -> Option<Document> {
    let provider = document["provider"]["name"].as_str().unwrap_or("");
    Some(match (group(document), provider) {
        _ if document["document"]["dsl"].is_string() => Document::Chain,
        ("nuclio.io", _) => Document::Nuclio,
        _ if nuclio::is_export(document) || nuclio::is_bare(file, document) => Document::Nuclio,
        ("kubeless.io", _) => Document::Kubeless,
        _ if kubeless::is_old(document) => Document::Kubeless,
        ("serving.knative.dev", _) => Document::Service,
        ("fission.io", _) => Document::Fission,
        _ if wasmcloud::is_application(document) => Document::WasmCloud,
        (_, "openfaas" | "faas") => Document::OpenFaas,
        (_, "kubeless" | "openwhisk") => Document::Serverless,
        _ if file.starts_with("func.")
            && ["schema_version", "entrypoint", "build_image", "run_image"]
                .iter()
                .any(|key| !document[key].is_null()) =>
        {
            Document::Fn
        }
        _ if document["runtime"].is_string()
            && (document["specVersion"].is_string()
                || document["builder"].is_string()
                // The first versions of `func` wrote neither `specVersion` nor `builder`.
                || document["name"].is_string() && file.starts_with("func.")) =>
        {
            Document::Func
        }
        _ if document["packages"].is_object() || document["project"]["packages"].is_object() => {
            Document::OpenWhisk
        }
        _ => return None,
    })
}

/// Resolves a path in a manifest. The path must lead to something in the folder of the manifest, or in
/// the repository that contains the folder. Otherwise a manifest from a stranger could deploy any file
/// of the user, and write files anywhere.
fn inside(file: &str, name: &str, folder: &Path, path: &str) -> Result<PathBuf, Mistakes> {
    let joined = folder.join(path);
    let start = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Ok(own) = fs::canonicalize(start) else { return Ok(joined) };
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let is_root = |at: &&Path| Some(*at) != home.as_deref() && at.join(".git").exists();
    let root = own.ancestors().find(is_root).unwrap_or(&own);
    // A file that does not exist is reported later, but its place is already checked here.
    let real = joined.ancestors().find_map(|at| {
        let rest = joined.strip_prefix(at).ok()?;
        let at = if at.as_os_str().is_empty() { Path::new(".") } else { at };
        Some(fs::canonicalize(at).ok()?.join(rest))
    });
    let climbs =
        |real: &Path| real.components().any(|part| part == std::path::Component::ParentDir);
    match real {
        Some(real) if real.starts_with(root) && !climbs(&real) => Ok(joined),
        _ => {
            let text =
                format!("{file}: {name}: `{}` is outside of {}", escaped(path), root.display());
            let hint = "a manifest can name only files of its own folder or repository: deploy the other \
                        folder by itself, or copy what the function needs";
            Err(mistake("M0303", text, Some(hint.to_owned())))
        }
    }
}

/// Returns the API group of a Kubernetes object.
fn group(document: &Value) -> &str {
    document["apiVersion"].as_str().unwrap_or("").split('/').next().unwrap_or("")
}

/// Returns the name of an object for a warning.
fn object_name(document: &Value) -> String {
    let part = |value: &Value| text(value).unwrap_or_default();
    format!("{} {}", part(&document["kind"]), part(&document["metadata"]["name"]))
}

/// Checks the names that become names of files and folders, then the routes.
fn check(found: &mut Foreign) -> Result<(), Mistakes> {
    for function in &found.functions {
        if let Some(name) = &function.function.name
            && let Err(error) = FunctionName::new(&name.value)
        {
            let name = escaped(&name.value);
            return Err(mistake("M0115", format!("{}: `{name}`: {error}", found.file), None));
        }
        let (Source::Inside(files) | Source::Zip(_, files)) = &function.source else { continue };
        if let Some((name, _)) = files.iter().find(|(name, _)| !is_plain_name(name)) {
            let text = format!("{}: {}: `{name}` is not a file name", found.file, function.name());
            return Err(mistake("M0303", text, None));
        }
    }
    routes::settle(found);
    Ok(())
}

/// Returns whether `name` can be the name of a file in a folder. It must not be a path and must not be
/// hidden.
pub fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

/// Reads a function in the form in which a client describes it to Nuclio's dashboard. The code is part
/// of the description.
pub fn nuclio_document(document: &Value) -> Result<Described, Mistakes> {
    let mut described = nuclio::sent(document)?;
    // A caller of that API may be permitted only to deploy functions, so a function must not claim
    // hosts and paths.
    described.routes.clear();
    let functions = vec![described];
    let mut found = Foreign { file: "function".to_owned(), functions, ..Foreign::default() };
    check(&mut found)?;
    Ok(found.functions.into_iter().next().expect("one was put in"))
}

/// Reads a function in the form in which a client describes it to OpenFaaS' gateway. The code is not
/// part of the description.
pub fn openfaas_deployment(document: &Value) -> Described {
    openfaas::deployment(document)
}

/// Returns whether `name` can be the name of an environment variable.
fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn documents(file: &str, source: &str) -> Result<Vec<Value>, Mistakes> {
    // The nesting depth is unknown until the file is parsed, so all brackets count.
    let brackets = source.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count();
    if source.len() as u64 > BYTES_MAX
        || brackets.saturating_mul(source.len()) > BRACKETS_TIMES_BYTES_MAX
    {
        let bytes = source.len();
        let text = format!("{file}: too large to read ({brackets} brackets in {bytes} bytes)");
        let hint = "split the file, or write its lists and tables in block style, without brackets";
        return Err(mistake("M0301", text, Some(hint.to_owned())));
    }
    let mut found = Vec::new();
    for document in yaml_serde::Deserializer::from_str(source) {
        let unreadable = |error: yaml_serde::Error| {
            let line = error.location().map_or(0, |place| place.line());
            mistake("M0301", format!("{file}: not valid YAML (line {line}): {error}"), None)
        };
        let value = if source.contains("<<") {
            let mut document = yaml_serde::Value::deserialize(document).map_err(unreadable)?;
            document.apply_merge().map_err(unreadable)?;
            yaml_serde::from_value(document).map_err(unreadable)?
        } else {
            Value::deserialize(document).map_err(unreadable)?
        };
        // kubectl prints several objects as a list.
        let is_list = value["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
        if let Some(items) = value["items"].as_array().filter(|_| is_list) {
            found.extend(items.iter().cloned());
        } else if let Some(functions) = nuclio::exported(&value) {
            found.extend(functions.into_iter().cloned());
        } else if !value.is_null() {
            found.push(value);
        }
    }
    Ok(found)
}

/// Sets a value that has no line number.
fn set<T>(slot: &mut Option<Lined<T>>, value: T) {
    *slot = implied(value);
}

/// Returns whether `name` matches `filter`, in which `*` stands for any characters.
pub(super) fn matches_filter(filter: &str, name: &str) -> bool {
    let Some((first, rest)) = filter.split_once('*') else { return filter == name };
    let Some(mut left) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(last)
}
