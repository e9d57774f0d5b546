//! Reads OpenFaaS' `stack.yml`. The node builds functions from `lang` and `handler`, without
//! containers.

use std::collections::BTreeMap;
use std::path::Path;

use mote_spec::Platform;
use mote_spec::manifest::{PlatformName, PolicyName, RuntimeName};
use mote_spec::toml_reader::Mistakes;
use mote_store::source;
use serde::Deserialize;
use serde_json::Value;

use super::super::contract;
use super::super::mistakes::mistake;
use super::{Described, Foreign, Source, count, not_offered, quantity, set, text};

mod templates;

use templates::{Named, Template};

/// The `lang` that the gateway's API adds to a deployment whose image is pulled.
pub(super) const LANG_OF_IMAGES: &str = "image";
/// The port on which the watchdog in an image listens.
const WATCHDOG_PORT: u16 = 8080;
const KNOWN: [&str; 12] = [
    "lang",
    "handler",
    "image",
    "fprocess",
    "environment",
    "environment_file",
    "secrets",
    "labels",
    "annotations",
    "limits",
    "skip_build",
    "readonly_root_filesystem",
];

/// Replaces `${NAME}` and `${NAME:-default}`. Also returns the names that have neither a value nor a
/// default.
pub(super) fn substitute(
    source: &str,
    lookup: impl Fn(&str) -> Option<String>,
) -> (String, Vec<String>) {
    let mut out = String::with_capacity(source.len());
    let mut missing = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find("${") {
        out.push_str(&rest[..at]);
        let behind = &rest[at + 2..];
        let Some(end) = behind.find('}') else {
            out.push_str(&rest[at..]);
            return (out, missing);
        };
        let inside = &behind[..end];
        let cut = inside.find([':', '-', '=']).unwrap_or(inside.len());
        let (name, default) = inside.split_at(cut);
        let default = default.trim_start_matches(':').trim_start_matches(['-', '=']);
        match lookup(name).filter(|value| !value.is_empty()) {
            Some(value) => out.push_str(&value),
            None => {
                if cut == inside.len() {
                    missing.push(name.to_owned());
                }
                out.push_str(default);
            }
        }
        rest = &behind[end + 1..];
    }
    out.push_str(rest);
    (out, missing)
}

/// The environments of a `stack.yml`, with each value as text. For example, 1.10 must stay 1.10.
#[derive(Deserialize)]
struct Written {
    functions: BTreeMap<String, WrittenFunction>,
}

#[derive(Deserialize)]
struct WrittenFunction {
    #[serde(default)]
    environment: Option<BTreeMap<String, Option<String>>>,
}

/// Restores the written text of environment values that were parsed as numbers or truth values.
pub(super) fn as_written(source: &str, document: &mut Value) {
    // A file with merged tables cannot be read in this form. Its values then stay as they were parsed.
    let Ok(written) = yaml_serde::from_str::<Written>(source) else { return };
    for (function, its) in written.functions {
        for (name, text) in its.environment.into_iter().flatten() {
            let slot = document["functions"][&function]["environment"].get_mut(&name);
            if let (Some(slot), Some(text)) = (slot.filter(|slot| !slot.is_null()), text) {
                *slot = Value::String(text);
            }
        }
    }
}

pub(super) fn read(file: &str, document: &Value, folder: &Path) -> Result<Foreign, Mistakes> {
    let mut found = Foreign::default();
    for (name, entry) in document["functions"].as_object().into_iter().flatten() {
        found.add(name, function(file, name, entry, folder));
    }
    if found.functions.is_empty() && found.left_out.is_empty() {
        let hint = "write each function as a key below functions, with lang and handler";
        let text = format!("{file}: functions: the file contains none");
        return Err(mistake("M0306", text, Some(hint.to_owned())));
    }
    if document["configuration"].is_object() {
        found.warnings.push(
            "configuration: templates are not fetched; lang names one that \
                             is built into mote"
                .to_owned(),
        );
    }
    Ok(found)
}

pub(super) fn function(
    file: &str,
    name: &str,
    entry: &Value,
    folder: &Path,
) -> Result<Described, Mistakes> {
    let mut to = Described::new(name, PlatformName::OpenFaas);
    for path in entry["environment_file"].as_array().into_iter().flatten().filter_map(text) {
        super::inside(file, name, folder, &path)?;
    }
    if let Some(handler) = entry["handler"].as_str() {
        super::inside(file, name, folder, handler)?;
    }
    environment(&mut to, entry, folder);
    match (image_of(entry), entry["handler"].as_str()) {
        (Some(image), _) => image_with_watchdog(&mut to, image, entry["fprocess"].as_str()),
        (None, handler) => {
            language(&mut to, file, name, entry, folder)?;
            own_template(&mut to, entry, folder);
            let Some(handler) = handler else {
                let hint = "name the folder of its code in handler, or an image in image";
                return Err(not_offered(file, name, "a function without code", hint));
            };
            to.source = Source::At(folder.join(handler));
            oldest_contract(&mut to, &folder.join(handler));
        }
    }
    to.set_resources(&entry["limits"], "limits");
    scale(&mut to, &entry["labels"]);
    for secret in entry["secrets"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        // The secret can also be read at the platform's own path.
        to.add_secret_file(secret, &format!("/secrets/{secret}"));
    }
    if !to.function.secrets.is_empty() {
        to.note("secrets", "secrets");
    }
    to.read_annotations(&entry["annotations"]);
    let is_scheduled = super::schedules::openfaas(&mut to, &entry["annotations"]);
    for (key, value) in entry["annotations"].as_object().into_iter().flatten() {
        let value = text(value).unwrap_or_default();
        match key.as_str() {
            "topic" | "schedule" if is_scheduled => {}
            "topic" | "schedule" => {
                to.warn(format!("annotation {key}: {value}: this trigger is not supported yet"));
            }
            super::ALLOW_NET | super::ACCESS => {}
            _ => to.warn(format!("ignored: annotation {key}")),
        }
    }
    to.ignore_rest(entry, &KNOWN, "");
    annotate(&mut to, entry);
    Ok(to)
}

/// The image to run, if it is to be run as it is: there is no code, the build is skipped, or only its
/// Dockerfile says how the code becomes a program.
fn image_of(entry: &Value) -> Option<&str> {
    let image = entry["image"].as_str().filter(|image| !image.trim().is_empty())?;
    let environment = &entry["environment"];
    let has_process =
        [&entry["fprocess"], &environment["fprocess"], &environment["function_process"]]
            .iter()
            .any(|process| !process.is_null());
    let lang = entry["lang"].as_str().unwrap_or_default();
    let by_dockerfile = lang.eq_ignore_ascii_case("dockerfile") && !has_process;
    let is_built = entry["skip_build"] == true;
    (!entry["handler"].is_string() || is_built || by_dockerfile).then_some(image)
}

/// Runs an image of OpenFaaS. It contains a watchdog, which listens on the port of the platform and
/// starts the program in `fprocess`.
fn image_with_watchdog(to: &mut Described, image: &str, process: Option<&str>) {
    to.set_image(image, "image");
    set(&mut to.function.port, WATCHDOG_PORT);
    watchdog_limits(to);
    if let Some(process) = process.filter(|text| !text.trim().is_empty()) {
        to.set_env("fprocess", process.to_owned());
    }
}

/// Decides whether a handler follows the contract of the template `node`. A template of another name
/// may have that contract too, so the arguments of the handler decide.
fn oldest_contract(to: &mut Described, handler: &Path) {
    let is_node = to.function.runtime.as_ref().is_some_and(|one| one.value == RuntimeName::Node);
    if !is_node || to.function.template.is_some() {
        return;
    }
    let source = source::text(handler.join("handler.js")).unwrap_or_default();
    if contract::takes_context_and_callback(&source) {
        set(&mut to.function.template, "node".to_owned());
        to.note("template", "handler.js: module.exports = (context, callback)");
    }
}

/// Reads the description of a function that the gateway receives. It contains everything except the
/// code. If it has a `lang`, the function is a program that runs once per call, or the image itself
/// ([`LANG_OF_IMAGES`]).
pub(super) fn deployment(document: &Value) -> Described {
    let mut to = Described::new(document["service"].as_str().unwrap_or(""), PlatformName::OpenFaas);
    variables(&mut to, &document["envVars"]);
    watchdog_limits(&mut to);
    to.set_resources(&document["limits"], "limits");
    scale(&mut to, &document["labels"]);
    to.read_access(&document["annotations"]);
    super::schedules::openfaas(&mut to, &document["annotations"]);
    let process = document["envProcess"].as_str();
    match document["lang"].as_str() {
        Some(LANG_OF_IMAGES) => {
            let image = document["image"].as_str().unwrap_or_default();
            image_with_watchdog(&mut to, image, process);
            return to;
        }
        Some(_) => set(&mut to.function.runtime, RuntimeName::Exec),
        None => {}
    }
    if let Some(process) = process.filter(|text| !text.trim().is_empty()) {
        set(&mut to.function.command, process.split_whitespace().map(str::to_owned).collect());
    }
    to
}

fn environment(to: &mut Described, entry: &Value, folder: &Path) {
    for path in entry["environment_file"].as_array().into_iter().flatten() {
        let Some(path) = path.as_str() else { continue };
        let file = folder.join(path);
        let read = source::bytes(&file, folder, source::TEXT_BYTES_MAX).ok();
        let read = read.and_then(|bytes| String::from_utf8(bytes).ok());
        let documents = read.and_then(|source| super::documents(path, &source).ok());
        match documents.as_ref().and_then(|all| all.first()) {
            Some(document) => variables(to, &document["environment"]),
            None => to.warn(format!("environment_file: {path} cannot be read")),
        }
    }
    let own = &entry["environment"];
    if !own.is_null() && !own.is_object() {
        to.warn("environment: not one NAME: VALUE per line; it is ignored".to_owned());
    }
    variables(to, own);
    if !to.function.env.is_empty() {
        to.note("env", "environment");
    }
}

fn variables(to: &mut Described, table: &Value) {
    for (name, value) in table.as_object().into_iter().flatten() {
        to.set_env(name, text(value).unwrap_or_default());
    }
}

/// Determines how the function runs: with the template of a language, or as a program under a watchdog.
fn language(
    to: &mut Described,
    file: &str,
    name: &str,
    entry: &Value,
    folder: &Path,
) -> Result<(), Mistakes> {
    let lang = entry["lang"].as_str().unwrap_or("").to_lowercase();
    let known = to.function.env.clone();
    let env = |key: &str| known.get(key).cloned();
    let process = entry["fprocess"].as_str().map(str::to_owned);
    let process = process.or_else(|| env("fprocess")).or_else(|| env("function_process"));
    let mode = env("mode");
    let upstream = env("upstream_url");
    watchdog_limits(to);
    to.note("compat", format!("lang: {lang}"));
    let handler = folder.join(entry["handler"].as_str().unwrap_or_default());
    match templates::named(&lang) {
        Named::Official(template) => {
            use_template(to, template, &format!("lang: {lang}"));
            return Ok(());
        }
        Named::Service => {
            let hint = "its handler receives a whole Express app: use a template whose handlers are \
                        called with (event, context), or listen on $PORT with runtime = \"server\" in \
                        mote.toml";
            return Err(not_offered(file, name, &format!("lang {lang:?}"), hint));
        }
        // If the function has a program, no template is needed.
        Named::Own(_) if process.is_some() => {}
        Named::Own(nearest) => {
            let Some((template, why)) = templates::by_handler(&handler) else {
                let hint = format!(
                    "mote has no template of this name: if the handler has the arguments of \
                     {nearest}, write lang: {nearest}; a program that listens on $PORT runs with \
                     runtime = \"server\" in mote.toml"
                );
                return Err(not_offered(file, name, &format!("lang {lang:?}"), &hint));
            };
            use_template(to, template, &why);
            to.warn(format!(
                "lang {lang}: not an official template; mote runs the handler by its arguments ({why})"
            ));
            return Ok(());
        }
        Named::Other => {}
    }
    let Some(process) = process else {
        let hint = "supported: python3, python3-http, python3-flask, node, node12 to node26, go, \
                    golang-http, golang-middleware, and any lang with fprocess whose program is in \
                    the handler's folder";
        return Err(not_offered(file, name, &format!("lang {lang:?}"), hint));
    };
    // Words are split at blanks only, without a shell's quoting rules. The command of a user's own
    // program does not need quotes.
    let words: Vec<String> = process.split_whitespace().map(str::to_owned).collect();
    let http = mode.as_deref() == Some("http");
    let runtime = if http { RuntimeName::Server } else { RuntimeName::Exec };
    set(&mut to.function.runtime, runtime);
    set(&mut to.function.command, words);
    to.note("command", format!("fprocess: {process}"));
    if let (true, Some(url)) = (http, upstream) {
        let port = url.trim_end_matches('/').rsplit(':').next().and_then(|port| port.parse().ok());
        to.function.port = port.and_then(super::implied);
        to.note("port", format!("upstream_url: {url}"));
    }
    Ok(())
}

/// Runs the handler in the same way as `template`. `from` is the reason, which becomes a note.
fn use_template(to: &mut Described, template: Template, from: &str) {
    set(&mut to.function.runtime, template.runtime);
    match template.runtime {
        RuntimeName::Python => set(&mut to.function.entry, "handler:handle".to_owned()),
        RuntimeName::Go => set(&mut to.function.entry, "Handle".to_owned()),
        _ => {}
    }
    match template.name {
        Some(name) => {
            set(&mut to.function.template, name.to_owned());
            to.note("template", from);
        }
        None if template.runtime == RuntimeName::Go => to.note("runtime", from),
        None => {}
    }
}

/// Installs the packages of a template that lies next to the manifest, which replaces the official
/// template of that name. The program that the template starts is not used, because `mote`'s adapter
/// replaces it.
fn own_template(to: &mut Described, entry: &Value, folder: &Path) {
    let Some(lang) = entry["lang"].as_str().filter(|lang| super::is_plain_name(lang)) else {
        return;
    };
    let template = folder.join("template").join(lang);
    let is_adapted =
        to.function.runtime.as_ref().is_some_and(|runtime| {
            matches!(runtime.value, RuntimeName::Python | RuntimeName::Node)
        });
    if !template.is_dir() || !is_adapted {
        return;
    }
    to.packages.add_template(&template);
    to.warn(format!(
        "template/{lang}: its packages are installed; its index and Dockerfile are not used, \
         because mote's adapter for {lang} replaces them"
    ));
}

/// Reads the limits that environment variables set for a watchdog.
fn watchdog_limits(to: &mut Described) {
    for (key, limit) in [("write_timeout", false), ("exec_timeout", false), ("max_inflight", true)]
    {
        let Some(value) = to.function.env.get(key).cloned() else { continue };
        if limit {
            to.function.limits.concurrency = value.parse().ok().filter(|n| *n > 0);
            to.note("concurrency", format!("environment.{key}: {value}"));
        } else if value != "0" && value != "0s" {
            to.set_timeout(&Value::String(value), &format!("environment.{key}"));
        }
    }
}

/// Keeps those keys of a function in `stack.yml` that `faas-cli` shows.
fn annotate(to: &mut Described, entry: &Value) {
    let shown = serde_json::json!({
        "image": entry["image"],
        "envProcess": entry["fprocess"],
        "labels": entry["labels"],
        "annotations": entry["annotations"],
    });
    to.annotations.insert(Platform::OpenFaas.as_str().to_owned(), shown.to_string());
}

fn scale(to: &mut Described, labels: &Value) {
    let prefix = "com.openfaas.scale.";
    let label = |key: &str| &labels[format!("{prefix}{key}")];
    to.set_scale(count(label("min")), count(label("max")), "labels com.openfaas.scale.min, max");
    if let Some(target) = count(label("target")) {
        let kind = text(label("type")).unwrap_or_else(|| "rps".to_owned());
        to.function.scale.policy = Some(match kind.as_str() {
            "capacity" => PolicyName::Concurrency,
            "cpu" => PolicyName::Cpu,
            _ => PolicyName::Rps,
        });
        to.function.scale.target = Some(target);
        to.note("policy", format!("labels {prefix}type, target: {kind} {target}"));
    }
    if let Some(idle) = text(label("zero-duration")).and_then(|text| quantity::milliseconds(&text))
    {
        to.function.scale.idle_timeout_ms = Some(idle);
        to.note("idle", format!("label {prefix}zero-duration"));
    }
    let known = ["min", "max", "target", "type", "zero-duration", "zero"]
        .map(|key| format!("{prefix}{key}"));
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    to.ignore_rest(labels, &known, "label ");
}

#[cfg(test)]
mod tests {
    use super::substitute;

    #[test]
    fn what_stack_files_share_and_how_values_are_written() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("code")).unwrap();
        let environments = |functions: &str| {
            let file = dir.path().join("stack.yml");
            std::fs::write(&file, format!("provider: {{name: openfaas}}\n{functions}")).unwrap();
            let found = super::super::read_file(&file, dir.path()).unwrap().unwrap();
            let env = |one: super::Described| {
                let env = one.function.env.into_iter();
                env.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
            };
            found.functions.into_iter().map(env).collect::<Vec<_>>()
        };
        let written = "functions:\n  a:\n    lang: python3\n    handler: code\n    environment:\n      \
                       V: 1.10\n      N: 007\n      T: True\n      E: 1e3\n      Q: \"a\"\n      Z:\n";
        assert_eq!(environments(written), ["E=1e3 N=007 Q=a T=True V=1.10 Z="]);
        let shared = "functions:\n  a: &a\n    lang: python3\n    handler: code\n    environment: {X: one}\n  \
                      b:\n    <<: *a\n    environment: {X: two}\n  c:\n    <<: *a\n";
        assert_eq!(environments(shared), ["X=one", "X=two", "X=one"]);
    }

    #[test]
    fn a_stack_without_functions_is_a_mistake() {
        for stack in ["provider: {name: openfaas}", "{provider: {name: openfaas}, functions: {}}"] {
            let document = yaml_serde::from_str(stack).unwrap();
            let wrong = super::read("stack.yml", &document, std::path::Path::new(".")).err();
            let wrong = wrong.expect("nothing would be deployed").0.remove(0);
            assert_eq!(
                (wrong.code, &*wrong.text),
                ("M0306", "stack.yml: functions: the file contains none")
            );
        }
    }

    #[test]
    fn environments_that_are_none() {
        let warnings = |environment: serde_json::Value| {
            let entry = serde_json::json!({ "environment": environment });
            let mut to = super::Described::new("a", super::PlatformName::OpenFaas);
            super::environment(&mut to, &entry, std::path::Path::new("."));
            to.warnings.len()
        };
        assert_eq!(warnings(serde_json::json!(["A=b"])), 1);
        assert_eq!(warnings(serde_json::json!({ "A": "b" })) + warnings(().into()), 0);
    }

    #[test]
    fn variables() {
        let lookup = |name: &str| (name == "A").then(|| "1".to_owned());
        let (text, missing) = substitute("${A} ${B:-x:y} ${C} ${D:-} ${A:-2} ${", lookup);
        assert_eq!(text, "1 x:y   1 ${");
        assert_eq!(missing, ["C"]);
    }
}
