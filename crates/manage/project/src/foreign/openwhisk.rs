//! Reads the `manifest.yaml` of OpenWhisk's tool wskdeploy.

use std::path::Path;

use mote_api::openwhisk::{WhiskAction, WhiskEntity, WhiskManifest, WhiskRule, WhiskSequence};
use mote_spec::manifest::{PlatformName, RuntimeName};
use mote_spec::toml_reader::Mistakes;
use mote_store::source;
use serde_json::{Map, Value};

use super::{
    Described, Foreign, Source, count, mistake, not_offered, runtime_of, set, text, unreadable,
};

pub(super) fn read(file: &str, document: &Value, folder: &Path) -> Result<Foreign, Mistakes> {
    let mut found = Foreign::default();
    let mut whisk = WhiskManifest::default();
    let mut feeds = Vec::new();
    let packages = match &document["project"]["packages"] {
        Value::Null => &document["packages"],
        inside => inside,
    };
    for (package, content) in packages.as_object().into_iter().flatten() {
        let shared = entity(package, content).parameters;
        for (name, action) in content["actions"].as_object().into_iter().flatten() {
            let own = function_name(package, name);
            let read = function(file, &own, action, folder, &shared).and_then(|described| {
                match found.functions.iter().any(|known| known.name() == described.name()) {
                    true => Err(same_function(file, &in_package(package, name), &own)),
                    false => Ok(described),
                }
            });
            if let Ok(described) = &read {
                whisk.actions.push(WhiskAction {
                    entity: entity(&in_package(package, name), action),
                    function: described.name().to_owned(),
                });
            }
            found.add(&own, read);
        }
        beside_actions(&mut whisk, &mut feeds, package, content);
        for (key, what) in
            [("apis", "an API gateway"), ("dependencies", "a dependency"), ("feeds", "a feed")]
        {
            for name in content[key].as_object().into_iter().flat_map(Map::keys) {
                found.warnings.push(format!("{key}.{name}: {what} is not supported yet"));
            }
        }
    }
    alarms(&mut found, &whisk, &feeds);
    found.whisk = Some(whisk);
    Ok(found)
}

/// Turns triggers that the package alarms fires into schedules of the functions that rules connect to
/// them. `feeds` contains each trigger that has a feed, with the feed.
fn alarms(found: &mut Foreign, whisk: &WhiskManifest, feeds: &[(String, String)]) {
    for (name, feed) in feeds {
        let trigger = whisk.triggers.iter().find(|one| one.name == *name);
        let Some(trigger) = trigger else { continue };
        let mut is_connected = false;
        for rule in whisk.rules.iter().filter(|rule| rule.trigger == *name) {
            let action = rule.action.trim_start_matches("/_/");
            let action = whisk.actions.iter().find(|one| one.entity.name == action);
            let described = action.and_then(|action| {
                found.functions.iter_mut().find(|one| one.name() == action.function)
            });
            let Some(described) = described else { continue };
            is_connected = true;
            if let Err(why) =
                super::schedules::openwhisk(described, name, feed, &trigger.parameters)
            {
                described.warn(format!("triggers.{name}: {why}: fire it with wsk trigger fire"));
            }
        }
        if !is_connected {
            found.warnings.push(format!(
                "triggers.{name}: the feed {feed} is not used, because no rule connects it to an \
                 action of this file: fire it with wsk trigger fire"
            ));
        }
    }
}

/// The name of the package for actions that belong to no named package.
const NO_PACKAGE: &str = "default";

fn in_package(package: &str, name: &str) -> String {
    if package == NO_PACKAGE { name.to_owned() } else { format!("{package}/{name}") }
}

/// Returns the name of an action's function. It begins with the name of the package, for two reasons:
/// actions of the same name in two packages do not replace each other, and every deploy gives an action
/// the same name.
fn function_name(package: &str, name: &str) -> String {
    super::label(&in_package(package, name).replace('/', "-"))
}

fn same_function(file: &str, action: &str, function: &str) -> Mistakes {
    let text = format!("{file}: {action}: another action of this file is the function {function}");
    mistake("M0303", text, Some("rename one of the two actions".to_owned()))
}

/// Reads the parts of a package that are not actions.
fn beside_actions(
    whisk: &mut WhiskManifest,
    feeds: &mut Vec<(String, String)>,
    package: &str,
    content: &Value,
) {
    if package != NO_PACKAGE {
        whisk.packages.push(entity(package, content));
    }
    let all = |key: &str| content[key].as_object().into_iter().flatten();
    // A plain name means the action of the same package, if the package has such an action.
    let action = |name: &str| {
        let own = ["actions", "sequences"].iter().any(|key| content[key].get(name).is_some());
        if own { in_package(package, name) } else { name.to_owned() }
    };
    for (name, sequence) in all("sequences") {
        let written = match &sequence["actions"] {
            Value::Array(names) => names.iter().filter_map(text).collect::<Vec<_>>().join(","),
            other => text(other).unwrap_or_default(),
        };
        let names = written.split(',').map(str::trim).filter(|name| !name.is_empty());
        let actions = names.map(action).collect();
        let entity = entity(&in_package(package, name), sequence);
        whisk.sequences.push(WhiskSequence { entity, actions });
    }
    for (name, trigger) in all("triggers") {
        for key in ["feed", "source"] {
            if let Some(feed) = text(&trigger[key]) {
                feeds.push((name.clone(), feed));
            }
        }
        whisk.triggers.push(entity(name, trigger));
    }
    for (name, rule) in all("rules") {
        let of = |key: &str| text(&rule[key]).unwrap_or_default();
        let trigger = of("trigger");
        let action = action(&of("action"));
        whisk.rules.push(WhiskRule { name: name.clone(), trigger, action });
    }
}

/// Returns an entity with its name, parameters and annotations.
fn entity(name: &str, content: &Value) -> WhiskEntity {
    let mut parameters = values(&content["parameters"]);
    parameters.extend(values(&content["inputs"]));
    let mut annotations = content["annotations"].as_object().cloned().unwrap_or_default();
    let web = if content["web"].is_null() { &content["web-export"] } else { &content["web"] };
    if let Some(word) = text(web) {
        let raw = word == "raw";
        let exported = raw || word == "true" || word == "yes";
        for (key, value) in [("web-export", exported), ("raw-http", raw), ("final", exported)] {
            annotations.insert(key.to_owned(), value.into());
        }
    }
    WhiskEntity { name: name.to_owned(), parameters, annotations }
}

/// Returns parameters by name. In the manifest, each is a table that describes the parameter, or the
/// value itself.
fn values(inputs: &Value) -> Map<String, Value> {
    let all = inputs.as_object().into_iter().flatten();
    all.map(|(name, input)| (name.clone(), value(input)))
        .filter(|(_, value)| !value.is_null())
        .collect()
}

/// Returns the value of a parameter. If the parameter is only described, or if its value is the name of
/// a type, the value is the empty value of that type.
fn value(input: &Value) -> Value {
    let mut written = ["value", "default"].into_iter().filter_map(|key| input.get(key));
    let written = written.find(|value| !value.is_null());
    match (input.get("type"), written) {
        (Some(_), Some(written)) => replaced(written),
        (Some(kind), None) => empty(kind).unwrap_or_default(),
        (None, _) => empty(input).unwrap_or_else(|| replaced(input)),
    }
}

fn empty(kind: &Value) -> Option<Value> {
    match kind.as_str()? {
        "string" => Some("".into()),
        "int" | "integer" | "float" | "number" => Some(0.into()),
        "bool" | "boolean" => Some(false.into()),
        "json" | "object" => Some(Value::Object(Map::new())),
        _ => None,
    }
}

/// Replaces variables of the environment: `${NAME}` anywhere in a text, and `$NAME` if it is the whole
/// text.
fn replaced(value: &Value) -> Value {
    match value {
        Value::String(text) => {
            let lookup = |name: &str| std::env::var(name).ok();
            let whole = text.strip_prefix('$').filter(|name| super::is_variable(name));
            let text = match whole {
                Some(name) => lookup(name).unwrap_or_default(),
                None => super::openfaas::substitute(text, lookup).0,
            };
            text.into()
        }
        Value::Array(values) => values.iter().map(replaced).collect(),
        Value::Object(table) => {
            table.iter().map(|(name, value)| (name.clone(), replaced(value))).collect()
        }
        other => other.clone(),
    }
}

fn function(
    file: &str,
    name: &str,
    action: &Value,
    folder: &Path,
    shared: &Map<String, Value>,
) -> Result<Described, Mistakes> {
    let mut to = Described::new(name, PlatformName::OpenWhisk);
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
    let image = text(&action["docker"]).filter(|image| !image.is_empty() && path.is_empty());
    if let (Some(image), true) = (image, action["code"].is_null()) {
        to.set_image(&image, "docker");
        set(&mut to.function.port, 8080);
        settings(&mut to, action, shared);
        return Ok(to);
    }
    let Some(runtime) = by_word.or(by_ending) else {
        let hint =
            "supported: python, nodejs, go, images with docker, and programs with native: true";
        let what = match text(&action["docker"]) {
            Some(image) => format!("docker {image:?}"),
            None if written.is_empty() => format!("function {path:?}"),
            None => format!("runtime {written:?}"),
        };
        return Err(not_offered(file, name, &what, hint));
    };
    let is_node = runtime == RuntimeName::Node;
    set(&mut to.function.runtime, runtime);
    to.note("runtime", format!("runtime: {written}"));
    let main = text(&action["main"]).unwrap_or_else(|| "main".to_owned());
    if let Some(code) = action["code"].as_str() {
        let code_file = match runtime {
            RuntimeName::Node | RuntimeName::Bun | RuntimeName::Deno => "index.js",
            RuntimeName::Go => "main.go",
            RuntimeName::Python => "__main__.py",
            RuntimeName::Exec
            | RuntimeName::Server
            | RuntimeName::Chain
            | RuntimeName::Wasm
            | RuntimeName::Rust => {
                let hint = "name the program in function";
                return Err(not_offered(file, name, "code of a native action", hint));
            }
        };
        to.source = Source::Inside(vec![(code_file.to_owned(), code.as_bytes().to_vec())]);
    } else if path.is_empty() || path.contains("://") {
        let hint = "name a source file, a folder or a zip archive in function";
        return Err(not_offered(file, name, &format!("function {path:?}"), hint));
    } else if is_archive(path) {
        to.source = Source::Zip(archive(&super::inside(file, name, folder, path)?)?, Vec::new());
    } else {
        to.source = Source::At(super::inside(file, name, folder, path)?);
    }
    match runtime {
        RuntimeName::Go if main == "main" => set(&mut to.function.entry, "Main".to_owned()),
        RuntimeName::Go => set(&mut to.function.entry, main),
        RuntimeName::Exec => program(&mut to, path),
        // In an archive, package.json names the file.
        RuntimeName::Node if is_archive(path) && main == "main" => {}
        RuntimeName::Node if is_archive(path) => set(&mut to.function.entry, format!(":{main}")),
        RuntimeName::Python if is_archive(path) => {
            set(&mut to.function.entry, format!("__main__:{main}"));
        }
        _ => entry(&mut to, path, &main, is_node),
    }
    settings(&mut to, action, shared);
    Ok(to)
}

/// Reads the limits and the parameters of an action.
fn settings(to: &mut Described, action: &Value, shared: &Map<String, Value>) {
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
    parameters(to, shared, &action["inputs"]);
    let known = [
        "function",
        "code",
        "runtime",
        "main",
        "limits",
        "inputs",
        "annotations",
        "web",
        "web-export",
        "native",
        "docker",
    ];
    to.ignore_rest(action, &known, "");
    to.ignore_rest(limits, &["timeout", "memorySize", "concurrentActivations"], "limits.");
}

fn is_archive(path: &str) -> bool {
    path.to_ascii_lowercase().ends_with(".zip")
}

/// The largest archive that the platform accepts.
const ARCHIVE_BYTES_MAX: u64 = 48 << 20;

fn archive(path: &Path) -> Result<Vec<u8>, Mistakes> {
    let folder = path.parent().unwrap_or(path);
    source::bytes(path, folder, ARCHIVE_BYTES_MAX).map_err(|error| match error.kind() {
        std::io::ErrorKind::FileTooLarge => {
            let text = format!("{}: the code of an action is at most 48 MiB", path.display());
            mistake("M0303", text, None)
        }
        _ => unreadable(path, &error),
    })
}

/// Sets the program of a native action: the given file, or `exec` in the given folder.
fn program(to: &mut Described, path: &str) {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or("");
    let is_file = matches!(&to.source, Source::At(path) if path.is_file());
    let command = if is_file { format!("./{name}") } else { "./exec".to_owned() };
    set(&mut to.function.command, vec![command]);
    to.note("command", format!("function: {path}"));
}

/// Sets the entry that the manifest names. In a folder, the file of the entry is searched for later.
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

/// Stores default parameters in the one variable that the adapter reads for them.
fn parameters(to: &mut Described, shared: &Map<String, Value>, own: &Value) {
    let mut all = shared.clone();
    all.extend(values(own));
    if !all.is_empty() {
        to.set_env("OPENWHISK_PARAMETERS", Value::Object(all).to_string());
        to.note("env", "inputs");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn actions_that_cannot_run_here_are_left_out() {
        let document = json!({ "packages": { "p": { "actions": {
            "good": { "function": "good.js" }, "image": { "docker": "someone/image" },
            "swift": { "function": "a/b.swift" }, "php": { "function": "b.php", "runtime": "php:8.0" },
        } } } });
        let found = super::read("m.yaml", &document, std::path::Path::new(".")).unwrap();
        let names: Vec<&str> = found.functions.iter().map(super::Described::name).collect();
        assert_eq!(names, ["p-good", "p-image"]);
        let image = found.functions[1].function.image.as_ref();
        assert_eq!(image.map(|image| image.value.as_str()), Some("someone/image"));
        let whisk = found.whisk.unwrap();
        let functions: Vec<_> = whisk.actions.iter().map(|one| &*one.function).collect();
        assert_eq!(functions, ["p-good", "p-image"]);
        let mut said: Vec<&str> =
            found.left_out.iter().map(|one| &*one.mistakes.0[0].text).collect();
        said.sort_unstable();
        assert_eq!(
            said,
            [
                "m.yaml: p-php: runtime \"php:8.0\" is not supported",
                "m.yaml: p-swift: function \"a/b.swift\" is not supported",
            ]
        );
    }

    #[test]
    fn functions_are_named_by_package_and_action() {
        let names = |document: serde_json::Value| -> Vec<String> {
            let found = super::read("m.yaml", &document, std::path::Path::new(".")).unwrap();
            let said = found.left_out.iter().map(|one| one.mistakes.0[0].text.clone());
            found.functions.iter().map(|one| one.name().to_owned()).chain(said).collect()
        };
        let action = json!({ "actions": { "main": { "function": "a.js" } } });
        let two = json!({ "packages": { "Tea_Shop": action, "default": action } });
        assert_eq!(names(two), ["tea-shop-main", "main"]);
        // The function's name is the same, whether the file describes one action or all of them.
        let one = json!({ "project": { "packages": { "Tea_Shop": action } } });
        assert_eq!(names(one), ["tea-shop-main"]);
        let same = json!({ "packages": {
            "tea": { "actions": { "pot-lid": { "function": "a.js" } } },
            "tea-pot": { "actions": { "lid": { "function": "a.js" } } },
        } });
        let said = "m.yaml: tea-pot/lid: another action of this file is the function tea-pot-lid";
        assert_eq!(names(same), ["tea-pot-lid", said]);
    }

    #[test]
    fn parameters() {
        let path = std::env::var("PATH").unwrap();
        let inputs = json!({
            "typed": { "type": "string", "value": "a" }, "default": { "type": "string", "default": "b" },
            "described": { "type": "integer", "description": "c" }, "word": "string", "plain": "d",
            "whole": "$PATH", "part": "x ${PATH}", "price": "$ 5", "none": "$NO_SUCH_VARIABLE_HERE",
            "object": { "deep": ["$PATH", 1] }, "flag": false,
        });
        let wanted = json!({
            "typed": "a", "default": "b", "described": 0, "word": "", "plain": "d", "whole": path,
            "part": format!("x {path}"), "price": "$ 5", "none": "", "object": { "deep": [path, 1] },
            "flag": false,
        });
        assert_eq!(super::values(&inputs), *wanted.as_object().unwrap());
    }
}
