//! Reads wasmCloud's application manifests (`wadm.yaml`): their components become WebAssembly
//! functions.

use std::path::Path;

use mote_spec::manifest::RuntimeName;
use mote_spec::toml_reader::Mistakes;
use serde_json::Value;

use super::super::mistakes::mistake;
use super::{Described, Foreign, Source, count, inside, label, not_offered, set, text};

/// Whether a document is an application of wasmCloud. KubeVela has the same objects, with other
/// types of components.
pub(super) fn is_application(document: &Value) -> bool {
    super::group(document) == "core.oam.dev"
        && document["kind"] == "Application"
        && components(document).any(|one| one["type"] == "component")
}

fn components(document: &Value) -> impl Iterator<Item = &Value> {
    document["spec"]["components"].as_array().into_iter().flatten()
}

pub(super) fn read(file: &str, document: &Value, folder: &Path) -> Foreign {
    let mut found = Foreign::default();
    for one in components(document) {
        let name = text(&one["name"]).unwrap_or_default();
        if one["type"] == "component" {
            found.add(&name, function(file, &name, one, folder));
        } else {
            let kind = text(&one["type"]).unwrap_or_default();
            let text = format!("ignored: {kind} {name}: the node offers its own services");
            found.warnings.push(text);
        }
    }
    found
}

fn function(file: &str, name: &str, one: &Value, folder: &Path) -> Result<Described, Mistakes> {
    let properties = &one["properties"];
    let mut to = Described::default();
    set(&mut to.function.name, label(name));
    set(&mut to.function.runtime, RuntimeName::Wasm);
    to.note("runtime", format!("component {name}"));
    let image = text(&properties["image"]).unwrap_or_default();
    let Some(source) = image.strip_prefix("file://") else {
        let hint = "download its .wasm file, and name the file: image: file://./NAME.wasm";
        return Err(not_offered(file, name, "an image in a registry", hint));
    };
    let path = inside(file, name, folder, source)?;
    if !path.is_file() {
        let text = format!("{file}: {name}: {source} does not exist");
        return Err(mistake("M0113", text, Some("build it first: wash build".to_owned())));
    }
    let entry = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    set(&mut to.function.entry, entry);
    to.note("entry", format!("{name}.properties.image: {image}"));
    to.source = Source::Files(vec![path]);
    for config in properties["config"].as_array().into_iter().flatten() {
        if config["properties"].is_null() {
            let named = text(&config["name"]).unwrap_or_default();
            to.warn(format!("config: {named} is not in the manifest: write its keys in [env]"));
        }
        for (key, value) in config["properties"].as_object().into_iter().flatten() {
            to.set_env(key, text(value).unwrap_or_default());
        }
    }
    to.note_env("properties.config");
    to.ignore_rest(properties, &["image", "id", "config"], "properties.");
    for one in one["traits"].as_array().into_iter().flatten() {
        let properties = &one["properties"];
        match one["type"].as_str() {
            Some("spreadscaler" | "daemonscaler") => {
                let most = count(&properties["instances"]).or(count(&properties["replicas"]));
                to.set_scale(None, most, "spreadscaler.instances");
            }
            Some("link") => link(&mut to, properties),
            other => to.warn(format!("ignored: trait {}", other.unwrap_or_default())),
        }
    }
    Ok(to)
}

/// Reads a link, which connects an import of a component to what offers it.
fn link(to: &mut Described, properties: &Value) {
    let part = |key: &str| text(&properties[key]).unwrap_or_default();
    match (part("namespace").as_str(), part("package").as_str()) {
        ("wasi", "keyvalue" | "logging" | "config") => {}
        ("wasi", "http") => {
            to.warn("link to wasi:http: name the hosts that the function calls in [allow] net");
        }
        (namespace, package) => to.warn(format!("link to {namespace}:{package}: not offered")),
    }
}
