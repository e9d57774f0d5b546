//! Reads Spin's `spin.toml`: its components with HTTP triggers become WebAssembly functions.

use std::path::Path;

use mote_spec::manifest::{self, RuntimeName};
use mote_spec::toml_reader::Mistakes;
use serde_json::Value;

use super::super::mistakes::mistake;
use super::{Described, Foreign, Source, inside, label, not_offered, set, text};

/// The name of the file.
pub(super) const FILE_NAME: &str = "spin.toml";
/// The end of a route that stands for all paths below it.
const BELOW: &str = "/...";

pub(super) fn read(source: &str, folder: &Path) -> Result<Foreign, Mistakes> {
    let document: Value = toml::from_str(source).map_err(|error| {
        let line = error.span().map_or(0, |span| source[..span.start].lines().count().max(1));
        let text = format!("{FILE_NAME}: not valid TOML (line {line}): {}", error.message());
        mistake("M0301", text, None)
    })?;
    let mut found = Foreign::default();
    let mut routes: Vec<(String, String)> = Vec::new();
    for (id, component) in components(&document) {
        found.add(&id, function(&id, component, &document, folder));
        // The first version of the manifest has the trigger in the component.
        if let Some(route) = component["trigger"]["route"].as_str() {
            routes.push((id, route.to_owned()));
        }
    }
    for (kind, triggers) in document["trigger"].as_object().into_iter().flatten() {
        if kind != "http" {
            if triggers.is_array() {
                let text = format!("trigger.{kind}: functions are not called by this trigger here");
                found.warnings.push(text);
            }
            continue;
        }
        for trigger in triggers.as_array().into_iter().flatten() {
            let id = text(&trigger["component"]).or_else(|| text(&trigger["component"]["source"]));
            let (Some(id), Some(route)) = (id, trigger["route"].as_str()) else {
                found.warnings.push("trigger.http: it has no route or no component".to_owned());
                continue;
            };
            routes.push((id, route.to_owned()));
        }
    }
    for (id, route) in routes {
        let object = format!("trigger.http of {id}");
        let Some(described) = found.named(&object, &id) else { continue };
        let path = match route.strip_suffix(BELOW) {
            Some(below) => format!("{below}/*"),
            None => route.to_owned(),
        };
        let is_plain = !route.contains(':');
        if is_plain && !described.has_path(None, path.trim_end_matches("/*")) {
            described.want(&object, None, &path, &[]);
        } else if !is_plain {
            described.warn(format!("{object}: {route}: segments with names are not read"));
        }
    }
    if found.functions.is_empty() && found.left_out.is_empty() {
        let text = format!("{FILE_NAME}: it has no component");
        return Err(mistake("M0301", text, None));
    }
    Ok(found)
}

/// The components of both versions of the manifest, with their names.
fn components(document: &Value) -> Vec<(String, &Value)> {
    match &document["component"] {
        Value::Object(table) => table.iter().map(|(id, one)| (id.clone(), one)).collect(),
        Value::Array(list) => {
            list.iter().map(|one| (text(&one["id"]).unwrap_or_default(), one)).collect()
        }
        _ => Vec::new(),
    }
}

fn function(
    id: &str,
    component: &Value,
    document: &Value,
    folder: &Path,
) -> Result<Described, Mistakes> {
    let mut to = Described::default();
    set(&mut to.function.name, label(id));
    set(&mut to.function.runtime, RuntimeName::Wasm);
    to.note("runtime", format!("component.{id}"));
    let Some(source) = component["source"].as_str() else {
        let hint = "download its .wasm file, and name the file in source";
        return Err(not_offered(FILE_NAME, id, "a source that is not a file", hint));
    };
    let path = inside(FILE_NAME, id, folder, source)?;
    if !path.is_file() {
        let text = format!("{FILE_NAME}: {id}: {source} does not exist");
        let build = text_of(&component["build"]["command"]);
        let hint = match build {
            Some(command) => format!("build it first: {command}"),
            None => "build it first".to_owned(),
        };
        return Err(mistake("M0113", text, Some(hint)));
    }
    let entry = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    set(&mut to.function.entry, entry);
    to.note("entry", format!("component.{id}.source: {source}"));
    to.source = Source::Files(vec![path]);
    for (name, value) in component["environment"].as_object().into_iter().flatten() {
        to.set_env(name, text(value).unwrap_or_default());
    }
    to.note_env("environment");
    variables(&mut to, component, document);
    for host in component["allowed_outbound_hosts"].as_array().into_iter().flatten() {
        let written = host.as_str().unwrap_or_default();
        match destination(written).and_then(|text| manifest::destination(&text)) {
            Some(destination) => to.function.egress.push(destination),
            None => to.warn(format!("allowed_outbound_hosts: `{written}` has no counterpart")),
        }
    }
    if !to.function.egress.is_empty() {
        to.note("net", "allowed_outbound_hosts");
    }
    for store in component["key_value_stores"].as_array().into_iter().flatten() {
        if let Some(store) = store.as_str().filter(|store| *store != "default") {
            to.function.shared_state.push(store.to_owned());
            to.note("shared", "key_value_stores");
        }
    }
    let known = [
        "id",
        "source",
        "description",
        "environment",
        "variables",
        "config",
        "allowed_outbound_hosts",
        "key_value_stores",
        "build",
        "trigger",
    ];
    to.ignore_rest(component, &known, "");
    Ok(to)
}

fn text_of(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Reads the variables of a component, which its code reads through `wasi:config`. A value is a
/// text in which `{{ name }}` stands for a variable of the application.
fn variables(to: &mut Described, component: &Value, document: &Value) {
    for (name, written) in component["variables"].as_object().into_iter().flatten() {
        let Some(written) = written.as_str() else { continue };
        let of = |variable: &str| &document["variables"][variable.trim()];
        let whole = written.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"));
        if let Some(variable) = whole.filter(|inner| !inner.contains("{{"))
            && of(variable)["default"].is_null()
        {
            // Its value is not in the file, so it is a secret or a setting of the operator.
            to.set_secret_env(name, variable.trim());
            continue;
        }
        let mut value = String::new();
        let mut rest = written;
        while let Some((before, after)) = rest.split_once("{{") {
            let (variable, after) = after.split_once("}}").unwrap_or((after, ""));
            value.push_str(before);
            value.push_str(&text(&of(variable)["default"]).unwrap_or_default());
            rest = after;
        }
        value.push_str(rest);
        to.set_env(name, value);
    }
}

/// Converts a permitted host of Spin, such as `https://*.example.com:443`, to the form of `[allow]
/// net`.
fn destination(written: &str) -> Option<String> {
    let (scheme, authority) = written.split_once("://")?;
    let authority = authority.trim_end_matches('/');
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) => (host, port),
        None => {
            let port = match scheme {
                "http" => "80",
                "https" => "443",
                "redis" => "6379",
                "postgres" => "5432",
                "mysql" => "3306",
                _ => return None,
            };
            (authority, port)
        }
    };
    match (host, port) {
        ("*", "*") => Some("*".to_owned()),
        // `[allow] net` cannot permit part of a name, and it must not permit more than the manifest
        // does.
        (host, port) if (host.contains('*') && host != "*") || port == "*" => None,
        (host, port) => Some(format!("{host}:{port}")),
    }
}
